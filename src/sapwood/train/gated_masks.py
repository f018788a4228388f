"""Training of mask tokens, gated adapters and the sampler head (arXiv 2507.11851).

Mask tokens lie behind random places of a text. Three losses: the mask rows' own predictions, the
sampler's with the true token before, and the distance of a mask row's state from the target's
state at the place that it stands for.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.lookahead import RowGate
from sapwood.core.part import at_least
from sapwood.heads.gated_lora import linear_layers
from sapwood.heads.gated_masks import GatedMasksConfig, GatedMasksHead
from sapwood.train.batches import TrainBatch
from sapwood.train.lookahead_rows import PackedTexts, packed_texts, run_packed
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class GatedMasksObjective:
    """Train mask tokens with gated adapters."""

    rows: int = 8  # mask tokens behind a node, >= 1
    rank: int = 128  # of the adapters, >= 1
    places: int = 8  # of a text, behind which they are put at once, >= 1
    consistency: float = 1.0  # weight of the distance from the target's states
    rate: float = 1e-3
    matrix_rate: float = 1e-3

    kind: ClassVar[str] = "gated-masks"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, rank=self.rank, places=self.places)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the target runs over the rows themselves."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> GatedMasksHead:
        """Masks that begin as the corpus' mean embedding, and adapters that change nothing."""
        layers = linear_layers(teacher.model)
        config = GatedMasksConfig(
            teacher.width,
            teacher.vocab,
            self.rows,
            self.rank,
            tuple(layer.in_features for layer in layers),
            tuple(layer.out_features for layer in layers),
        )
        head = GatedMasksHead(config).to(teacher.device)
        weights = torch.from_numpy(counts + 1).to(teacher.device, torch.float32)
        mean = weights @ teacher.embedding.float() / weights.sum()
        with torch.no_grad():
            head.embeds.copy_(mean + 0.01 * torch.randn_like(head.embeds))
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: GatedMasksHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """The sum of the three losses; agreement of the sampler by row."""
        texts = packed_texts(batch, self.rows, self.places)
        states = self.states(head, teacher, batch, texts).flatten(0, 1)
        final = texts.targets(batch.final).flatten(0, 1)
        before = texts.targets(batch.tokens).flatten(0, 1)  # at the row's place: known when drafted
        loss = self.consistency * F.mse_loss(states.float(), final.float())
        right = []
        for row in range(self.rows):
            goal = teacher.target_probs(final[:, row]).float()
            own = (states[:, row] @ teacher.head.t()).float()
            chosen = head.sampled(states[:, row], before[:, row])
            logits = (chosen.to(teacher.head.dtype) @ teacher.head.t()).float()
            more = F.cross_entropy(own, goal) + F.cross_entropy(logits, goal)
            loss = loss + more / self.rows
            right.append((logits.argmax(-1) == goal.argmax(-1)).float().mean())
        return LossResult(loss, torch.stack(right))

    def states(
        self, head: GatedMasksHead, teacher: Teacher, batch: TrainBatch, texts: PackedTexts
    ) -> Tensor:
        """Final states of the mask rows [batch, places, rows, width], with the adapters."""
        first, stop = texts.text, len(texts.packed.places)
        gate = RowGate(torch.arange(first, stop, device=batch.tokens.device))
        with head.adapter.installed(teacher.model, gate):
            return run_packed(teacher, batch.tokens, head.embeds, texts)
