"""The small predictors: the rounds that each is fitted on, and its fit.

A predictor is fitted on what one drafter does with one model, so each kind names the recipe that
its rounds are recorded with. Those that weigh time use the measured cost of this machine's passes.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sapwood.common.numpy_mlp import as_float32
from sapwood.controllers.ldlp import embedding
from sapwood.core.part import at_least
from sapwood.core.sampling import Sampling
from sapwood.engine.cost_model import CostModel
from sapwood.engine.cost_profiler import CostProfile
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe, parse
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import c2t, judge, ldlp, ltd, specdecpp
from sapwood.train.fit_mlp import FitResult
from sapwood.train.job import JobObserver
from sapwood.train.loop import TrainingStopped
from sapwood.train.recording import ArrayRecord
from sapwood.train.rounds import RecordedRounds, final_layer, record

# prompts that are recorded however little time there is: one to fit on, one to test on
LEAST = 2
CHAINS = "chain + match + fixed(nodes=8, depth=8, width=1)"
TREES = "beam(beam=10) + match + fixed(nodes=60, depth=8, width=10)"
# as large as `ltd` may choose; the cost of rows beyond the measured ones is taken in proportion
LARGE_TREES = f"beam(beam=10) + match + fixed(nodes={max(ltd.SIZES)}, depth=12, width=10)"


@dataclass(frozen=True, slots=True)
class PredictorOptions:
    """Options of a spelling such as `c2t(drafter=recycling, prompts=100)`."""

    # drafter of the recorded rounds; empty: that of the recipe for which the predictor is made
    drafter: str = ""
    prompts: int = 40  # to record
    tokens: int = 64  # of each answer

    def __post_init__(self) -> None:
        at_least(LEAST, prompts=self.prompts)
        at_least(1, tokens=self.tokens)


@dataclass(frozen=True, slots=True)
class FitContext:
    """Engine, prompts, recordings and deadline of a fit."""

    engine: Engine
    text: Tokenizer
    asked: Sequence[Sequence[int]]  # tokens of each prompt
    sampling: Sampling
    folder: Path  # of recordings
    seed: int
    deadline: float  # seconds of time.monotonic
    watch: JobObserver

    def rounds(self, layer: int | None = None) -> RecordedRounds:
        """Rounds of all prompts, or of as many as the time allows."""
        path = self.path("rounds" if layer is None else "states")
        found = record(
            self.engine,
            self.asked,
            self.sampling,
            path,
            layer=layer,
            over=self.over,
            progress=self.watch.say,
        )
        self.check_stop()
        return found

    def cases(self, layer: int) -> judge.TestedMismatches:
        """Mismatches of all prompts, or of as many as the time allows."""
        rule = judge.HarmlessRule(strict=strict(self.text))
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
        key = [
            str(self.engine.recipe),
            str(self.sampling),
            [list(map(int, tokens)) for tokens in self.asked],
        ]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return self.folder / f"{what}-{digest}.safetensors"

    def over(self, done: int) -> bool:
        """True if recording ends after this many prompts."""
        return self.watch.stop() or (done >= LEAST and time.monotonic() > self.deadline)

    def clear(self) -> None:
        """Delete the recordings."""
        for what in ("rounds", "states", "cases"):
            self.path(what).unlink(missing_ok=True)

    def check_stop(self) -> None:
        """Raise when asked to stop; recordings are kept."""
        if self.watch.stop():
            raise TrainingStopped("stopped while rounds were recorded")

    @property
    def cost(self) -> CostModel:
        """Cost of a target pass, measured if it was not yet."""
        profile = CostProfile.open(self.engine.target.info)
        if not profile.measured:
            profile.measure(self.engine.target, self.watch.say, quick=True)
        return profile.curve


def strict(text: Tokenizer) -> frozenset[int]:
    """Tokens that are never harmless: those with a digit, and ends of text."""
    digits = {
        token for word, token in text.tokenizer.get_vocab().items() if any(map(str.isdigit, word))
    }
    return frozenset({*digits, *text.eos})


# ------------------------------------------------------------------------------------ table
def fit_specdecpp(context: FitContext) -> tuple[FitResult, ArrayRecord]:
    """Fit on the drafter's states along chains."""
    found = context.rounds()
    return specdecpp.fit(found, seed=context.seed), found


def fit_ldlp(context: FitContext) -> tuple[FitResult, ArrayRecord]:
    """Fit on the target's final state before each chain."""
    layer = final_layer(context.engine.target)
    table = as_float32(embedding(context.engine.target))
    found = context.rounds(layer)
    return ldlp.fit(found, table, layer=layer, cost=context.cost, seed=context.seed), found


def fit_c2t(context: FitContext) -> tuple[FitResult, ArrayRecord]:
    """Fit on the nodes of trees."""
    found = context.rounds()
    return c2t.fit(found, seed=context.seed), found


def fit_ltd(context: FitContext) -> tuple[FitResult, ArrayRecord]:
    """Fit on trees replayed at every depth and size."""
    found = context.rounds()
    return ltd.fit(found, cost=context.cost, seed=context.seed), found


def fit_judge(context: FitContext) -> tuple[FitResult, ArrayRecord]:
    """Fit on mismatches and the target's continuations after them."""
    layer = final_layer(context.engine.target)
    found = context.cases(layer)
    return judge.fit(found, layer=layer, seed=context.seed), found


@dataclass(frozen=True, slots=True)
class PredictorKind:
    """Recipe and fit of one kind of predictor."""

    drafter: str  # if the spelling names none
    others: str  # parts of the recorded recipe besides the drafter
    fit: Callable[[FitContext], tuple[FitResult, ArrayRecord]]

    def recipe(self, options: PredictorOptions) -> Recipe:
        """The recipe whose rounds are recorded."""
        return parse(f"{options.drafter or self.drafter} + {self.others}")


PREDICTOR_KINDS: dict[str, PredictorKind] = {
    "specdec++": PredictorKind("eagle3", CHAINS, fit_specdecpp),
    "ldlp": PredictorKind("eagle", CHAINS, fit_ldlp),
    "c2t": PredictorKind("eagle3", LARGE_TREES, fit_c2t),
    "ltd": PredictorKind("eagle3", LARGE_TREES, fit_ltd),
    "judge": PredictorKind("eagle3", TREES, fit_judge),
}
