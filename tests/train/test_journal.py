"""Texts under way survive a kill, and time that is over cuts them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from sapwood.train import generate, journal
from sapwood.train.decode_state import TextToContinue
from sapwood.train.generate import Generator
from sapwood.train.journal import TextJournal, WrittenText
from tests.helpers import tiny_models

ASKS = [
    TextToContinue([3, 4, 5], 40, 0.0),
    TextToContinue([6], 33, 1.0, key=7),
    TextToContinue([8, 9], 48, 0.7, key=9),
]


class Killed(BaseException):
    """A kill."""


def written(
    made: Sequence[TextToContinue], journal: TextJournal | None = None, kill: int = 10**9
) -> list[list[int]]:
    """The texts of a run that is killed after so many tokens."""

    def tick(count: int) -> None:
        if count >= kill:
            raise Killed

    return Generator(tiny_models.backend("llama")).run(made, [], tick, journal=journal)


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    assert TextJournal.open(path).texts == {}
    TextJournal.open(path).note({3: WrittenText([1, 2], finished=True)})
    book = TextJournal.open(path)
    book.note({4: WrittenText([5], finished=False)})
    assert TextJournal.open(path).texts == {
        3: WrittenText([1, 2], finished=True),
        4: WrittenText([5], finished=False),
    }
    book.close()
    assert not path.exists()


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": 1}'])
def test_a_damaged_journal_is_an_empty_one(tmp_path: Path, damage: str) -> None:
    (tmp_path / "one.json").write_text(damage)
    assert TextJournal.open(tmp_path / "one.json").texts == {}


@pytest.mark.parametrize("kill", [20, 70, 110])
def test_a_killed_run_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill: int
) -> None:
    monkeypatch.setattr(journal, "SAVE_S", 0.0)
    whole = written(ASKS)
    path = tmp_path / "one.json"
    with pytest.raises(Killed):
        written(ASKS, TextJournal.open(path), kill)
    kept = sum(len(text.tokens) for text in TextJournal.open(path).texts.values())
    assert kept >= kill - len(ASKS)  # at most the last pass is lost
    assert written(ASKS, TextJournal.open(path)) == whole


def test_time_that_is_over_cuts_texts_after_a_few_tokens(tmp_path: Path) -> None:
    whole = written(ASKS)
    book = TextJournal.open(tmp_path / "one.json")
    made = Generator(tiny_models.backend("llama")).run(ASKS, [], journal=book, over=lambda: True)
    assert made == [text[: generate.FEWEST] for text in whole]
    # a run that goes on later with other prompts made of them finds the same ones
    assert written(ASKS, TextJournal.open(tmp_path / "one.json")) == made
