"""A low-rank correction of an output head that learns while decoding: KL first, then reward.

After DVI (arXiv 2510.05421). The draft's logits are those of a frozen output head plus A B x, with
A [vocab, rank] that begins at zero, B [rank, width] and the state x. A checked token gives the
state, the drafted token a, the target's probs p, and the reward r: 1 if it was accepted. The loss
of one is, with q the draft's probs and b the running mean of rewards,

    kl KL(p || q)  +  masked r (-log q(a))  +  policy (r - b) (-log q(a))

where the weights move from KL alone to the rewarded terms. The paper's weights and its schedule
were not available: those here are ours, and options of the drafter.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import FloatArray

BETAS = 0.9, 0.999  # of Adam
TINY = 1e-8
RECENT = 64  # tokens of the mean reward


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the three terms."""

    kl: float
    masked: float
    policy: float


@dataclass(frozen=True, slots=True)
class CheckedToken:
    """A drafted token that the target has checked."""

    state: FloatArray  # [width]
    logits: FloatArray  # of the draft, [vocab]
    token: int
    target_probs: FloatArray  # [vocab]
    accepted: bool


def loss_slope(checked: CheckedToken, weights: LossWeights, baseline: float) -> FloatArray:
    """Derivative of the loss by the draft's logits, [vocab]."""
    q = probs_of(checked.logits)
    rewarded = weights.masked * checked.accepted + weights.policy * (checked.accepted - baseline)
    slope: FloatArray = weights.kl * (q - checked.target_probs) + rewarded * q
    slope[checked.token] -= rewarded
    return slope


class LowRankHead:
    """A and B, with Adam's moments and the schedule of the weights."""

    def __init__(
        self, vocab: int, width: int, rank: int, rate: float, warmup: int, anchor: float
    ) -> None:
        rng = np.random.default_rng(0)
        self.down = (rng.standard_normal((rank, width)) / np.sqrt(width)).astype(np.float32)
        self.up = np.zeros((vocab, rank), np.float32)
        self.rate = rate
        self.warmup = warmup  # tokens of KL alone, and of the move to rewards after them
        self.anchor = anchor  # weight of KL at the end
        self.baseline = 0.0
        self.learned = 0  # tokens
        self.steps = 0
        self._moments = [
            (np.zeros_like(matrix), np.zeros_like(matrix)) for matrix in (self.up, self.down)
        ]

    def correction(self, state: FloatArray) -> FloatArray:
        """Addition to the logits after this state, [vocab]."""
        found: FloatArray = self.up @ (self.down @ state.astype(np.float32))
        return found

    def weights(self) -> LossWeights:
        """Weights of the terms after the tokens learned so far."""
        share = min(max((self.learned - self.warmup) / max(self.warmup, 1), 0.0), 1.0)
        return LossWeights(1 - share * (1 - self.anchor), share, share)

    def learn(self, tokens: list[CheckedToken]) -> None:
        """One step of Adam on the mean loss of these tokens; one that is not finite is left out."""
        weights = self.weights()
        grads = np.zeros_like(self.up), np.zeros_like(self.down)
        for one in tokens:
            slope = loss_slope(one, weights, self.baseline) / len(tokens)
            grads[0][:] += np.outer(slope, self.down @ one.state)
            grads[1][:] += np.outer(self.up.T @ slope, one.state)
        for one in tokens:
            self.baseline += (one.accepted - self.baseline) / RECENT
        self.learned += len(tokens)
        if not all(np.isfinite(grad).all() for grad in grads):
            return
        self.steps += 1
        for matrix, grad, (mean, square) in zip(
            (self.up, self.down), grads, self._moments, strict=True
        ):
            mean += (1 - BETAS[0]) * (grad - mean)
            square += (1 - BETAS[1]) * (grad * grad - square)
            level = np.sqrt(square / (1 - BETAS[1] ** self.steps)) + TINY
            matrix -= self.rate * mean / (1 - BETAS[0] ** self.steps) / level


def probs_of(logits: FloatArray) -> FloatArray:
    """Softmax of a row."""
    raised = np.exp(logits.astype(np.float64) - logits.max())
    found: FloatArray = raised / raised.sum()
    return found
