"""A corpus on disk: built once, mapped, made again when damaged, bounded in memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part
from sapwood.core.protocols import EngineContext
from sapwood.drafters.lookup import corpus as corpora
from sapwood.drafters.lookup.aded import Aded
from sapwood.drafters.lookup.corpus import open_corpus
from sapwood.drafters.lookup.llma import Llma
from sapwood.drafters.lookup.rest import Rest
from sapwood.drafters.lookup.sam import Sam
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from tests.helpers.lookup_drafters import SETTING, VOCAB, letters, write


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


@dataclass
class Reader:
    """A tokenizer that counts how much it reads."""

    read: int = 0
    shift: int = 0

    def __call__(self, text: str) -> list[int]:
        self.read += len(text)
        return [token + self.shift for token in letters(text)]


def test_a_corpus_is_built_once_and_then_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write(tmp_path, "abcabd " * 2000)
    reader = Reader()
    first = open_corpus(name, replace(SETTING, encode=reader))
    assert reader.read > 14000
    reader.read = 0
    monkeypatch.setattr(corpora, "build", None)  # a second bind must not need it
    second = open_corpus(name, replace(SETTING, encode=reader))
    assert reader.read <= corpora.PROBE
    assert isinstance(second.tokens.base, np.memmap)
    assert isinstance(first.tokens.base, np.memmap)
    assert first.order.tolist() == second.order.tolist()
    assert second.find(letters("abd")) == first.find(letters("abd"))
    assert not list(tmp_path.rglob("*.part"))


def test_another_text_or_tokenizer_is_another_file(tmp_path: Path) -> None:
    name = write(tmp_path, "abcabd")
    places = {corpora.cached(Path(name), SETTING)}
    places.add(corpora.cached(Path(name), replace(SETTING, encode=Reader(shift=1))))
    places.add(
        corpora.cached(Path(name), replace(SETTING, target=ToyBackend("other", vocab=VOCAB)))
    )
    write(tmp_path, "abcabe")
    places.add(corpora.cached(Path(name), SETTING))
    assert len(places) == 4


@pytest.mark.parametrize("damage", [b"", b"not an array", None])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    name = write(tmp_path, "abcabd" * 50)
    whole = open_corpus(name, SETTING).order.tolist()
    place = corpora.cached(Path(name), SETTING)
    place.write_bytes(place.read_bytes()[:-9] if damage is None else damage)
    assert open_corpus(name, SETTING).order.tolist() == whole
    assert np.load(place).shape == (2, 300)


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "file"))
    assert len(open_corpus(write(tmp_path, "abc"), SETTING).tokens) == 3


def test_half_a_file_is_never_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    assert len(open_corpus(write(tmp_path, "abc"), SETTING).tokens) == 3
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_pieces_make_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ab\ncdé\r\n" * 9 + "x" * 40
    name = write(tmp_path, text)
    monkeypatch.setattr(corpora, "PIECE", 7)
    found = list(corpora.pieces(Path(name)))
    assert "".join(found).replace("\r\n", "\n") == text.replace("\r\n", "\n")
    assert max(len(piece) for piece in found) <= 14
    assert all(piece.endswith("\n") for piece in found if "x" not in piece)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a file; name a file of plain text"),
        (b"", "is empty; name a file that holds text"),
        (b"123 456", "holds no tokens; name a file"),
        (b"a\xff", "is not UTF-8 at byte 1; save it as UTF-8"),
        (b"a" * 101, "has 101 bytes and at most 100 can be sorted; name a smaller"),
        ("\u0400".encode(), "reads as token .* has 60; use the target's own tokenizer"),
    ],
)
def test_a_corpus_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None, message: str
) -> None:
    monkeypatch.setattr(corpora, "LARGEST", 100)
    path = tmp_path / "odd.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(SapwoodError, match=message) as caught:
        Rest(corpus=str(path)).bind(SETTING)
    assert "odd.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [Rest, Sam, Aded, lambda corpus: Llma(references=corpus)])
def test_a_corpus_needs_a_tokenizer(tmp_path: Path, make: Callable[..., Part]) -> None:
    name = write(tmp_path, "abc")
    with pytest.raises(
        SapwoodError,
        match="'abc' cannot be read without the target's tokenizer; give the engine its",
    ):
        make(corpus=name).bind(EngineContext(ToyBackend(), flat(), no_loader))


def test_what_is_kept_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(tmp_path, "abcabd")
    for module in ("sam", "aded"):
        monkeypatch.setattr(f"sapwood.drafters.lookup.{module}.LARGEST", 5)
    for part in (Sam(corpus=name), Aded(corpus=name)):
        with pytest.raises(
            SapwoodError, match="has 6 tokens and at most 5 fit here; use rest, or a smaller corpus"
        ):
            part.bind(SETTING)
    Rest(corpus=name).bind(SETTING)
