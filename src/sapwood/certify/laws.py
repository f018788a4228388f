"""Whether sampled tokens are drawn from the law that the server reports; wrong verification is seen here.

The first token of an answer comes from the prompt's own pass, so tokens after it are tested apart. Every place has its
own law; tokens are told apart by their rank in it, which lets all places be tested together. At single places of a
text, given what came before, tokens are told apart by name.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from sapwood.certify.client import Answer, Said
from sapwood.certify.exam import PLACES, Exam, law_of, whole
from sapwood.certify.report import Check
from sapwood.certify.statistics import Test, against_laws, combined, two_samples

RANKS = 8  # likeliest tokens that are told apart
GROUP = 40  # answers that begin alike, from which on their next token is tested by name


def law_check(exam: Exam) -> Check:
    """Sampled tokens follow the reported law."""
    check = Check("law", "tokens sampled at temperature 1 follow the law that the server reports for their place")
    if exam.top is None:
        return check.skip(f"the server gives no logprobs ({exam.why}); give a --reference to compare samples with")
    drawn = exam.sampled(1.0)
    check.tests = {"the first token": ranks(places(drawn, 0, 1)), "later tokens": ranks(places(drawn, 1, exam.length))}
    forked = [answers for _, answers in exam.forks()]
    for place in range(1, PLACES):
        check.tests[f"token {place + 1} by name"] = named(forked, place)
    check.tests = {name: test for name, test in check.tests.items() if test.freedom}
    return check


def temperature_check(exam: Exam, heat: float = 0.6) -> Check:
    """The law at another temperature."""
    check = Check("temperature", f"at temperature {heat:g} tokens follow the law that temperature makes of it")
    if exam.top is None:
        return check.skip(f"the server gives no logprobs ({exam.why})")
    drawn, heated = exam.sampled(heat), heat if exam.raw else 1.0
    check.tests = {"later tokens": ranks(places(drawn, 1, exam.length), heated)}
    return check


def independence_check(exam: Exam) -> Check:
    """Answers without a seed differ."""
    check = Check("independence", "answers to the same prompt, without a seed, are drawn apart")
    texts = [[answer.text for answer in answers] for answers in exam.sampled(1.0)]
    equal, pairs, expected = 0, 0, 0.0
    for answers, drawn in zip(texts, exam.sampled(1.0), strict=True):
        half = len(answers) // 2
        equal += sum(one == other for one, other in zip(answers[:half], answers[half:], strict=False))
        pairs += half
        # two answers are equal with the mean probability of an answer
        chances = [
            math.exp(sum(min(said.logprob or 0.0, 0.0) for said in answer.said)) for answer in drawn if answer.said
        ]
        expected += half * float(np.mean(chances)) if chances else math.inf
    if not pairs or expected > pairs / 2:
        return check.skip("these prompts have too few answers to tell")
    seen = f"{equal} of {pairs} pairs of answers are equal, {expected:.1f} are expected"
    return check.settle(good=equal <= expected + 6 * math.sqrt(expected + 1) + 3, found=seen)


def continuation_check(exam: Exam) -> Check:
    """Whole answers against those of plain decoding."""
    check = Check("continuations", "sampled answers are spread like those of plain decoding")
    if exam.reference is None:
        return check.skip("there is nothing to compare with; give --reference URL or --off FIELDS")
    for text, answers in exam.forks():
        others = exam.draw(exam.reference, text, len(answers), PLACES, 1.0)
        check.tests[f"beginnings of answers to {text[-20:]!r}"] = beginnings(answers, others)
    return check


# ------------------------------------------------------------------------------- from answers to tests
def places(drawn: Sequence[Sequence[Answer]], first: int, end: int) -> list[Said]:
    """Tokens from these places of all answers."""
    return [said for answers in drawn for answer in answers for said in answer.said[first:end]]


def ranks(saids: Sequence[Said], heat: float = 1.0) -> Test:
    """Tokens by their rank, each against its own law."""
    laws, taken = [], []
    for said in saids:
        if (found := law_of(said, RANKS, heat)) is not None:
            words, law = found
            laws.append([*law, *[0.0] * (RANKS + 1 - len(law))] if len(law) <= RANKS else law)
            taken.append(words.index(said.text) if said.text in words else len(law) - 1)
    return against_laws(np.array(laws).reshape(-1, RANKS + 1), taken)


def named(drawn: Sequence[Sequence[Answer]], place: int) -> Test:
    """Tokens at one place by name, among answers that are equal before it."""
    tests = []
    for answers in drawn:
        for group in alike(answers, place):
            if len(group) >= GROUP and (found := law_of(group[0], RANKS)) is not None:
                words, law = found
                taken = [words.index(said.text) if said.text in words else len(words) for said in group]
                tests.append(against_laws(np.array([law] * len(group)), taken))
    return combined(tests)


def alike(answers: Sequence[Answer], place: int) -> Iterator[list[Said]]:
    """Tokens at a place, by what stands before it."""
    groups: dict[tuple[str, ...], list[Said]] = {}
    for answer in answers:
        if (
            len(answer.said) > place and len(whole(answer.said[:place])) == place
        ):  # else it is not known what stands there
            groups.setdefault(tuple(said.text for said in answer.said[:place]), []).append(answer.said[place])
    yield from groups.values()


def beginnings(ours: Sequence[Answer], theirs: Sequence[Answer]) -> Test:
    """The first tokens of answers from two sources, as few as tell answers apart: rare beginnings cost power."""
    tests = [two_samples(*counted(ours, theirs, size)) for size in (2, 3, 4)]
    return next((test for test in tests if test.freedom), tests[-1])


def counted(ours: Sequence[Answer], theirs: Sequence[Answer], size: int) -> tuple[list[int], list[int]]:
    """How often each beginning of so many tokens comes in either."""

    def begin(answer: Answer) -> tuple[str, ...]:
        return tuple(said.text for said in answer.said[:size]) if answer.said else (answer.text[: 4 * size],)

    known: dict[tuple[str, ...], list[int]] = {}
    for side, answers in enumerate((ours, theirs)):
        for answer in answers:
            known.setdefault(begin(answer), [0, 0])[side] += 1
    order = sorted(known)  # not by who said it first: rare ones are put together in this order
    return [known[words][0] for words in order], [known[words][1] for words in order]
