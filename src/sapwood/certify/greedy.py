"""Checks of greedy text, lengths, stop strings, seeds and logprobs.

A request for one token leaves nothing to speculate about, so requesting one token after the other
is plain decoding on any server that continues texts. Another server, or the same one with
speculation off, does as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.certify.client import ReportedToken, ServerAnswer, ServerRefused
from sapwood.certify.context import BROKEN, CertifyContext, ambiguous, ranked, whole
from sapwood.certify.report import Check

# mean total variation between two reports of one distribution, above which they differ
DIFFERENT = 0.02
SEEDS = 6


@dataclass(frozen=True, slots=True)
class GreedyDivergence:
    """First difference of an answer from plain decoding's."""

    place: int
    ours: str
    theirs: str
    gap: float | None  # logprob of theirs minus ours, by plain decoding; None if not reported

    def __str__(self) -> str:
        """The difference as text."""
        gap = "unknown" if self.gap is None else f"{self.gap:.3f}"
        return f"token {self.place + 1} is {self.ours!r} and not {self.theirs!r} (gap {gap})"


def greedy_check(context: CertifyContext) -> Check:
    """Check that greedy answers are plain decoding's."""
    check = Check("greedy", "at temperature 0 the text is that of plain decoding")
    if context.reference is None and context.server.chat:
        return check.skip(
            "a chat cannot be continued token by token; give --reference URL or --off FIELDS"
        )
    faults = list[str]()
    ties = 0
    tokens = 0
    equal = 0
    for prompt in context.prompts:
        answer = context.greedy(context.server, prompt, context.longer)
        faults += [f"{prompt[:20]!r}: {word}" for word in unlikely(answer, context.slack)[:1]]
        difference, count = (
            against_reference(context, prompt, answer)
            if context.reference
            else against_steps(context, prompt, answer)
        )
        context.tick("greedy texts")
        tokens += count
        if difference is None:
            equal += 1
            continue
        if difference.gap is not None and abs(difference.gap) <= context.slack:
            ties += 1
        else:
            faults.append(f"{prompt[:20]!r}: {difference}")
    seen = f"{equal} of {len(context.prompts)} texts are equal, over {tokens} tokens"
    seen += f", {ties} part at a tie" if ties else ""
    seen += f"; {faults[0]}" if faults else ""
    share = min(1.0, 4.6 / max(tokens, 1))
    caught = f"a fault at {share:.2%} of the tokens would have been caught with 99%"
    return check.settle(
        good=not faults, found=seen, power=caught, faults=faults, ties=ties, tokens=tokens
    )


def against_reference(
    context: CertifyContext, prompt: str, answer: ServerAnswer
) -> tuple[GreedyDivergence | None, int]:
    """The first difference from the reference's text, and the number of tokens compared."""
    assert context.reference is not None
    other = context.greedy(context.reference, prompt, context.longer)
    ours, theirs = pieces(answer), pieces(other)
    for place, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if one != two:
            return GreedyDivergence(place, one, two, gap_of(other.reported, place, one, two)), place
    if len(ours) != len(theirs):
        return GreedyDivergence(min(len(ours), len(theirs)), "an end", "more", None), len(ours)
    return None, len(ours)


def against_steps(
    context: CertifyContext, prompt: str, answer: ServerAnswer
) -> tuple[GreedyDivergence | None, int]:
    """The same against requests for one token each."""
    so_far = prompt
    for place, one in enumerate(pieces(answer)):
        if BROKEN in one:
            return None, place
        step = context.greedy(context.server, so_far, 1)
        [two, *_] = pieces(step) or [""]
        if one != two:
            other = answer.reported and differ(answer.reported[place], step.reported)
            if other and ranked(answer.reported[place], 1)[0][:1] == [one]:
                # the text encodes to other tokens: from here on nothing can be compared
                return None, place
            return GreedyDivergence(place, one, two, gap_of(step.reported, 0, one, two)), place
        so_far += one
    return None, len(pieces(answer))


def differ(one: ReportedToken, others: Sequence[ReportedToken]) -> bool:
    """True if two reports cannot be of one distribution."""
    return bool(others) and variation(one, others[0]) > 0.2


