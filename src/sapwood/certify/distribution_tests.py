"""Tests that sampled tokens follow the reported probs, which detect wrong verification.

The first token of an answer comes from the prefill pass, so tokens after it are tested apart. Every
position has its own distribution; tokens are classed by their rank in it, which lets all positions
be tested together. At single positions of a text, given the text before, tokens are classed by
name.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sapwood.certify.client import ReportedToken, ServerAnswer
from sapwood.certify.context import PLACES, CertifyContext, reported_probs, whole
from sapwood.certify.report import Check
from sapwood.certify.statistics import StatisticalTest, against_probs, combined, two_samples

RANKS = 8  # top tokens that are classes of their own
GROUP = 40  # answers with a common beginning, from which on their next token is tested by name


def law_check(context: CertifyContext) -> Check:
    """Check that sampled tokens follow the reported distribution."""
    check = Check(
        "law",
        "tokens sampled at temperature 1 follow the distribution that the server reports",
    )
    if context.top is None:
        return check.skip(
            f"the server gives no logprobs ({context.why}); "
            "give a --reference to compare samples with"
        )
    drawn = context.sampled(1.0)
    check.tests = {
        "the first token": ranks(places(drawn, 0, 1)),
        "later tokens": ranks(places(drawn, 1, context.length)),
    }
    # tokens by name are compared with one report for all answers
    forked = [] if context.loose_logprobs else [answers for _, answers in context.forks()]
    for place in range(1, PLACES):
        check.tests[f"token {place + 1} by name"] = named(forked, place)
    check.tests = {name: test for name, test in check.tests.items() if test.freedom}
    return check


def temperature_check(context: CertifyContext, heat: float = 0.6) -> Check:
    """Check of the distribution at another temperature."""
    check = Check(
        "temperature", f"at temperature {heat:g} tokens follow the reported distribution, scaled"
    )
    if context.top is None:
        return check.skip(f"the server gives no logprobs ({context.why})")
    drawn = context.sampled(heat)
    heated = heat if context.raw else 1.0
    check.tests = {"later tokens": ranks(places(drawn, 1, context.length), heated)}
    return check


def independence_check(context: CertifyContext) -> Check:
    """Check that answers without a seed differ."""
    check = Check("independence", "answers to the same prompt, without a seed, are drawn apart")
    texts = [[answer.text for answer in answers] for answers in context.sampled(1.0)]
    equal = 0
    pairs = 0
    expected = 0.0
    for answers, drawn in zip(texts, context.sampled(1.0), strict=True):
        half = len(answers) // 2
        equal += sum(
            one == other for one, other in zip(answers[:half], answers[half:], strict=False)
        )
        pairs += half
        # two answers are equal with the mean probability of an answer
        chances = [
            math.exp(sum(min(reported.logprob or 0.0, 0.0) for reported in answer.reported))
            for answer in drawn
            if answer.reported
        ]
        expected += half * float(np.mean(chances)) if chances else math.inf
    if not pairs or expected > pairs / 2:
        return check.skip("these prompts have too few answers to tell")
    seen = f"{equal} of {pairs} pairs of answers are equal, {expected:.1f} are expected"
    return check.settle(good=equal <= expected + 6 * math.sqrt(expected + 1) + 3, found=seen)


def continuation_check(context: CertifyContext) -> Check:
    """Check of whole answers against those of plain decoding."""
    check = Check("continuations", "sampled answers are distributed like plain decoding's")
    if context.reference is None:
        return check.skip("there is nothing to compare with; give --reference URL or --off FIELDS")
    for text, answers in context.forks():
        others = context.draw(context.reference, text, len(answers), PLACES, 1.0)
        check.tests[f"beginnings of answers to {text[-20:]!r}"] = beginnings(answers, others)
    return check


# ----------------------------------------------------------------------- tests from answers
def places(drawn: Sequence[Sequence[ServerAnswer]], first: int, end: int) -> list[ReportedToken]:
    """Tokens at these positions of all answers."""
    return [
        reported
        for answers in drawn
        for answer in answers
        for reported in answer.reported[first:end]
    ]


def ranks(tokens: Sequence[ReportedToken], heat: float = 1.0) -> StatisticalTest:
    """Test of tokens by their rank, each against its own distribution."""
    all_probs = []
    taken = []
    for reported in tokens:
        if (found := reported_probs(reported, RANKS, heat)) is not None:
            names, probs = found
            all_probs.append(
                [*probs, *[0.0] * (RANKS + 1 - len(probs))] if len(probs) <= RANKS else probs
            )
            taken.append(names.index(reported.text) if reported.text in names else len(probs) - 1)
    return against_probs(np.array(all_probs).reshape(-1, RANKS + 1), taken)


def named(drawn: Sequence[Sequence[ServerAnswer]], place: int) -> StatisticalTest:
    """Test of tokens at one position by name, among answers that are equal before it."""
    tests = []
    for answers in drawn:
        for group in alike(answers, place):
            if len(group) >= GROUP and (found := reported_probs(group[0], RANKS)) is not None:
                names, probs = found
                taken = [
                    names.index(reported.text) if reported.text in names else len(names)
                    for reported in group
                ]
                tests.append(against_probs(np.array([probs] * len(group)), taken))
    return combined(tests)


def alike(answers: Sequence[ServerAnswer], place: int) -> Iterator[list[ReportedToken]]:
    """Tokens at a position, grouped by the text before it."""
    groups: dict[tuple[str, ...], list[ReportedToken]] = {}
    for answer in answers:
        # with incomplete characters the text before is not known
        if len(answer.reported) > place and len(whole(answer.reported[:place])) == place:
            groups.setdefault(
                tuple(reported.text for reported in answer.reported[:place]), []
            ).append(answer.reported[place])
    yield from groups.values()


def beginnings(ours: Sequence[ServerAnswer], theirs: Sequence[ServerAnswer]) -> StatisticalTest:
    """Test of the first tokens from two sources, few enough that most beginnings are frequent."""
    tests = [two_samples(*counted(ours, theirs, size)) for size in (2, 3, 4)]
    return next((test for test in tests if test.freedom), tests[-1])


def counted(
    ours: Sequence[ServerAnswer], theirs: Sequence[ServerAnswer], size: int
) -> tuple[list[int], list[int]]:
    """Number of occurrences of each beginning of `size` tokens in either."""

    def begin(answer: ServerAnswer) -> tuple[str, ...]:
        return (
            tuple(reported.text for reported in answer.reported[:size])
            if answer.reported
            else (answer.text[: 4 * size],)
        )

    known: dict[tuple[str, ...], list[int]] = {}
    for side, answers in enumerate((ours, theirs)):
        for answer in answers:
            known.setdefault(begin(answer), [0, 0])[side] += 1
    order = sorted(known)  # independent of the source: rare ones are merged in this order
    return [known[names][0] for names in order], [known[names][1] for names in order]
