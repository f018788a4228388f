"""A record grows prompt by prompt, and compares on the same prompts."""

from pathlib import Path

import pytest
from benchmarks.paired_record import PairedRecord, difference, ratio

from sapwood.errors import SapwoodError


def test_a_record_goes_on_where_it_was(tmp_path: Path) -> None:
    record = PairedRecord(tmp_path / "r.json", {"tokens": 4})
    record.add("on", "a", [3, 2])
    record.write({"commit": "abc"}, rows=[])
    again = PairedRecord(tmp_path / "r.json", {"tokens": 4})
    assert again.left(["on", "off"], ["a", "b"]) == [("a", "off"), ("b", "on"), ("b", "off")]
    with pytest.raises(SapwoodError, match="has other settings"):
        PairedRecord(tmp_path / "r.json", {"tokens": 5})


def test_ratios_are_of_sums_and_intervals_hold_them() -> None:
    found = ratio([[4, 2], [9, 3], [2, 2]])
    assert found.mean == pytest.approx(15 / 7, abs=1e-4)
    assert found.low < found.mean < found.high


def test_a_common_gain_is_certain_however_much_prompts_differ() -> None:
    rows = [[4.0, 2], [90.0, 3], [2.0, 2]]
    gain = difference([[1.1 * top, below] for top, below in rows], rows)
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.1, 0.1, 0.1), abs=1e-4)
    mixed = difference([[5, 2], [80, 3], [2, 2]], rows)
    assert mixed.low < 0 < mixed.high
