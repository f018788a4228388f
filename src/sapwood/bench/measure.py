"""Runs of every recipe on every prompt, interleaved, and the statistics of a run.

The recipes take turns on each prompt in an order that rotates from prompt to prompt, so a machine
that slows down or warms up treats them alike. A recipe keeps what it has learned from prompt to
prompt. Prefill is timed apart: it is the same for all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sapwood.bench.samples import TreeSample, better
from sapwood.common.calibration import CalibrationCurve
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.cost_model import CostModel
from sapwood.engine.generate import stream
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError

WARM_UP = 16  # tokens of the uncounted first run of each recipe

Item = TypeVar("Item")
Runs = dict[str, list["BenchRun"]]  # by recipe, one run per prompt in the order of the prompts


@dataclass(slots=True)
class BenchRun:
    """One recipe on one prompt."""

    tokens: list[int] = field(default_factory=list)  # emitted, the one that ended the text included
    passes: int = 0
    nodes: int = 0  # checked by the target, roots not counted
    accepted: int = 0  # checked nodes that became output
    discarded: int = 0  # nodes drafted beside a pass and thrown away unchecked
    expected: float = 0.0  # accepted nodes by the policy's own estimate; nan where it makes none
    # tokens that plain decoding would not have emitted there; counted for lossy recipes
    strayed: int = 0
    prefill: float = 0.0  # seconds, as are the next three
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0
    reliability: CalibrationCurve = field(default_factory=CalibrationCurve)
    thrown: float = 0.0  # seconds of passes spent on refused nodes, by the cost model
    sample: TreeSample | None = None  # the round to show
    timed: int | None = None  # tokens that the seconds cover; None: all of them
    said: int | None = None  # number of tokens of a peer that returns text only
    text: str | None = None  # a peer's text
    memory: int | None = None  # bytes at the peak
    joules: float | None = None  # of the machine, during the run

    @property
    def seconds(self) -> float:
        """Seconds of decoding, without prefill."""
        return self.draft + self.verify + self.other

    @property
    def length(self) -> int:
        """Tokens of the output."""
        return len(self.tokens) if self.said is None else self.said

    @property
    def paced(self) -> int:
        """Tokens that the seconds cover."""
        return self.length if self.timed is None else self.timed

    def count(self, outcome: Outcome, tokens: list[int], cost: CostModel) -> None:
        """Count one round, of which these tokens are kept; of a shared pass an even share."""
        tree = outcome.tree
        times = outcome.times
        shared = outcome.shared
        others = 0.0 if shared is None else shared.seconds * (1 - 1 / shared.trees)
        refused = len(tree) - 1 - min(outcome.verdict.accepted, len(tokens))
        self.tokens += tokens
        self.passes += outcome.passes
        self.nodes += len(tree) - 1
        self.accepted += min(outcome.verdict.accepted, len(tokens))
        self.discarded += outcome.discarded
        self.expected += float(tree.reach[1:].sum()) if tree.valued >= len(tree) else float("nan")
        self.draft += times.draft
        self.verify += times.verify - others
        self.other += times.other
        self.thrown += seconds_on_refused(outcome, refused, cost)
        self.sample = better(self.sample, outcome)
        self.reliability.count(outcome)


def seconds_on_refused(outcome: Outcome, refused: int, cost: CostModel) -> float:
    """Seconds of the pass spent on the refused nodes, by the cost model."""
    if not refused:
        return 0.0
    spent = outcome.times.verify if outcome.shared is None else outcome.shared.seconds
    without = cost.seconds(outcome.rows - refused, outcome.context, outcome.trees)
    return spent * max(
        1 - without / cost.seconds(outcome.rows, outcome.context, outcome.trees), 0.0
    )


def refuse(name: str, error: SapwoodError) -> None:
    """Raise: one recipe's failure ends all runs."""
    raise SapwoodError(f"recipe {name!r} failed while decoding: {error}") from error


def measure(
    engines: Mapping[str, Engine],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    warm_up: Sequence[int],  # a prompt whose runs are not counted
    tick: Callable[[], None] = lambda: None,  # called after every run
    # called with a recipe that failed; the others go on
    drop: Callable[[str, SapwoodError], None] = refuse,
) -> Runs:
    """All runs of all recipes, interleaved; a recipe that failed has none."""
    names = list(engines)
    runs: Runs = {name: [] for name in names}

    def tried(name: str, prompt: Sequence[int], sampling: Sampling) -> BenchRun | None:
        try:
            return decode(engines[name], prompt, sampling) if name in runs else None
        except SapwoodError as error:
            drop(name, error)
            del runs[name]
            return None
        finally:
            tick()

    for name in names:
        tried(name, warm_up, replace(sampling, max_tokens=min(sampling.max_tokens, WARM_UP)))
    for place, prompt in enumerate(prompts):
        for name in rotated(names, place):
            if (run := tried(name, prompt, sampling)) is not None:
                runs[name].append(run)
    return runs


def rotated(items: Sequence[Item], place: int) -> list[Item]:
    """The same items, starting one later for each place."""
    first = place % len(items)
    return [*items[first:], *items[:first]]


def decode(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> BenchRun:
    """Decode one prompt to the end of the text, to `max_tokens` or to the end of the context."""
    room = engine.target.info.context - len(prompt)
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
    run = BenchRun()
    start = engine.now()
    with closing(stream(engine, prompt, sampling)) as steps:
        for step in steps:
            if run.passes == 0:
                run.prefill = engine.now() - start - step.outcome.times.total
            run.count(step.outcome, step.tokens, engine.cost)
    return run
