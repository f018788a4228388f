"""Online learning of a trained head from drafted tokens that the target rejected.

After Online Speculative Decoding (arXiv 2310.07177) and DVI (arXiv 2510.05421). The head itself
stays as it is. What learns is a small correction of its logits, kept in dual form: where the head's
first choice was wrong, its state and the largest entries of p - q there are remembered, which is
one step of gradient descent on the cross-entropy in the space of functions of the state. A later
state is corrected by what is remembered of states like it. The correction begins at nothing, is
shared by all requests of an engine, and is gone with the engine. On every emitted token it is
compared with the head alone, used or not: drafts follow it only while it is the better of the two,
and where it is much worse it is forgotten.

It learns between rounds alone, so a round drafts from one correction, and the q that a verifier
reads is the one that was drawn from. That q depends on earlier rounds, never on the noise of its
own, so the output keeps its distribution. A bound on time makes the *trees* depend on the machine,
never the text of a recipe that promises TEXT; for reproducible trees give more seconds than are
ever needed, so that `steps` alone decides.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Drafter, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 16  # largest entries of p - q that are kept of a rejected token
NEAR = 0.05  # one minus the cosine at which the weight of a remembered state is 1/e
MARGIN = 0.1  # mean nats per token by which the correction may be worse than the head
RECENT = 64  # tokens of this mean


@dataclass(frozen=True, slots=True)
class HeadGuess:
    """Logits with and without correction after a node of the accepted path, and the token."""

    state: "Tensor"  # the head's output, [width]
    plain: "Tensor"  # the head's logits, [draft vocab]
    corrected: "Tensor"  # the same after correction, [draft vocab]
    node: int  # in the verified tree
    label: int  # index of the emitted token in the draft vocabulary

    @property
    def wrong(self) -> bool:
        """True when the best token after correction was not the emitted one."""
        return int(self.corrected.argmax()) != self.label

    def gain(self) -> float:
        """Nats that the correction gained on the emitted token over the head alone."""
        after, before = (
            row.float().log_softmax(-1)[self.label] for row in (self.corrected, self.plain)
        )
        return float(after - before)


class LogitCorrection:
    """Remembered states and logit corrections of similar states; the newest replaces the oldest."""

    def __init__(self, memory: int, rate: float, width: int, like: "Tensor") -> None:
        import torch

        self.rate = rate
        self.states = like.new_zeros(memory, width, dtype=torch.float32)  # of length one
        self.tokens = like.new_zeros(memory, TOKENS, dtype=torch.int64)  # in the draft vocabulary
        # added to the logits of these tokens
        self.steps = like.new_zeros(memory, TOKENS, dtype=torch.float32)
        self.forget()

    def forget(self) -> None:
        """Reset to no correction."""
        self.steps.zero_()
        self.learned = 0  # rejected tokens so far
        self.record = 0.0  # recent mean gain per token, nats

    @property
    def trusted(self) -> bool:
        """True while the correction has recently been better than the head alone."""
        return self.record > 0

    def apply(self, outputs: "Tensor", logits: "Tensor") -> "Tensor":
        """Corrected logits [rows, draft vocab] of outputs [rows, width]; only if finite."""
        used = min(self.learned, len(self.steps))
        if not used:
            return logits
        near = ((unit(outputs) @ self.states[:used].T - 1.0) / NEAR).exp()  # [rows, used]
        change = (near[:, :, None] * self.steps[:used]).flatten(1)
        corrected = logits.float().scatter_add(
            1, self.tokens[:used].flatten().expand(len(logits), -1), change
        )
        if not bool(corrected.isfinite().all()):
            self.record = math.nan  # reset after the round
            return logits
        return corrected

    def learn(self, guess: HeadGuess, probs: "Tensor") -> None:
        """One step towards the target's probs [draft vocab]; resets if it is not finite."""
        slope = probs - guess.corrected.float().softmax(-1)
        tokens = slope.abs().topk(min(TOKENS, len(slope))).indices
        state = unit(guess.state)
        steps = self.rate * slope[tokens]
        if not bool(state.isfinite().all() & steps.isfinite().all()):
            self.forget()
            return
        slot = self.learned % len(self.steps)
        self.states[slot] = state
        self.tokens[slot, : len(tokens)], self.steps[slot, : len(tokens)] = tokens, steps
        self.learned += 1

    def judge(self, gains: Sequence[float]) -> None:
        """Count the gain on emitted tokens; resets when it is worse than the head alone."""
        for gain in gains:
            self.record += (gain - self.record) / RECENT
        if not self.record >= -MARGIN:  # nan fails too
            self.forget()


class TimeAllowance:
    """Time limit per round: a step starts if the last one's time fits; overruns are paid back."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self.seconds = seconds
        self.now = now
        self.price = 0.0  # of the last step
        self.debt = 0.0  # seconds spent beyond the limit of past rounds

    def spend(self, steps: Sequence[Callable[[], None]]) -> None:
        """Run as many of these steps as fit into the round's time."""
        if self.debt > 0:
            self.debt -= self.seconds
            return
        spent = 0.0
        for step in steps:
            if spent + min(self.price, self.seconds) > self.seconds:
                break
            begun = self.now()
            step()
            self.price = self.now() - begun
            spent += self.price
        self.debt = spent - self.seconds


