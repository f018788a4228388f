"""Checks that sampling options apply at every token of an answer.

Truncations are checked by the probs that the server reports: a token outside of what min_p, top_p
or top_k leaves must never occur. The number of such tokens expected if the option were ignored
follows from the same probs, and gives the power.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.certify.client import ReportedToken, ServerAnswer, ServerRefused
from sapwood.certify.context import CertifyContext, ambiguous, ranked
from sapwood.certify.report import Check
from sapwood.certify.statistics import rare

ENOUGH = 10.0  # forbidden tokens expected without the option, below which a test says nothing
NEAR = 1e-3  # of a probability: rounding at the threshold
# tokens to force by logit_bias, until two of them have different texts
IDS = (1000, 2000, 300, 400, 50, 60, 7, 8, 5, 6, 3, 4)

Inside = Callable[[list[float]], int]  # sorted probabilities -> number of tokens that remain


@dataclass(frozen=True, slots=True)
class Truncation:
    """An option that keeps only likely tokens."""

    name: str
    value: float
    stays: Inside

    def check(self, context: CertifyContext) -> Check:
        """Check that no forbidden token occurs."""
        check = Check(self.name, f"with {self.name}={self.value:g} no forbidden token occurs")
        if context.top is None or not context.raw:
            return check.skip("it needs logprobs before sampling, which the server does not give")
        try:
            answers = [
                answer
                for prompt in context.prompts[:4]
                for answer in context.draw(
                    context.server, prompt, context.samples // 4, context.length, 1.0, **self.wish()
                )
            ]
        except ServerRefused as error:
            return check.skip(f"the server refuses it ({error})")
        strange, expected, count = self.count(answers, context.top)
        if strange == 0 and expected < ENOUGH:
            return check.skip(
                f"only {expected:.1f} forbidden tokens would have come in {count}; "
                "use more --samples"
            )
        seen = (
            f"{strange} of {count} tokens are forbidden ones; "
            f"{expected:.0f} would be if it were ignored"
        )
        caught = (
            f"ignoring it at {rare(expected):.1%} of the places would have been caught with 99%"
        )
        return check.settle(
            good=strange == 0, found=seen, power=caught, strange=strange, expected=expected
        )

    def wish(self) -> dict[str, Any]:
        """The option of a request."""
        return {self.name: int(self.value) if self.name == "top_k" else self.value}

    def count(self, answers: Sequence[ServerAnswer], top: int) -> tuple[int, float, int]:
        """Forbidden tokens, those expected if the option were ignored, and all tokens."""
        strange = 0
        expected = 0.0
        count = 0
        for reported in (reported for answer in answers for reported in answer.reported):
            names, probs = ranked(reported, top)
            if ambiguous(reported) or not names or not 0 < (kept := self.stays(probs)) < len(names):
                continue
            count += 1
            expected += max(0.0, 1.0 - sum(probs[:kept]))
            edge = probs[kept - 1]
            mine = probs[names.index(reported.text)] if reported.text in names else 0.0
            strange += mine < edge * (1 - NEAR) and reported.text not in names[:kept]
        return strange, expected, count


def by_ratio(least: float) -> Inside:
    """Keep tokens of at least this share of the best probability."""
    return lambda probs: sum(prob >= least * probs[0] * (1 - NEAR) for prob in probs)


def by_mass(mass: float) -> Inside:
    """Keep the fewest tokens that hold this mass."""

    def stays(probs: list[float]) -> int:
        total = 0.0
        for place, prob in enumerate(probs):
            if total >= mass + NEAR:
                return place
            total += prob
        return len(probs)

    return stays


def by_rank(count: int) -> Inside:
    """Keep this many tokens."""
    return lambda probs: min(count, len(probs))


TRUNCATIONS = (
    Truncation("min_p", 0.3, by_ratio(0.3)),
    Truncation("top_p", 0.5, by_mass(0.5)),
    Truncation("top_k", 2, by_rank(2)),
)


def bias_check(context: CertifyContext) -> Check:
    """Check that a token with a large bias is the only one."""
    check = Check("logit_bias", "a token with logit_bias 100 is the only one that comes")
    texts_of: dict[str, int] = {}  # token by its text
    reason = "no two tokens of the vocabulary were found that look different when pushed"
    wish = {"top": context.top, "temperature": 1.0, "max_tokens": context.length}
    for token in IDS:
        try:
            answer = context.server.one(context.prompts[0], logit_bias={str(token): 100}, **wish)
        except ServerRefused as error:  # all of it, or a token that is not there
            reason = f"the server refuses it ({error})"
            continue
        texts = (
            {reported.text for reported in answer.reported} if answer.reported else {answer.text}
        )
        if len(texts) > 1:
            others = ", ".join(sorted(map(repr, texts))[:4])
            return check.settle(
                good=False, found=f"token {token} was pushed, and {others} came", token=token
            )
        texts_of.update(dict.fromkeys(texts, token))
        if sum(word != "" for word in texts_of) >= 2:
            found = (
                f"pushed tokens {list(texts_of.values())} came alone, "
                f"at each of {context.length} places"
            )
            return check.settle(
                good=True, found=found, power="one token of another kind would have been caught"
            )
    return check.skip(reason)


def penalty_check(context: CertifyContext) -> Check:
    """Check that greedy decoding takes the best token after penalties."""
    check = Check(
        "penalties",
        "frequency and presence penalties count every earlier token of the answer",
    )
    if context.top is None or not context.raw:
        return check.skip("they need logprobs before sampling, which the server does not give")
    wish = {"frequency_penalty": 1.0, "presence_penalty": 0.5}
    changed = 0
    wrong = list[str]()
    try:
        for prompt in context.prompts:
            answer = context.greedy(context.server, prompt, context.longer, **wish)
            context.tick("penalties")
            for place, reported in enumerate(answer.reported):
                best = penalised(reported, answer.reported[:place], context)
                if best is not None and best != ranked(reported, 1)[0][0]:
                    changed += 1
                    if reported.text != best:
                        wrong.append(
                            f"{reported.text!r} came where {best!r} is best after penalties"
                        )
    except ServerRefused as error:
        return check.skip(f"the server refuses them ({error})")
    if not changed:
        return check.skip("the penalties never changed the best token of these prompts")
    seen = f"{len(wrong)} of {changed} places where they matter are wrong"
    seen += f": {wrong[0]}" if wrong else ""
    caught = (
        f"a fault at {rare(changed):.1%} of the places where they matter "
        "would have been caught with 99%"
    )
    return check.settle(good=not wrong, found=seen, power=caught, telling=changed)


def penalised(
    reported: ReportedToken, before: Sequence[ReportedToken], context: CertifyContext
) -> str | None:
    """The best token after penalties; None if rounding or unreported tokens could decide."""
    counts: dict[str, int] = {}
    for one in before:
        counts[one.text] = counts.get(one.text, 0) + 1
    lowered = {
        word: log - (counts[word] * 1.0 + 0.5 if word in counts else 0.0)
        for word, log in reported.top.items()
    }
    if ambiguous(reported):
        return None
    order = sorted(lowered, key=lambda word: -lowered[word])
    unseen = min(reported.top.values(), default=0.0)  # no token that is not reported is likelier
    whole = sum(ranked(reported, len(reported.top))[1]) > 0.999
    if len(order) < 2 or lowered[order[0]] - lowered[order[1]] < context.slack:
        return None
    return order[0] if whole or lowered[order[0]] > unseen else None
