"""Runs every recipe on every prompt, in turn, and books what each run did.

The recipes take turns on each prompt in an order that rotates from prompt to prompt, so a machine
that slows down or warms up treats them alike. What a recipe learns stays with it from prompt to
prompt. Reading the prompt is booked apart: it is the same for all.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from sapwood.bench.samples import Sample, better
from sapwood.cost import CostCurve
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.records import Outcome
from sapwood.reliability import Reliability
from sapwood.rng import Keyed
from sapwood.sampling import Sampling

WARM_UP = 16  # tokens of the uncounted first run of each recipe

Runs = dict[str, list["Run"]]  # by recipe, one run per prompt in the order of the prompts


@dataclass(slots=True)
class Run:
    """One recipe on one prompt."""

    tokens: list[int] = field(default_factory=list)  # emitted, the one that ended the text included
    passes: int = 0
    nodes: int = 0  # checked by the target, roots not counted
    accepted: int = 0  # checked nodes that became output
    expected: float = 0.0  # accepted nodes by the policy's own estimate; nan where it makes none
    strayed: int = 0  # tokens that plain decoding would not have said there; counted where a recipe is lossy
    prefill: float = 0.0  # seconds, as are the next three
    draft: float = 0.0
    verify: float = 0.0
    other: float = 0.0
    reliability: Reliability = field(default_factory=Reliability)
    thrown: float = 0.0  # seconds of passes that went into refused nodes, as the cost curve has it
    sample: Sample | None = None  # the round to show
    timed: int | None = None  # tokens that the seconds cover; None: all of them
    said: int | None = None  # tokens of a peer that gives words alone
    text: str | None = None  # a peer's words
    memory: int | None = None  # bytes at the peak
    joules: float | None = None  # of the machine, while the run went on

    @property
    def seconds(self) -> float:
        """Seconds of decoding, the prompt left out."""
        return self.draft + self.verify + self.other

    @property
    def length(self) -> int:
        """Tokens of the output."""
        return len(self.tokens) if self.said is None else self.said

    @property
    def paced(self) -> int:
        """Tokens that the seconds cover."""
        return self.length if self.timed is None else self.timed

    def count(self, outcome: Outcome, tokens: list[int], cost: CostCurve) -> None:
        """Book one round, of which these tokens stay; of a shared pass an even share."""
        tree, times, joint = outcome.tree, outcome.times, outcome.joint
        others = 0.0 if joint is None else joint.seconds * (1 - 1 / joint.trees)
        refused = len(tree) - 1 - min(outcome.verdict.accepted, len(tokens))
        self.tokens += tokens
        self.passes += 1
        self.nodes += len(tree) - 1
        self.accepted += min(outcome.verdict.accepted, len(tokens))
        self.expected += float(tree.reach[1:].sum()) if tree.valued >= len(tree) else float("nan")
        self.draft += times.draft
        self.verify += times.verify - others
        self.other += times.other
        self.thrown += thrown_away(outcome, refused, cost)
        self.sample = better(self.sample, outcome)
        self.reliability.count(outcome)  # after the round's clock was read


def thrown_away(outcome: Outcome, refused: int, cost: CostCurve) -> float:
    """Seconds by which the pass would have been shorter without the refused nodes, by the shape of the curve."""
    if not refused:
        return 0.0
    spent = outcome.times.verify if outcome.joint is None else outcome.joint.seconds
    without = cost.seconds(outcome.rows - refused, outcome.context, outcome.trees)
    return spent * max(1 - without / cost.seconds(outcome.rows, outcome.context, outcome.trees), 0.0)


def refuse(name: str, error: SapwoodError) -> None:
    """Let one recipe's failure end all runs."""
    raise SapwoodError(f"recipe {name!r} failed while decoding: {error}") from error


def measure(
    engines: Mapping[str, Engine],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    warm_up: Sequence[int],  # a prompt whose runs are not counted
    tick: Callable[[], None] = lambda: None,  # called after every run
    drop: Callable[[str, SapwoodError], None] = refuse,  # told of a recipe that failed; the others go on
) -> Runs:
    """All runs of all recipes, interleaved; a recipe that failed has none."""
    names = list(engines)
    runs: Runs = {name: [] for name in names}

    def tried(name: str, prompt: Sequence[int], sampling: Sampling) -> Run | None:
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


def rotated(names: Sequence[str], place: int) -> list[str]:
    """The same names, beginning one later for each prompt."""
    first = place % len(names)
    return [*names[first:], *names[:first]]


def decode(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Run:
    """Decode one prompt to the end of the text, to `max_tokens` or to the end of the context."""
    room = engine.target.info.context - len(prompt)
    sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
    run, ends, start = Run(), frozenset(sampling.stop_ids), engine.now()
    with closing(engine.rounds(prompt, sampling, Keyed(sampling.seed))) as rounds:
        for outcome in rounds:
            if run.passes == 0:  # the clock of the rounds starts when the prompt has been read
                run.prefill = engine.now() - start - outcome.times.total
            tokens = cut(outcome.tokens, ends)
            run.count(outcome, tokens, engine.cost)
            if tokens[-1] in ends or len(run.tokens) >= sampling.max_tokens:
                break
    return run


def cut(tokens: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the text, itself included."""
    return next((tokens[: place + 1] for place, token in enumerate(tokens) if token in ends), tokens)
