"""A draft model with another tokenizer, which drafts in the tokens that both vocabularies have.

Token-level intersection (arXiv 2502.05202). The model reads the text in its own tokens; its probs
are restricted to the tokens that the target has too, and renormalised. This is the q that is drawn
from and verified, so every kind of draws keeps the target's distribution. Fewer shared tokens make
worse drafts, never wrong ones.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.protocols import Backend, EngineContext
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.vocab_map import TranslatedBackend, VocabMap
from sapwood.errors import SapwoodError


@dataclass
class Translated(DraftModel):
    """Any smaller model with another tokenizer, in the tokens it shares with the target."""

    paper: ClassVar[str] = "2502.05202"

    def bind(self, setting: EngineContext) -> None:
        """Load the model and both tokenizers, and compare their tokens."""
        name = named(self.model, "translated")
        backend = setting.load(name)
        table = VocabMap(setting.words(name), setting.words(""))
        self.backend = TranslatedBackend(backend, table, setting.target.info)


def named(model: str | Backend, drafter: str) -> str:
    """The model's name, from which its tokenizer is found."""
    if not isinstance(model, str) or not model:
        raise SapwoodError(
            f"{drafter} needs a model by name, for its tokenizer; write {drafter}(model='NAME')"
        )
    return model
