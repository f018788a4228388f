"""Interface of a masked diffusion model, and the order in which it fills the masks of a text.

Such a model has a distribution for every masked place of a text at once. Decoding step by step
fills one place in each step: the one whose best token is the most likely, with that token. Its
text is not written from left to right.
"""

from collections.abc import Sequence
from typing import Protocol

from sapwood.core.array_types import FloatArray

MASK = -1  # a place that is not filled
Text = tuple[int, ...]  # tokens and masks
Fill = tuple[int, int]  # place and token


class DiffusionModel(Protocol):
    """Runs a masked diffusion model."""

    @property
    def vocab(self) -> int:
        """Tokens in the vocabulary."""

    def score(self, texts: Sequence[Text]) -> list[FloatArray]:
        """Probs of every place of each text [places, vocab], all texts in one pass."""


def fills(text: Text, probs: FloatArray, block: int = 0) -> list[Fill]:
    """The masked places with their best tokens, surest first; the lower place wins a tie.

    With blocks of so many places, those of an earlier block come first.
    """
    places = [place for place, token in enumerate(text) if token == MASK]
    width = block or len(text)
    order = sorted(places, key=lambda place: (place // width, -float(probs[place].max()), place))
    return [(place, int(probs[place].argmax())) for place in order]


def filled(text: Text, found: Sequence[Fill]) -> Text:
    """The text with these places filled."""
    tokens = list(text)
    for place, token in found:
        tokens[place] = token
    return tuple(tokens)
