"""Tokens whose text does not depend on their neighbours: the same pieces as by decoding windows."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from sapwood.tokenizer.detokenizer import Detokenizer
from sapwood.tokenizer.tokenizer import Tokenizer, joins_bytes
from tests.helpers import byte_tokenizer


class WindowsOnly(Tokenizer):
    """A tokenizer that knows no token alone."""

    def text_alone(self, token: int) -> str | None:
        return None


def decoded_by(decoder: Any) -> Tokenizer:
    made = FastTokenizer(models.WordLevel({"▁one": 0, "▁two": 1}, "▁one"))
    made.decoder = decoder
    return Tokenizer(made)


@settings(max_examples=60)
@given(text=st.text(max_size=12), broken=st.binary(max_size=6), cut=st.integers(0, 20))
def test_pieces_are_those_of_decoded_windows(text: str, broken: bytes, cut: int) -> None:
    quick = byte_tokenizer.text()
    tokens = quick.encode(text)
    letters = quick.encode("aé€😀")  # and parts of characters, in any order
    tokens += [letters[byte % len(letters)] for byte in broken]
    prompt, rest = tokens[:cut], tokens[cut:]
    one = Detokenizer(quick, prompt)
    two = Detokenizer(WindowsOnly(byte_tokenizer.tokenizer()), prompt)
    assert [one.push([token]) for token in rest] == [two.push([token]) for token in rest]
    assert one.flush() == two.flush()


def test_only_whole_characters_are_known_alone() -> None:
    quick = byte_tokenizer.text()
    assert quick.text_alone(quick.encode("a")[0]) == "a"
    assert quick.text_alone(quick.encode("€")[0]) is None


@pytest.mark.parametrize(
    ("decoder", "joins"),
    [
        (decoders.ByteLevel(), True),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel()]), True),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), False),
        (decoders.Metaspace(), False),
        (None, False),
    ],
)
def test_decoders_that_join_bytes(decoder: Any, joins: bool) -> None:
    assert joins_bytes(decoder) is joins


def test_a_leading_space_is_decided_by_the_neighbours() -> None:
    text = decoded_by(decoders.Metaspace())
    assert text.text_alone(1) is None
    assert Detokenizer(text, [0]).push([1]) == " two"
