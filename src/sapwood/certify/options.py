"""Whether sampling options are honoured at every token, also inside a draft.

Truncations are judged by the laws that the server reports: a token outside of what min_p, top_p or top_k leaves must
never come. How often one would have come had the option been ignored is known from the same laws, and is the power.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.certify.client import Answer, Refused, Said
from sapwood.certify.exam import Exam, blurred, ranked
from sapwood.certify.report import Check
from sapwood.certify.statistics import rare

ENOUGH = 10.0  # tokens that would have come against the option, below which a test says nothing
NEAR = 1e-3  # of a probability: rounding at the edge of what is left
IDS = (
    1000,
    2000,
    300,
    400,
    50,
    60,
    7,
    8,
    5,
    6,
    3,
    4,
)  # tokens to push by logit_bias, until two of them can be told apart

Inside = Callable[[list[float]], int]  # how many of the likeliest tokens stay, from their probabilities


@dataclass(frozen=True, slots=True)
class Truncation:
    """An option that leaves only likely tokens."""

    name: str
    value: float
    stays: Inside

    def check(self, exam: Exam) -> Check:
        """No token comes that the option forbids."""
        check = Check(self.name, f"with {self.name}={self.value:g} no token comes that it forbids")
        if exam.top is None or not exam.raw:
            return check.skip("it is judged by logprobs before sampling, which the server does not give")
        try:
            answers = [
                answer
                for prompt in exam.prompts[:4]
                for answer in exam.draw(exam.server, prompt, exam.samples // 4, exam.length, 1.0, **self.wish())
            ]
        except Refused as error:
            return check.skip(f"the server refuses it ({error})")
        strange, expected, count = self.count(answers, exam.top)
        if strange == 0 and expected < ENOUGH:
            return check.skip(f"only {expected:.1f} forbidden tokens would have come in {count}; use more --samples")
        seen = f"{strange} of {count} tokens are forbidden ones; {expected:.0f} would be if it were ignored"
        caught = f"ignoring it at {rare(expected):.1%} of the places would have been caught with 99%"
        return check.settle(good=strange == 0, found=seen, power=caught, strange=strange, expected=expected)

    def wish(self) -> dict[str, Any]:
        """The option of a request."""
        return {self.name: int(self.value) if self.name == "top_k" else self.value}

    def count(self, answers: Sequence[Answer], top: int) -> tuple[int, float, int]:
        """Forbidden tokens that came, those that would come if the option were ignored, and all."""
        strange, expected, count = 0, 0.0, 0
        for said in (said for answer in answers for said in answer.said):
            words, probs = ranked(said, top)
            if blurred(said) or not words or not 0 < (kept := self.stays(probs)) < len(words):
                continue
            count += 1
            expected += max(0.0, 1.0 - sum(probs[:kept]))
            edge = probs[kept - 1]
            mine = probs[words.index(said.text)] if said.text in words else 0.0
            strange += mine < edge * (1 - NEAR) and said.text not in words[:kept]
        return strange, expected, count


def by_ratio(least: float) -> Inside:
    """Tokens at least so likely against the best."""
    return lambda probs: sum(prob >= least * probs[0] * (1 - NEAR) for prob in probs)


def by_mass(mass: float) -> Inside:
    """The fewest tokens that hold this mass."""

    def stays(probs: list[float]) -> int:
        total = 0.0
        for place, prob in enumerate(probs):
            if total >= mass + NEAR:
                return place
            total += prob
        return len(probs)

    return stays


def by_rank(count: int) -> Inside:
    """So many tokens."""
    return lambda probs: min(count, len(probs))


TRUNCATIONS = (
    Truncation("min_p", 0.3, by_ratio(0.3)),
    Truncation("top_p", 0.5, by_mass(0.5)),
    Truncation("top_k", 2, by_rank(2)),
)


def bias_check(exam: Exam) -> Check:
    """A token that is pushed hard enough is all that comes."""
    check = Check("logit_bias", "a token with logit_bias 100 is the only one that comes")
    spoken: dict[str, int] = {}  # what the pushed tokens look like
    reason = "no two tokens of the vocabulary were found that look different when pushed"
    wish = {"top": exam.top, "temperature": 1.0, "max_tokens": exam.length}
    for token in IDS:
        try:
            answer = exam.server.one(exam.prompts[0], logit_bias={str(token): 100}, **wish)
        except Refused as error:  # all of it, or a token that is not there
            reason = f"the server refuses it ({error})"
            continue
        texts = {said.text for said in answer.said} if answer.said else {answer.text}
        if len(texts) > 1:
            others = ", ".join(sorted(map(repr, texts))[:4])
            return check.settle(good=False, found=f"token {token} was pushed, and {others} came", token=token)
        spoken.update(dict.fromkeys(texts, token))
        if sum(word != "" for word in spoken) >= 2:
            found = f"pushed tokens {list(spoken.values())} came alone, at each of {exam.length} places"
            return check.settle(good=True, found=found, power="one token of another kind would have been caught")
    return check.skip(reason)


def penalty_check(exam: Exam) -> Check:
    """The best token after penalties is what greedy decoding says."""
    check = Check("penalties", "frequency and presence penalties count every token said before, inside a draft too")
    if exam.top is None or not exam.raw:
        return check.skip("they are judged by logprobs before sampling, which the server does not give")
    wish = {"frequency_penalty": 1.0, "presence_penalty": 0.5}
    telling, wrong = 0, list[str]()
    try:
        for prompt in exam.prompts:
            answer = exam.greedy(exam.server, prompt, exam.longer, **wish)
            exam.tick("penalties")
            for place, said in enumerate(answer.said):
                best = penalised(said, answer.said[:place], exam)
                if best is not None and best != ranked(said, 1)[0][0]:
                    telling += 1
                    if said.text != best:
                        wrong.append(f"{said.text!r} came where {best!r} is best after penalties")
    except Refused as error:
        return check.skip(f"the server refuses them ({error})")
    if not telling:
        return check.skip("the penalties never changed the best token of these prompts")
    seen = f"{len(wrong)} of {telling} places where they matter are wrong{f': {wrong[0]}' if wrong else ''}"
    caught = f"a fault at {rare(telling):.1%} of the places where they matter would have been caught with 99%"
    return check.settle(good=not wrong, found=seen, power=caught, telling=telling)


def penalised(said: Said, before: Sequence[Said], exam: Exam) -> str | None:
    """The best token after penalties; None where rounding or tokens that are not reported could decide."""
    counts: dict[str, int] = {}
    for one in before:
        counts[one.text] = counts.get(one.text, 0) + 1
    lowered = {word: log - (counts[word] * 1.0 + 0.5 if word in counts else 0.0) for word, log in said.top.items()}
    if blurred(said):
        return None
    order = sorted(lowered, key=lambda word: -lowered[word])
    unseen = min(said.top.values(), default=0.0)  # no token that is not reported is likelier
    whole = sum(ranked(said, len(said.top))[1]) > 0.999
    if len(order) < 2 or lowered[order[0]] - lowered[order[1]] < exam.slack:
        return None
    return order[0] if whole or lowered[order[0]] > unseen else None
