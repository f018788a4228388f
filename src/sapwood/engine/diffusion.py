"""Decoding of masked diffusion models, step by step and by self-speculation (arXiv 2510.04147).

Self-speculation drafts the next steps from the pass that is already there: its surest fills, in
order. One batched pass runs the text with the first fill, with the first two, and so on. A row that
would itself have filled the next place with the next token confirms that step; the last confirmed
row has the output from which the next steps are drafted. The text is the one of decoding step by
step with the same model; no autoregressive model is involved, so the round loop is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sapwood.core.diffusion import MASK, DiffusionModel, Fill, Text, filled, fills
from sapwood.core.part import at_least


@dataclass
class DiffusionOutput:
    """A filled text, and the work that it took."""

    tokens: Text
    steps: list[Fill]  # in the order in which places were filled
    passes: int = 0
    rows: int = 0  # texts that all passes ran
    accepted: list[int] = field(default_factory=list)  # steps confirmed by each pass


def masked(prompt: Sequence[int], length: int) -> Text:
    """A prompt with so many masks behind it."""
    at_least(1, length=length)
    return (*prompt, *[MASK] * length)


def decode_stepwise(model: DiffusionModel, text: Text, block: int = 0) -> DiffusionOutput:
    """Fill one place a pass: the surest of the first block that has masks."""
    found = DiffusionOutput(text, [])
    while MASK in found.tokens:
        [probs] = model.score([found.tokens])
        step = fills(found.tokens, probs, block)[0]
        found.tokens = filled(found.tokens, [step])
        found.steps.append(step)
        found.passes += 1
        found.rows += 1
        found.accepted.append(1)
    return found


def decode_self_speculative(
    model: DiffusionModel, text: Text, drafts: int = 4, block: int = 0
) -> DiffusionOutput:
    """Fill as many places a pass as the model confirms, of at most `drafts` drafted steps."""
    at_least(1, drafts=drafts)
    found = DiffusionOutput(text, [])
    if MASK not in text:
        return found
    [probs] = model.score([text])
    found.passes = found.rows = 1
    planned = fills(text, probs, block)
    while planned:
        drafted = planned[:drafts]
        texts = [filled(found.tokens, drafted[:count]) for count in range(1, len(drafted) + 1)]
        open_texts = [each for each in texts if MASK in each]  # a full one needs no pass
        outputs = model.score(open_texts) if open_texts else []
        found.passes += bool(open_texts)
        found.rows += len(open_texts)
        pairs = zip(open_texts, outputs, strict=True)
        following = [fills(each, probs, block) for each, probs in pairs]
        right, planned = confirmed(drafted, following)
        found.tokens = filled(found.tokens, drafted[:right])
        found.steps += drafted[:right]
        found.accepted.append(right)
    return found


def confirmed(drafted: Sequence[Fill], following: Sequence[list[Fill]]) -> tuple[int, list[Fill]]:
    """Steps that hold, and the next fills after the last of them.

    The first step holds in any case: it is the choice of a pass over the text as it is. A further
    one holds where the row before it would fill the same place with the same token. A full text
    has no row.
    """
    right = 1
    while right < len(drafted) and following[right - 1][0] == drafted[right]:
        right += 1
    return right, following[right - 1] if right <= len(following) else []
