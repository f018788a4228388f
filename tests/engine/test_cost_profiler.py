"""Measuring a machine and keeping the curve."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood import LLM
from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Capabilities, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.engine import cost_profiler
from sapwood.engine.cost_profiler import (
    FULL,
    QUICK_ROWS,
    ROWS,
    WIDE,
    CostProfile,
    measure,
    place,
    random_tree,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(cost_profiler, "QUICK_S", 0.05)
    monkeypatch.setattr(cost_profiler, "FULL_S", 0.0)


def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass cost 10 ms and 1 ms per row."""
    monkeypatch.setattr(
        cost_profiler, "once", lambda target, session, tree: 0.009 + 0.001 * len(tree)
    )


def test_a_curve_by_rows_and_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    told: list[str] = []
    curve = measure(ToyBackend(context=600), ROWS, FULL, 0.01, told.append)
    assert curve.contexts == [0, 256, 584]  # as far as the model's context goes
    assert len(told) == 3
    assert curve.rows == sorted(ROWS)
    assert curve.seconds(1, 100) == pytest.approx(0.010)
    assert curve.seconds(64, 300) == pytest.approx(0.073)


def test_a_real_measurement_leaves_the_session_as_it_was() -> None:
    toy = ToyBackend(context=80)
    curve = measure(toy, ROWS, (0, 32), 0.05, lambda message: None)
    assert curve.rows == [count for count in sorted(ROWS) if count <= 40]
    assert all(cell > 0 for line in curve.table for cell in line)
    assert toy.passes >= 2 * len(curve.rows)


def test_a_slow_machine_is_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    monkeypatch.setattr(cost_profiler, "QUICK_S", -1.0)
    made = CostProfile.open(ToyBackend(context=600).info)
    made.measure(ToyBackend(context=600), lambda message: None, quick=True)
    assert made.measured
    assert made.curve.table[0] == pytest.approx(
        [0.009 + 0.001 * count for count in sorted(QUICK_ROWS)]
    )
    assert CostProfile.open(
        ToyBackend(context=600).info
    ).measured  # kept all the same: rounds correct it


def test_what_a_gpu_prepares_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu(ToyBackend):
        """A device that compiles the first pass of each shape and captures the second."""

        @property
        def info(self) -> BackendInfo:
            return replace(super().info, device="cuda:0")

        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, place_tree=self.place)

        def place(self, tree: Tree) -> Tree:
            staged.append(tree)
            return tree

    def once(target: ToyBackend, session: Session, tree: Tree) -> float:
        shape = session.length, len(tree)
        seen[shape] += 1
        return 5.0 if seen[shape] <= 2 else 0.009 + 0.001 * len(tree)

    staged: list[Tree] = []
    seen: Counter[tuple[int, int]] = Counter()
    monkeypatch.setattr(cost_profiler, "once", once)
    curve = measure(Gpu(context=600), QUICK_ROWS, (128, 256), 0.0, lambda message: None)
    assert sorted(map(len, staged)) == sorted(QUICK_ROWS)
    for line in curve.table:
        assert line == pytest.approx([0.009 + 0.001 * rows for rows in curve.rows])


def test_rows_never_cost_more_than_one_by_one() -> None:
    assert cost_profiler.line([1, 2, 4, 8], {1: [9.0, 1.0], 2: [9.0], 4: [2.0, 3.0]}) == [
        1.0,
        2.0,
        3.0,
        pytest.approx(17 / 3),
    ]


def test_fewer_rows_never_cost_more_than_more_rows() -> None:
    times = {1: [9.0, 2.0], 2: [9.0, 3.5], 4: [9.0, 3.0], 8: [9.0, 4.0]}
    assert cost_profiler.line([1, 2, 4, 8], times) == [2.0, 3.0, 3.0, 4.0]


@pytest.mark.parametrize("rows", ROWS)
def test_timed_trees_have_the_size_asked_for(rows: int) -> None:
    tree: Tree = random_tree(rows, 11, np.random.default_rng(rows))
    assert len(tree) == rows
    assert tree.height <= cost_profiler.DEPTH


# ------------------------------------------------------------------------------------------ keeping
def test_each_setting_has_its_own_file() -> None:
    info = ToyBackend().info
    others = [
        replace(info, device="cuda:0"),
        replace(info, dtype="float16"),
        replace(info, threads=2),
    ]
    assert len({place(one) for one in (info, *others, replace(info, model="a/b"))}) == 5


