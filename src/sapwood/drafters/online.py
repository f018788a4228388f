"""Let a trained head go on learning, while it serves, from the guesses that the target corrected.

After Online Speculative Decoding (arXiv 2310.07177) and DVI (arXiv 2510.05421). The head itself stays as
it is. What learns is a small correction of its logits, kept in dual form: where the head's first choice
was wrong, its state and the largest entries of p - q there are remembered, which is one step of gradient
descent on the cross-entropy in the space of functions of the state. A later state is corrected by what
is remembered of states like it. The correction begins at nothing, is shared by all requests of an
engine, and is gone with the engine. On every emitted token it is compared with the head alone, used or
not: drafts follow it only while it is the better of the two, and where it is much worse it is forgotten.

It learns between rounds alone, so a round drafts from one correction, and the q that a verifier reads is
the one that was drawn from. That q depends on earlier rounds, never on the noise of its own, so
the law of the output holds. A bound on time makes the *trees* depend on the machine, never
the text of a recipe that promises TEXT; where trees must repeat too, give more seconds than are ever needed,
and `steps` alone decides.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from sapwood.arrays import FloatArray
from sapwood.drafters.eagle import Eagle
from sapwood.errors import SapwoodError
from sapwood.part import Part, at_least
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.records import Draw, Outcome
from sapwood.rng import Rng
from sapwood.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 16  # entries of p - q that are kept of a guess; the others are small
NEAR = 0.05  # one minus the cosine at which a remembered state counts 1/e of what it does at itself
MARGIN = 0.1  # nats per token, in the mean, that the correction may do worse than the head alone
RECENT = 64  # tokens that this mean looks back on


@dataclass(frozen=True, slots=True)
class Guess:
    """What the head and its correction said after one node of the accepted path, and what came."""

    state: "Tensor"  # the head's output, [width]
    plain: "Tensor"  # the head's logits, [draft vocab]
    corrected: "Tensor"  # the same after correction, [draft vocab]
    node: int  # in the checked tree
    label: int  # place of the emitted token in the draft vocabulary

    @property
    def wrong(self) -> bool:
        """True where the first choice after correction was another token."""
        return int(self.corrected.argmax()) != self.label

    def gain(self) -> float:
        """Nats that the correction gained on the emitted token over the head alone."""
        after, before = (row.float().log_softmax(-1)[self.label] for row in (self.corrected, self.plain))
        return float(after - before)


class Correction:
    """Remembered states and what to add to the logits of a state like them; the newest replaces the oldest."""

    def __init__(self, memory: int, rate: float, width: int, like: "Tensor") -> None:
        import torch

        self.rate = rate
        self.states = like.new_zeros(memory, width, dtype=torch.float32)  # of length one
        self.tokens = like.new_zeros(memory, TOKENS, dtype=torch.int64)  # in the draft vocabulary
        self.steps = like.new_zeros(memory, TOKENS, dtype=torch.float32)  # what a state like it adds to their logits
        self.forget()

    def forget(self) -> None:
        """Begin again at nothing."""
        self.steps.zero_()
        self.learned = 0  # guesses so far
        self.record = 0.0  # recent mean gain per token, nats

    @property
    def trusted(self) -> bool:
        """True while the correction has lately done better than the head alone."""
        return self.record > 0

    def apply(self, outputs: "Tensor", logits: "Tensor") -> "Tensor":
        """Corrected logits [rows, draft vocab] of the head's outputs [rows, width]; its own where these are broken."""
        used = min(self.learned, len(self.steps))
        if not used:
            return logits
        near = ((unit(outputs) @ self.states[:used].T - 1.0) / NEAR).exp()  # [rows, used]
        change = (near[:, :, None] * self.steps[:used]).flatten(1)
        corrected = logits.float().scatter_add(1, self.tokens[:used].flatten().expand(len(logits), -1), change)
        if not bool(corrected.isfinite().all()):
            self.record = math.nan  # forgotten after the round
            return logits
        return corrected

    def learn(self, guess: Guess, law: "Tensor") -> None:
        """Take one step towards the target's law [draft vocab] at a guess; forget all where that is no number."""
        slope = law - guess.corrected.float().softmax(-1)
        tokens = slope.abs().topk(min(TOKENS, len(slope))).indices
        state, steps = unit(guess.state), self.rate * slope[tokens]
        if not bool(state.isfinite().all() & steps.isfinite().all()):
            self.forget()
            return
        slot = self.learned % len(self.steps)
        self.states[slot] = state
        self.tokens[slot, : len(tokens)], self.steps[slot, : len(tokens)] = tokens, steps
        self.learned += 1

    def judge(self, gains: Sequence[float]) -> None:
        """Book what the correction gained on emitted tokens; forget it where it does worse than the head alone."""
        for gain in gains:
            self.record += (gain - self.record) / RECENT
        if not self.record >= -MARGIN:  # what is no number fails too
            self.forget()


