"""A server that speculates rightly passes; each of many planted faults is failed by name."""

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from sapwood.certify.client import ServerClient, ServerRefused, answers
from sapwood.certify.context import PROMPTS, CertifyContext
from sapwood.certify.report import FAIL, LEVEL, PASS, UNTESTED, CertifyReport, as_text
from sapwood.certify.server import examine
from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from tests.helpers.fake_openai import FAULTS, serving

SAMPLES = {
    "no-residual": 384
}  # a fault so small that with 192 answers two noises in 22 hid it, with 384 none of eight


FIRST = {"repeats", "defaults", "logprobs"}  # what other checks need is found by these
EVERY = {*FAULTS.values(), *FIRST, "continuations"}


def exam(url: str, samples: int = 192, **options: Any) -> CertifyContext:
    client = ServerClient(url, workers=1)  # the fake server runs in this process
    return CertifyContext(client, prompts=PROMPTS[:4], samples=samples, longer=24, **options)


def test_the_fake_server_answers_the_same_in_any_order_of_requests() -> None:
    def drawn(workers: int) -> list[str]:
        with serving() as url:
            client = ServerClient(url, workers=workers)
            context = CertifyContext(client, choices=4)
            return [answer.text for answer in context.draw(client, PROMPTS[0], 96, 8, 1.0)]

    alone, crowded = drawn(1), drawn(8)
    assert sorted(alone) == sorted(crowded)
    assert len(set(alone)) > 48


def status(report: CertifyReport) -> dict[str, str]:
    return {check.name: check.status for check in report.checks}


@pytest.fixture(scope="module")
def honest() -> CertifyReport:
    with serving() as url:
        return examine(exam(url))


def test_an_honest_server_passes(honest: CertifyReport) -> None:
    found = status(honest)
    assert found.pop("continuations") == UNTESTED  # there was no reference
    assert set(found.values()) == {PASS}, as_text(honest)
    assert honest.verdict == PASS
    assert set(found) == {*FAULTS.values(), "repeats", "defaults"}


def test_the_power_is_stated(honest: CertifyReport) -> None:
    probs = next(check for check in honest.checks if check.name == "law")
    assert 0.01 < min(probs.facts["caught"].values()) < 0.1
    assert "would have been caught with 99%" in probs.power
    record = json.loads(json.dumps(honest.to_json(), allow_nan=False))
    assert record["level_each"] == pytest.approx(0.01 / record["tests"])
    assert record["tests"] == sum(len(check["tests"]) for check in record["checks"]) >= 5
    assert record["tally"] == {PASS: 15, FAIL: 0, UNTESTED: 1}


def examine_only(
    names: Collection[str], context: CertifyContext, honest: CertifyReport
) -> CertifyReport:
    """A few checks, each of whose tests has the level that it has among all of them."""
    kept = {*FIRST, *names}
    tests = sum(len(check.tests) for check in honest.checks if check.name in kept)
    level = LEVEL * max(1, tests) / honest.count
    report = examine(context, level, without=EVERY - kept)
    assert report.level / report.count <= LEVEL / honest.count * (1 + 1e-9)
    return report


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_failed_by_name(fault: str, honest: CertifyReport) -> None:
    with serving(fault) as url:
        report = examine_only({FAULTS[fault]}, exam(url, SAMPLES.get(fault, 192)), honest)
    assert report.verdict == FAIL, as_text(report)
    assert status(report)[FAULTS[fault]] == FAIL, as_text(report)


def test_a_fault_of_one_option_is_found_there_alone() -> None:
    with serving("min_p") as url:
        found = status(examine(exam(url)))
    assert [name for name, state in found.items() if state == FAIL] == ["min_p"]


# ------------------------------------------------------------------------------------- references
@pytest.mark.parametrize("fault", ["argmax", "accept-if-p>=q", "lenient"])
def test_speculation_off_is_a_reference(fault: str, honest: CertifyReport) -> None:
    name = "greedy" if fault == "lenient" else "continuations"
    with serving(fault) as url:
        off = ServerClient(url, workers=1, extra={"speculation": False})
        report = examine_only({name}, exam(url, reference=off), honest)
    assert status(report)[name] == FAIL, as_text(report)


def test_an_honest_server_equals_its_reference() -> None:
    with serving() as url, serving() as other:
        report = examine(exam(url, reference=ServerClient(other, workers=1)))
    assert report.verdict == PASS, as_text(report)
    assert status(report)["continuations"] == PASS


