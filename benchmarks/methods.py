"""Every recipe on the same prompts, on any device, within a time limit: the table of methods.

    python benchmarks/methods.py --recipes all --temperature 0,0.6,1 --limit 6 --max-tokens 48
        --device cuda --seconds 480 --json benchmarks/results/gpu-methods.json

These are the runs and the record of `sapwood bench`, for a machine on which nobody can look after
them: a recipe that fails in any way, or takes too long over one prompt, is left out with the reason
and the others go on; every temperature has an equal share of the time; the record is written again
and again, and every run at once into the journal beside it, from which `--resume` goes on.
Each recipe decodes a few other prompts first, which captures and compiles what its passes need.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sapwood.bench import provenance
from sapwood.bench.benchmark import Benchmark, write
from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.journal import Journal
from sapwood.bench.measure import BenchRun
from sapwood.bench.peer_runner import PeerSet
from sapwood.bench.recipe_set import PLAIN, RecipeSet, read_recipes
from sapwood.bench.runner import BenchRunner, RecipeContender
from sapwood.bench.suites import gather
from sapwood.bench.sweep import read_points
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.llm import LLM

STARTED = time.monotonic()
WARM_UP = "json"  # suite of the prompts that are decoded first
BINDING = 60.0  # most seconds for preparing a recipe
SAVING = 20  # the record is written so many times more rarely than writing it takes


@dataclass(frozen=True)
class SturdyContender(RecipeContender):
    """A recipe whose failures of any kind, and whose delays, are those of this recipe alone."""

    most: float = 60.0  # seconds of a run

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        """Decode, or raise one kind of error."""
        with contained(self.most):
            return super().run(asked, sampling)

    def fresh(self) -> "SturdyContender":
        """The recipe bound anew, or as it is if that fails."""
        try:
            with contained(BINDING):
                return replace(self, engine=replace(self.engine))
        except SapwoodError as error:
            say(f"bound anew: {error}")
            return self


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


def assembled(llm: LLM, asked: Sequence[str]) -> RecipeSet:
    """An engine for each recipe that can be bound."""
    made = RecipeSet()
    for place, name in enumerate(asked, 1):
        try:
            with contained(BINDING):
                made.engines[name] = llm.with_recipe(name).engine
        except SapwoodError as error:
            if name == PLAIN:
                raise
            made.skipped[name] = str(error)
        if place % 10 == 0 or name in made.skipped:
            say(f"{place} of {len(asked)}: {name} {made.skipped.get(name, '')}")
    return made


def warm_up(runner: BenchRunner, llm: LLM, count: int, temperatures: Sequence[float]) -> None:
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
    recipes = assembled(llm, list(plan.recipes))
    say(f"{len(recipes.engines)} recipes of {len(plan.recipes)} are ready")
    path = plan.journal_path(info, None, options.json)
    journal = Journal(path, plan.mark(info), provenance.origin(info, load), resume=options.resume)
    runner = plan.make_runner(llm, recipes, PeerSet(), journal, progress())
    runner.contenders = {
        name: SturdyContender(one.engine, one.measured, options.run_seconds)
        for name, one in runner.contenders.items()
        if isinstance(one, RecipeContender)
    }
    heats = [point.temperature for point in points]
    warm_up(runner, llm, options.warm, heats)
    begin = time.monotonic()
    end = None if options.seconds is None else started + options.seconds
    due = 0.0  # when the record is written again

    def keep() -> None:
        nonlocal due
        start = time.monotonic()
        if rows := plan.rows(llm, recipes, PeerSet(), runner):
            made = plan.record(llm, rows, runner, load)
            made["suite"]["prompts"] = max(row.prompts for row in rows)  # those of the time
            write(options.json, made)
        now = time.monotonic()
        due = now + SAVING * (now - start)

    def over(share: float) -> bool:
        if time.monotonic() > due:
            keep()
        return end is not None and time.monotonic() > begin + share * (end - begin)

    runner.over = over
    try:
        plan.run(runner, llm)
    finally:
        keep()
    done = [len(stage.complete(list(runner.contenders))) for stage in runner.stages]
    say(f"prompts that all recipes have completed, by temperature: {done}")


def progress() -> Any:
    """A function to call after every run, which prints a line now and then."""
    done = 0

    def tick(total: int) -> None:
        nonlocal done
        done += 1
        if done % max(1, total // 40) == 0:
            say(f"{done} of {total} runs")

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
    parser.add_argument("--seconds", type=float, help="of the whole command; run again to go on")
    parser.add_argument("--run-seconds", type=float, default=20.0, help="most of one run")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--json", type=Path, required=True)
    try:
        run(parser.parse_args(arguments))
    except SapwoodError as error:
        print(f"methods: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
