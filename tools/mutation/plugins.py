"""Pytest plugins: one notes which functions each test reaches, one runs chosen tests in order."""

import hashlib
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import pytest
from hypothesis import Phase, settings

# CPU seconds that a test may take: some, and so many times what it takes without a mutant
SPARE = 5.0
PATIENCE = 5.0


class TooSlow(BaseException):
    """Raised inside a test that is no use for a mutation run because it takes too long."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise where so many seconds of CPU are spent inside."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass
class Reached:
    """One test: passed, failed, skipped or slow; its seconds; the functions that it reaches."""

    outcome: str
    seconds: float
    functions: list[str]


@dataclass(eq=False)
class Survey:
    """Watch every test: its seconds of CPU, and what it reaches; give up on slow ones."""

    seen: set[str]
    longest: float  # CPU seconds of one test
    most: int  # parameter sets of one test function
    tests: dict[str, Reached] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    collected: dict[str, set[str]] = field(default_factory=dict)  # file -> reached by importing it

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, object, object]:
        """Functions that run while a file is imported count for each of its tests."""
        self.seen.clear()
        result = yield
        if self.seen:
            self.collected.setdefault(collector.nodeid, set()).update(self.seen)
        return result

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Of a test with very many parameter sets, take some that depend on their names alone."""
        lots: dict[str, list[pytest.Item]] = {}
        for item in items:
            lots.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = {
            item.nodeid
            for same in lots.values()
            for item in sorted(same, key=lambda item: digest(item.nodeid))[: self.most]
        }
        items[:] = [item for item in items if item.nodeid in kept]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run one test with set-up and clean-up inside the limit."""
        self.seen.clear()
        self.outcome = "passed"
        began = time.process_time()
        result = yield
        file = item.nodeid.split("::")[0]
        reached = self.seen | self.collected.get(file, set())
        outcome = "slow" if item.nodeid in self.slow else self.outcome
        seconds = time.process_time() - began
        self.tests[item.nodeid] = Reached(outcome, seconds, sorted(reached))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Stop a test that is over its limit of CPU time."""
        try:
            with limited(self.longest):
                return (yield)
        except TooSlow:
            self.slow.add(item.nodeid)
            pytest.skip("too slow for a mutation run")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, or that the test was skipped."""
        if report.outcome != "passed" and self.outcome != "failed":
            self.outcome = report.outcome


def digest(text: str) -> str:
    """Hash of a text, as a fair order."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(eq=False)
class Chosen:
    """Run these tests only, in this order; one that takes far longer than it should is stopped."""

    usual: Mapping[str, float]  # test -> seconds of CPU that it takes
    late: bool = False  # one was stopped

    def pytest_collection(self) -> None:
        """Have a failing example fail at once: a smaller one is of no interest here."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", parent=settings(), phases=phases)
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Drop what is not chosen, and sort the rest."""
        place = {name: number for number, name in enumerate(self.usual)}
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Stop a test that hangs."""
        try:
            with limited(SPARE + PATIENCE * self.usual[item.nodeid]):
                return (yield)
        except TooSlow:
            self.late = True
            raise
