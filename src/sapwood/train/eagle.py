"""Training of the EAGLE head: the target's next final state, and the probs made from it.

arXiv 2401.15077, section 4.2. More than one step is HASS (arXiv 2408.15766): step s reads the text
shifted by s and the head's own output of step s - 1, as it will when it drafts. Its other part is a
further loss, the cross entropy on the target's best ten tokens alone (`top`).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.core.array_types import IntArray
from sapwood.core.part import at_least
from sapwood.heads.eagle import EagleConfig, EagleHead
from sapwood.train.batches import TrainBatch
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.losses import soft_cross
from sapwood.train.objective import LossResult
from sapwood.train.teacher import Teacher
from sapwood.train.unrolled import Keys, attend
from sapwood.train.vocabulary import commonest

USUAL = 512  # rows of a text whose noise is `noise` wide; longer texts get less


@dataclass(frozen=True)
class EagleObjective:
    """Train an EAGLE head."""

    steps: int = 1  # on its own outputs; 1 is EAGLE, more is HASS
    decay: float = 0.85  # weight of each step against the one before
    state: float = 1.0  # weight of the distance between states
    word: float = 0.1  # weight of the cross entropy
    hard: float = 0.0  # share of the label that is the target's first choice alone
    top: int = 0  # best tokens of the target in a further cross entropy; 0: none, HASS has 10
    top_weight: float = 1.0  # of that cross entropy
    noise: float = 0.0  # width of uniform noise on the states it reads; the paper's is 0.2
    vocabulary: int = 16_384  # tokens the head can propose
    inner: int = 0  # width of its MLP; 0: the target's
    rate: float = 2e-3
    matrix_rate: float = 8e-3

    kind: ClassVar[str] = "eagle"

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, vocabulary=self.vocabulary)
        at_least(0, top=self.top)

    def features(self, teacher: Teacher) -> tuple[int, ...]:
        """None: the head reads final states."""
        return ()

    def build(self, teacher: Teacher, counts: IntArray) -> EagleHead:
        """A head that repeats the state it reads: its own layer adds little at first."""
        tokens = commonest(counts, self.vocabulary).to(teacher.device)
        config = EagleConfig(
            shape=teacher.shape(self.inner),
            target_width=teacher.width,
            vocab=teacher.vocab,
            draft_vocab=len(tokens),
            features=(teacher.layers,),
            context=teacher.backend.info.context,
        )
        head = EagleHead(config).to(teacher.device)
        head.use_vocabulary(tokens)
        head.attach(teacher.embedding, teacher.head)
        layer = head.midlayer
        with torch.no_grad():
            layer.fc.weight.mul_(0.1)
            layer.fc.weight[:, teacher.width :] += torch.eye(teacher.width, device=teacher.device)
            layer.fc.bias.zero_()
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        return head

    def loss(self, head: EagleHead, teacher: Teacher, batch: TrainBatch) -> LossResult:
        """Compare every step with the target: its states, and the probs made from them."""
        labels = label(head, teacher, batch, self.hard)
        goal = batch.final[labels.texts, labels.places]
        losses = []
        agreement = []
        for step, states in enumerate(unroll(head, batch, self.steps, self.noise)):
            rows, weights = labels.rows(step)
            chosen = states[labels.texts, rows]
            loss, right = labels.loss(chosen, head.output, weights)
            losses.append(self.word * loss + self.state * (weights * distance(chosen, goal)).sum())
            if self.top:
                losses[-1] = losses[-1] + self.top_weight * top_loss(
                    labels, chosen, head.output, weights, self.top
                )
            agreement.append(right)
        return decayed_loss(losses, agreement, self.decay)


def unroll(head: EagleHead, batch: TrainBatch, steps: int, noise: float = 0.0) -> list[Tensor]:
    """The head's outputs [batch, rows, width] at each step, all positions at once."""
    layer = head.midlayer
    keys = Keys()
    outputs = []
    states = with_noise(batch, noise).to(layer.fc.weight.dtype)
    positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device).expand_as(
        batch.tokens
    )
    for step in range(steps):
        tokens = F.pad(batch.tokens[:, 1 + step :], (0, 1 + step))
        query, key, value = layer.project(head.embed(tokens), states, positions + step)
        keys.append((key, value))
        read = attend(query[:, : head.config.shape.heads], keys)
        rows = layer.self_attn.carried(query)
        states = layer.finish(
            states, rows + layer.self_attn.o_proj(read.transpose(1, 2).flatten(2))
        )
        outputs.append(states)
    return outputs


def distance(states: Tensor, goal: Tensor) -> Tensor:
    """Distance of states from the target's [places]: Huber loss, mean over the width."""
    wide = torch.promote_types(states.dtype, torch.float32)
    return F.smooth_l1_loss(states.to(wide), goal.to(wide), reduction="none").mean(-1)


def with_noise(batch: TrainBatch, noise: float) -> Tensor:
    """Final states with uniform noise seeded by the batch, so that a resumed run repeats it."""
    if not noise:
        return batch.final
    source = torch.Generator(batch.final.device).manual_seed(int(batch.tokens.sum()))
    drawn = torch.rand(
        batch.final.shape, generator=source, device=batch.final.device, dtype=batch.final.dtype
    )
    return batch.final + (drawn - 0.5) * (noise * USUAL / batch.tokens.shape[1])


def top_loss(
    labels: TargetLabels, states: Tensor, output: Tensor, weights: Tensor, count: int
) -> Tensor:
    """Cross entropy on the target's best tokens, - sum p log q over so many of them."""
    best = labels.target_probs.topk(min(count, labels.target_probs.shape[-1]), -1)
    kept = torch.zeros_like(labels.target_probs).scatter_(-1, best.indices, best.values)
    share = kept.sum(-1, keepdim=True)
    # of labels that sum to one, weighed by what they summed to before
    loss, _ = soft_cross(states, output, kept / share, weights * share[:, 0], labels.best)
    return loss
