"""Faults of a server itself are named as such, and no check blames drafts for them."""

import functools
import json
import time

import pytest

from sapwood.certify.baseline import unlikely_mass
from sapwood.certify.client import DeadlineReached, ReportedToken, ServerClient
from sapwood.certify.context import PROMPTS, CertifyContext
from sapwood.certify.report import FAIL, PASS, UNTESTED, CertifyReport, as_text
from sapwood.certify.server import examine
from sapwood.cli import certify as cli
from sapwood.cli import progress
from sapwood.cli.main import main
from tests.helpers.fake_openai import serving

# refused alike by all checks that compare greedy texts
COMPARING = {"greedy", "max_tokens", "stop", "seed"}


# answers to each question: few where a server is refused or passes, more where a fault is drawn
FEW, MORE = 64, 192


def exam(url: str, samples: int = FEW, **extra: object) -> CertifyReport:
    client = ServerClient(url, workers=1, extra=extra)  # the fake server runs in this process
    return examine(CertifyContext(client, prompts=PROMPTS[:4], samples=samples, longer=24))


def named(report: CertifyReport, status: str) -> set[str]:
    return {check.name for check in report.checks if check.status == status}


def found(report: CertifyReport, name: str) -> str:
    return next(check.found for check in report.checks if check.name == name)


def test_a_server_that_does_not_repeat_itself_fails_there_alone() -> None:
    with serving("restless") as url:
        report = exam(url)
    assert named(report, FAIL) == {"repeats"}, as_text(report)
    assert named(report, UNTESTED) >= COMPARING
    assert all("see `repeats`" in found(report, name) for name in COMPARING)


def test_a_reference_that_does_not_repeat_either_is_said() -> None:
    with serving("restless") as url:
        server = ServerClient(url, workers=1)
        off = ServerClient(url, workers=1, extra={"speculation": False})
        report = examine(CertifyContext(server, off, prompts=PROMPTS[:4], samples=FEW, longer=24))
    assert "the reference does not repeat its text either" in found(report, "repeats")


@pytest.mark.parametrize("strength", [1.2, 1.5])
def test_a_default_penalty_is_named_with_its_cure(strength: float) -> None:
    with serving(defaults={"repeat_penalty": strength}) as url:
        report = exam(url)
    assert not named(report, FAIL), as_text(report)
    assert "--field repeat_penalty=1.0" in found(report, "defaults")
    assert named(report, UNTESTED) >= {"greedy", "penalties", "law", "temperature"}


def test_the_cure_of_a_default_penalty() -> None:
    with serving(defaults={"repeat_penalty": 1.5}) as url:
        cured = exam(url, repeat_penalty=1.0)
    assert cured.verdict == PASS
    assert named(cured, UNTESTED) == {"continuations"}, as_text(cured)
    assert cured.to_json()["fields"] == {"repeat_penalty": 1.0}


def test_a_default_truncation_is_named_with_its_cure() -> None:
    with serving(defaults={"min_p": 0.1, "top_p": 0.9}) as url:
        report = exam(url, samples=MORE)
        assert not named(report, FAIL), as_text(report)
        assert "cuts unlikely tokens by default" in found(report, "defaults")
        assert "--field min_p=0" in found(report, "law")
        cured = exam(url, min_p=0, top_p=1)
    assert named(cured, UNTESTED) == {"continuations"}, as_text(cured)


def test_greedy_verification_is_not_taken_for_a_truncation() -> None:
    with serving("argmax") as url:
        report = exam(url, samples=MORE)
    assert found(report, "defaults").startswith("none of")
    assert "law" in named(report, FAIL)


def test_the_mass_of_unlikely_tokens_counts_those_not_reported() -> None:
    import math

    top = {"a": math.log(0.5), "b": math.log(0.2), "c": math.log(0.01)}
    assert unlikely_mass(ReportedToken("a", top["a"], top)) == pytest.approx(0.3)


# --------------------------------------------------------------------------------------- drafts
@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ("", "does not say whether it drafts"),
        ('vllm:spec_decode_num_draft_tokens_total{model="x"} 0.0\n', "plain decoding"),
    ],
)
def test_drafts_are_spoken_of_where_there_are_any(metrics: str, sentence: str) -> None:
    with serving(metrics=metrics) as url:
        text = as_text(exam(url, samples=32))
    assert sentence in text
    assert "a draft" not in text


def test_drafted_tokens_are_counted_from_metrics() -> None:
    lines = 'sapwood_grown_nodes_total 41.0\nvllm:spec_decode_num_draft_tokens_total{a="b"} 1.0\n'
    with serving(metrics=lines) as url:
        assert ServerClient(url).counted_drafts() == 42
        # the time being over does not mean that the server counts no drafts
        assert ServerClient(url, until=time.monotonic() - 1).counted_drafts() == 42


# ------------------------------------------------------------------------------- time, progress
def test_a_request_cut_by_the_deadline_speaks_of_minutes() -> None:
    with serving() as url:
        server = ServerClient(url, until=time.monotonic() + 0.3, limit=60.0)
        asked = functools.partial(server.one, "a", max_tokens=30_000, temperature=0)
        with pytest.raises(DeadlineReached, match="--minutes"):
            asked()


def test_a_report_says_that_time_ran_out() -> None:
    with serving() as url:
        server = ServerClient(url, until=time.monotonic() + 1.0)
        text = as_text(examine(CertifyContext(server, prompts=PROMPTS[:4], samples=4096)))
    assert "time ran out before all checks were done; allow more with --minutes" in text


def test_a_log_gets_lines_at_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    with cli.status_line() as tick:
        tick("greedy texts")
        tick("greedy texts")
    assert capsys.readouterr().err.splitlines() == [
        "sapwood: greedy texts, 1 answers so far",
        "sapwood: greedy texts, 2 answers so far",
    ]


# -------------------------------------------------------------------------------------- the option
def test_fields_are_part_of_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    others = "greedy,law,temperature,independence,top_k,top_p,min_p,seed,stop,max_tokens"
    with serving(defaults={"repeat_penalty": 1.5}) as url:
        options = ["--prompts", "4", "--samples", "32", "--without", others, "--json"]
        options += ["--concurrency", "1"]
        assert main(["certify", url, *options, "--field", "repeat_penalty=1.0"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["fields"] == {"repeat_penalty": 1.0}
    status = {check["name"]: check["status"] for check in record["checks"]}
    assert status["penalties"] == PASS  # not testable where requests have another penalty


def test_a_field_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "http://127.0.0.1:9", "--field", "repeat_penalty"]) == 2
    assert "must be NAME=VALUE" in capsys.readouterr().err
