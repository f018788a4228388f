"""Tile configurations: known shapes keep theirs, others are measured once, a damaged file is ignored."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import tiny_models
from tests.helpers.triton_mode import CUDA, DEVICE, require

require()

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.kernels import autotune, tile_configs
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few programs: the interpreter's time goes by their number."""
    if not CUDA:
        monkeypatch.setattr(
            tile_configs,
            "first_guess",
            lambda m, *more: TileConfig(tile_configs.row_tile(m), 256, 256),
        )


def test_known_shapes_keep_their_plans() -> None:
    assert tile_configs.plan_of(5, 3072, 576, "gate") == tile_configs.KNOWN[16, 3072, 576, "gate"]
    assert all(tile in tile_configs.TILES for tile, *_ in tile_configs.KNOWN)


def test_unknown_shapes_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = CudaBackend(tiny_models.make("llama").to(DEVICE))
    timed = []

    def fake(calls: Any, plan: TileConfig) -> float:
        timed.append(plan)
        calls[0](plan)
        return 1.0 if plan.inputs == 64 else 2.0  # the guess has 256

    monkeypatch.setattr(autotune, "time", fake)
    monkeypatch.setattr(autotune, "ORDER", (16, 32))
    monkeypatch.setattr(autotune, "place", lambda device: tmp_path / "plans" / "one.json")
    monkeypatch.setattr(tile_configs, "MEASURED", {})
    autotune.prepare(backend.fused, seconds=0)
    assert not timed
    autotune.prepare(backend.fused, seconds=1000)
    assert {key[0] for key in tile_configs.MEASURED} == {16, 32}
    assert {plan.inputs for plan in tile_configs.MEASURED.values()} == {64}
    measured = dict(tile_configs.MEASURED)
    count = len(timed)
    tile_configs.MEASURED.clear()
    autotune.prepare(backend.fused, seconds=1000)
    assert len(timed) == count
    assert measured == tile_configs.MEASURED


def test_a_damaged_file_of_plans_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_configs, "MEASURED", {})
    (tmp_path / "one.json").write_text('[[16, 1, 1, "plain", {"rows": 16, "unknown": 1}]]')
    autotune.load_measured(tmp_path / "one.json")
    autotune.load_measured(tmp_path / "none.json")
    assert not tile_configs.MEASURED
