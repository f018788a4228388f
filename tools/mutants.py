"""Put small faults into the code, one at a time, and see whether the tests notice.

python -m tools.mutants                     all mutants of tools/mutants.txt
python -m tools.mutants --only verifiers    one group of tools/mutants.toml
python -m tools.mutants --sample 10         so many of them, spread over the list
python -m tools.mutants --reuse             trust the last survey of test files that did not change
python -m tools.mutants --match TEXT        those whose identity contains a text
python -m tools.mutants --fresh 3           another list, drawn with this seed; nothing is written
python -m tools.mutants --draw              write mutants.txt again: keep what is left, fill up

First every test runs once, unchanged, and the functions that it reaches are noted. Then each
mutant faces the tests that reach the changed function, the quickest first, until one fails.
"""

import argparse
import dataclasses
import hashlib
import importlib
import json
import math
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tools.mutation import hook
from tools.mutation.operators import Mutation, mutations, read
from tools.mutation.plugins import Chosen, Reached, Survey
from tools.mutation.processes import Task, run_all

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sapwood"
CONFIG = ROOT / "tools" / "mutants.toml"
LIST = ROOT / "tools" / "mutants.txt"
WORK = ROOT / "build" / "mutants"  # surveys and logs
CONTROL = 15.0  # CPU seconds of a group's tests that run once more, unchanged
EACH = 3  # mutants of one function, at most
# share of a group that one operator may have; exchanged arguments mostly fail at once
MOST = 0.2
RARE = {"swap": 0.06}
MARKS = "not gpu and not smol and not slow"
PYTEST = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-m", MARKS]
LATE = 99  # exit status where a test hung
# what is imported before the fork is not rewritten by pytest, and need not be
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]


@dataclass(frozen=True)
class Group:
    """Source files that belong together, and how many mutants are drawn from them."""

    name: str
    sources: list[str]
    count: int

    def files(self) -> list[str]:
        """The source files that exist, below src/sapwood."""
        paths = (path for pattern in self.sources for path in SOURCE.glob(pattern))
        return sorted(str(path.relative_to(SOURCE)) for path in paths if path.name != "__init__.py")

    def mutations(self) -> dict[str, Mutation]:
        """All that could be changed in this group, by identity."""
        every = (each for file in self.files() for each in mutations(read(SOURCE, file), file))
        return {each.identity: each for each in every}


@dataclass(frozen=True)
class Entry:
    """One line of the list: a mutant by name, and what it was when it was drawn."""

    group: str
    identity: str
    change: str


@dataclass(frozen=True)
class Result:
    """Outcome of a mutant: killed, survived, timed out, unreached or equivalent."""

    group: str
    mutation: Mutation
    outcome: str
    seconds: float = 0.0


# ------------------------------------------------------------------------------- the list
def draw(group: Group, seed: int, kept: Iterable[str] = ()) -> list[Mutation]:
    """Mutants of a group: those kept, then others in an order given by the seed and their names."""
    every = group.mutations()
    chosen = {name: every[name] for name in kept if name in every}
    uses = Counter(use for each in chosen.values() for use in (place(each), each.operator))

    def lot(name: str) -> bytes:
        return hashlib.sha256(f"{seed} {name}".encode()).digest()

    for name in sorted(every.keys() - chosen.keys(), key=lot):
        each = every[name]
        most = math.ceil(RARE.get(each.operator, MOST) * group.count)
        if len(chosen) < group.count and uses[place(each)] < EACH and uses[each.operator] < most:
            chosen[name] = each
            uses.update((place(each), each.operator))
    return sorted(chosen.values(), key=lambda each: (each.file, each.line, each.identity))


def place(mutation: Mutation) -> str:
    """File and function of a mutant."""
    return f"{mutation.file}::{mutation.function}"


def entries(text: str) -> Iterator[Entry]:
    """The lines of a written list."""
    group = ""
    for line in text.splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        elif line.strip() and not line.startswith("#"):
            identity, _, change = line.partition("  ")
            yield Entry(group, identity, change.strip())


def written(drawn: dict[str, list[Mutation]]) -> str:
    """A list as text."""
    lines = ["# written by python -m tools.mutants --draw"]
    for group, members in drawn.items():
        lines += ["", f"[{group}]"]
        lines += [f"{each.identity}  {each.change}" for each in members]
    return "\n".join(lines) + "\n"


def resolve(
    groups: list[Group], listed: Iterable[Entry]
) -> tuple[list[tuple[str, Mutation]], list[str]]:
    """The listed mutants as they are in today's code, and remarks about those that are not."""
    every = {group.name: group.mutations() for group in groups}
    found = []
    remarks = []
    for entry in listed:
        if entry.group not in every:
            continue
        mutation = every[entry.group].get(entry.identity) or moved(every[entry.group], entry)
        if mutation is None:
            remarks.append(f"vanished: {entry.identity}  {entry.change}")
            continue
        if mutation.identity != entry.identity:
            remarks.append(f"moved: {entry.identity} is now in {mutation.file}")
        elif mutation.change != entry.change:
            remarks.append(f"changed: {entry.identity} was {entry.change}, is {mutation.change}")
        found.append((entry.group, mutation))
    return found, remarks


