"""A small LSTM with one output in numpy, trained by gradients through time.

A sequence is a dozen steps of a dozen inputs, for which a call of a tensor library would cost more
than the arithmetic.
"""

from dataclasses import dataclass, field

import numpy as np

from sapwood.common.numpy_mlp import sigmoid
from sapwood.core.array_types import FloatArray

CLIP = 1.0  # largest norm of a gradient


@dataclass
class LstmStep:
    """Values of one step that its gradient needs."""

    inputs: FloatArray  # inputs, state before and a one, [in + hidden + 1]
    gates: FloatArray  # input, forget, output gate and candidate, [4, hidden]
    before: FloatArray  # cell before the step, [hidden]
    cell: FloatArray  # cell after it, [hidden]
    state: FloatArray  # output of the step, [hidden]
    logit: float


@dataclass
class SmallLstm:
    """An LSTM cell with a linear output; Adam updates it in place."""

    width: int  # of the inputs
    hidden: int
    seed: int = 0
    rate: float = 0.02  # of Adam
    bias: float = 0.0  # of the output at the start
    steps: int = 0  # updates so far
    weights: list[FloatArray] = field(init=False)  # of the gates and of the output

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        rows = self.width + self.hidden + 1
        gates = rng.normal(0.0, rows**-0.5, (rows, 4 * self.hidden))
        gates[-1, self.hidden : 2 * self.hidden] = 1.0  # at first nothing is forgotten
        output = np.zeros(self.hidden + 1)
        output[-1] = self.bias
        self.weights = [gates, output]
        self.moments = [(np.zeros_like(weight), np.zeros_like(weight)) for weight in self.weights]

    def step(self, inputs: FloatArray, before: LstmStep | None) -> LstmStep:
        """One step after another, or the first one."""
        state = np.zeros(self.hidden) if before is None else before.state
        cell = np.zeros(self.hidden) if before is None else before.cell
        row = np.concatenate([inputs, state, [1.0]])
        raw = (row @ self.weights[0]).reshape(4, self.hidden)
        gates = np.concatenate([sigmoid(raw[:3]), np.tanh(raw[3:])])
        after = gates[1] * cell + gates[0] * gates[3]
        output = gates[2] * np.tanh(after)
        logit = float(output @ self.weights[1][:-1] + self.weights[1][-1])
        return LstmStep(row, gates, cell, after, output, logit)

    def gradients(self, steps: list[LstmStep], slopes: list[float]) -> list[FloatArray]:
        """Gradients of the weights, given the slope of the aim in each step's logit."""
        grads = [np.zeros_like(weight) for weight in self.weights]
        down = np.zeros(self.hidden)  # of the state after the step
        carried = np.zeros(self.hidden)  # of the cell after the step
        for step, slope in zip(reversed(steps), reversed(slopes), strict=True):
            grads[1][:-1] += slope * step.state
            grads[1][-1] += slope
            down = down + slope * self.weights[1][:-1]
            gate_in, gate_keep, gate_out, candidate = step.gates
            shaped = np.tanh(step.cell)
            carried = carried + down * gate_out * (1.0 - shaped**2)
            raw = np.concatenate(
                [
                    carried * candidate * gate_in * (1.0 - gate_in),
                    carried * step.before * gate_keep * (1.0 - gate_keep),
                    down * shaped * gate_out * (1.0 - gate_out),
                    carried * gate_in * (1.0 - candidate**2),
                ]
            )
            grads[0] += np.outer(step.inputs, raw)
            down = (self.weights[0] @ raw)[self.width : -1]
            carried = carried * gate_keep
        return grads

    def ascend(self, steps: list[LstmStep], slopes: list[float]) -> None:
        """Move the weights up the aim, by one step of Adam."""
        grads = self.gradients(steps, slopes)
        norm = float(np.sqrt(sum(float((grad**2).sum()) for grad in grads)))
        scale = min(1.0, CLIP / norm) if norm > 0 else 0.0
        self.steps += 1
        for weight, grad, (mean, square) in zip(self.weights, grads, self.moments, strict=True):
            mean += 0.1 * (scale * grad - mean)
            square += 0.001 * ((scale * grad) ** 2 - square)
            step = mean / (1.0 - 0.9**self.steps)
            size = np.sqrt(square / (1.0 - 0.999**self.steps)) + 1e-8
            weight += self.rate * step / size
