"""A draft model with another tokenizer, whose text is encoded in the target's tokens.

Universal assisted decoding (arXiv 2502.05202). The model continues greedily in its own tokens; the
text of these is encoded in the target's, together with the last tokens of the text so far. There
are no probs to draw from, so drafts are chosen tokens. If the encoding runs across the end of the
text, because the draft finishes a word that the text has begun, the new text is encoded alone:
emitted tokens are never changed. (transformers aligns the two by their longest common run of tokens
instead.)

The model's own context is kept up to date in the same way: after every round the last tokens are
encoded again, and only the changed ones are prefilled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, RequestContext, TreeInput
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.compose.draft_model import chain
from sapwood.drafters.compose.translated import named
from sapwood.drafters.compose.vocab_map import BROKEN, MidTextTokenizer
from sapwood.drafters.lookup.planned_base import PlannedBase
from sapwood.drafters.lookup.token_chains import add_chain

HOPE = 0.6  # probability reported for a draft: policies only compare
SEAM = 8  # last tokens that are encoded together with what follows them


@dataclass
class Universal(PlannedBase):
    """Any smaller model with another tokenizer, its text encoded in the target's tokens."""

    model: str = ""  # a name as for --model
    length: int = 5  # tokens drafted in a round, the model's own, >= 1
    window: int = 32  # last tokens of the text that are encoded again in every round, >= 1

    paper: ClassVar[str] = "2502.05202"

    def __post_init__(self) -> None:
        at_least(1, length=self.length, window=self.window)

    def bind(self, setting: EngineContext) -> None:
        """Load the model and both tokenizers."""
        name = named(self.model, "universal")
        self.backend = setting.load(name)
        self.ours = MidTextTokenizer(setting.words(name))
        self.theirs = MidTextTokenizer(setting.words(""))

    def reset(self, request: RequestContext) -> None:
        """Read the prompt."""
        super().reset(request)
        # the target's tokens before are not encoded again
        self.settled_ = max(0, len(self.text_) - self.window)
        self.before_ = self.ours.words.encode(self.theirs.words.show(self.text_[: self.settled_]))
        self.read_ = self.before_[:-1]  # what the session holds
        self.session_ = self.backend.open(self.read_)

    def close(self) -> None:
        """Free the model's session."""
        super().close()
        self.session_.close()

    def plan(self, rng: Rng) -> Tree:
        """The model's continuation, in the target's tokens."""
        tree = Tree(self.text_[-1])
        if BROKEN not in self.theirs.show(self.text_[-1:]):  # else the text ends inside a character
            add_chain(tree, ROOT, self.encode_after(self.say()), HOPE)
        return tree

    def say(self) -> str:
        """The model's own continuation of the text."""
        text = self._in_own_tokens()
        shared = same(self.read_, text[:-1])
        if shared < len(self.read_):
            self.session_.rewind(shared)
        self.read_ = self.read_[:shared]
        said = [self._next(text[shared:])]
        while len(said) < self.length:
            said.append(self._next(said[-1:]))
        lead = text[-SEAM:]
        return self.ours.show([*lead, *said])[len(self.ours.show(lead)) :].rstrip(BROKEN)

    def _next(self, unread: list[int]) -> int:
        """Read these tokens; the best one after them."""
        line = chain(unread)
        [scores] = self.backend.score([TreeInput(self.session_, line)])
        best = int(scores.argmax()[-1])
        self.session_.commit(range(len(line)))
        self.read_ = self.read_ + unread
        return best

    def _in_own_tokens(self) -> list[int]:
        """The text in the model's tokens, its last part encoded again, within the context."""
        if len(self.text_) - self.settled_ > 2 * self.window:
            settled = len(self.text_) - self.window
            self.before_ += self.ours.encode(self.theirs.show(self.text_[self.settled_ : settled]))
            self.settled_ = settled
        tail = self.ours.encode(self.theirs.show(self.text_[self.settled_ :]))
        room = self.backend.info.context - self.length - len(tail)
        if len(self.before_) > room:
            self.before_ = self.before_[len(self.before_) - max(0, room // 2) :]
        return self.before_ + tail or self.ours.lead

    def encode_after(self, said: str) -> list[int]:
        """The target's tokens of the model's continuation."""
        seam = self.theirs.show(self.text_[-SEAM:])
        tokens = self.theirs.encode(seam + said)
        for place in range(len(tokens) + 1):
            if self.theirs.show(tokens[:place]) == seam:
                return tokens[place:]
        return self.theirs.encode(said)


def same(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next(
        (place for place, (left, right) in pairs if left != right), min(len(one), len(other))
    )
