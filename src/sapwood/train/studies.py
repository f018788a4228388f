"""The small predictors, one line each: which rounds they are fitted on, and how.

A predictor is fitted on what one drafter does with one model, so each kind names the recipe that its rounds
are recorded with. Those that weigh time take the measured cost of this machine's passes into account.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sapwood.controllers.ldlp import embedding
from sapwood.cost import CostCurve
from sapwood.engine import Engine
from sapwood.nets import numbers
from sapwood.part import at_least
from sapwood.profile import Profile
from sapwood.recipe import Recipe, parse
from sapwood.sampling import Sampling
from sapwood.text import Text
from sapwood.train import c2t, judge, ldlp, ltd, specdecpp
from sapwood.train.job import Watch
from sapwood.train.loop import Stopped
from sapwood.train.recording import Record
from sapwood.train.rounds import Rounds, final_layer, record
from sapwood.train.small import Fit

LEAST = 2  # prompts that are recorded however little time there is: one to learn from, one to test on
CHECKED = 60  # nodes of a recorded tree; the cost curve of passes ends a little above
CHAINS = "chain + match + fixed(nodes=8, depth=8, width=1)"
TREES = f"beam(beam=10) + match + fixed(nodes={CHECKED}, depth=8, width=10)"


@dataclass(frozen=True, slots=True)
class Options:
    """What a spelling such as `c2t(drafter=recycling, prompts=100)` may say."""

    drafter: str = ""  # whose rounds are recorded; empty: that of the recipe which the predictor is made for
    prompts: int = 40  # to record
    tokens: int = 64  # of each answer

    def __post_init__(self) -> None:
        at_least(LEAST, prompts=self.prompts)
        at_least(1, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class Desk:
    """What a fit works with."""

    engine: Engine
    text: Text
    asked: Sequence[Sequence[int]]  # tokens of each prompt
    sampling: Sampling
    folder: Path  # of recordings
    seed: int
    deadline: float  # seconds, as time.monotonic tells them
    watch: Watch

    def rounds(self, layer: int | None = None) -> Rounds:
        """Rounds of all prompts, or of as many as the time allows."""
        path, told = self.path("rounds" if layer is None else "states"), self.watch.say
        found = record(self.engine, self.asked, self.sampling, path, layer=layer, over=self.over, progress=told)
        self.check_stop()
        return found

    def cases(self, layer: int) -> judge.Cases:
        """Mismatches of all prompts, or of as many as the time allows."""
        rule = judge.Rule(strict=strict(self.text))
        found = judge.mine(
            self.engine,
            self.asked,
            self.sampling,
            layer=layer,
            rule=rule,
            path=self.path("cases"),
            over=self.over,
            progress=self.watch.say,
        )
        self.check_stop()
        return found

    def path(self, what: str) -> Path:
        """The file of a recording; predictors that are fitted on the same one share it."""
        said = [str(self.engine.recipe), str(self.sampling), [list(map(int, tokens)) for tokens in self.asked]]
        return self.folder / f"{what}-{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]}.safetensors"

    def over(self, done: int) -> bool:
        """Whether recording ends after so many prompts."""
        return self.watch.stop() or (done >= LEAST and time.monotonic() > self.deadline)

    def clear(self) -> None:
        """Let go of what was recorded."""
        for what in ("rounds", "states", "cases"):
            self.path(what).unlink(missing_ok=True)

    def check_stop(self) -> None:
        """End here when asked to; what was recorded is kept."""
        if self.watch.stop():
            raise Stopped("stopped while rounds were recorded")

    @property
    def cost(self) -> CostCurve:
        """Of a target pass, measured where it was not yet."""
        profile = Profile.open(self.engine.target.info)
        if not profile.measured:
            profile.measure(self.engine.target, self.watch.say, quick=True)
        return profile.curve


def strict(text: Text) -> frozenset[int]:
    """Tokens that are never harmless: those with a digit, and ends of text."""
    digits = {token for word, token in text.tokenizer.get_vocab().items() if any(map(str.isdigit, word))}
    return frozenset({*digits, *text.eos})


# ------------------------------------------------------------------------------------- the table
def fit_specdecpp(desk: Desk) -> tuple[Fit, Record]:
    """From the drafter's states along chains."""
    found = desk.rounds()
    return specdecpp.fit(found, seed=desk.seed), found


def fit_ldlp(desk: Desk) -> tuple[Fit, Record]:
    """From the target's final state before each chain."""
    layer, table = final_layer(desk.engine.target), numbers(embedding(desk.engine.target))
    found = desk.rounds(layer)
    return ldlp.fit(found, table, layer=layer, cost=desk.cost, seed=desk.seed), found


def fit_c2t(desk: Desk) -> tuple[Fit, Record]:
    """From the nodes of trees."""
    found = desk.rounds()
    return c2t.fit(found, seed=desk.seed), found


def fit_ltd(desk: Desk) -> tuple[Fit, Record]:
    """From trees replayed at every depth and size."""
    found = desk.rounds()
    sizes = [size for size in ltd.SIZES if size < CHECKED]
    return ltd.fit(found, cost=desk.cost, sizes=[*sizes, CHECKED], seed=desk.seed), found


def fit_judge(desk: Desk) -> tuple[Fit, Record]:
    """From mismatches and where they would have led."""
    layer = final_layer(desk.engine.target)
    found = desk.cases(layer)
    return judge.fit(found, layer=layer, seed=desk.seed), found


@dataclass(frozen=True, slots=True)
class Study:
    """How one kind is recorded and fitted."""

    drafter: str  # where the spelling names none
    others: str  # parts of the recorded recipe besides the drafter
    fit: Callable[[Desk], tuple[Fit, Record]]

    def recipe(self, options: Options) -> Recipe:
        """The recipe whose rounds are recorded."""
        return parse(f"{options.drafter or self.drafter} + {self.others}")


STUDIES: dict[str, Study] = {
    "specdec++": Study("eagle3", CHAINS, fit_specdecpp),
    "ldlp": Study("eagle", CHAINS, fit_ldlp),
    "c2t": Study("eagle3", TREES, fit_c2t),
    "ltd": Study("eagle3", TREES, fit_ltd),
    "judge": Study("eagle3", TREES, fit_judge),
}