def moved(every: dict[str, Mutation], entry: Entry) -> Mutation | None:
    """The same function in another file of the group, if there is one such function alone."""
    rest = entry.identity.partition("::")[2]
    same = [each for name, each in every.items() if name.partition("::")[2] == rest]
    return same[0] if len(same) == 1 else None


# ------------------------------------------------------------------------------- the survey
def test_files(config: dict[str, Any]) -> list[str]:
    """The files of tests that may kill mutants."""
    paths = [ROOT / name for name in config["tests"]]
    files = {
        str(file.relative_to(ROOT))
        for path in paths
        for file in (path.rglob("test_*.py") if path.is_dir() else [path] * path.exists())
    }
    return sorted(file for file in files if not any(fnmatch(file, form) for form in config["skip"]))


def survey(config: dict[str, Any], files: set[str], jobs: int, reuse: bool) -> dict[str, Reached]:
    """Run every test once; what each reaches of these source files."""
    tests = test_files(config)
    records = {test: WORK / "survey" / (test.replace("/", "-") + ".json") for test in tests}
    stale = [test for test in tests if not (reuse and fresh(records[test], test))]
    tasks = [survey_task(test, records[test], files, config) for test in stale]
    for number, done in enumerate(run_all(tasks, jobs), 1):
        report(f"  survey {number}/{len(tasks)} {done.name} {done.seconds:.0f} s")
    found: dict[str, Reached] = {}
    for test, record in records.items():
        if not record.exists():  # it could not be collected
            found[test] = Reached("failed", 0.0, [])
            continue
        tests_of = json.loads(record.read_text())["tests"]
        found |= {name: Reached(**fields) for name, fields in tests_of.items()}
    return found


def fresh(record: Path, test: str) -> bool:
    """True when a test file has not changed since its record was written."""
    return record.exists() and json.loads(record.read_text())["text"] == digest(test)


def digest(test: str) -> str:
    """Hash of a test file."""
    return hashlib.sha256((ROOT / test).read_bytes()).hexdigest()


def survey_task(test: str, record: Path, files: set[str], config: dict[str, Any]) -> Task:
    """Run one file of tests, and write what they reach."""
    record.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)

    def work() -> int:
        import pytest

        seen: set[str] = set()
        hook.install_watch(SOURCE, files, seen)
        plugin = Survey(seen, config["longest"], config["most"])
        options = [option for option in PYTEST if option != "-x"]
        status = pytest.main([*options, test], plugins=[plugin])
        if status > pytest.ExitCode.TESTS_FAILED and status != pytest.ExitCode.NO_TESTS_COLLECTED:
            return int(status)
        tests = {name: dataclasses.asdict(each) for name, each in plugin.tests.items()}
        record.write_text(json.dumps({"text": digest(test), "tests": tests}))
        return int(status)

    return Task(test, work, record.with_suffix(".log"), 1800.0)


# ------------------------------------------------------------------------------- the run
def chosen_tests(
    reached: dict[str, Reached], functions: set[str], budget: float
) -> dict[str, float]:
    """Passing tests that reach one of these functions, quickest first, within a budget."""
    able = [
        (each.seconds, name)
        for name, each in reached.items()
        if each.outcome == "passed" and functions & set(each.functions)
    ]
    usual: dict[str, float] = {}
    for seconds, name in sorted(able):
        budget -= seconds
        if budget < 0 and usual:
            break
        usual[name] = seconds
    return usual


