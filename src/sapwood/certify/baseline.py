"""Questions about the server itself, asked before the checks: repetition, defaults, drafts.

A check that compares two answers says nothing on a server whose answers differ by themselves, and
one that compares tokens with reported probs says nothing where a penalty or a truncation applies
to every request. Both are found here first, so that no check reports them as a fault of its own.
"""

from collections.abc import Callable, Sequence

from sapwood.certify.client import Json, ReportedToken, ServerAnswer, ServerRefused
from sapwood.certify.context import CertifyContext, ambiguous, ranked
from sapwood.certify.greedy import GreedyDivergence, gap_of, pieces, variation
from sapwood.certify.report import Check

# repetitive text: any penalty changes its continuation
REPETITIVE = "one two three, one two three, one two three, one two three, one"
# each turns one kind of penalty off
NEUTRAL: tuple[Json, ...] = (
    {"repeat_penalty": 1.0},
    {"repetition_penalty": 1.0},
    {"frequency_penalty": 0.0},
    {"presence_penalty": 0.0},
)
UNCUT = "--field top_p=1 --field min_p=0 --field top_k=0"
# share of the best token's probability, below which a default truncation cuts
UNLIKELY = 0.05
ENOUGH = 12.0  # unlikely tokens expected: none of them has a probability of e^-12 by chance
LOOSE = 0.02  # total variation of two reports of one position, above which they differ


def repeat_check(context: CertifyContext) -> Check:
    """Check that the same greedy request gives the same text; sets what may be compared."""
    check = Check("repeats", "the same greedy request gives the same text again")
    # all prompts once and then all again: a server's caches differ the second time
    first = [ask(context, prompt) for prompt in context.prompts]
    second = [ask(context, prompt) for prompt in context.prompts]
    ties = 0
    faults = list[str]()
    unknown = 0
    context.steady = []
    for prompt, one, other in zip(context.prompts, first, second, strict=True):
        apart = divergence(one, other)
        if apart is None:
            context.steady.append(prompt)
        elif apart.gap is None:
            unknown += 1
        elif abs(apart.gap) <= context.slack:
            ties += 1
        else:
            faults.append(
                f"{prompt[:20]!r}: {apart}{baseline_note(context, prompt, one, apart.place)}"
            )
    context.loose_logprobs = loose(first, second)
    seen = f"{len(context.steady)} of {len(first)} texts came twice"
    seen += f", {ties} part at a tie" if ties else ""
    if faults or unknown:
        context.unsteady = (
            "the server gives different texts to the same greedy request, see `repeats`"
        )
    elif not context.steady:
        context.unsteady = "no greedy text came twice, each parts at a tie"
    if unknown and not faults:
        return check.skip(
            f"{seen}; {unknown} differ, and without logprobs a tie cannot be told from a fault"
        )
    return check.settle(good=not faults, found="; ".join([seen, *faults[:1]]), faults=faults)


def ask(context: CertifyContext, prompt: str) -> ServerAnswer:
    """A greedy answer."""
    context.tick("repeated requests")
    return context.greedy(context.server, prompt, context.longer)


def divergence(one: ServerAnswer, other: ServerAnswer) -> GreedyDivergence | None:
    """The first difference of two answers to one request."""
    ours, theirs = pieces(one), pieces(other)
    for place, (word, twin) in enumerate(zip(ours, theirs, strict=False)):
        if word != twin:
            gap = gap_of(other.reported, place, word, twin)
            return GreedyDivergence(place, word, twin, gap)
    if len(ours) == len(theirs):
        return None
    return GreedyDivergence(min(len(ours), len(theirs)), "an end", "more", None)


def baseline_note(context: CertifyContext, prompt: str, answer: ServerAnswer, place: int) -> str:
    """The rest of a sentence about a difference: whether it comes without speculation too."""
    if context.reference is not None:
        answers = [context.greedy(context.reference, prompt, context.longer) for _ in range(2)]
        if divergence(*answers) is None:
            return "; the reference repeats its text"
        return "; the reference does not repeat its text either"
    if context.server.chat or not answer.reported:
        return ""
    text = prompt + "".join(pieces(answer)[:place])
    alone = {tuple(pieces(context.greedy(context.server, text, 1))) for _ in range(4)}
    if len(alone) > 1:
        return "; a request for that token alone does not repeat either"
    return "; a request for that token alone repeats"


