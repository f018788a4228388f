"""Tile sizes of projections: they fit the shared memory of devices, and measured ones come before guesses."""

import itertools
from dataclasses import replace

import pytest
import torch

from sapwood.backends.torch.cuda.kernels import tile_configs
from sapwood.backends.torch.cuda.kernels.tile_configs import (
    KNOWN,
    SMALL,
    TILES,
    WHOLE_STEP,
    TileConfig,
    candidates,
    first_guess,
    fitting,
    known,
    plan_of,
    row_tile,
    share_of,
    shortlist,
    widened,
)

KINDS = ("plain", "norm", "gate", "qkv")
ROWS = (1, 5, 16, 17, 32, 33, 64, 100, 128, 500)
# outputs and inputs: of models of 135M, 1B, 3B and 8B parameters, and sizes that are no powers of two
SHAPES = (
    (960, 576),
    (576, 1536),
    (3072, 576),
    (49152, 576),
    (2048, 2048),
    (2048, 8192),
    (5120, 3072),
    (3072, 8192),
    (6144, 4096),
    (4096, 14336),
    (28672, 4096),
    (128256, 4096),
    (100, 72),
    (72, 1000),
)
CASES = [(m, n, k, kind) for m in ROWS for n, k in SHAPES for kind in KINDS]
LEAST_SHARED = 99 * 1024  # bytes that a program may have on the smallest device that is supported
MOST_SHARED = 227 * 1024  # on a Hopper


def shared(plan: TileConfig) -> int:
    """Bytes of 16-bit rows and weights whose loads are under way at once."""
    return sum(2 * size * plan.inputs * plan.stages for size in (plan.rows, plan.outputs))


def powers(plan: TileConfig) -> bool:
    """True where all sizes are what Triton takes: powers of two, 16 at least."""
    sizes = (plan.rows, plan.outputs, plan.inputs)
    return all(size >= 16 and size & (size - 1) == 0 for size in sizes)


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_configs, "MEASURED", {})


