"""Every recipe on the same prompts, on any device, within a time limit: the table of methods.

    python benchmarks/methods.py --recipes lossless --shipped --temperature 0,0.6,1 --limit 8
        --max-tokens 48 --device cuda --dtype float16 --limit-seconds 235 --recipe-seconds 1.5
        --json benchmarks/results/gpu-methods.json

These are the runs and the record of `sapwood bench`, for a machine on which nobody can look after
them: a recipe that fails in any way, or takes too long over one prompt, is left out with the reason
and the others go on; the record is written again and again, and every run at once into the journal
beside it, from which `--resume` goes on. Each recipe decodes a few other prompts first, which
captures and compiles what its passes need.

`--limit-seconds` ends the whole command: recipes are bound and warmed up for 0.7 of it at most, and
every temperature has an equal share of the rest. `--recipe-seconds` is the time that one
recipe may take at one temperature: a slow one decodes fewer prompts then. Every row is over the
prompts that the recipe and plain decoding both completed, and says how many. `--shipped` leaves out
recipes that need a server, or a trained part that does not come with the package.

Between two temperatures a recipe forgets what it has learned of texts, by being bound anew: if it
looks tokens up or learns online. On a GPU all recipes of one head share the builder of its trees,
whose passes are captured once.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sapwood.bench import provenance
from sapwood.bench.benchmark import Benchmark, write
from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.journal import Journal
from sapwood.bench.measure import BenchRun
from sapwood.bench.peer_runner import PeerSet
from sapwood.bench.recipe_set import PLAIN, RecipeSet, read_recipes
from sapwood.bench.rows import ReportRow
from sapwood.bench.runner import BenchRunner, BenchSetting, RecipeContender
from sapwood.bench.suites import gather
from sapwood.bench.sweep import SweepPoint, read_points
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipe import Recipe
from sapwood.recipes.available import FAMILY_OF, can_run, with_nested

STARTED = time.monotonic()
WARM_UP = "json"  # suite of the prompts that are decoded first
UNCOUNTED = "warm-up"  # name of the prompt of the runner's own uncounted runs
BINDING = 60.0  # most seconds for preparing a recipe
SAVING = 20  # the record is written so many times more rarely than writing it takes
BOUND, WARM = 0.6, 0.7  # shares of the time after which no recipe is bound, none warmed up
REMOTE = "Drafting elsewhere"  # the family whose recipes need a server
# families that are bound first, and last: what the time does not suffice for is among the latter
FIRST, LAST = ("Default and baseline", "Verifiers"), ("Self-drafting", "Pipelines")
# packages of drafters that keep texts, or what they have learned of them, between requests
LEARNING = (
    "sapwood.drafters.lookup.",
    "sapwood.drafters.self.dvi",
    "sapwood.drafters.heads.online",
)


class TimeUp(Exception):
    """The limit of the command is reached."""


@dataclass(frozen=True)
class SturdyContender(RecipeContender):
    """A recipe whose failures of any kind, and whose delays, are those of this recipe alone."""

    most: float = 60.0  # seconds of a run
    share: float = float("inf")  # seconds of all runs at one temperature
    spent: list[float] = field(default_factory=list)  # of the runs at this temperature
    late: Callable[[], bool] = lambda: False  # True when the temperature's time is over

    def takes(self, point: SweepPoint) -> str | None:
        """A reason to sit out: the time of the temperature, or of the recipe at it, is over."""
        if self.late():
            return "no time was left"
        return "its share of the time is used" if sum(self.spent) > self.share else None

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        """Decode, or raise one kind of error."""
        start = time.monotonic()
        try:
            with contained(self.most):
                return super().run(asked, sampling)
        finally:
            if asked[0].prompt.name != UNCOUNTED:
                self.spent.append(time.monotonic() - start)

    def fresh(self) -> "SturdyContender":
        """The recipe bound anew if it keeps texts, or as it is if that fails."""
        if not keeps_texts(self.engine.recipe):
            return replace(self, spent=[])
        try:
            with contained(BINDING):
                return replace(self, engine=replace(self.engine), spent=[])
        except SapwoodError as error:
            say(f"bound anew: {error}")
            return replace(self, spent=[])


def keeps_texts(recipe: Recipe) -> bool:
    """True when a recipe would know a prompt again that it has decoded before."""
    return any(type(part).__module__.startswith(LEARNING) for part in with_nested(recipe.parts()))


@contextmanager
def contained(seconds: float) -> Iterator[None]:
    """Raise a SapwoodError for any error inside, and after so many seconds."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except SapwoodError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise SapwoodError(f"{type(error).__name__}: {text}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def say(text: str) -> None:
    """Print a line at once, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {text}", file=sys.stderr, flush=True)


def assembled(
    llm: LLM,
    asked: Sequence[str],
    late: Callable[[], bool] = lambda: False,
    *,
    shipped: bool = False,
) -> RecipeSet:
    """An engine for each recipe that can be bound in time, and is whole if `shipped`."""
    made = RecipeSet()
    for place, name in enumerate(by_importance(asked), 1):
        if (reason := left_out(llm, name, late, shipped=shipped)) is not None:
            made.skipped[name] = reason
            continue
        try:
            with contained(BINDING):
                engine = llm.with_recipe(name).engine
            if shipped and engine.recipe.substitutes:
                made.skipped[name] = f"not shipped: {engine.recipe.substitutes[0]}"
            else:
                made.engines[name] = engine
        except SapwoodError as error:
            if name == PLAIN:
                raise
            made.skipped[name] = str(error)
        if place % 10 == 0 or name in made.skipped:
            say(f"{place} of {len(asked)}: {name} {made.skipped.get(name, '')}")
    return made


def left_out(llm: LLM, name: str, late: Callable[[], bool], *, shipped: bool) -> str | None:
    """The reason why a recipe is not bound; None for those that are."""
    if name == PLAIN:
        return None
    if shipped and FAMILY_OF.get(name) == REMOTE:
        return "needs a server that drafts"
    if shipped and name in FAMILY_OF and not can_run(name, llm.target.info):
        return "needs a trained part that is not shipped"
    return "no time was left to bind it" if late() else None


def by_importance(asked: Sequence[str]) -> list[str]:
    """The recipes, those of the families to bind first in front; else in their order."""

    def rank(name: str) -> int:
        family = FAMILY_OF.get(name)
        return 0 if name == PLAIN or family in FIRST else 2 if family in LAST else 1

    return sorted(asked, key=rank)


def share_builders(llm: LLM) -> None:
    """Let all recipes of one head draft with one builder of trees."""
    target: Any = llm.target
    if not llm.target.info.device.startswith("cuda"):
        return
    build = target.tree_builder
    made: dict[tuple[int, int], tuple[Any, ...]] = {}  # with its arguments, so that ids stay

    def shared(head: Any, embedding: Any) -> Any:
        key = id(head), embedding.data_ptr()
        if key not in made:
            made[key] = once_prepared(build(head, embedding)), head, embedding
        return made[key][0]

    target.tree_builder = shared


def once_prepared(builder: Any) -> Any:
    """The builder, whose passes are captured after its first preparation alone."""
    if builder is not None:
        capture = builder.on_prepared

        def first() -> None:
            builder.on_prepared = lambda: None
            capture()

        builder.on_prepared = first
    return builder


def warm_up(
    runner: BenchRunner,
    llm: LLM,
    count: int,
    temperatures: Sequence[float],
    late: Callable[[], bool] = lambda: False,
) -> None:
    """Have each recipe decode other prompts, at the lowest and the highest temperature."""
    for prompt in gather(WARM_UP, limit=count) if count else ():
        try:
            turn = ConversationTurn(prompt, 0, prompt.tokens(llm.target.info, llm.text), "")
        except SapwoodError as error:  # too long for a small model
            say(str(error))
            continue
        for heat in sorted({min(temperatures), max(temperatures)}):
            sampling = replace(runner.sampling, temperature=heat)
            for name in list(runner.contenders):
                if late():
                    break
                try:
                    runner.contenders[name].run([turn], sampling)
                except SapwoodError as error:
                    say(f"{name}: {error}")
                    runner.drop(name, error)
                    del runner.contenders[name]
            say(f"warmed up at temperature {heat:g}: {prompt.name}")


def run(options: argparse.Namespace) -> None:
    """Prepare, warm up, measure within the time, and write the record."""
    started = time.monotonic()
    limit = float("inf") if options.seconds is None else options.seconds
    load = provenance.load()
    points = read_points(options.temperature, "", "")
    plan = Benchmark(
        read_recipes(options.recipes),
        options.suite,
        gather(options.suite, limit=options.limit, turns=1),
        Sampling(max_tokens=options.max_tokens, temperature=points[0].temperature, seed=0),
        points=points,
    )
    llm = LLM(options.model, PLAIN, device=options.device, dtype=options.dtype)
    info = llm.target.info
    say(f"{info.model}, {info.dtype} on {info.device}, {info.name}")
    share_builders(llm)

    def after(share: float) -> Callable[[], bool]:
        return lambda: time.monotonic() > started + share * limit

    recipes = assembled(llm, list(plan.recipes), after(BOUND), shipped=options.shipped)
    say(f"{len(recipes.engines)} recipes of {len(plan.recipes)} are ready")
    path = plan.journal_path(info, None, options.json)
    journal = Journal(path, plan.mark(info), provenance.origin(info, load), resume=options.resume)
    runner = plan.make_runner(llm, recipes, PeerSet(), journal, progress(started + limit))
    clock = StageClock(started + limit)

    def late() -> bool:
        return clock.past(len(runner.stages) / len(points))

    runner.contenders = {
        name: SturdyContender(one.engine, one.measured, options.run_seconds)
        if name == PLAIN
        else SturdyContender(
            one.engine, one.measured, options.run_seconds, options.recipe_seconds, late=late
        )
        for name, one in runner.contenders.items()
        if isinstance(one, RecipeContender)
    }
    heats = [point.temperature for point in points]
    warm_up(runner, llm, options.warm, heats, after(WARM))
    for one in runner.contenders.values():
        if isinstance(one, SturdyContender):
            one.spent.clear()
    clock.begin = time.monotonic()

    def keep() -> None:
        start = time.monotonic()
        if rows := rows_of(plan, llm, recipes, runner):
            made = plan.record(llm, rows, runner, load)
            made["suite"]["prompts"] = max(row.prompts for row in rows)  # those of the time
            made["samples"] = []
            write(options.json, made)
        clock.saved(time.monotonic() - start)

    def over(share: float) -> bool:
        if clock.due:
            keep()
        return clock.past(share)

    runner.over = over
    try:
        plan.run(runner, llm)
    except TimeUp:
        say("the time is up")
    finally:
        keep()
    done = [max(map(len, stage.runs.values()), default=0) for stage in runner.stages]
    say(f"prompts by temperature: {done}")


class StageClock:
    """The time of the measurement: an equal share for every temperature, and for the record."""

    def __init__(self, end: float) -> None:
        self.begin = time.monotonic()
        self.end = end
        self.next_save = 0.0
        self.saving = 0.0  # seconds that writing the record took

    @property
    def due(self) -> bool:
        """True when the record should be written again."""
        return time.monotonic() > self.next_save

    def saved(self, seconds: float) -> None:
        """Note how long writing the record took."""
        self.saving = seconds
        self.next_save = time.monotonic() + SAVING * seconds

    def past(self, share: float) -> bool:
        """True when this share of the time is over."""
        left = max(0.0, self.end - self.saving - self.begin)
        return time.monotonic() > self.begin + share * left


def rows_of(plan: Benchmark, llm: LLM, recipes: RecipeSet, runner: BenchRunner) -> list[ReportRow]:
    """Rows of each recipe over the prompts that it and plain decoding have both completed."""
    rows: list[ReportRow] = []
    for stage in runner.stages:
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in runner.contenders:
            done = tuple(item.name for item in stage.complete([PLAIN, name]))
            groups.setdefault(done, []).append(name)
        skipped = recipes.skipped
        for done, names in groups.items():
            if not done:
                continue
            both = [PLAIN, *(name for name in names if name != PLAIN)]
            part = BenchSetting(
                stage.point,
                [item for item in stage.asked if item.name in done],
                {name: stage.runs[name] for name in both},
            )
            engines = {name: recipes.engines[name] for name in both}
            view = replace(
                runner,
                contenders={name: RecipeContender(engine) for name, engine in engines.items()},
                stages=[part],
            )
            found = plan.rows(llm, RecipeSet(engines, skipped), PeerSet(), view)
            rows += [row for row in found if row.recipe in names or row.recipe in skipped]
            skipped = {}
    return rows


def progress(end: float) -> Any:
    """A function to call after every run: prints a line now and then, and ends all in time."""
    done = 0

    def tick(total: int) -> None:
        nonlocal done
        done += 1
        if done % max(1, total // 40) == 0:
            say(f"{done} of {total} runs")
        if time.monotonic() > end:
            raise TimeUp

    return tick


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the record; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", default="all", help="names, `all` or `lossless`")
    parser.add_argument("--suite", default="chat,copy,edit,random")
    parser.add_argument("--limit", type=int, default=6, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--temperature", default="0", help="several are separated by commas")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--warm", type=int, default=1, help="prompts decoded before")
    parser.add_argument(
        "--seconds", "--limit-seconds", type=float, help="of the whole command; run again to go on"
    )
    parser.add_argument(
        "--recipe-seconds",
        type=float,
        default=float("inf"),
        help="of one recipe at one temperature; it decodes at least one prompt",
    )
    parser.add_argument("--shipped", action="store_true", help="only what needs nothing else")
    parser.add_argument("--commit", help="of a copy of the sources without its repository")
    parser.add_argument("--run-seconds", type=float, default=20.0, help="most of one run")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.commit:
        os.environ[provenance.COMMIT] = options.commit
    try:
        run(options)
    except SapwoodError as error:
        print(f"methods: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
