"""Training of hidden transfer (arXiv 2404.12022): its matrices alone learn.

In every batch pseudo states are made behind several places of each text and run through the
target's later layers, all at once: behind the text, each sees the text up to its own place and the
pseudo states before it. Each is compared with the target's probs at the place that it stands for.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.heads.hidden_transfer import HiddenTransferConfig, HiddenTransferHead, later_layers
from sapwood.train.batches import TrainBatch
from sapwood.train.lookahead_rows import behind_text
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class HiddenTransferObjective:
    """Train the matrices of hidden transfer."""

    rows: int = 3  # pseudo states
    depth: float = 0.6  # share of the target's layers below them
    places: int = 24  # of each text in a batch
    decay: float = 0.8  # weight of each pseudo state against the one before
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "hidden-transfer"

    def __post_init__(self) -> None:
        at_least(1, rows=self.rows, places=self.places)
        between(0, 1, depth=self.depth, decay=self.decay)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """The layer at whose input pseudo states are made."""
        return (min(int(teacher.layers * self.depth), teacher.layers - 1),)

    def build(self, teacher: Teacher, counts: IntArray) -> HiddenTransferHead:
        """Matrices that begin as the identity, nearly."""
        [layer] = self.features(teacher)
        config = HiddenTransferConfig(teacher.width, teacher.vocab, layer, self.rows)
        head = HiddenTransferHead(config).to(teacher.device)
        head.attach(teacher.embedding, teacher.head)
        return head

    def loss(self, head: HiddenTransferHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare each pseudo state with the target at the place that it stands for."""
        places = chosen(batch, self.places)
        states = behind(head, teacher, batch, places)  # [batch, places, rows, width]
        ahead = places[..., None] + torch.arange(1, self.rows + 1, device=places.device)
        counted = (ahead < batch.lengths[:, None, None] - 1) & (
            ahead >= batch.answers[:, None, None] - 1
        )
        last = batch.tokens.shape[1] - 1
        texts = torch.arange(len(places), device=places.device)[:, None, None]
        final = batch.final[texts, ahead.clamp(max=last)]
        goal = teacher.target_probs(final.flatten(0, 2)).to(states.dtype)
        logits = (states @ teacher.head.t().to(states.dtype)).flatten(0, 2)
        weights = counted * self.decay ** torch.arange(self.rows, device=places.device)
        weights = (weights / weights.sum().clamp(min=1e-9)).flatten()
        loss = (weights * F.cross_entropy(logits, goal, reduction="none")).sum()
        right = (logits.argmax(-1) == goal.argmax(-1)).view(counted.shape) & counted
        shares = right.sum((0, 1)) / counted.sum((0, 1)).clamp(min=1)
        return LossResult(loss, shares.float())


def chosen(batch: TrainBatch, count: int) -> Tensor:
    """Places [batch, count] behind which pseudo states lie.

    They are drawn from the batch, so that a resumed run repeats them.
    """
    source = torch.Generator().manual_seed(int(batch.tokens.sum()))
    drawn = torch.rand(len(batch.tokens), count, generator=source).to(batch.tokens.device)
    first = (batch.answers - 1).clamp(min=0)[:, None]
    span = (batch.lengths[:, None] - 2 - first).clamp(min=1)
    return first + (drawn * span).long().clamp(max=span - 1)


def behind(head: HiddenTransferHead, teacher: Teacher, batch: TrainBatch, places: Tensor) -> Tensor:
    """Final states [batch, places, rows, width] of the pseudo states behind these places."""
    rows = head.config.rows
    text = batch.features  # [batch, tokens, width], inputs of the layer
    texts = torch.arange(len(places), device=places.device)[:, None]
    made = head.pseudo(text[texts, places].to(head.matrices()[0].weight.dtype))
    joined = behind_text(text, made.flatten(1, 2))
    length = text.shape[1]
    steps = torch.arange(1, rows + 1, device=places.device)
    spots = torch.arange(length, device=places.device)
    positions = torch.cat((spots.expand(len(text), -1), (places[..., None] + steps).flatten(1)), 1)
    base = later_layers(teacher.model, head.config.layer)
    out = base(
        inputs_embeds=joined,
        attention_mask=seen(places, length, rows)[:, None],
        position_ids=positions,
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state[:, length:]
    return states.view(len(places), places.shape[1], rows, -1)


def seen(places: Tensor, length: int, rows: int) -> Tensor:
    """Mask [batch, all rows, all rows]: texts are causal, pseudo states see text and group."""
    device = places.device
    spots = torch.arange(length, device=device)
    count = places.shape[1] * rows
    number = torch.arange(count, device=device)
    whole = torch.zeros(
        len(places), length + count, length + count, dtype=torch.bool, device=device
    )
    whole[:, :length, :length] = spots <= spots[:, None]
    whole[:, length:, :length] = spots <= places.repeat_interleave(rows, 1)[..., None]
    group = number // rows
    whole[:, length:, length:] = (group == group[:, None]) & (number <= number[:, None])
    return whole
