"""The examination of a server, from the first question to the report."""

import time
from collections.abc import Callable

from sapwood.bench import provenance
from sapwood.certify.client import Late, Refused
from sapwood.certify.exam import Exam
from sapwood.certify.greedy import greedy_check, length_check, logprob_check, seed_check, stop_check
from sapwood.certify.laws import continuation_check, independence_check, law_check, temperature_check
from sapwood.certify.options import TRUNCATIONS, bias_check, penalty_check
from sapwood.certify.report import FAIL, LEVEL, Check, Report

OWN = {"speculation": False}  # fields that turn speculation off in our own server
NAMES: dict[Callable[[Exam], Check], str] = {
    logprob_check: "logprobs",
    greedy_check: "greedy",
    length_check: "max_tokens",
    stop_check: "stop",
    seed_check: "seed",
    bias_check: "logit_bias",
    penalty_check: "penalties",
    independence_check: "independence",
    law_check: "law",
    temperature_check: "temperature",
    continuation_check: "continuations",
}


LAWS = (independence_check, law_check, temperature_check, continuation_check)
TELLING = (penalty_check, *(option.check for option in TRUNCATIONS), *LAWS[:-1])  # judged by reported logprobs


def questions() -> list[Callable[[Exam], Check]]:
    """All checks, the quick and basic ones first."""
    return [logprob_check, greedy_check, length_check, stop_check, seed_check, bias_check, *TELLING, LAWS[-1]]


def examine(exam: Exam, level: float = LEVEL) -> Report:
    """Ask everything, as far as the time allows."""
    start, checks = time.monotonic(), list[Check]()
    exam.prepare()
    for question in questions():
        checks.append(asked(question, exam, checks))
    about = {
        "url": exam.server.url,
        "model": exam.server.model,
        "api": "chat" if exam.server.chat else "completions",
        "reference": None if exam.reference is None else {"url": exam.reference.url, "fields": exam.reference.extra},
        "logprobs": exam.top,
        "raw_logprobs": exam.raw,
        "samples": exam.samples,
        "length": exam.length,
        "prompts": list(exam.prompts),
        "requests": exam.server.requests + (exam.reference.requests if exam.reference else 0),
        "command": provenance.command(),
        "commit": provenance.commit(),
    }
    report = Report(f"{exam.server.url} ({exam.server.model})", about, checks, level).judge()
    report.seconds = time.monotonic() - start
    return report


def asked(question: Callable[[Exam], Check], exam: Exam, before: list[Check]) -> Check:
    """One check; where the server, its logprobs or the time give out, it says so."""
    try:
        if question in TELLING and any(check.name == "logprobs" and check.status == FAIL for check in before):
            return Check(named(question), "judged by logprobs").skip("the logprobs that it needs are wrong")
        return question(exam)
    except (Late, Refused) as error:
        return Check(named(question), "the server answers").skip(str(error))


def named(question: Callable[[Exam], Check]) -> str:
    """The name of a check that could not be made."""
    owner = getattr(question, "__self__", None)
    return str(getattr(owner, "name", "") or NAMES.get(question, ""))