def pieces(answer: ServerAnswer) -> list[str]:
    """The tokens of an answer; its characters if tokens are not reported."""
    return [reported.text for reported in answer.reported] or list(answer.text)


def gap_of(reported: Sequence[ReportedToken], place: int, ours: str, theirs: str) -> float | None:
    """Logprob of plain decoding's token minus that of ours, by plain decoding."""
    top = reported[place].top if place < len(reported) else {}
    return top[theirs] - top[ours] if ours in top and theirs in top else None


def variation(one: ReportedToken, other: ReportedToken) -> float:
    """Total variation between two reports, over the tokens that both name."""
    both = one.top.keys() & other.top.keys()
    mass = [
        math.exp(min(reported.top[word], 0.0))
        for reported in (one, other)
        for word in reported.top
        if word not in both
    ]
    return (
        sum(abs(math.exp(one.top[word]) - math.exp(other.top[word])) for word in both) + sum(mass)
    ) / 2


# --------------------------------------------------------------------------------- logprobs
def logprob_check(context: CertifyContext) -> Check:
    """Check that logprobs are probabilities, and those of the target."""
    check = Check(
        "logprobs", "logprobs are valid, and the same inside an answer as for a single token"
    )
    if context.top is None:
        return check.skip(f"the server gives none ({context.why})")
    answers = [
        context.greedy(context.server, prompt, context.longer) for prompt in context.prompts[:4]
    ]
    drawn = [
        context.draw(context.server, prompt, 8, context.longer, 1.0)
        for prompt in context.prompts[:2]
    ]
    every = [
        reported for answer in [*answers, *drawn[0], *drawn[1:][0]] for reported in answer.reported
    ]
    if fault := logprob_fault(every):
        return check.settle(good=False, found=fault)
    if context.loose_logprobs:
        return check.settle(
            good=True, found=f"{len(every)} tokens are sane; {context.loose_logprobs}"
        )
    if context.server.chat:
        return check.settle(
            good=True,
            found=f"{len(every)} tokens are sane; a chat cannot be continued to compare them",
        )
    return repeated(context, check, answers, len(every))


