"""The picture of how kinds of heads learn."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from tools import head_curves

ROWS = [
    {"kind": "one", "curve": [[0.1, 5.0, 0.2], [0.2, 4.0, 0.41]]},
    {"kind": "two", "curve": [[0.1, 9.0, 0.1], [0.2, 8.0, 0.40]]},
    {"kind": "three", "curve": [[0.1, 9.0, 0.3], [0.2, 8.0, 0.8]]},
]


def test_every_kind_has_a_curve_and_a_name_in_the_order_of_their_ends() -> None:
    made = head_curves.picture(ROWS)
    assert re.findall(r">(\w+) 0\.\d\d<", made) == ["three", "one", "two"]
    assert made.count("<polyline") == 6
    # the best ends at the top right, after all of the time
    first = re.findall(r'points="([^"]+)"', made)[0].split()[-1]
    right = head_curves.WIDTH - head_curves.RIGHT
    assert first == f"{right:.1f},{head_curves.TOP:.1f}"


def test_names_do_not_overlap_and_stay_inside() -> None:
    found = head_curves.spread([20.0, 21.0, 300.0, 400.0, 400.0])
    assert all(after - before >= head_curves.LINE for before, after in pairwise(found))
    assert found[-1] <= head_curves.HEIGHT - head_curves.BOTTOM


def test_the_picture_is_that_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_curves, "RECORD", tmp_path / "heads.json")
    monkeypatch.setattr(head_curves, "PICTURE", tmp_path / "curves.svg")
    assert head_curves.main([]) == 0  # without a record there is nothing to draw
    assert not (tmp_path / "curves.svg").exists()
    (tmp_path / "heads.json").write_text(json.dumps({"rows": ROWS}))
    assert head_curves.main(["--check"]) == 1
    assert head_curves.main([]) == 0
    assert head_curves.main(["--check"]) == 0