@dataclass
class Online(Part):
    """An EAGLE head that learns from its rejected tokens while it serves."""

    drafter: Drafter = field(default_factory=Eagle3)  # eagle3 or eagle
    rate: float = 8.0  # step size of one rejected token, > 0
    memory: int = 512  # rejected tokens that are remembered, >= 1
    steps: int = 8  # most steps per round, >= 1
    # most time for learning per round, > 0; overruns are paid back by later rounds
    seconds: float = 0.005

    paper: ClassVar[str] = "2310.07177"
    reads_scores = True
    now = staticmethod(time.perf_counter)  # seconds; replaced when runs must be reproducible

    def __post_init__(self) -> None:
        at_least(1, memory=self.memory, steps=self.steps)
        for name in ("rate", "seconds"):
            if not getattr(self, name) > 0:
                raise SapwoodError(
                    f"{name}={getattr(self, name)} of online must be above 0; "
                    "to learn nothing, use the drafter alone"
                )
        if not isinstance(self.drafter, Eagle3):
            raise SapwoodError(f"online cannot teach {self.drafter}; give it eagle3 or eagle")

    @property
    def draws(self) -> Draw:
        """The inner drafter's draws."""
        return self.drafter.draws

    @property
    def needs(self) -> frozenset[str]:
        """The inner drafter's needs."""
        return self.drafter.needs

    def bind(self, setting: EngineContext) -> None:
        """Load the head and begin without corrections."""
        super().bind(setting)
        eagle = cast(Eagle3, self.drafter)
        self.places = {token: place for place, token in enumerate(eagle.tokens.tolist())}
        width = eagle.net.config.shape.width
        self.correction = LogitCorrection(self.memory, self.rate, width, eagle.embedding)
        self.allowance = TimeAllowance(self.seconds, self.now)
        self._time_one_step(setting.target.info.vocab)

    def _time_one_step(self, vocab: int) -> None:
        """Time a step in advance, so that the time of the first one while serving is known."""
        import numpy as np
        import torch

        with torch.inference_mode():
            logits = torch.zeros(len(self.places), device=self.correction.states.device)
            guess = HeadGuess(torch.ones_like(self.correction.states[0]), logits, logits, 0, 0)
            for _ in range(2):  # the first one warms up
                self.allowance.debt = 0.0
                self.allowance.spend(
                    [partial(self._step, guess, lambda _: np.zeros(vocab, np.float32))]
                )
        self.allowance.debt = 0.0
        self.correction.forget()

    def reset(self, request: RequestContext) -> None:
        """Begin a request whose drafts are corrected."""
        eagle = cast(Eagle3, self.drafter)
        eagle.source = self.source
        super().reset(request)
        eagle.correct_ = self._correct
        # node -> output, logits, corrected logits
        self.said_: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier from corrected logits."""
        self.drafter.expand(tree, frontier, rng)

    def _correct(self, nodes: Sequence[int], outputs: "Tensor", logits: "Tensor") -> "Tensor":
        """Logits of these nodes, corrected if that helps; both are kept until the verdict."""
        corrected = self.correction.apply(outputs, logits)
        self.said_.update(zip(nodes, zip(outputs, logits, corrected, strict=True), strict=True))
        return corrected if self.correction.trusted else logits

    def observe(self, outcome: Outcome) -> None:
        """Compare the logits along the path with the emitted tokens, and learn from the errors."""
        import torch

        super().observe(outcome)
        with torch.inference_mode():
            guesses = list(self._guesses(outcome))
            if self.correction.learned:
                self.correction.judge([guess.gain() for guess in guesses])
            wrong = [guess for guess in guesses if guess.wrong][: self.steps]
            self.allowance.spend(
                [partial(self._step, guess, outcome.scores.logits) for guess in wrong]
            )
        self.said_ = {}

    def _guesses(self, outcome: Outcome) -> Iterator[HeadGuess]:
        """Logits after each node of the path that was expanded, if the token is a draft token."""
        kept = range(len(outcome.tree)) if outcome.tree.kept is None else outcome.tree.kept.tolist()
        for node, token in zip(outcome.verdict.path, outcome.tokens, strict=True):
            if kept[node] in self.said_ and token in self.places:
                yield HeadGuess(*self.said_[kept[node]], node, self.places[token])

    def _step(self, guess: HeadGuess, logits: Callable[[int], FloatArray]) -> None:
        """One step towards the target's probs over the draft tokens, from its logits [vocab]."""
        import torch

        raw = logits(guess.node)[cast(Eagle3, self.drafter).tokens]
        known = torch.from_numpy(raw).to(self.correction.states.device)
        self.correction.learn(guess, known.float().softmax(-1))

    def close(self) -> None:
        """Free the request's memory."""
        super().close()
        del self.said_


def unit(states: "Tensor") -> "Tensor":
    """States [..., width] scaled to length one, in single precision."""
    exact = states.float()
    scaled: Tensor = exact / exact.norm(dim=-1, keepdim=True)
    return scaled
