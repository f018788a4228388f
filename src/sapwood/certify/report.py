"""What was tested, at what power, and what came of it."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.certify.statistics import Test

PASS, FAIL, UNTESTED = "pass", "fail", "not testable"
LEVEL, POWER = 0.01, 0.99  # chance that an honest server fails, over all tests; chance that a departure is caught
Json = dict[str, Any]


@dataclass
class Check:
    """One question about a server or a recipe."""

    name: str
    asks: str  # what holds if it passes
    status: str = UNTESTED
    found: str = ""  # one sentence: what was seen
    power: str = ""  # the smallest departure that would have been caught
    tests: dict[str, Test] = field(default_factory=dict)  # statistical ones, judged together with those of all checks
    facts: Json = field(default_factory=dict)

    def settle(self, *, good: bool, found: str, power: str = "", **facts: Any) -> "Check":
        """Decide by a fact."""
        self.status, self.found, self.power = PASS if good else FAIL, found, power if good else ""
        self.facts |= facts
        return self

    def skip(self, reason: str) -> "Check":
        """Leave it undecided."""
        self.status, self.found = UNTESTED, reason
        return self

    def to_json(self) -> Json:
        """The check by name."""
        tests = {name: {**dataclasses.asdict(test), "p_value": test.p_value} for name, test in self.tests.items()}
        plain = {name: getattr(self, name) for name in ("name", "asks", "status", "found", "power", "facts")}
        return {**plain, "tests": finite(tests)}


@dataclass
class Report:
    """All checks of one subject."""

    subject: str
    about: Json
    checks: list[Check]
    level: float = LEVEL
    seconds: float = 0.0

    def judge(self) -> "Report":
        """Decide what tests must decide, at an error level that is shared by all of them."""
        count = self.count
        for check in self.checks:
            if check.tests:
                weigh(check, self.level / count)
        return self

    @property
    def count(self) -> int:
        """Statistical tests."""
        return max(1, sum(len(check.tests) for check in self.checks))

    @property
    def verdict(self) -> str:
        """What it comes to: one failure fails all."""
        states = [check.status for check in self.checks]
        return FAIL if FAIL in states else PASS if PASS in states else UNTESTED

    def to_json(self) -> Json:
        """The record."""
        tally = {status: sum(check.status == status for check in self.checks) for status in (PASS, FAIL, UNTESTED)}
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "tally": tally,
            "level": self.level,
            "tests": self.count,
            "level_each": self.level / self.count,
            "power": POWER,
            "seconds": self.seconds,
            **self.about,
            "checks": [check.to_json() for check in self.checks],
        }


def weigh(check: Check, level: float) -> None:
    """Fail a check if one of its tests is too unlikely under an honest subject."""
    worst = min(check.tests.values(), key=lambda test: test.p_value)
    name = next(name for name, test in check.tests.items() if test is worst)
    telling = [test for test in check.tests.values() if test.freedom and test.observations]
    if not telling:
        check.skip(check.found or "too few observations to test anything")
        return
    caught = min(test.caught(level, POWER) for test in telling)
    if check.status != FAIL:
        check.status = FAIL if worst.p_value < level else PASS
        count = sum(test.observations for test in telling)
        seen = f"{name} has p = {worst.p_value:.2g}, departure {worst.departure:.3f}, over {count} tokens in all"
        check.found = f"{check.found}; {seen}" if check.found else seen
    check.power = (
        f"a total variation of {caught:.3f} would have been caught with {POWER:.0%}, at error level {level:.1g}"
    )
    check.facts["caught"] = {name: test.caught(level, POWER) for name, test in check.tests.items()}


def words(report: Report) -> str:
    """The report as text."""
    marks = {PASS: "pass", FAIL: "FAIL", UNTESTED: "  - "}
    wide = max(len(check.name) for check in report.checks)
    lines = [f"{report.subject}: {report.verdict.upper()}", ""]
    for check in report.checks:
        lines.append(f"  {marks[check.status]}  {check.name:<{wide}}  {check.asks}")
        lines += [f"        {'':<{wide}}  {line}" for line in (check.found, check.power) if line]
    share = f"{report.level:.0%} over {report.count} tests, {report.level / report.count:.2g} each"
    return "\n".join([*lines, "", f"  chance that an honest subject fails: {share}; {report.seconds:.0f} s"])


def finite(value: Any) -> Any:
    """The same, with None for what JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
