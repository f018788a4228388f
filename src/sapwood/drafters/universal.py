"""A smaller model that has another tokenizer, drafting text that is read again in the target's tokens.

Universal assisted decoding (arXiv 2502.05202). The model goes on in its own best tokens; what they say is
encoded once more, together with the last tokens of the text, in the target's. Tokens are chosen on the way, so there
is no law to draw from: drafts are chosen ones. Where the encoding runs across the end of the text, because the
draft finishes a word that the text has begun, the new text is encoded alone; what is known to be said is
never encoded away. (transformers aligns the two by a longest common run of tokens instead.)

The model's own reading is kept in step the same way: the last tokens are encoded again after every round, and
only what changed is read again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.answers import lay
from sapwood.drafters.model import chain
from sapwood.drafters.planned import Planned
from sapwood.drafters.translated import named
from sapwood.drafters.translation import BROKEN, Inside
from sapwood.part import at_least
from sapwood.protocols import Request, Setting, Work
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

HOPE = 0.6  # chance reported for a guess: policies only compare
SEAM = 8  # last tokens that are encoded together with what follows them


@dataclass
class Universal(Planned):
    """Any smaller model with another tokenizer, its text read again in the target's tokens."""

    model: str = ""  # a name as for --model
    length: int = 5  # tokens drafted in a round, the model's own, >= 1
    window: int = 32  # last tokens of the text that are encoded again in every round, >= 1

    paper: ClassVar[str] = "2502.05202"

    def __post_init__(self) -> None:
        at_least(1, length=self.length, window=self.window)

    def bind(self, setting: Setting) -> None:
        """Load the model and both tokenizers."""
        name = named(self.model, "universal")
        self.backend = setting.load(name)
        self.ours, self.theirs = Inside(setting.words(name)), Inside(setting.words(""))

    def reset(self, request: Request) -> None:
        """Read the prompt."""
        super().reset(request)
        self.settled_ = max(0, len(self.text_) - self.window)  # the target's tokens before are not encoded again
        self.before_ = self.ours.words.encode(self.theirs.words.show(self.text_[: self.settled_]))
        self.read_ = self.before_[:-1]  # what the session holds
        self.session_ = self.backend.open(self.read_)

    def close(self) -> None:
        """Free the model's session."""
        super().close()
        self.session_.close()

    def plan(self, rng: Rng) -> Tree:
        """What the model says next, in the target's tokens."""
        tree = Tree(self.text_[-1])
        if BROKEN not in self.theirs.show(self.text_[-1:]):  # else the text ends inside a character
            lay(tree, ROOT, self.encode_after(self.say()), HOPE)
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
        [scores] = self.backend.score([Work(self.session_, line)])
        best = int(scores.argmax()[-1])
        self.session_.commit(range(len(line)))
        self.read_ = self.read_ + unread
        return best

    def _in_own_tokens(self) -> list[int]:
        """The text in the model's tokens, its last part encoded afresh; as much of its end as the model can hold."""
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
        """The target's tokens of what is said after the text."""
        seam = self.theirs.show(self.text_[-SEAM:])
        tokens = self.theirs.encode(seam + said)
        for place in range(len(tokens) + 1):
            if self.theirs.show(tokens[:place]) == seam:
                return tokens[place:]
        return self.theirs.encode(said)


def same(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
