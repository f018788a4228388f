"""Training of the CTC head (arXiv 2412.00061): the next tokens, in any filling of its slots."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.errors import SapwoodError
from sapwood.heads.ctc import CtcConfig, CtcHead
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.objective import LossResult
from sapwood.train.parallel import begin_as_early_exit, rows_of
from sapwood.train.teacher import Teacher


@dataclass(frozen=True)
class CtcObjective:
    """Train a CTC head."""

    slots: int = 6
    heads: int = 4  # tokens to write into the slots
    places: int = 256  # of a batch that are labels: slots take much memory
    levelled: bool = True  # False: the features are not normalised
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 768  # width of its MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "ctc"

    def __post_init__(self) -> None:
        at_least(1, heads=self.heads, places=self.places, vocabulary=self.vocabulary)
        if self.slots < self.heads:
            raise SapwoodError(
                f"slots={self.slots} cannot hold heads={self.heads} tokens; use as many or more"
            )

    def features(self, teacher: Teacher) -> tuple[int, int, int]:
        """A low, a middle and a high layer, as for EAGLE-3."""
        return Eagle3Objective().features(teacher)

    def build(self, teacher: Teacher, counts: IntArray) -> CtcHead:
        """A head that begins as an early exit."""
        config = CtcConfig(
            shape=teacher.shape(self.inner),
            target_width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=min(self.vocabulary, teacher.vocab),
            features=self.features(teacher),
            context=teacher.backend.info.context,
            depth=self.slots,
            levelled=self.levelled,
            heads=self.heads,
        )
        head = CtcHead(config).to(teacher.device)
        begin_as_early_exit(head, teacher, counts)
        return head

    def loss(self, head: CtcHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Minus the log-probability of the next tokens, over all fillings of the slots."""
        texts, rows, tokens = labelled_places(head, batch, self.places)
        outputs = rows_of(head, teacher.embedding, batch)
        count = len(texts)
        if not count:  # nothing is labelled: a loss of 0 whose gradient is zero
            return LossResult(outputs[0].sum() * 0.0, torch.zeros(1, device=rows.device))
        slots = head.slots(torch.stack([states[texts, rows] for states in outputs]))
        each = F.ctc_loss(
            slots,
            tokens,
            torch.full((count,), len(slots)),
            torch.full((count,), self.heads),
            blank=slots.shape[-1] - 1,
            reduction="none",
            zero_infinity=True,  # repeated tokens that need more slots than there are
        )
        loss = each.sum() / (self.heads * count)
        with torch.no_grad():
            right = (first_probs(slots).argmax(-1) == tokens[:, 0]).sum() / count
        return LossResult(loss, right[None].float())


def labelled_places(head: CtcHead, batch: TrainBatch, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Text and row of each labelled place, and the draft tokens behind it, [places, heads].

    If there are more than `most`, the batch seeds the choice, so that a resumed run repeats it.
    """
    count = head.config.heads
    texts, places = batch.labelled_places()
    fits = (places >= 1) & (places + count < batch.lengths[texts])
    texts, places = texts[fits], places[fits]
    ahead = places[:, None] + 1 + torch.arange(count, device=places.device)
    tokens = batch.tokens[texts[:, None], ahead]
    known = head.t2d[tokens].all(-1)
    texts, places, tokens = texts[known], places[known], tokens[known]
    if len(texts) > most:
        source = torch.Generator().manual_seed(int(batch.tokens.sum()))
        drawn = torch.randperm(len(texts), generator=source)[:most].to(texts.device)
        texts, places, tokens = texts[drawn], places[drawn], tokens[drawn]
    return texts, places - 1, torch.searchsorted(head.vocabulary, tokens)


def first_probs(slots: Tensor) -> Tensor:
    """Probability [places, draft vocab] of each first token, from slots [slots, places, all]."""
    blanks = slots[:, :, -1].cumsum(0).roll(1, 0)  # of all slots before
    blanks[0] = 0.0
    return (slots[:, :, :-1] + blanks[..., None]).exp().sum(0)
