"""The cost curve: between the measured points, along the machine's drift, and through a file."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.engine.cost_model import DRIFT, FIRST, OUTLIER, SHAPE, CostModel, flat


def stairs() -> CostModel:
    """Two contexts; flat to 8 rows, then a step to 16 and another to 64."""
    return CostModel(
        [1, 8, 9, 16, 64], [100, 1100], [[1.0, 1.0, 2.0, 2.0, 4.0], [2.0, 2.0, 3.0, 3.0, 8.0]]
    )


def test_measured_points_are_exact() -> None:
    curve = stairs()
    for row, context in enumerate(curve.contexts):
        for column, rows in enumerate(curve.rows):
            assert curve.seconds(rows, context) == curve.table[row][column]


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (4, 100, 1.0),
        (12, 100, 2.0),
        (40, 100, 3.0),  # half way along rows
        (1, 600, 1.5),  # half way along contexts
        (40, 600, 4.25),
        (1, 0, 1.0),  # flat below the first context
        (500, 100, 4.0 * 500 / 64),  # beyond the last row in proportion
    ],
)
def test_linear_between_and_known_outside(rows: int, context: int, seconds: float) -> None:
    assert stairs().seconds(rows, context) == pytest.approx(seconds)


@given(st.integers(1, 80), st.integers(0, 1500), st.floats(0.1, 10))
def test_a_line_is_the_same_as_its_points(most: int, context: int, drift: float) -> None:
    curve = stairs()
    curve.drift = drift
    line = curve.line(most, context)
    assert line == pytest.approx([curve.seconds(rows, context) for rows in range(1, most + 1)])
    assert (np.diff(line) >= -1e-12).all()


def attended(rows: list[int], contexts: list[int]) -> CostModel:
    """Passes that read the weights, and the keys once and once more for each row."""
    return CostModel(
        rows,
        contexts,
        [[3.0 + 0.1 * count + at * (1e-3 + 2e-4 * count) for count in rows] for at in contexts],
    )


def test_longer_texts_cost_more_by_rows() -> None:
    curve = attended([1, 2, 4, 8, 16, 64], [128, 768])
    exact = attended([1, 2, 4, 8, 16, 64], [128, 768, 8192])
    for rows in (1, 3, 8, 40, 64):
        for context in (769, 1500, 8192):
            wanted = exact.seconds(rows, context)
            assert curve.seconds(rows, context) == pytest.approx(wanted, rel=1e-6)
    # the ratio that decides how many nodes pay
    assert curve.seconds(8, 8192) / curve.seconds(1, 8192) > 1.2 * (
        curve.seconds(8, 768) / curve.seconds(1, 768)
    )


@pytest.mark.parametrize("contexts", [[128], [0, 1024]])
@pytest.mark.parametrize("change", [-0.1, 0.0])
def test_noise_makes_no_longer_text_cheaper(contexts: list[int], change: float) -> None:
    cells = [[1.0, 1.4, 2.0], [1.0 + change, 1.4 + change, 2.0 + change]]
    curve = CostModel([1, 8, 16], contexts, cells[: len(contexts)])
    for rows in (1, 8, 100):
        assert curve.seconds(rows, 9000) == curve.seconds(rows, contexts[-1])
    # many rows alone measured too fast: what is left is in proportion to the rows
    odd = CostModel([1, 8, 16], [0, 1024], [[1.0, 1.4, 2.0], [1.0, 1.5, 2.6]])
    assert (
        odd.seconds(16, 9000) > odd.seconds(8, 9000) > odd.seconds(1, 9000) > odd.seconds(1, 1024)
    )


def test_a_long_text_gets_a_line_of_its_own() -> None:
    curve = attended([1, 2, 4, 8, 16], [128, 768])
    before = [list(cells) for cells in curve.table]
    curve.observe(8, 1400, curve.seconds(8, 1400))  # not yet twice as long
    assert curve.contexts == [128, 768]
    assert curve.lacks_root(4000)
    assert not curve.lacks_root(1400)
    one, eight = 0.9 * curve.seconds(1, 4000), 1.7 * curve.seconds(8, 4000)
    curve.observe(8, 4000, eight)
    assert curve.contexts == [128, 768, 4000]
    for slower in (1.5, 1.0, 1.2):
        assert curve.lacks_root(4000)
        curve.observe(1, 4000, slower * one)
    assert not curve.lacks_root(4000)
    # the quickest passes tell the price of rows; sizes that were not seen lie between
    assert curve.seconds(8, 4000) == pytest.approx(eight)
    assert curve.seconds(1, 4000) == pytest.approx(one)
    line = curve.line(16, 4000)
    assert (np.diff(line) >= 0).all()
    assert one < line[3] < eight < line[15]
    # what was seen of a long text says nothing of short ones, nor of the machine
    assert (curve.table[:2], curve.drift) == (before, 1.0)


def test_an_odd_pass_over_a_long_text_is_forgotten() -> None:
    curve = attended([1, 2, 4, 8, 16], [128, 768])
    usual = curve.seconds(1, 4000)
    curve.observe(1, 4000, 9 * usual)
    assert curve.seconds(1, 4000) == pytest.approx(OUTLIER * usual)
    for _ in range(FIRST - 1):
        curve.observe(1, 4000, usual)
    assert curve.seconds(1, 4000) == pytest.approx(usual)
    assert curve.drift == 1.0
    curve.observe(1, 4000, 0.8 * usual)  # from now on as at other contexts
    assert curve.drift < 1.0


def test_lines_of_which_little_was_seen_are_not_stored() -> None:
    curve = attended([1, 2, 4, 8, 16], [128, 768])
    curve.observe(1, 4000, 2.0)
    assert CostModel.from_json(curve.to_json()).contexts == [128, 768]
    curve.observe(8, 4000, 3.0)
    read = CostModel.from_json(curve.to_json())
    assert read.contexts == [128, 768, 4000]
    assert read.seconds(8, 4000) == pytest.approx(curve.seconds(8, 4000))
    assert not read.lacks_root(4000)
    assert read.lacks_root(9000)


def test_a_curve_of_one_context_stays_one() -> None:
    curve = flat()
    curve.observe(4, 50_000, 1.5)
    assert curve.contexts == [0]
    assert not curve.lacks_root(50_000)


def test_a_slower_machine_moves_the_whole_table_at_once() -> None:
    curve = stairs()
    for _ in range(60):
        curve.observe(1, 100, 1.5)
    assert curve.seconds(1, 100) == pytest.approx(1.5, rel=0.01)
    assert curve.seconds(64, 1100) == pytest.approx(8 * curve.drift, rel=1e-9)
    assert curve.drift > 1.3  # mostly the machine, hardly the shape


def test_a_single_wrong_cell_is_bent_into_shape() -> None:
    curve = stairs()
    for _ in range(400):  # 16 rows really cost 3, everything else is right
        curve.observe(16, 100, 3.0)
        curve.observe(1, 100, 1.0)
        curve.observe(64, 100, 4.0)
    assert curve.seconds(16, 100) / curve.seconds(1, 100) == pytest.approx(3.0, rel=0.1)
    assert curve.seconds(64, 100) / curve.seconds(1, 100) == pytest.approx(4.0, rel=0.1)


def test_one_observation_moves_a_known_share() -> None:
    curve = stairs()
    curve.observe(1, 100, 1.5)
    assert curve.drift == pytest.approx(1 + DRIFT * 0.5)
    assert curve.table[0][0] == pytest.approx(1 + SHAPE * 0.5)
    assert curve.table[0][1:] == stairs().table[0][1:]


@pytest.mark.parametrize("seconds", [1e6, 1e-9, 0.0])
def test_an_outlier_counts_as_a_factor_of_two(seconds: float) -> None:
    curve = stairs()
    curve.observe(1, 100, seconds)
    factor = OUTLIER if seconds > 1 else 1 / OUTLIER
    assert curve.drift == pytest.approx(1 + DRIFT * (factor - 1))


def test_the_nearest_cell_learns() -> None:
    curve = stairs()
    curve.observe(14, 900, 2 * curve.seconds(14, 900))
    moved = np.argwhere(np.array(curve.table) != np.array(stairs().table))
    assert moved.tolist() == [[1, 3]]


def test_a_curve_survives_its_file(tmp_path: Path) -> None:
    curve = stairs()
    path = tmp_path / "deep" / "curve.json"
    curve.observe(1, 100, 1.5)
    curve.save(path)
    back = CostModel.from_json(json.loads(path.read_text()))
    assert back.drift == 1.0  # folded into the table
    for rows, context in [(1, 100), (12, 600), (64, 1100)]:
        assert back.seconds(rows, context) == pytest.approx(curve.seconds(rows, context))
    assert [file.name for file in path.parent.iterdir()] == ["curve.json"]
    back.save(path)
    assert CostModel.from_json(json.loads(path.read_text())) == back


def test_an_unmeasured_machine_is_flat() -> None:
    curve = flat(0.25)
    assert curve.line(300, 12345).tolist() == [0.25] * 300
    assert flat() is not flat()


def test_every_further_tree_costs_a_little_of_its_own(tmp_path: Path) -> None:
    curve = stairs()
    curve.tree = 0.25
    curve.drift = 2.0
    assert curve.seconds(8, 100, trees=5) == pytest.approx(2 * (1.0 + 4 * 0.25))
    assert curve.plain(16, 100, 3.0, trees=5) == pytest.approx(3.0 * (1.0 + 1.0) / (2.0 + 1.0))
    curve.save(tmp_path / "curve.json")
    back = CostModel.from_json(json.loads((tmp_path / "curve.json").read_text()))
    assert back.seconds(8, 100, trees=5) == pytest.approx(curve.seconds(8, 100, trees=5))
    before = curve.seconds(8, 100, trees=5)
    curve.observe(8, 100, 2 * before, trees=5)
    assert curve.tree == pytest.approx(0.25 * (1 + SHAPE))


def test_old_files_know_nothing_of_trees() -> None:
    record = stairs().to_json()
    del record["tree"]
    assert CostModel.from_json(record).tree == 0.0
    with pytest.raises(ValueError, match="not a table"):
        CostModel.from_json({**stairs().to_json(), "tree": -1.0})