def repeated(
    context: CertifyContext, check: Check, answers: Sequence[ServerAnswer], count: int
) -> Check:
    """Compare probs inside an answer with those of the same position requested by itself."""
    apart = []
    for prompt, answer in zip(context.prompts, answers, strict=False):
        for place in range(1, min(len(whole(answer.reported)), 7)):
            text = prompt + "".join(reported.text for reported in answer.reported[:place])
            alone = context.greedy(context.server, text, 1)
            if alone.reported and not ambiguous(answer.reported[place]):
                apart.append(variation(answer.reported[place], alone.reported[0]))
    apart.sort()
    # some texts encode to other tokens: the median leaves them out
    middle = apart[len(apart) // 2] if apart else 0.0
    if not apart:
        return check.settle(
            good=True,
            found=f"{count} tokens are sane; the texts do not encode back, to compare them alone",
        )
    seen = (
        f"{count} tokens are sane; {len(apart)} distributions differ by {middle:.4f} (median) "
        "from those requested alone"
    )
    return check.settle(
        good=middle <= DIFFERENT,
        found=seen,
        power=f"a median difference of {DIFFERENT} would have been caught",
    )


def logprob_fault(every: Sequence[ReportedToken]) -> str:
    """Description of invalid logprobs; empty if they are valid."""
    logs = [reported.logprob for reported in every if reported.logprob is not None]
    if not logs:
        return "no token has a logprob"
    if any(not math.isfinite(log) or log > 1e-4 for log in logs):
        strange = max(logs, key=lambda log: (not math.isfinite(log), log))
        return f"a logprob is {strange}, which is not the logarithm of a probability"
    zeros = sum(abs(log) < 1e-9 for log in logs)
    if zeros > 0.5 * len(logs) and not peaked(every):
        return f"{zeros} of {len(logs)} logprobs are 0, as if nothing else were possible"
    for reported in every:
        total = sum(math.exp(min(log, 0.0)) for log in reported.top.values())
        if total > 1.02:
            return (
                f"the top tokens beside {reported.text!r} have a total probability of {total:.3f}"
            )
        listed = reported.top.get(reported.text)
        if (
            listed is not None
            and reported.logprob is not None
            and abs(listed - reported.logprob) > 0.02
        ):
            return (
                f"{reported.text!r} has logprob {reported.logprob:.4f}, "
                f"and {listed:.4f} among the top tokens"
            )
    return ""


def peaked(every: Sequence[ReportedToken]) -> bool:
    """True if the reported alternatives have next to no probability either."""
    seconds = [
        math.exp(sorted(reported.top.values())[-2]) for reported in every if len(reported.top) > 1
    ]
    return bool(seconds) and sum(second < 1e-6 for second in seconds) > 0.5 * len(seconds)


def unlikely(answer: ServerAnswer, slack: float) -> list[str]:
    """Greedy tokens that are not the most probable by the server's own report, nor a tie."""
    found = []
    for place, reported in enumerate(answer.reported):
        if (
            reported.top
            and reported.logprob is not None
            and reported.logprob < max(reported.top.values()) - slack
        ):
            [best], _ = ranked(reported, 1)
            found.append(f"token {place + 1} is {reported.text!r} where {best!r} is likelier")
    return found


# -------------------------------------------------------------------------- request options
def length_check(context: CertifyContext) -> Check:
    """Check that max_tokens ends an answer exactly there."""
    check = Check(
        "max_tokens", "an answer has as many tokens as it may, and is the beginning of a longer one"
    )
    prompt = context.steady[0]
    faults = list[str]()
    tried = 0
    longer = context.greedy(context.server, prompt, context.longer)
    for most in (1, 2, 3, 4, 5, 7, 11):
        answer = context.greedy(context.server, prompt, most)
        counts = {len(answer.reported)} if answer.reported else set[int]()
        counts |= set() if answer.tokens is None else {answer.tokens}
        room = len(longer.reported) >= most if longer.reported else True
        tried += 1
        if not longer.text.startswith(answer.text) or (room and counts - {most}):
            faults.append(f"max_tokens={most} gave {sorted(counts)} tokens, {answer.text[:30]!r}")
    return check.settle(
        good=not faults, found=faults[0] if faults else f"{tried} lengths are exact"
    )


def stop_check(context: CertifyContext) -> Check:
    """Check that a stop string ends the text before it."""
    check = Check("stop", "a stop string ends the text right before it, wherever it falls")
    faults = list[str]()
    tried = 0
    for prompt in context.steady[:3]:
        text = context.greedy(context.server, prompt, context.longer).text
        for start in range(2, max(3, len(text) - 8), max(1, len(text) // 5)):
            stop = text[start : start + 4]
            if not stop.strip() or BROKEN in stop:
                continue
            answer = context.greedy(context.server, prompt, context.longer, stop=[stop])
            context.tick("stop strings")
            tried += 1
            if answer.text != text[: text.index(stop)] or answer.finish != "stop":
                faults.append(
                    f"stop={stop!r} left {answer.text[-20:]!r}, finished by {answer.finish}"
                )
    if not tried:
        return check.skip("the answers are too short to be stopped")
    return check.settle(
        good=not faults, found=faults[0] if faults else f"{tried} stop strings were exact"
    )


def seed_check(context: CertifyContext) -> Check:
    """Check that a seed gives the same answer again."""
    check = Check("seed", "the same seed gives the same text again, and other seeds give others")
    wish = {"temperature": 1.0, "max_tokens": context.longer // 2}
    try:
        pairs = [
            [
                context.server.one(context.prompts[seed % 2], seed=seed + 1, **wish).text
                for _ in range(2)
            ]
            for seed in range(SEEDS)
        ]
    except ServerRefused as error:
        return check.skip(f"the server refuses it ({error})")
    same = sum(one == other for one, other in pairs)
    kinds = len({(seed % 2, one) for seed, (one, _) in enumerate(pairs)})
    seen = f"{same} of {SEEDS} seeds gave the same text twice; {kinds} different texts"
    return check.settle(good=same == SEEDS and kinds > 2, found=seen, same=same)
