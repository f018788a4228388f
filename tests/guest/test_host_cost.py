"""The host's seconds by rows: learned from its steps, kept in the cache folder."""

import json
from pathlib import Path

import numpy as np
import pytest

from sapwood.core.types import BackendInfo
from sapwood.guest.host_cost import ENOUGH, FEW, ROWS, HostCost, HostCostFile, line_through

INFO = BackendInfo("vllm", "folder/model", 1000, 4096)


def staircase(rows: int) -> float:
    """Seconds of a host whose passes take whole tiles of 16 rows."""
    return 0.02 + 0.01 * ((rows + 15) // 16)


def learned(*rows: int, noise: float = 0.0, times: int = ENOUGH) -> HostCost:
    cost = HostCost.unknown()
    draw = np.random.default_rng(0)
    for _ in range(times):
        for count in rows:
            cost.observe(count, 100, staircase(count) * (1 + noise * draw.standard_normal()))
    return cost


def test_the_first_step_sets_the_scale() -> None:
    cost = HostCost.unknown()
    cost.observe(8, 100, 2.0)
    assert cost.seconds(8, 100) == pytest.approx(2.0)
    assert 1.5 < cost.seconds(1, 100) < 2.0, "rows are cheap until they are measured"
    assert 2.0 < cost.seconds(32, 100) < 3.0


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_measured_sizes_are_known(noise: float) -> None:
    cost = learned(1, 8, 16, 24, 64, noise=noise, times=4 * ENOUGH)
    for rows in (1, 8, 16, 24, 64):
        assert cost.seconds(rows, 100) == pytest.approx(staircase(rows), rel=0.02 + 2 * noise)


def test_seconds_never_fall_with_rows() -> None:
    cost = HostCost.unknown()
    for rows, seconds in ((8, 0.05), (1, 0.06), (32, 0.05), (16, 0.04)):
        cost.observe(rows, 100, seconds)
    assert (np.diff(cost.line(256, 100)) >= -1e-12).all()


def test_steps_of_many_rows_tell_what_few_rows_take() -> None:
    cost = HostCost.unknown()
    for rows in (72, 40, 66, 55, 33):
        cost.observe(rows, 100, 0.08 + 0.004 * rows)
    assert cost.seconds(8, 100) == pytest.approx(0.08 + 0.004 * 8, rel=0.05)
    assert cost.seconds(128, 100) == pytest.approx(0.08 + 0.004 * 128, rel=0.05)


def test_a_line_needs_some_steps_of_different_rows() -> None:
    assert line_through([(8, 1.0)] * 20) is None
    assert line_through([(8, 1.0), (64, 2.0)]) is None
    assert line_through([(8 * size, 0.2 + 0.1 * size) for size in range(1, FEW + 1)]) is not None


def test_a_line_is_not_bent_by_a_slow_step_and_never_falls() -> None:
    steps = [(rows, 0.1 + 0.01 * rows) for rows in (8, 16, 24, 32, 40, 48, 56)]
    assert line_through([*steps, (8, 30.0)]) == pytest.approx((0.1, 0.01), rel=0.3)
    start, each = line_through([(rows, 1.0 / rows) for rows in (8, 16, 24, 32, 40)]) or (0, 0)
    assert 0 < each < 0.01 * start, "the guess of before"


@pytest.mark.parametrize("seed", range(5))
def test_on_a_busy_host_rows_are_not_thought_dearer_than_they_are(seed: int) -> None:
    draw = np.random.default_rng(seed)
    steps = [(int(rows), 0.5 + 0.01 * rows) for rows in draw.integers(8, 72, 12)]
    noisy = [(rows, seconds * float(draw.lognormal(0, 0.5))) for rows, seconds in steps]
    _, each = line_through(noisy) or (0, 1)
    assert each < 0.014


def test_the_scale_is_unknown_before_a_step_was_timed() -> None:
    cost = HostCost.unknown()
    before = cost.scaled
    cost.observe(8, 100, 2.0)
    assert (before, cost.scaled) == (False, True)
    assert not cost.measured, "a row's price is not known by one size"
    assert learned(1, 8).scaled
    assert learned(1, 8).measured


def test_a_slow_first_step_does_not_stay() -> None:
    cost = HostCost.unknown()
    for seconds in (30.0, 0.05, 0.05, 0.05, 0.05):
        cost.observe(4, 100, seconds)
    assert cost.seconds(4, 100) == pytest.approx(0.05)


def test_a_known_host_that_slows_down_is_followed() -> None:
    cost = learned(1, 8, 64)
    for _ in range(30):
        cost.observe(8, 100, 2 * staircase(8))
    assert cost.seconds(8, 100) == pytest.approx(2 * staircase(8), rel=0.05)
    assert cost.seconds(64, 100) == pytest.approx(2 * staircase(64), rel=0.3)


def test_steps_of_no_seconds_are_ignored() -> None:
    cost = learned(1, 8)
    before = cost.line(16, 100).copy()
    cost.observe(8, 100, 0.0)
    assert (cost.line(16, 100) == before).all()


def test_a_host_is_kept_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    file = HostCostFile.open(INFO)
    file.keep(at_once=True)
    assert not file.path.exists(), "nothing is known yet"
    for rows in (1, 8, 64):
        for _ in range(ENOUGH):
            file.cost.observe(rows, 100, staircase(rows))
    file.keep()
    assert not file.path.exists(), "not so soon"
    file.keep(at_once=True)
    again = HostCostFile.open(INFO)
    assert again.cost.known == file.cost.known
    assert again.cost.line(64, 100) == pytest.approx(file.cost.line(64, 100))
    other = BackendInfo("sglang", "folder/model", 1000, 4096)
    assert not HostCostFile.open(other).cost.known


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", json.dumps({"rows": [1], "contexts": [0], "seconds": [[1.0]]})]
)
def test_a_damaged_file_is_learned_again(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    path = HostCostFile.open(INFO).path
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert HostCostFile.open(INFO).cost == HostCost.unknown()


def test_a_table_of_other_rows_is_learned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    path = HostCostFile.open(INFO).path
    path.parent.mkdir(parents=True)
    record = {"rows": [1, 2], "contexts": [0], "seconds": [[0.1, 0.2]], "known": [0]}
    path.write_text(json.dumps(record))
    assert HostCostFile.open(INFO).cost.rows == ROWS