def loose(first: Sequence[ServerAnswer], second: Sequence[ServerAnswer]) -> str:
    """Reason why logprobs of two requests cannot be compared; empty if they can."""
    apart = [
        variation(one.reported[0], other.reported[0])
        for one, other in zip(first, second, strict=True)
        if one.reported and other.reported and not ambiguous(one.reported[0])
    ]
    if apart and sorted(apart)[len(apart) // 2] > LOOSE:
        return (
            f"the server reports other logprobs when asked again: {max(apart):.3f} apart at the "
            "first token"
        )
    return ""


# --------------------------------------------------------------------------------- defaults
def defaults_check(context: CertifyContext) -> Check:
    """Check that no penalty and no truncation applies unless it is requested."""
    check = Check("defaults", "without options no penalty and no truncation applies")
    found = [penalty for penalty in NEUTRAL if not penalty.keys() & context.server.extra.keys()]
    if context.unsteady:
        found = []
    known = texts_of(context) if found else {}
    # the first one is reported: with its field the next run looks for others
    applied = next((penalty for penalty in found if changes(context, penalty, known)), {})
    for name, value in applied.items():
        context.penalised = (
            f"the server applies {name} to every request; turn it off with --field {name}={value}"
        )
    cut = truncated(context)
    if cut:
        context.truncated = f"{cut}; the server cuts unlikely tokens by default; try {UNCUT}"
    reasons = [reason for reason in (context.penalised, context.truncated) if reason]
    if reasons:
        return check.skip("; ".join(reasons))
    if context.unsteady:
        return check.skip(context.unsteady)
    return check.settle(good=True, found=f"none of {len(found)} penalties changes a greedy text")


def texts_of(context: CertifyContext) -> dict[str, ServerAnswer]:
    """Greedy answers without options, by prompt."""
    prompts = (REPETITIVE, *context.steady[:2])
    return {prompt: context.greedy(context.server, prompt, context.longer) for prompt in prompts}


def changes(context: CertifyContext, fields: Json, known: dict[str, ServerAnswer]) -> bool:
    """True if fields that should change nothing change a known greedy text, beyond a tie."""
    for prompt, one in known.items():
        try:
            other = context.greedy(context.server, prompt, context.longer, **fields)
        except ServerRefused:
            return False
        context.tick("default penalties")
        apart = divergence(one, other)
        if apart is not None and (apart.gap is None or abs(apart.gap) > context.slack):
            again = context.greedy(context.server, prompt, context.longer)
            if divergence(one, again) is None:  # the fields changed it, and not chance
                return True
    return False


def truncated(context: CertifyContext) -> str:
    """Description of a default truncation; empty if there is no sign of one.

    First tokens alone are counted: nothing was drafted when they were drawn, so that no fault of
    verification looks like a truncation.
    """
    if context.top is None or not context.raw:
        return ""
    firsts = [
        answer.reported[0]
        for answers in context.sampled(1.0)
        for answer in answers
        if answer.reported and not ambiguous(answer.reported[0])
    ]
    expected = sum(unlikely_mass(one) for one in firsts)
    came = sum(is_unlikely(one) for one in firsts)
    if came or expected < ENOUGH:
        return ""
    return (
        f"none of {len(firsts)} first tokens has less than {UNLIKELY:.0%} of the best one's "
        f"probability, and {expected:.0f} should"
    )


def unlikely_mass(reported: ReportedToken) -> float:
    """Probability of all tokens that are far less likely than the best."""
    _, probs = ranked(reported, len(reported.top))
    return max(0.0, 1.0 - sum(prob for prob in probs if prob >= UNLIKELY * probs[0]))


def is_unlikely(reported: ReportedToken) -> bool:
    """True if the token that came is one of those."""
    names, probs = ranked(reported, len(reported.top))
    mine = probs[names.index(reported.text)] if reported.text in names else 0.0
    return mine < UNLIKELY * probs[0]


# ------------------------------------------------------------------------------ obstacles
Reason = Callable[[CertifyContext], str]


def needs_repeats(context: CertifyContext) -> str:
    """Reason why two greedy texts cannot be compared."""
    unknown = "" if context.steady else "it is not known whether greedy texts repeat"
    return context.unsteady or unknown


def needs_defaults(context: CertifyContext) -> str:
    """Reason why tokens cannot be compared with the reported probs."""
    return context.penalised


def needs_all_tokens(context: CertifyContext) -> str:
    """Reason why samples cannot be compared with the reported probs."""
    return context.penalised or context.truncated
