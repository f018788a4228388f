"""Training of the EAGLE-3 head: unrolled steps, soft labels, all positions at once.

arXiv 2503.01840, section 3.2 ("training-time test"). Step s reads the text shifted by s and its
own output of step s - 1; the label of every step is the target's probs at the place it predicts.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least, between
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.train.batches import TrainBatch
from sapwood.train.losses import check_divergence, soft_cross
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.unrolled import Keys, attend
from sapwood.train.vocabulary import commonest


@dataclass(frozen=True)
class Eagle3Objective:
    """Train an EAGLE-3 head."""

    unroll: int = 7  # steps the head is trained on its own outputs
    decay: float = 0.85  # weight of each step against the one before
    hard: float = 0.3  # share of the label that is the target's first choice alone
    divergence: str = "fkl"  # from the target's probs: fkl, rkl, jsd or tvd
    vocabulary: int = 14_336  # tokens the head can propose
    inner: int = 0  # width of its MLP; 0: four times the target's width
    start: str = ""  # folder of a head to go on from, with its vocabulary and width; "": a new one
    rate: float = 2.5e-3
    matrix_rate: float = 1.2e-2

    kind: ClassVar[str] = "eagle3"

    def __post_init__(self) -> None:
        at_least(1, unroll=self.unroll, vocabulary=self.vocabulary)
        at_least(0, inner=self.inner)
        between(0, 1, hard=self.hard, decay=self.decay)
        check_divergence(self.divergence)
        if self.start:  # errors come before texts are made
            self.check_start()

    def check_start(self) -> None:
        """Raise if `start` is not a head of this kind."""
        if files.read_block(Path(self.start).expanduser())["kind"] != self.kind:
            raise SapwoodError(
                f"start={self.start!r} holds another kind of head; "
                "name the folder of a trained eagle3"
            )

    def features(self, teacher: Teacher) -> tuple[int, int, int]:
        """A low, a middle and a high layer: the defaults of other engines."""
        low = 2
        middle = teacher.layers // 2
        high = teacher.layers - 3
        return min(low, middle), middle, max(high, middle)

    def build(self, teacher: Teacher, counts: IntArray) -> Eagle3Head:
        """The head to go on from, or one that begins as an early exit from the high layer."""
        return self.begun(teacher) if self.start else self.new(teacher, counts)

    def begun(self, teacher: Teacher) -> Eagle3Head:
        """The head of an earlier run, in float32."""
        head = files.load(Path(self.start).expanduser(), device=teacher.device, dtype=torch.float32)
        assert isinstance(head, Eagle3Head)
        made_for = head.config.vocab, head.config.target_width, head.config.features
        if made_for != (teacher.vocab, teacher.width, self.features(teacher)):
            raise SapwoodError(
                f"the head in start={self.start!r} was made for another model; "
                "begin anew without it"
            )
        return head

    def new(self, teacher: Teacher, counts: IntArray) -> Eagle3Head:
        """A head that begins as an early exit: its own layer adds little to the high features."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = Eagle3Config(
            shape=teacher.shape(self.inner or 4 * teacher.width),
            target_width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=len(tokens),
            features=self.features(teacher),
            context=teacher.backend.info.context,
        )
        head = Eagle3Head(config).to(teacher.device)
        head.use_vocabulary(tokens)
        with torch.no_grad():
            width = teacher.width
            head.fc.weight.mul_(0.1)
            head.fc.weight[:, 2 * width :] += torch.eye(width, device=teacher.device)
            head.midlayer.self_attn.o_proj.weight.mul_(0.1)
            head.midlayer.mlp.down_proj.weight.mul_(0.1)
            head.lm_head.weight.copy_(teacher.head[tokens])
            if teacher.norm is not None:
                head.norm.weight.copy_(teacher.norm)
        return head

    def loss(self, head: Eagle3Head, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Unroll the head over a batch and compare every step with the target."""
        texts, places = batch.labelled_places()
        target_probs = teacher.target_probs(batch.final[texts, places], head.vocabulary)
        best = target_probs.argmax(-1)
        target_probs = sharpen(target_probs, best, self.hard)
        known = head.t2d[batch.tokens[texts, places + 1]]  # the token is in the draft vocabulary
        losses = []
        agreement = []
        for step, states in enumerate(unroll(head, teacher.embedding, batch, self.unroll)):
            rows = places - 1 - step  # the row that predicts this place
            weights = known & (rows >= 0)
            weights = weights / weights.sum().clamp(min=1)
            chosen = head.norm(states[texts, rows.clamp(min=0)])
            loss, right = soft_cross(
                chosen, head.lm_head.weight, target_probs, weights, best, self.divergence
            )
            losses.append(loss * self.decay**step)
            agreement.append(right)
        total = sum(self.decay**step for step in range(self.unroll))
        return LossResult(torch.stack(losses).sum() / total, torch.stack(agreement))


def unroll(head: Eagle3Head, embedding: Tensor, batch: TrainBatch, steps: int) -> list[Tensor]:
    """The head's outputs [batch, rows, width] at each step, all positions at once."""
    layer = head.midlayer
    keys = Keys()
    outputs = []
    states = head.begin(batch.features.to(head.fc.weight.dtype))
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(
        batch.tokens
    )
    for step in range(steps):
        tokens = F.pad(batch.tokens[:, 1 + step :], (0, 1 + step))
        embeds = F.embedding(tokens, embedding).to(states.dtype)
        query, key, value = layer.project(embeds, states, positions + step)
        keys.append((key, value))
        read = attend(query, keys)
        states = layer.finish(states, layer.self_attn.o_proj(read.transpose(1, 2).flatten(2)))
        outputs.append(states)
    return outputs


def sharpen(target_probs: Tensor, best: Tensor, share: float) -> Tensor:
    """Probs [rows, tokens] with this share of their mass moved to the best token, in place."""
    target_probs *= 1 - share
    target_probs.scatter_add_(
        1, best[:, None], target_probs.new_full((len(target_probs), 1), share)
    )
    return target_probs
