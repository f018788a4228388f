"""Training of look-ahead embeddings (PaSS, arXiv 2311.13581): nothing else learns.

In every batch the texts are cut at one place, the rows are put behind it, and each is compared with
the target's probs at the place that it stands for.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.mask_rows import MaskRowsConfig, MaskRowsHead
from sapwood.train.batches import TrainBatch
from sapwood.train.lookahead_rows import behind_text
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class MaskRowsObjective:
    """Train look-ahead embeddings."""

    rows: int = 4  # tokens predicted beyond the next
    rate: float = 1e-2
    matrix_rate: float = 1e-2

    kind: ClassVar[str] = "mask-rows"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the target runs over the rows themselves."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> MaskRowsHead:
        """Rows that begin as the mean embedding of the corpus' tokens."""
        head = MaskRowsHead(MaskRowsConfig(teacher.width, teacher.vocab, self.rows))
        head = head.to(teacher.device)
        weights = torch.from_numpy(counts + 1).to(teacher.device, torch.float32)
        mean = weights @ teacher.embedding.float() / weights.sum()
        with torch.no_grad():
            head.embeds.copy_(mean + 0.01 * torch.randn_like(head.embeds))
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: MaskRowsHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare each row with the target at the place that it stands for."""
        place = cut(batch, self.rows)
        states = behind(head, teacher, batch.tokens[:, : place + 1])
        goal = teacher.target_probs(
            batch.final[:, place + 1 : place + 1 + self.rows].flatten(0, 1)
        ).float()
        logits = (states @ teacher.head.t()).float().flatten(0, 1)
        right = (logits.argmax(-1) == goal.argmax(-1)).float().view(-1, self.rows).mean(0)
        return LossResult(F.cross_entropy(logits, goal), right)


def cut(batch: TrainBatch, rows: int) -> int:
    """The place behind which the rows lie: drawn from the batch, so that a resumed run repeats it.

    Texts that end before the last row are compared on their padding.
    """
    source = torch.Generator().manual_seed(int(batch.tokens.sum()))
    last = max(1, min(int(batch.lengths.min()), batch.tokens.shape[1]) - rows - 1)
    first = min(max(0, int(batch.answers.min()) - 1), last - 1)
    return int(torch.randint(first, last, (1,), generator=source))


def behind(head: MaskRowsHead, teacher: Teacher, tokens: Tensor) -> Tensor:
    """Final states [batch, rows, width] of the look-ahead rows behind texts [batch, tokens]."""
    words = F.embedding(tokens, teacher.embedding)
    joined = behind_text(words, head.embeds.expand(len(tokens), -1, -1))
    out = teacher.model.base_model(inputs_embeds=joined, use_cache=False)
    states: Tensor = out.last_hidden_state[:, tokens.shape[1] :]
    return states
