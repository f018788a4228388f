"""Certification of a server, from its capabilities to the report."""

import time
from collections.abc import Callable, Collection

from sapwood.bench import provenance
from sapwood.certify.baseline import (
    Reason,
    defaults_check,
    needs_all_tokens,
    needs_defaults,
    needs_repeats,
    repeat_check,
)
from sapwood.certify.client import DeadlineReached, ServerRefused
from sapwood.certify.context import CertifyContext
from sapwood.certify.distribution_tests import (
    continuation_check,
    independence_check,
    law_check,
    temperature_check,
)
from sapwood.certify.greedy import greedy_check, length_check, logprob_check, seed_check, stop_check
from sapwood.certify.options import TRUNCATIONS, Truncation, bias_check, penalty_check
from sapwood.certify.report import FAIL, LEVEL, CertifyReport, Check
from sapwood.common.suggest import suggestion
from sapwood.errors import SapwoodError

OWN = {"speculation": False}  # fields that turn speculation off in our own server
NAMES: dict[Callable[[CertifyContext], Check], str] = {
    repeat_check: "repeats",
    defaults_check: "defaults",
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


SAMPLING_CHECKS = (independence_check, law_check, temperature_check, continuation_check)
# checks that rely on reported logprobs
BY_LOGPROBS = (penalty_check, *(option.check for option in TRUNCATIONS), *SAMPLING_CHECKS[:-1])
# checks that say nothing where the server itself stands in their way
REASONS: dict[Callable[[CertifyContext], Check], tuple[Reason, ...]] = {
    greedy_check: (needs_repeats, needs_defaults),
    length_check: (needs_repeats,),
    stop_check: (needs_repeats,),
    seed_check: (needs_repeats,),
    penalty_check: (needs_repeats, needs_defaults),
    law_check: (needs_all_tokens,),
    temperature_check: (needs_all_tokens,),
    **{option.check: (needs_all_tokens,) for option in TRUNCATIONS},
}


def all_checks() -> list[Callable[[CertifyContext], Check]]:
    """All checks, the quick and basic ones first."""
    return [
        repeat_check,
        defaults_check,
        logprob_check,
        greedy_check,
        length_check,
        stop_check,
        seed_check,
        bias_check,
        *BY_LOGPROBS,
        SAMPLING_CHECKS[-1],
    ]


def check_names(without: Collection[str]) -> None:
    """Refuse the name of a check that does not exist."""
    names = [named(check_of) for check_of in all_checks()]
    for name in without:
        if name not in names:
            end = suggestion(name, names, f"use {', '.join(names)}")
            raise SapwoodError(f"there is no check {name!r}; {end}")


def examine(
    context: CertifyContext, level: float = LEVEL, without: Collection[str] = ()
) -> CertifyReport:
    """Run all checks but those named in `without`, as far as the time allows."""
    start = time.monotonic()
    checks = list[Check]()
    context.prepare()
    before = context.server.counted_drafts()
    for check_of in all_checks():
        if named(check_of) in without:
            checks.append(Check(named(check_of), "asked of a server").skip("left out by --without"))
        else:
            checks.append(run_check(check_of, context, checks))
    context.drafts = context.server.counted_drafts()
    if context.drafts is not None:
        context.drafts -= before or 0
    about = {
        "url": context.server.url,
        "model": context.server.model,
        "api": "chat" if context.server.chat else "completions",
        "reference": None
        if context.reference is None
        else {"url": context.reference.url, "fields": context.reference.extra},
        "logprobs": context.top,
        "raw_logprobs": context.raw,
        "fields": context.server.extra,
        "without": sorted(without),
        "drafted_tokens": context.drafts,
        "samples": context.samples,
        "length": context.length,
        "prompts": list(context.prompts),
        "requests": context.server.requests
        + (context.reference.requests if context.reference else 0),
        "command": provenance.command(),
        "commit": provenance.commit(),
    }
    report = CertifyReport(
        f"{context.server.url} ({context.server.model})", about, checks, level
    ).decide()
    report.seconds = time.monotonic() - start
    return report


def run_check(
    check_of: Callable[[CertifyContext], Check], context: CertifyContext, before: list[Check]
) -> Check:
    """One check; skipped if the server, its logprobs or the time do not suffice."""
    try:
        if check_of in BY_LOGPROBS and any(
            check.name == "logprobs" and check.status == FAIL for check in before
        ):
            return Check(named(check_of), "judged by logprobs").skip(
                "the logprobs that it needs are wrong"
            )
        if reasons := [why for needs in REASONS.get(check_of, ()) if (why := needs(context))]:
            return Check(named(check_of), "compared with the server's own answers").skip(reasons[0])
        return check_of(context)
    except (DeadlineReached, ServerRefused) as error:
        return Check(named(check_of), "the server answers").skip(str(error))


def named(check_of: Callable[[CertifyContext], Check]) -> str:
    """The name of a check that could not be made."""
    owner = getattr(check_of, "__self__", None)
    return owner.name if isinstance(owner, Truncation) else NAMES.get(check_of, "")