def trial(name: str, identity: str | None, usual: dict[str, float]) -> Task:
    """Run these tests, each with its seconds, against a mutant or against the code as it is."""

    def work() -> int:
        import pytest

        if identity is not None:
            hook.install_mutant(SOURCE, identity)
        plugin = Chosen(usual)
        for files in stages(usual, (identity or "").split("/")[0]):
            status = int(pytest.main([*PYTEST, *files], plugins=[plugin]))
            if status not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
                return LATE if plugin.late else status
        return 0

    log = WORK / "logs" / (name.replace("/", "-") + ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    return Task(name, work, log, 30 + 3 * sum(usual.values()))


def stages(tests: Iterable[str], folder: str) -> list[list[str]]:
    """Files of these tests: those of the source's own folder first, then the others."""
    files = list(dict.fromkeys(test.split("::")[0] for test in tests))
    own = [file for file in files if file.startswith(f"tests/{folder}/")]
    return [part for part in (own, [file for file in files if file not in own]) if part]


def trials(
    listed: list[tuple[str, Mutation]],
    reached: dict[str, Reached],
    config: dict[str, Any],
    jobs: int,
) -> Iterator[Result]:
    """Let every mutant face its tests."""
    known = config["equivalent"]
    by_name = {mutation.identity: (group, mutation) for group, mutation in listed}
    tasks = []
    for name, (group, mutation) in by_name.items():
        usual = chosen_tests(reached, {place(mutation)}, config["budget"])
        if name in known:
            yield Result(group, mutation, "equivalent")
        elif not usual:
            yield Result(group, mutation, "unreached")
        else:
            tasks.append(trial(name, name, usual))
    for done in run_all(tasks, jobs):
        group, mutation = by_name[done.name]
        outcome = {None: "timed out", LATE: "timed out", 0: "survived"}.get(done.status, "killed")
        yield Result(group, mutation, outcome, done.seconds)


def controls(
    listed: list[tuple[str, Mutation]],
    reached: dict[str, Reached],
    jobs: int,
) -> list[str]:
    """Groups whose tests fail in the order of their speed although nothing was changed."""
    functions: dict[str, set[str]] = {}
    for group, mutation in listed:
        functions.setdefault(group, set()).add(place(mutation))
    tasks = [
        trial(f"unchanged-{group}", None, chosen_tests(reached, places, CONTROL))
        for group, places in functions.items()
    ]
    return [done.name.removeprefix("unchanged-") for done in run_all(tasks, jobs) if done.status]


# ------------------------------------------------------------------------------- the report
def report(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(results: list[Result]) -> str:
    """Counts by group, and the share killed of the mutants that change behaviour."""
    columns = ("killed", "timed out", "survived", "unreached", "equivalent")
    rows = [f"{'group':<14}" + "".join(f"{name:>12}" for name in columns) + f"{'share':>9}"]
    groups = list(dict.fromkeys(result.group for result in results))
    for name in [*groups, "all"]:
        members = [each for each in results if name in (each.group, "all")]
        counts = Counter(each.outcome for each in members)
        cells = "".join(f"{counts[column]:>12}" for column in columns)
        rows.append(f"{name:<14}{cells}{share(members):>9.1%}")
    return "\n".join(rows)


def share(results: Iterable[Result]) -> float:
    """Killed mutants of those that change behaviour; one that hangs is killed too."""
    counts = Counter(each.outcome for each in results)
    lost = counts["survived"] + counts["unreached"]
    killed = counts["killed"] + counts["timed out"]
    return killed / (killed + lost) if killed + lost else 1.0


def options(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", action="append", help="a group of tools/mutants.toml")
    parser.add_argument("--match", default="", help="a text that identities must contain")
    parser.add_argument("--sample", type=int, help="so many mutants")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--reuse", action="store_true", help="reuse the last survey")
    parser.add_argument("--fresh", type=int, help="draw another list with this seed")
    parser.add_argument("--draw", action="store_true", help="write the list again")
    parser.add_argument("--list", action="store_true", help="print the list and stop")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the mutants that the command line asks for; 1 when too few were killed."""
    asked = options(arguments)
    config = tomllib.loads(CONFIG.read_text())
    groups = [Group(**each) for each in config["group"]]
    old = list(entries(LIST.read_text())) if LIST.exists() else []
    if asked.draw:
        kept = [each.identity for _, each in resolve(groups, old)[0]]
        drawn = {group.name: draw(group, config["seed"], kept) for group in groups}
        LIST.write_text(written(drawn))
        return 0
    groups = [group for group in groups if not asked.only or group.name in asked.only]
    if asked.fresh is not None:
        listed = [(group.name, each) for group in groups for each in draw(group, asked.fresh)]
        remarks: list[str] = []
    else:
        listed, remarks = resolve(groups, old)
        remarks += [
            f"vanished: {name}, listed as equivalent"
            for name in config["equivalent"]
            if name not in {entry.identity for entry in old}
        ]
    listed = [(group, each) for group, each in listed if asked.match in each.identity]
    if asked.sample is not None:
        listed = random.Random(config["seed"]).sample(listed, min(asked.sample, len(listed)))
    for remark in remarks:
        report(remark)
    if asked.list:
        for group, each in listed:
            report(f"{group:<12} {each.identity}  {each.change}")
        return 0
    return run(listed, config, asked)


def run(
    listed: list[tuple[str, Mutation]], config: dict[str, Any], asked: argparse.Namespace
) -> int:
    """Survey the tests, try the mutants, print the table."""
    for name in config["preload"]:
        importlib.import_module(name)
    files = {file for each in config["group"] for file in Group(**each).files()}
    reached = survey(config, files, asked.jobs, asked.reuse)
    red = sorted(name for name, each in reached.items() if each.outcome == "failed")
    for name in red:
        report(f"fails without a mutant, left out: {name}")
    results = []
    for result in trials(listed, reached, config, asked.jobs):
        results.append(result)
        change = result.mutation
        report(
            f"  {len(results)}/{len(listed)} {result.outcome:<10} {result.seconds:5.1f} s "
            f"{change.identity} (line {change.line})  {change.change}"
        )
    spoilt = controls(listed, reached, asked.jobs)
    for group in spoilt:
        report(f"tests of {group} fail in order of speed: see {WORK / 'logs'}")
    report("\n" + table(results))
    for result in results:
        if result.outcome in ("survived", "unreached"):
            report(f"{result.outcome}: {result.mutation.identity}  {result.mutation.change}")
    return int(share(results) < config["share"] or bool(red) or bool(spoilt))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