class Allowance:
    """Seconds per round: a step begins where one like the last still fits, and an overrun is paid off by resting."""

    def __init__(self, seconds: float, now: Callable[[], float]) -> None:
        self.seconds, self.now = seconds, now
        self.price = 0.0  # of the last step
        self.debt = 0.0  # spent beyond the allowance of past rounds

    def spend(self, steps: Sequence[Callable[[], None]]) -> None:
        """Do as many of these steps as this round can pay for."""
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
    """Let an EAGLE head learn from its wrong guesses while it serves."""

    drafter: Drafter = field(default_factory=Eagle)  # eagle3 or eagle
    rate: float = 8.0  # how far one wrong guess moves the logits, > 0
    memory: int = 512  # wrong guesses that are remembered, >= 1
    steps: int = 8  # most guesses learned from per round, >= 1
    seconds: float = 0.005  # most time for learning per round, > 0; a step that was slower is paid off by resting

    paper: ClassVar[str] = "2310.07177"
    now = staticmethod(time.perf_counter)  # seconds; replaced where runs must repeat exactly

    def __post_init__(self) -> None:
        at_least(1, memory=self.memory, steps=self.steps)
        for name in ("rate", "seconds"):
            if not getattr(self, name) > 0:
                raise SapwoodError(
                    f"{name}={getattr(self, name)} of online must be above 0; to learn nothing, use the drafter alone"
                )
        if not isinstance(self.drafter, Eagle):
            raise SapwoodError(f"online cannot teach {self.drafter}; give it eagle3 or eagle")

    @property
    def draws(self) -> Draw:
        """As the drafter inside."""
        return self.drafter.draws

    @property
    def needs(self) -> frozenset[str]:
        """As the drafter inside."""
        return self.drafter.needs

    def bind(self, setting: Setting) -> None:
        """Load the head and make a correction that changes nothing yet."""
        super().bind(setting)
        eagle = cast(Eagle, self.drafter)
        self.places = {token: place for place, token in enumerate(eagle.tokens.tolist())}
        width = eagle.net.config.shape.width
        self.correction = Correction(self.memory, self.rate, width, eagle.embedding)
        self.allowance = Allowance(self.seconds, self.now)
        self._rehearse(setting.target.info.vocab)

    def _rehearse(self, vocab: int) -> None:
        """Learn a step once for nothing, so that the first one while serving has a price."""
        import numpy as np
        import torch

        with torch.inference_mode():
            logits = torch.zeros(len(self.places), device=self.correction.states.device)
            guess = Guess(torch.ones_like(self.correction.states[0]), logits, logits, 0, 0)
            for _ in range(2):  # the first one wakes the library up
                self.allowance.debt = 0.0
                self.allowance.spend([partial(self._step, guess, lambda _: np.zeros(vocab, np.float32))])
        self.allowance.debt = 0.0
        self.correction.forget()

    def reset(self, request: Request) -> None:
        """Begin a request whose drafts are corrected."""
        eagle = cast(Eagle, self.drafter)
        eagle.source = self.source
        super().reset(request)
        eagle.correct_ = self._correct
        self.said_: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # node -> output, logits, corrected logits

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Let the drafter propose from corrected logits."""
        self.drafter.expand(tree, frontier, rng)

    def _correct(self, nodes: Sequence[int], outputs: "Tensor", logits: "Tensor") -> "Tensor":
        """Logits of these nodes, corrected where that helps; both are kept until the target has spoken."""
        corrected = self.correction.apply(outputs, logits)
        self.said_.update(zip(nodes, zip(outputs, logits, corrected, strict=True), strict=True))
        return corrected if self.correction.trusted else logits

    def observe(self, outcome: Outcome) -> None:
        """Compare what was said along the path with what came, and learn from what was wrong."""
        import torch

        super().observe(outcome)
        with torch.inference_mode():
            guesses = list(self._guesses(outcome))
            if self.correction.learned:
                self.correction.judge([guess.gain() for guess in guesses])
            wrong = [guess for guess in guesses if guess.wrong][: self.steps]
            self.allowance.spend([partial(self._step, guess, outcome.scores.logits) for guess in wrong])
        self.said_ = {}

    def _guesses(self, outcome: Outcome) -> Iterator[Guess]:
        """What was said after each node of the path, where the head was asked and knows the token that came."""
        kept = range(len(outcome.tree)) if outcome.tree.kept is None else outcome.tree.kept.tolist()
        for node, token in zip(outcome.verdict.path, outcome.tokens, strict=True):
            if kept[node] in self.said_ and token in self.places:
                yield Guess(*self.said_[kept[node]], node, self.places[token])

    def _step(self, guess: Guess, logits: Callable[[int], FloatArray]) -> None:
        """One step towards the target's law, from its logits [vocab] after a node, over the draft vocabulary."""
        import torch

        raw = logits(guess.node)[cast(Eagle, self.drafter).tokens]
        known = torch.from_numpy(raw).to(self.correction.states.device)
        self.correction.learn(guess, known.float().softmax(-1))

    def close(self) -> None:
        """Free what the request held."""
        super().close()
        del self.said_


def unit(states: "Tensor") -> "Tensor":
    """States [..., width] scaled to length one, in single precision."""
    exact = states.float()
    scaled: Tensor = exact / exact.norm(dim=-1, keepdim=True)
    return scaled
