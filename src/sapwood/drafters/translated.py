"""A smaller model that has another tokenizer, drafting in the tokens that both know.

Token-level intersection (arXiv 2502.05202). The model reads the text in its own tokens and speaks
only those that the target has too, its law over them renormalised: that is the q that is drawn from and
judged, so every kind of draws keeps the target's law. Fewer shared tokens make worse drafts, never wrong ones.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.model import Model
from sapwood.drafters.translation import Table, Translated
from sapwood.errors import SapwoodError
from sapwood.protocols import Backend, Setting


@dataclass
class TranslatedModel(Model):
    """Any smaller model with another tokenizer, in the tokens it shares with the target."""

    paper: ClassVar[str] = "2502.05202"

    def bind(self, setting: Setting) -> None:
        """Load the model and both tokenizers, and compare their tokens."""
        name = named(self.model, "translated")
        backend, table = setting.load(name), Table(setting.words(name), setting.words(""))
        self.backend = Translated(backend, table, setting.target.info)


def named(model: str | Backend, drafter: str) -> str:
    """The model's name, from which its tokenizer is found."""
    if not isinstance(model, str) or not model:
        raise SapwoodError(f"{drafter} needs a model by name, for its tokenizer; write {drafter}(model='NAME')")
    return model
