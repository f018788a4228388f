"""Arrays that are kept while prompts are decoded, and going on after the last saved prompt."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.errors import SapwoodError
from sapwood.train import recording
from sapwood.train.recording import (
    SAVE,
    ArrayRecord,
    collect,
    join,
    keep,
    load,
    never,
    resume,
    silent,
    stacked,
)


@dataclass(frozen=True)
class Sums(ArrayRecord):
    """A number and a state of each row."""

    value: IntArray
    states: FloatArray


def sums(prompt: int, *values: int, width: int = 2) -> Sums:
    states = np.full((len(values), width), float(prompt), np.float32)
    return Sums(np.full(len(values), prompt), np.array(values), states)


class Decoder:
    """Two rows of each prompt; it stops for good after so many prompts."""

    def __init__(self, breaks: int | None = None) -> None:
        self.done: list[int] = []
        self.breaks = breaks

    def __call__(self, prompt: int) -> list[Sums]:
        if prompt == self.breaks:
            raise KeyboardInterrupt
        self.done.append(prompt)
        return [sums(prompt, prompt), sums(prompt, -prompt)]


def record(
    each: Any, prompts: int, path: Path | None, notes: Any = None, **more: Any
) -> list[Sums]:
    options: dict[str, Any] = {"most": 10**6, "over": never, "progress": silent, **more}
    return collect(Sums, each, prompts, path, notes or {"model": "tiny"}, **options)


# ------------------------------------------------------------------------------------------ files
def test_a_recording_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "some.safetensors"
    made = sums(3, 7, 8)
    made.save(path, {"model": "tiny", "done": 4})
    found, notes = load(path, Sums)
    assert notes == {"model": "tiny", "done": 4}
    assert len(found) == 2
    for name in ("prompt", "value", "states"):
        np.testing.assert_array_equal(getattr(found, name), getattr(made, name))
    assert [one.name for one in path.parent.iterdir()] == ["some.safetensors"]


def test_columns_that_are_not_contiguous_are_saved_as_they_read(tmp_path: Path) -> None:
    wide = np.arange(12).reshape(3, 4)
    Sums(wide[:, 1], wide[:, 2], wide[:, ::2].astype(np.float32)).save(tmp_path / "s", {})
    found, _ = load(tmp_path / "s", Sums)
    assert found.value.tolist() == [2, 6, 10]
    assert found.states.tolist() == [[0, 2], [4, 6], [8, 10]]


@pytest.mark.parametrize("what", ["nothing", "noise", "other", "no notes"])
def test_what_is_no_recording_is_named(what: str, tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    if what == "noise":
        path.write_bytes(b"\0" * 50)
    elif what == "other":
        ArrayRecord(np.zeros(2, np.int64)).save(path, {})
    elif what == "no notes":
        from safetensors.numpy import save_file

        save_file({"prompt": np.zeros(1), "value": np.zeros(1), "states": np.zeros((1, 1))}, path)
    with pytest.raises(SapwoodError, match=r"is no recording of \w+; delete it to record anew"):
        load(path, Sums)


# ---------------------------------------------------------------------------------------- joining
def test_rows_of_all_parts_follow_each_other() -> None:
    found = join([sums(1, 5, 6), sums(2, 7)])
    assert found.prompt.tolist() == [1, 1, 2]
    assert found.value.tolist() == [5, 6, 7]
    assert found.states.tolist() == [[1, 1], [1, 1], [2, 2]]


def test_parts_without_states_are_blank_where_others_have_some() -> None:
    found = stacked([np.ones((1, 3)), np.empty((2, 0)), np.full((1, 3), 2.0)])
    assert found.shape == (4, 3)
    assert np.isnan(found[1:3]).all()
    assert found[3].tolist() == [2.0] * 3
    assert stacked([np.empty((2, 0)), np.empty((1, 0))]).shape == (3, 0)
    assert stacked([np.array([1]), np.array([2, 3])]).tolist() == [1, 2, 3]


# --------------------------------------------------------------------------------------- going on
def test_every_prompt_is_decoded_once() -> None:
    each = Decoder()
    [found] = record(each, 11, None)
    assert each.done == list(range(11))
    assert found.value.tolist() == [value for at in range(11) for value in (at, -at)]


@pytest.mark.parametrize("breaks", [1, SAVE, SAVE + 3, 3 * SAVE - 1])
def test_an_interrupted_recording_goes_on_after_the_last_saved_prompt(
    breaks: int, tmp_path: Path
) -> None:
    path = tmp_path / "some.safetensors"
    with pytest.raises(KeyboardInterrupt):
        record(Decoder(breaks), 3 * SAVE, path)
    again = Decoder()
    [found] = record(again, 3 * SAVE, path)
    assert again.done == list(range(breaks - breaks % SAVE, 3 * SAVE))
    [whole] = record(Decoder(), 3 * SAVE, None)
    np.testing.assert_array_equal(found.value, whole.value)
    after = Decoder()
    record(after, 3 * SAVE, path)
    assert after.done == []


def test_a_recording_that_is_not_a_multiple_is_saved_at_its_end(tmp_path: Path) -> None:
    record(Decoder(), SAVE + 2, tmp_path / "s")
    _, notes = load(tmp_path / "s", Sums)
    assert notes["done"] == SAVE + 2


def test_enough_rows_end_a_recording(tmp_path: Path) -> None:
    each = Decoder()
    found = record(each, 50, tmp_path / "s", most=5)
    assert each.done == [0, 1, 2]
    assert sum(map(len, found)) == 6
    record(each, 50, tmp_path / "s", most=5)
    assert each.done == [0, 1, 2]


def test_time_ends_a_recording_after_at_least_one_new_prompt(tmp_path: Path) -> None:
    each = Decoder()
    asked: list[int] = []

    def over(done: int) -> bool:
        asked.append(done)
        return True

    record(each, 50, tmp_path / "s", over=over)
    assert (each.done, asked) == ([0], [1])
    record(each, 50, tmp_path / "s", over=over)
    assert (each.done, asked) == ([0, 1], [1, 2])


def test_progress_is_told_when_something_was_saved() -> None:
    told: list[str] = []
    record(Decoder(), 2 * SAVE + 1, None, progress=told.append)
    assert [line.split(" of ")[-1] for line in told] == [f"{SAVE} prompts", f"{2 * SAVE} prompts"]
    assert told[0].startswith(f"recorded {2 * SAVE} ")


def test_prompts_that_give_nothing_leave_nothing(tmp_path: Path) -> None:
    assert record(lambda _: [], SAVE, tmp_path / "s") == []
    assert not (tmp_path / "s").exists()
    assert keep([], tmp_path / "s", {}) == []


def test_a_recording_of_something_else_is_refused(tmp_path: Path) -> None:
    record(Decoder(), 2, tmp_path / "s", {"model": "tiny", "layer": 3})
    with pytest.raises(SapwoodError, match="was recorded with another layer; delete it or name"):
        record(Decoder(), 2, tmp_path / "s", {"model": "tiny", "layer": 4})
    with pytest.raises(SapwoodError, match="was recorded with another seed"):
        record(Decoder(), 2, tmp_path / "s", {"model": "tiny", "layer": 3, "seed": 1})
    assert resume(tmp_path / "nowhere", {}, Sums) == ([], 0)
    assert resume(None, {}, Sums) == ([], 0)


def test_saving_often_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SAVE", 1)
    [found] = record(Decoder(), 5, tmp_path / "s")
    monkeypatch.setattr(recording, "SAVE", 100)
    [other] = record(Decoder(), 5, tmp_path / "t")
    np.testing.assert_array_equal(found.value, other.value)
