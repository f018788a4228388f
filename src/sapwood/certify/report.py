"""Checks with their status and power, and the report of all checks."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sapwood.certify.statistics import StatisticalTest

PASS = "pass"
FAIL = "fail"
UNTESTED = "not testable"
LEVEL = 0.01  # probability that a lossless subject fails, over all tests
PRELIMINARY = {"repeats", "defaults"}  # checks of what a server does by itself
POWER = 0.99  # probability that a departure is detected
Json = dict[str, Any]


@dataclass
class Check:
    """One check of a server or a recipe."""

    name: str
    asks: str  # the statement that holds if it passes
    status: str = UNTESTED
    found: str = ""  # result in one sentence
    power: str = ""  # the smallest departure that would have been caught
    # statistical tests, decided together with those of all checks
    tests: dict[str, StatisticalTest] = field(default_factory=dict)
    facts: Json = field(default_factory=dict)

    def settle(self, *, good: bool, found: str, power: str = "", **facts: Any) -> "Check":
        """Decide the check."""
        self.status = PASS if good else FAIL
        self.found = found
        self.power = power if good else ""
        self.facts |= facts
        return self

    def skip(self, reason: str) -> "Check":
        """Leave the check undecided."""
        self.status = UNTESTED
        self.found = reason
        return self

    def to_json(self) -> Json:
        """The check as JSON."""
        tests = {
            name: {**dataclasses.asdict(test), "p_value": test.p_value}
            for name, test in self.tests.items()
        }
        plain = {
            name: getattr(self, name)
            for name in ("name", "asks", "status", "found", "power", "facts")
        }
        return {**plain, "tests": finite(tests)}


@dataclass
class CertifyReport:
    """All checks of one server or recipe."""

    subject: str
    about: Json
    checks: list[Check]
    level: float = LEVEL
    seconds: float = 0.0

    def decide(self) -> "CertifyReport":
        """Decide the statistical checks, at an error level that is shared by all of them."""
        count = self.count
        for check in self.checks:
            if check.tests:
                judge_by_level(check, self.level / count)
        return self

    @property
    def count(self) -> int:
        """Number of statistical tests."""
        return max(1, sum(len(check.tests) for check in self.checks))

    @property
    def verdict(self) -> str:
        """Overall status: one failure fails all; questions about a server alone prove nothing."""
        if any(check.status == FAIL for check in self.checks):
            return FAIL
        passed = {check.name for check in self.checks if check.status == PASS}
        return PASS if passed - PRELIMINARY else UNTESTED

    def to_json(self) -> Json:
        """The report as JSON."""
        tally = {
            status: sum(check.status == status for check in self.checks)
            for status in (PASS, FAIL, UNTESTED)
        }
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


def judge_by_level(check: Check, level: float) -> None:
    """Fail a check if one of its tests has a p-value below the level."""
    worst = min(check.tests.values(), key=lambda test: test.p_value)
    name = next(name for name, test in check.tests.items() if test is worst)
    usable = [test for test in check.tests.values() if test.freedom and test.observations]
    if not usable:
        check.skip(check.found or "too few observations to test anything")
        return
    caught = min(test.caught(level, POWER) for test in usable)
    if check.status != FAIL:
        check.status = FAIL if worst.p_value < level else PASS
        count = sum(test.observations for test in usable)
        seen = (
            f"{name} has p = {worst.p_value:.2g}, departure {worst.departure:.3f}, "
            f"over {count} tokens in all"
        )
        check.found = f"{check.found}; {seen}" if check.found else seen
    check.power = (
        f"a total variation of {caught:.3f} would have been caught with {POWER:.0%}, "
        f"at error level {level:.1g}"
    )
    check.facts["caught"] = {name: test.caught(level, POWER) for name, test in check.tests.items()}


def as_text(report: CertifyReport) -> str:
    """The report as text."""
    marks = {PASS: "pass", FAIL: "FAIL", UNTESTED: "  - "}
    wide = max(len(check.name) for check in report.checks)
    lines = [f"{report.subject}: {report.verdict.upper()}", ""]
    for check in report.checks:
        lines.append(f"  {marks[check.status]}  {check.name:<{wide}}  {check.asks}")
        lines += [f"        {'':<{wide}}  {line}" for line in (check.found, check.power) if line]
    notes = [f"  {drafts_note(report.about)}"] if "drafted_tokens" in report.about else []
    if any("--minutes" in check.found for check in report.checks):
        notes.append("  time ran out before all checks were done; allow more with --minutes")
    share = f"{report.level:.0%} over {report.count} tests, {report.level / report.count:.2g} each"
    return "\n".join(
        [
            *lines,
            "",
            *notes,
            f"  chance that an honest subject fails: {share}; {report.seconds:.0f} s",
        ]
    )


def drafts_note(about: Json) -> str:
    """A sentence on how many tokens the server drafted while it was tested."""
    count = about["drafted_tokens"]
    if count is None:
        return "the server does not say whether it drafts"
    if not count:
        return "the server drafted nothing meanwhile: this is plain decoding"
    return f"the server drafted {count:,} tokens meanwhile"


def finite(value: Any) -> Any:
    """The same value, with None for numbers that JSON cannot hold."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