def test_a_stored_curve_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    info = ToyBackend(context=600).info
    made = CostProfile.open(info)
    assert not made.measured
    made.measure(ToyBackend(context=600), lambda message: None, quick=False)
    again = CostProfile.open(info)
    assert again.measured
    assert again.curve == made.curve


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"rows": 1}',
        "[1]",
        '{"rows": [1], "contexts": [0], "seconds": [7]}',
        '{"rows": [], "contexts": [], "seconds": []}',
        '{"rows": [1, 8], "contexts": [0], "seconds": [[1.0]]}',
        '{"rows": [8, 1], "contexts": [0], "seconds": [[1.0, 1.0]]}',
        '{"rows": [1, 8], "contexts": [0], "seconds": [[1.0, 0.0]]}',
        '{"rows": [1, 8], "contexts": [0], "seconds": [[1.0, NaN]]}',
        '{"rows": [1, 8], "contexts": [0], "seconds": [["a", "b"]]}',
        '{"rows": [1, 8e99], "contexts": [0], "seconds": [[1.0, 2.0]]}',
    ],
)
def test_a_damaged_file_is_measured_again(content: str) -> None:
    path = place(ToyBackend().info)
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert not CostProfile.open(ToyBackend().info).measured


def test_refined_curves_are_stored_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch)
    kept = CostProfile.open(ToyBackend().info)
    kept.measure(ToyBackend(), lambda message: None, quick=False)
    before = kept.path.read_text()
    kept.curve.observe(1, 0, 0.02)
    kept.keep()
    assert kept.path.read_text() == before
    kept.keep(at_once=True)
    assert json.loads(kept.path.read_text())["seconds"][0][0] > 0.010


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with LLM(ToyBackend(), "auto") as llm:
        assert llm.profile.measured  # though it cannot be kept


# --------------------------------------------------------------------------------------------- use
@dataclass
class Counting(ToyBackend):
    opened: int = 0

    def open(self, tokens):  # type: ignore[no-untyped-def]
        self.opened += 1
        return super().open(tokens)


def test_only_a_controller_that_reads_the_curve_has_it_measured_and_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed(monkeypatch)
    first = Counting()
    LLM(first, "plain")
    assert first.opened == 0
    LLM(first, "auto")
    opened = first.opened
    assert opened > 0
    llm = LLM(first, "auto")
    assert first.opened == opened
    assert llm.generate([1], max_tokens=8).stats.speedup is not None


class Ticking(ToyBackend):
    """A toy whose passes take a hundredth of a second, a thousandth for each row, and two for each tree."""

    time = 0.0

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        self.time += 0.01 + sum(0.001 * len(job.tree) + 0.002 for job in work)
        return super().score(work, chunks)


@dataclass
class SlowPrefill(ToyBackend):
    """A toy whose prompts take a hundredth of a second for each token, its passes as much."""

    time: float = field(default=0.0, compare=False)

    def open(self, tokens: Sequence[int], **options: Any) -> Any:
        self.time += 0.01 * len(tokens)
        return super().open(tokens, **options)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        self.time += 0.01
        return super().score(work, chunks)


def test_long_contexts_of_a_slow_model_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = SlowPrefill(context=4096)
    monkeypatch.setattr("sapwood.engine.cost_profiler.time.perf_counter", lambda: target.time)
    curves = [
        measure(target, (1, 2, 4), (128, 768), seconds, lambda message: None)
        for seconds in (1.5, 8.0)
    ]
    assert [list(curve.contexts) for curve in curves] == [[128], [128, 768]]


def test_a_server_measures_passes_of_many_requests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Ticking(context=4096)
    monkeypatch.setattr("sapwood.engine.cost_profiler.time.perf_counter", lambda: target.time)
    found = CostProfile.open(target.info)
    found.widen(target, print)
    assert found.curve.rows[-1] == 1024  # a machine that nobody has measured stays so
    found.measure(target, print, quick=True)
    narrow = [found.curve.seconds(rows, 128) for rows in (1, 8, 64)]
    found.widen(target, print)
    assert found.curve.rows[-1] == WIDE[-1]
    assert [found.curve.seconds(rows, 128) for rows in (1, 8, 64)] == narrow
    assert found.curve.seconds(256, 768) == pytest.approx(0.012 + 0.256, rel=0.02)
    assert found.curve.seconds(8, 128, trees=8) == pytest.approx(0.01 + 8 * 0.003, rel=0.02)
    again = CostProfile.open(target.info)
    assert again.curve.seconds(200, 128, trees=4) == pytest.approx(
        found.curve.seconds(200, 128, trees=4)
    )
    before = target.time
    again.widen(target, print)
    assert target.time == before
    assert target.memory.used == 0
