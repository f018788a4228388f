"""Whether the best continuation is plain decoding's, and lengths, stops, seeds and logprobs are as asked.

A request for one token leaves nothing to speculate about, so asking for one token after the other is plain decoding on
any server that continues texts. Another server, or the same one with speculation off, does as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.certify.client import Answer, Refused, Said
from sapwood.certify.exam import BROKEN, Exam, blurred, ranked, whole
from sapwood.certify.report import Check

LOUD = 0.02  # mean total variation between two reports of one law, from which on they are not the same law
SEEDS = 6


@dataclass(frozen=True, slots=True)
class Parting:
    """Where an answer leaves plain decoding's."""

    place: int
    ours: str
    theirs: str
    gap: float | None  # logprob of theirs before ours, by plain decoding; None where it is not reported

    def __str__(self) -> str:
        """In words."""
        gap = "unknown" if self.gap is None else f"{self.gap:.3f}"
        return f"token {self.place + 1} is {self.ours!r} and not {self.theirs!r} (gap {gap})"


def greedy_check(exam: Exam) -> Check:
    """Greedy answers are plain decoding's."""
    check = Check("greedy", "at temperature 0 the text is that of plain decoding")
    if exam.reference is None and exam.server.chat:
        return check.skip("a chat cannot be continued token by token; give --reference URL or --off FIELDS")
    faults, ties, tokens, equal = list[str](), 0, 0, 0
    for prompt in exam.prompts:
        answer = exam.greedy(exam.server, prompt, exam.longer)
        faults += [f"{prompt[:20]!r}: {word}" for word in unlikely(answer, exam.slack)[:1]]
        parting, count = (
            against_reference(exam, prompt, answer) if exam.reference else against_steps(exam, prompt, answer)
        )
        exam.tick("greedy texts")
        tokens += count
        if parting is None:
            equal += 1
            continue
        if parting.gap is not None and abs(parting.gap) <= exam.slack:
            ties += 1
        else:
            faults.append(f"{prompt[:20]!r}: {parting}")
    seen = f"{equal} of {len(exam.prompts)} texts are equal, over {tokens} tokens"
    seen += f", {ties} part at a tie" if ties else ""
    seen += f"; {faults[0]}" if faults else ""
    caught = f"a fault at {min(1.0, 4.6 / max(tokens, 1)):.2%} of the tokens would have been caught with 99%"
    return check.settle(good=not faults, found=seen, power=caught, faults=faults, ties=ties, tokens=tokens)


def against_reference(exam: Exam, prompt: str, answer: Answer) -> tuple[Parting | None, int]:
    """The first difference from the reference's text, and the tokens compared."""
    assert exam.reference is not None
    other = exam.greedy(exam.reference, prompt, exam.longer)
    ours, theirs = pieces(answer), pieces(other)
    for place, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        if one != two:
            return Parting(place, one, two, gap_of(other.said, place, one, two)), place
    if len(ours) != len(theirs):
        return Parting(min(len(ours), len(theirs)), "an end", "more", None), len(ours)
    return None, len(ours)


def against_steps(exam: Exam, prompt: str, answer: Answer) -> tuple[Parting | None, int]:
    """The same against requests for one token each."""
    so_far = prompt
    for place, one in enumerate(pieces(answer)):
        if BROKEN in one:
            return None, place
        step = exam.greedy(exam.server, so_far, 1)
        [two, *_] = pieces(step) or [""]
        if one != two:
            retold = answer.said and told_otherwise(answer.said[place], step.said)
            if retold and ranked(answer.said[place], 1)[0][:1] == [one]:
                return None, place  # the text reads back as other tokens: from here on nothing can be compared
            return Parting(place, one, two, gap_of(step.said, 0, one, two)), place
        so_far += one
    return None, len(pieces(answer))


def told_otherwise(one: Said, others: Sequence[Said]) -> bool:
    """True where two reports cannot be of one law."""
    return bool(others) and variation(one, others[0]) > 0.2


def pieces(answer: Answer) -> list[str]:
    """The tokens of an answer; where they are not reported, its letters."""
    return [said.text for said in answer.said] or list(answer.text)


def gap_of(said: Sequence[Said], place: int, ours: str, theirs: str) -> float | None:
    """How much likelier plain decoding's token is than ours, by its own logprobs."""
    top = said[place].top if place < len(said) else {}
    return top[theirs] - top[ours] if ours in top and theirs in top else None


def variation(one: Said, other: Said) -> float:
    """Total variation between two reports of a law, over the tokens that both name."""
    both = one.top.keys() & other.top.keys()
    mass = [math.exp(min(said.top[word], 0.0)) for said in (one, other) for word in said.top if word not in both]
    return (sum(abs(math.exp(one.top[word]) - math.exp(other.top[word])) for word in both) + sum(mass)) / 2


# ---------------------------------------------------------------------------------------- logprobs
def logprob_check(exam: Exam) -> Check:
    """Logprobs are probabilities, and those of the target."""
    check = Check("logprobs", "logprobs are those of a law, the same inside a draft as for a single token")
    if exam.top is None:
        return check.skip(f"the server gives none ({exam.why})")
    answers = [exam.greedy(exam.server, prompt, exam.longer) for prompt in exam.prompts[:4]]
    drawn = [exam.draw(exam.server, prompt, 8, exam.longer, 1.0) for prompt in exam.prompts[:2]]
    every = [said for answer in [*answers, *drawn[0], *drawn[1:][0]] for said in answer.said]
    if fault := insane(every):
        return check.settle(good=False, found=fault)
    if exam.server.chat:
        return check.settle(
            good=True, found=f"{len(every)} tokens are sane; a chat cannot be continued to compare them"
        )
    return repeated(exam, check, answers, len(every))


