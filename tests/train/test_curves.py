"""What a run leaves to look at: numbers, a page, a picture."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sapwood.errors import SapwoodError
from sapwood.train.curves import page, picture, vars_of, write
from sapwood.train.loop import CurvePoint, RunState

FACTS: dict[str, Any] = {"kind": "eagle3", "model": "tiny", "answer_tokens": 1234, "steps": 9}


def notes(points: int = 5) -> RunState:
    curve = [
        CurvePoint(10 * at, 1.5 * at, 100 * at, 3.0 / at, [0.1 * at, 0.05 * at])
        for at in range(1, points + 1)
    ]
    return RunState("run", 50, 10 * points, 90.0, 2_500_000, curve)


def test_all_files_are_written(tmp_path: Path) -> None:
    write(tmp_path / "head", notes(), FACTS)
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == [
        "training.json",
        "training.md",
        "training.png",
    ]
    assert (tmp_path / "head" / "training.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_are_those_of_the_curve(tmp_path: Path) -> None:
    write(tmp_path, notes(3), FACTS)
    record = json.loads((tmp_path / "training.json").read_text())
    assert list(record) == ["facts", "steps", "seconds", "curve"]
    assert (record["facts"], record["steps"], record["seconds"]) == (FACTS, 30, 90.0)
    assert record["curve"][2] == {
        "step": 30,
        "seconds": 4.5,
        "tokens": 300,
        "loss": 1.0,
        "agreement": [0.3, 0.15],
    }


def test_numbers_have_four_digits() -> None:
    found = vars_of(CurvePoint(1, 2.0, 3, 1.23456789, [0.98765432]))
    assert (found["loss"], found["agreement"]) == (1.2346, [0.9877])


def test_the_page_says_it_in_words() -> None:
    lines = page(notes(), FACTS).splitlines()
    assert lines[0] == "# eagle3 for tiny"
    assert "| answer tokens | 1234 |" in lines
    assert "| steps | 50 in 1.5 minutes |" in lines
    assert "| steps | 9 |" not in lines  # said once, with the minutes
    assert "| answer tokens read | 2.50 million |" in lines
    assert "| loss | 3.000 at step 10, 0.600 at the end |" in lines
    assert lines[-5:] == [
        "| step | 1 | 2 |",
        "|---|---|---|",
        "| 10 | 0.100 | 0.050 |",
        "| 30 | 0.300 | 0.150 |",
        "| 50 | 0.500 | 0.250 |",
    ]


@pytest.mark.parametrize(("points", "shown"), [(1, 1), (2, 2), (3, 3), (8, 3)])
def test_first_middle_and_last_points_are_shown_once(points: int, shown: int) -> None:
    lines = page(notes(points), FACTS).splitlines()
    rows = lines[lines.index("|---|---|---|") + 1 :]
    assert len(rows) == shown
    assert rows[0].startswith("| 10 |")
    assert rows[-1].startswith(f"| {10 * points} |")


def test_without_matplotlib_there_is_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write(tmp_path, notes(), FACTS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["training.json", "training.md"]


def test_a_picture_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SapwoodError, match="the disk is full"):
        picture(tmp_path / "training.png", notes(), "eagle3")
    assert list(tmp_path.iterdir()) == []
