"""A model that writes one recorded output, special tokens included, behind a template of its family."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken

from sapwood import LLM
from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.tokenizer.tokenizer import Tokenizer
from tests.helpers import byte_tokenizer


def family_tokenizer(template: str, specials: Sequence[str] = ()) -> Tokenizer:
    """A tokenizer of bytes with further special tokens."""
    made = byte_tokenizer.tokenizer()
    made.add_special_tokens([AddedToken(word, special=True) for word in specials])
    names = {"bos_token": "<bos>", "eos_token": "<eos>"}
    return Tokenizer(made, template, (byte_tokenizer.EOS,), specials=names)


@dataclass
class SpeakingModel(ToyBackend):
    """Writes the same tokens after every prompt, which ends where `<bot>` or `ends` stands last."""

    output: tuple[int, ...] = ()
    mark: int = 0  # the token after which the output begins
    prompts: list[tuple[int, ...]] = field(default_factory=list)

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        """Nearly all mass on the next token of the output."""
        rows = super().scores(contexts).rows.copy()
        for row, context in zip(rows, contexts, strict=True):
            if self.mark in context:
                place = (
                    len(context)
                    - 1
                    - max(i for i, token in enumerate(context) if token == self.mark)
                )
                row[self.output[min(place, len(self.output) - 1)]] += 30.0
        return ToyOutput(np.array(rows))


def speaking(raw: str, template: str, specials: Sequence[str] = (), **options: Any) -> LLM:
    """A model of a family that writes this output; its template must end in `<bot>`."""
    text = family_tokenizer(template, specials)
    output = (*text.encode(raw, whole=False), byte_tokenizer.EOS)
    size = text.size
    mark = text.tokenizer.token_to_id("<bot>")
    assert mark is not None
    target = SpeakingModel(vocab=size, context=2048, output=output, mark=mark)
    return LLM(target, "plain", text=text, **options)