def test_without_logprobs_a_reference_still_tells() -> None:
    with serving("argmax", refuses=["logprobs"]) as url:
        off = ServerClient(url, workers=1, extra={"speculation": False})
        report = examine(exam(url, reference=off))
    found = status(report)
    assert found["logprobs"] == UNTESTED
    assert found["law"] == UNTESTED
    assert found["continuations"] == FAIL, as_text(report)


# ------------------------------------------------------------------------------------ other servers
def test_what_a_server_refuses_is_not_testable() -> None:
    with serving(refuses=["logit_bias", "min_p", "n", "seed"]) as url:
        report = examine(exam(url, samples=64))  # without `n` each of them is a request
    found = status(report)
    assert {name for name, state in found.items() if state == UNTESTED} == {
        "logit_bias",
        "min_p",
        "seed",
        "continuations",
    }
    assert report.verdict == PASS, as_text(report)
    assert (
        "not supported with speculation"
        in next(check for check in report.checks if check.name == "min_p").found
    )


@pytest.mark.parametrize(
    ("fault", "name"), [("", None), ("argmax", "law"), ("top_k", "top_k"), ("late-stop", "stop")]
)
def test_a_server_of_chats_alone_is_asked_by_chat(fault: str, name: str | None) -> None:
    # answers to chats are drawn in full for the honest server and for the fault of the law
    without = {"law", "temperature", "independence"} if name in {"top_k", "stop"} else set[str]()
    samples = 192 if name else 64  # an honest server passes with few
    with serving(fault, chat_only=True) as url:
        report = examine(exam(url, samples), without=without)
    found = status(report)
    assert report.about["api"] == "chat"
    assert found["greedy"] == UNTESTED  # a chat cannot be continued
    failed = {one for one, state in found.items() if state == FAIL}
    if fault == "argmax":  # spoils every check that samples
        assert name in failed, as_text(report)
    else:
        assert failed == (set() if name is None else {name}), as_text(report)


def test_the_time_limit_leaves_the_rest_untested() -> None:
    with serving() as url:
        server = ServerClient(url, until=time.monotonic() + 1.0)
        report = examine(CertifyContext(server, prompts=PROMPTS[:4], samples=4096))
    late = [check for check in report.checks if "time limit" in check.found]
    assert late
    assert all(check.status == UNTESTED for check in late)
    assert report.seconds < 10


def test_checks_that_are_left_out_are_not_asked_and_named() -> None:
    kept = {"repeats", "max_tokens"}
    with serving() as url:
        context = exam(url, samples=8)
        report = examine(context, without=EVERY - kept)
    assert {name for name, found in status(report).items() if found != UNTESTED} == kept
    assert {check.found for check in report.checks if check.name not in kept} == {
        "left out by --without"
    }
    assert report.verdict == PASS
    assert set(report.about["without"]) == EVERY - kept


def test_an_unknown_check_cannot_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "http://127.0.0.1:9", "--without", "sead"]) == 2
    assert "there is no check 'sead'; did you mean seed?" in capsys.readouterr().err


def test_nobody_there_is_said_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", "http://127.0.0.1:9"]) == 2
    err = capsys.readouterr().err
    assert "cannot be reached" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["ftp://x/v1", "http://"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SapwoodError, match="no address"):
        ServerClient(text)


def test_answers_of_another_form_are_refused() -> None:
    with pytest.raises(ServerRefused, match="OpenAI's form"):
        answers({"result": "hi"}, chat=False)
    with pytest.raises(ServerRefused, match="OpenAI's form"):
        answers({"choices": [{"text": None, "logprobs": 3}]}, chat=False)


# -------------------------------------------------------------------------------------- the command
def test_the_command_reports_and_exits_by_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prompts", "4", "--concurrency", "1"]
    with serving() as url:
        assert main(["certify", url, *options, "--samples", "64", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["verdict"] == "pass"
    assert record["url"] == url
    options += ["--samples", "192", "--without", "law,temperature,independence"]
    with serving("top_k") as url:
        assert main(["certify", url, *options, "--report", str(tmp_path / "r.json")]) == 1
    out = capsys.readouterr().out
    assert "FAIL  top_k" in out
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "fail"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--off", "{"], "is not JSON"),
        (["--off", "[1]"], "must be an object"),
        (["--key", "NO_SUCH_NAME"], "no such environment variable"),
        (["--prompts", "9"], "prompts=9"),
        (["--samples", "2"], "samples=2"),
        (["--level", "2"], "level=2"),
        (["--report", "/nowhere/r.json"], "cannot be written"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as url:
        assert main(["certify", url, *options]) == 2
    assert sentence in capsys.readouterr().err