@pytest.fixture(params=[LEAST_SHARED, MOST_SHARED], ids=["99 KB", "227 KB"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes of shared memory of the device."""
    monkeypatch.setattr(tile_configs, "shared_limit", lambda: request.param)
    found: int = request.param
    return found


# ------------------------------------------------------------------------------------------- sizes
def test_a_row_tile_holds_the_rows_or_is_the_largest() -> None:
    assert [row_tile(m) for m in (1, 16, 17, 32, 33, 64, 65, 128, 129, 512)] == [
        16, 16, 32, 32, 64, 64, 128, 128, 128, 128,
    ]  # fmt: skip


def test_the_guess_of_every_shape_can_be_compiled_and_fits_the_device(limit: int) -> None:
    for case in CASES:
        plan = first_guess(*case)
        assert powers(plan), case
        assert plan.rows <= row_tile(case[0])
        assert plan.stages >= 2
        assert shared(plan) <= limit, case
        assert plan.warps in (1, 2, 4, 8)


def test_known_plans_can_be_compiled_and_fit_every_device() -> None:
    for (rows, *_, kind), plan in KNOWN.items():
        assert rows in TILES
        assert kind in KINDS
        assert powers(plan)
        assert plan.rows <= rows
        assert shared(plan) <= LEAST_SHARED


def test_candidates_begin_with_the_guess_and_fit_the_device(limit: int) -> None:
    for case in CASES:
        found = list(candidates(*case))
        assert found[0] == first_guess(*case)
        assert len(found) == len(set(found)) > 1
        assert all(powers(plan) and shared(plan) <= limit for plan in found), case


def test_a_large_device_is_offered_plans_that_a_small_one_cannot_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    for limit in (LEAST_SHARED, MOST_SHARED):
        monkeypatch.setattr(tile_configs, "shared_limit", lambda limit=limit: limit)
        counts.append(len(list(candidates(128, 28672, 4096, "gate"))))
    assert counts[0] < counts[1]


def test_a_shortlist_is_short_and_fits_the_device(limit: int) -> None:
    for case in CASES:
        found = list(shortlist(*case))
        assert found[0] == plan_of(*case)
        assert 1 <= len(found) <= 2
        assert all(shared(plan) <= limit for plan in found)


def test_a_plan_keeps_its_stages_where_they_fit(limit: int) -> None:
    plan = TileConfig(64, 64, 128, warps=8, stages=4, soon=True)  # 128 KB
    found = fitting(plan)
    assert found.stages == (4 if limit == MOST_SHARED else 3)
    assert (found.rows, found.outputs, found.inputs, found.warps, found.soon) == (
        64, 64, 128, 8, True,
    )  # fmt: skip


def test_a_program_that_needs_a_whole_head_has_warps_and_stages_for_it(limit: int) -> None:
    plan = TileConfig(64, 32, 128)
    assert widened(plan, 32) is plan
    wide = widened(plan, 128)
    assert (wide.rows, wide.outputs, wide.inputs, wide.warps) == (64, 128, 128, 8)
    assert shared(wide) <= limit
    assert widened(TileConfig(16, 16, 64, warps=2), 64).warps == 2


# ------------------------------------------------------------------------------- parts of the inputs
def test_parts_of_the_inputs_are_whole_steps_and_take_each_input_once() -> None:
    for (n, k), kind, split in itertools.product(SHAPES, KINDS, (0, 1, 2, 3, 4, 7)):
        parts, share = share_of(n, k, kind, split)
        assert share % WHOLE_STEP == 0, (n, k)
        assert (parts - 1) * share < k <= parts * share
        if split:
            assert parts <= split


def test_only_products_of_many_inputs_and_few_outputs_are_shared() -> None:
    parts = {(n, k, kind): share_of(n, k, kind)[0] for n, k in SHAPES for kind in KINDS}
    assert parts[576, 1536, "plain"] == 4
    assert parts[4096, 14336, "plain"] == 4
    assert parts[2048, 2048, "plain"] == 1
    assert parts[3072, 8192, "plain"] == 4
    assert parts[6144, 4096, "plain"] == 2
    assert all(count == 1 for (*_, kind), count in parts.items() if kind != "plain")


def test_parts_of_the_inputs_do_not_depend_on_the_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever plan is taken for a number of rows, the parts are those of the weight's shape."""
    pytest.importorskip("triton")
    from sapwood.backends.torch.cuda.kernels import linear

    launched: list[tuple[int, int]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, int, int]) -> "Kernel":
            self.parts = grid[1]
            return self

        def __call__(self, *args: object, **options: object) -> None:
            launched.append((self.parts, int(str(args[17]))))  # the share is the 18th argument

    monkeypatch.setattr(linear, "_project", Kernel())
    for n, k in ((576, 1536), (576, 576), (4096, 1024)):
        weight = torch.empty(n, k)
        launched.clear()
        for m in (1, 16, 17, 64, 128, 500):
            linear.project(torch.empty(m, k), weight, torch.empty(m, n))
        assert set(launched) == {share_of(n, k, "plain")}


# ------------------------------------------------------------------------------------------- guesses
def test_large_weights_take_the_widest_tiles_that_keep_the_device_busy() -> None:
    assert first_guess(1, 128256, 4096, "norm").outputs == 128
    assert first_guess(1, 4096, 14336, "plain").outputs == 64  # four programs share each tile
    assert first_guess(1, 6144, 4096, "qkv").outputs == 32
    for rows in (1, 64, 128):
        assert first_guess(rows, 28672, 4096, "gate").rows == row_tile(rows)


def test_many_rows_have_more_warps_where_registers_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warps = []
    for hopper in (True, False):
        monkeypatch.setattr(tile_configs, "is_hopper", lambda hopper=hopper: hopper)
        warps.append([first_guess(128, n, 4096, "qkv").warps for n in (6144, 28672)])
    assert warps == [[4, 8], [8, 8]]


def test_small_and_large_weights_are_told_apart_by_their_number() -> None:
    n = 1 << 11
    assert first_guess(64, n, SMALL // n, "norm").rows == 32
    assert first_guess(64, n, SMALL // n + 1, "norm").rows == 64


def test_only_products_before_others_with_much_to_load_let_the_next_one_in_soon() -> None:
    for rows in (16, 32):
        assert first_guess(rows, 960, 576, "qkv").soon
        assert first_guess(rows, 576, 576, "plain").soon
        assert not first_guess(rows, 576, 1536, "plain").soon
        assert not first_guess(rows, 3072, 576, "gate").soon


# -------------------------------------------------------------------------------------- what is known
def test_a_measured_plan_comes_before_a_known_one_and_that_before_a_guess() -> None:
    key = (16, 960, 576, "qkv")
    measured = TileConfig(16, 128, 32)
    assert plan_of(3, 960, 576, "qkv") == KNOWN[key] == known(key)
    tile_configs.MEASURED[key] = measured
    assert plan_of(3, 960, 576, "qkv") == measured == known(key)
    assert known((16, 1, 1, "qkv")) is None
    assert plan_of(3, 100, 72, "qkv") == first_guess(3, 100, 72, "qkv")


def test_plans_are_shared_by_rows_of_one_tile() -> None:
    tile_configs.MEASURED[32, 100, 72, "plain"] = plan = TileConfig(32, 16, 64)
    assert plan_of(17, 100, 72, "plain") is plan
    assert plan_of(32, 100, 72, "plain") is plan
    assert plan_of(16, 100, 72, "plain") is not plan
    assert plan_of(33, 100, 72, "plain") is not plan


def test_a_plan_for_very_wide_heads_has_fewer_rows() -> None:
    plan = TileConfig(128, 128, 64, warps=8, stages=3)
    assert widened(plan, 256).rows == 64
    assert widened(replace(plan, rows=16), 256).rows == 16
