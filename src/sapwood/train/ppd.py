"""Training of prompt tokens (PPD, arXiv 2405.18628): embeddings alone learn, from the target.

Prompt tokens are put behind random places of a text and compared with the target's probs at the
places that they stand for; those further ahead weigh less.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.mask_rows import MaskRowsConfig
from sapwood.heads.ppd import PpdHead
from sapwood.train.batches import TrainBatch
from sapwood.train.lookahead_rows import packed_texts, run_packed
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class PpdObjective:
    """Train prompt tokens."""

    rows: int = 3  # prompt tokens behind a node, >= 1
    places: int = 16  # of a text, behind which they are put at once, >= 1
    decay: float = 0.8  # weight of a prompt token against the one before it
    rate: float = 1e-2
    matrix_rate: float = 1e-2

    kind: ClassVar[str] = "ppd"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, places=self.places)
        between(0, 1, decay=self.decay)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the target runs over the rows themselves."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> PpdHead:
        """Rows that begin as the mean embedding of the corpus' tokens."""
        head = PpdHead(MaskRowsConfig(teacher.width, teacher.vocab, self.rows)).to(teacher.device)
        weights = torch.from_numpy(counts + 1).to(teacher.device, torch.float32)
        mean = weights @ teacher.embedding.float() / weights.sum()
        with torch.no_grad():
            head.embeds.copy_(mean + 0.01 * torch.randn_like(head.embeds))
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: PpdHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare each row with the target at the place that it stands for."""
        texts = packed_texts(batch, self.rows, self.places)
        states = run_packed(teacher, batch.tokens, head.embeds, texts).flatten(0, 1)
        final = texts.targets(batch.final).flatten(0, 1)
        losses, right = [], []
        for row in range(self.rows):
            goal = teacher.target_probs(final[:, row]).float()
            logits = (states[:, row] @ teacher.head.t()).float()
            losses.append(self.decay**row * F.cross_entropy(logits, goal))
            right.append((logits.argmax(-1) == goal.argmax(-1)).float().mean())
        return LossResult(torch.stack(losses).sum(), torch.stack(right))


def rank_hits(head: PpdHead, teacher: Teacher, batch: TrainBatch, ranks: int) -> tuple[Tensor, int]:
    """Answer tokens that are the draft of each rank [rows, ranks], and the places tried."""
    rows = head.config.rows
    texts = packed_texts(batch, rows, batch.tokens.shape[1])
    states = run_packed(teacher, batch.tokens, head.embeds, texts)
    steps = torch.arange(2, rows + 2, device=batch.tokens.device)
    where = texts.anchors[:, None] + steps  # of the token that each row predicts, [places, rows]
    whole = (where[:, -1] < batch.lengths[:, None]) & (where[:, 0] > batch.answers[:, None])
    best = (states @ teacher.head.t()).topk(min(ranks, teacher.vocab), -1).indices
    hits = (best == batch.tokens[:, where][..., None]) & whole[..., None, None]
    return hits.sum((0, 1)), int(whole.sum())