def repeated(exam: Exam, check: Check, answers: Sequence[Answer], count: int) -> Check:
    """Compare laws inside an answer with those of the same place asked for by itself."""
    apart = []
    for prompt, answer in zip(exam.prompts, answers, strict=False):
        for place in range(1, min(len(whole(answer.said)), 7)):
            text = prompt + "".join(said.text for said in answer.said[:place])
            alone = exam.greedy(exam.server, text, 1)
            if alone.said and not blurred(answer.said[place]):
                apart.append(variation(answer.said[place], alone.said[0]))
    apart.sort()
    middle = (
        apart[len(apart) // 2] if apart else 0.0
    )  # some texts read back as other tokens: the median leaves them out
    if not apart:
        return check.settle(
            good=True, found=f"{count} tokens are sane; the texts do not read back, to compare them alone"
        )
    seen = f"{count} tokens are sane; {len(apart)} laws differ by {middle:.4f} (median) from those asked for alone"
    return check.settle(good=middle <= LOUD, found=seen, power=f"a median difference of {LOUD} would have been caught")


def insane(every: Sequence[Said]) -> str:
    """What is wrong with logprobs taken by themselves; empty where nothing is."""
    logs = [said.logprob for said in every if said.logprob is not None]
    if not logs:
        return "no token has a logprob"
    if any(not math.isfinite(log) or log > 1e-4 for log in logs):
        strange = max(logs, key=lambda log: (not math.isfinite(log), log))
        return f"a logprob is {strange}, which is no logarithm of a chance"
    if sum(abs(log) < 1e-9 for log in logs) > 0.5 * len(logs) and not peaked(every):
        return f"{sum(abs(log) < 1e-9 for log in logs)} of {len(logs)} logprobs are 0, as if nothing else could come"
    for said in every:
        total = sum(math.exp(min(log, 0.0)) for log in said.top.values())
        if total > 1.02:
            return f"the likeliest tokens beside {said.text!r} have a probability of {total:.3f} together"
        listed = said.top.get(said.text)
        if listed is not None and said.logprob is not None and abs(listed - said.logprob) > 0.02:
            return f"{said.text!r} has logprob {said.logprob:.4f}, and {listed:.4f} among the likeliest tokens"
    return ""


def peaked(every: Sequence[Said]) -> bool:
    """True where the reported alternatives leave no room for doubt either."""
    seconds = [math.exp(sorted(said.top.values())[-2]) for said in every if len(said.top) > 1]
    return bool(seconds) and sum(second < 1e-6 for second in seconds) > 0.5 * len(seconds)


def unlikely(answer: Answer, slack: float) -> list[str]:
    """Greedy tokens that are not the likeliest of their place, nor as good as, by the server's own report."""
    found = []
    for place, said in enumerate(answer.said):
        if said.top and said.logprob is not None and said.logprob < max(said.top.values()) - slack:
            found.append(f"token {place + 1} is {said.text!r} where {ranked(said, 1)[0][0]!r} is likelier")
    return found


# ---------------------------------------------------------------------------------------- the request's wishes
def length_check(exam: Exam) -> Check:
    """max_tokens ends an answer exactly there."""
    check = Check("max_tokens", "an answer has as many tokens as it may, and is the beginning of a longer one")
    prompt, faults, tried = exam.prompts[0], list[str](), 0
    longer = exam.greedy(exam.server, prompt, exam.longer)
    for most in (1, 2, 3, 4, 5, 7, 11):
        answer = exam.greedy(exam.server, prompt, most)
        counts = {len(answer.said)} if answer.said else set[int]()
        counts |= set() if answer.tokens is None else {answer.tokens}
        room = len(longer.said) >= most if longer.said else True
        tried += 1
        if not longer.text.startswith(answer.text) or (room and counts - {most}):
            faults.append(f"max_tokens={most} gave {sorted(counts)} tokens, {answer.text[:30]!r}")
    return check.settle(good=not faults, found=faults[0] if faults else f"{tried} lengths are exact")


def stop_check(exam: Exam) -> Check:
    """A stop string ends the text before it."""
    check = Check("stop", "a stop string ends the text right before it, wherever it falls in a draft")
    faults, tried = list[str](), 0
    for prompt in exam.prompts[:3]:
        text = exam.greedy(exam.server, prompt, exam.longer).text
        for start in range(2, max(3, len(text) - 8), max(1, len(text) // 5)):
            stop = text[start : start + 4]
            if not stop.strip() or BROKEN in stop:
                continue
            answer = exam.greedy(exam.server, prompt, exam.longer, stop=[stop])
            exam.tick("stop strings")
            tried += 1
            if answer.text != text[: text.index(stop)] or answer.finish != "stop":
                faults.append(f"stop={stop!r} left {answer.text[-20:]!r}, finished by {answer.finish}")
    if not tried:
        return check.skip("the answers are too short to be stopped")
    return check.settle(good=not faults, found=faults[0] if faults else f"{tried} stop strings were exact")


def seed_check(exam: Exam) -> Check:
    """A seed gives the same answer again."""
    check = Check("seed", "the same seed gives the same text again, and other seeds give others")
    wish = {"temperature": 1.0, "max_tokens": exam.longer // 2}
    try:
        pairs = [
            [exam.server.one(exam.prompts[seed % 2], seed=seed + 1, **wish).text for _ in range(2)]
            for seed in range(SEEDS)
        ]
    except Refused as error:
        return check.skip(f"the server refuses it ({error})")
    same = sum(one == other for one, other in pairs)
    kinds = len({(seed % 2, one) for seed, (one, _) in enumerate(pairs)})
    seen = f"{same} of {SEEDS} seeds gave the same text twice; {kinds} different texts"
    return check.settle(good=same == SEEDS and kinds > 2, found=seen, same=same)
