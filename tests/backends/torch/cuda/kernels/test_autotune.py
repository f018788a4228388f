"""Which plan is chosen for a projection, and the file that remembers it; timings are fakes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.backends.torch.architectures import describe
from tests.helpers import llama_parts, tiny_models
from tests.helpers.llama_parts import HEAD_WIDTH, HEADS, INNER, KV_HEADS, VOCAB, WIDTH
from tests.helpers.triton_mode import DEVICE, require

require()

import triton

from sapwood.backends.torch.cuda.kernels import autotune, tile_configs
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig
from sapwood.backends.torch.cuda.network import CudaNetwork

ONE, TWO = TileConfig(16, 16, 64), TileConfig(16, 32, 64, warps=2, soon=True)
THREE = TileConfig(32, 64, 128, stages=3)
KEY, OTHER = (16, 100, 72, "plain"), (32, 100, 72, "gate")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[tile_configs.Key, TileConfig]:
    found: dict[tile_configs.Key, TileConfig] = {}
    monkeypatch.setattr(tile_configs, "MEASURED", found)
    return found


@pytest.fixture(scope="module")
def network() -> CudaNetwork:
    return CudaNetwork(llama_parts.on_device(llama_parts.make_model(), DEVICE), slots=32)


# --------------------------------------------------------------------------------------- the choice
def test_the_fastest_plan_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {ONE: 3e-6, TWO: 1e-6, THREE: 2e-6}
    monkeypatch.setattr(autotune, "time", lambda calls, plan: seconds[plan])
    assert autotune.fastest([], seconds) == (TWO, 1e-6)
    assert autotune.fastest([], [ONE, THREE]) == (THREE, 2e-6)


def test_of_equals_and_of_plans_that_do_not_fit_the_guess_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(autotune, "time", lambda calls, plan: float("inf"))
    assert autotune.fastest([], [TWO, ONE])[0] == TWO


@pytest.mark.parametrize(
    "reason", ["out of resource: shared memory, Required: 300000", "Shared memory exceeded"]
)
def test_a_plan_that_does_not_fit_the_device_is_infinitely_slow(reason: str) -> None:
    def refuse(plan: TileConfig) -> None:
        raise RuntimeError(reason)

    assert autotune.time([refuse], ONE) == float("inf")


def test_other_errors_are_not_hidden() -> None:
    def fail(plan: TileConfig) -> None:
        raise ValueError("a kernel that cannot be compiled")

    with pytest.raises(ValueError, match="cannot be compiled"):
        autotune.time([fail], ONE)


# -------------------------------------------------------------------------------------- projections
def test_every_projection_is_measured_on_its_own_weight(network: CudaNetwork) -> None:
    found = autotune.stages(network, 5)
    shapes = {name: (tuple(weight.shape), kind) for name, (weight, kind, _) in found.items()}
    rows = (HEADS + 2 * KV_HEADS) * HEAD_WIDTH
    assert shapes == {
        "qkv": ((rows, WIDTH), "qkv"),
        "out": ((WIDTH, HEADS * HEAD_WIDTH), "plain"),
        "gate": ((2 * INNER, WIDTH), "gate"),
        "down": ((WIDTH, INNER), "plain"),
        "head": ((VOCAB, WIDTH), "norm"),
    }
    assert all(len(calls) == 2 for _, _, calls in found.values())


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gemma3", {"qkv": "qkv", "out": "plain", "gate": "gate", "down": "plain", "head": "norm"}),
        (
            "olmo2",
            {"qkv": "plain", "out": "plain", "gate": "gate", "down": "plain", "head": "norm"},
        ),
        ("olmoe", {"qkv": "norm", "out": "plain", "head": "norm"}),  # experts are guessed
    ],
)
def test_projections_of_other_architectures_are_measured_as_they_run(
    name: str, kinds: dict[str, str]
) -> None:
    found = describe(tiny_models.make(name).to(DEVICE))
    assert found is not None
    several = autotune.stages(CudaNetwork(found, slots=32), 3)
    assert {stage: kind for stage, (_, kind, _) in several.items()} == kinds
    for _, _, calls in several.values():
        calls[0](TileConfig(16, 64, 64))


def test_no_more_layers_are_measured_than_the_cache_cannot_hold(
    network: CudaNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autotune, "COLD", 1.0)
    found = autotune.stages(network, 5)
    assert [len(found[name][2]) for name in ("qkv", "out", "gate", "down")] == [1] * 4


def test_measured_calls_leave_the_pool_alone(network: CudaNetwork) -> None:
    network.pool.kept.fill_(7)
    for weight, _, calls in autotune.stages(network, 3).values():
        calls[0](TileConfig(16, 64, 64))
        assert weight.isfinite().all()
    assert (network.pool.kept == 7).all()


def test_tuning_remembers_the_best_of_all_candidates(
    network: CudaNetwork, monkeypatch: pytest.MonkeyPatch, measured: dict[Any, TileConfig]
) -> None:
    tried: list[TileConfig] = []

    def fake(calls: Any, plan: TileConfig) -> float:
        tried.append(plan)
        return 1e-6 * plan.outputs

    monkeypatch.setattr(autotune, "time", fake)
    found = autotune.tune(network, 20)
    assert set(found) == {"qkv", "out", "gate", "down", "head"}
    assert {key[0] for key in measured} == {32}
    assert len(tried) > 20
    assert measured[32, 2 * INNER, WIDTH, "gate"].outputs == 16
    assert found["gate"] == pytest.approx(16.0)


# ----------------------------------------------------------------------------------------- preparing
def test_preparing_stops_when_its_time_is_over(
    network: CudaNetwork, monkeypatch: pytest.MonkeyPatch, measured: dict[Any, TileConfig],
    tmp_path: Path,
) -> None:  # fmt: skip
    clock = iter(range(1000))
    monkeypatch.setattr(autotune, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(autotune, "time", lambda calls, plan: 1.0)
    monkeypatch.setattr(autotune, "place", lambda device: tmp_path / "plans.json")
    autotune.prepare(network, seconds=3.5)
    assert len(measured) == 3
    assert {key[0] for key in measured} == {16}  # rows of most passes first
    assert len(json.loads((tmp_path / "plans.json").read_text())) == 3


def test_preparing_writes_nothing_where_all_is_known(
    network: CudaNetwork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tile_configs, "timed", lambda key: True)
    monkeypatch.setattr(autotune, "time", lambda calls, plan: pytest.fail("it is known"))
    monkeypatch.setattr(autotune, "place", lambda device: tmp_path / "plans.json")
    autotune.prepare(network)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("same_card", [True, False], ids=["an H200", "another card"])
def test_plans_that_were_timed_on_another_card_are_timed_on_this_one(
    network: CudaNetwork, monkeypatch: pytest.MonkeyPatch, measured: dict[Any, TileConfig],
    tmp_path: Path, same_card: bool,
) -> None:  # fmt: skip
    plans = {
        (tile, *weight.shape, kind): TWO
        for tile in tile_configs.TILES
        for weight, kind, _ in autotune.stages(network, tile).values()
    }
    tried: list[TileConfig] = []

    def fake(calls: Any, plan: TileConfig) -> float:
        tried.append(plan)
        return 1.0

    monkeypatch.setattr(tile_configs, "KNOWN", plans)
    monkeypatch.setattr(tile_configs, "is_timed", lambda: same_card)
    monkeypatch.setattr(autotune, "time", fake)
    monkeypatch.setattr(autotune, "place", lambda device: tmp_path / "plans.json")
    autotune.prepare(network, seconds=1000)
    assert set(measured) == (set() if same_card else set(plans))
    assert (TWO in tried) is not same_card  # the other card's plan is the first to be tried


# ---------------------------------------------------------------------------------------- the file
def test_what_is_remembered_is_recalled(tmp_path: Path, measured: dict[Any, TileConfig]) -> None:
    file = tmp_path / "deep" / "plans.json"
    measured.update({KEY: TWO, OTHER: THREE})
    autotune.save_measured(file)
    measured.clear()
    autotune.load_measured(file)
    assert measured == {KEY: TWO, OTHER: THREE}
    assert [path.name for path in file.parent.iterdir()] == ["plans.json"]  # no draft is left


def test_recalling_adds_to_what_is_measured(
    tmp_path: Path, measured: dict[Any, TileConfig]
) -> None:
    file = tmp_path / "plans.json"
    file.write_text(json.dumps([[*KEY, asdict(TWO)]]))
    measured.update({KEY: ONE, OTHER: ONE})
    autotune.load_measured(file)
    assert measured == {KEY: TWO, OTHER: ONE}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "null",
        '{"a": 1}',
        "[[16, 1]]",
        '[[16, 1, 1, "plain", [1]]]',
        '[[[16], 1, 1, "plain", {"rows": 16, "outputs": 16, "inputs": 64}]]',
        '[[16, 1, 1, "plain", {"rows": 16}]]',
        '[[16, 1, 1, "plain", {"rows": 16, "outputs": 16, "inputs": 64, "colour": 1}]]',
        "\udcff",
    ],
)
def test_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, measured: dict[Any, TileConfig], text: str
) -> None:
    file = tmp_path / "plans.json"
    file.write_text(text, errors="surrogateescape")
    autotune.load_measured(file)
    assert measured == {}


def test_a_folder_that_cannot_be_written_is_no_error(
    tmp_path: Path, measured: dict[Any, TileConfig]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    measured[KEY] = ONE
    autotune.save_measured(blocked / "plans.json")
    assert blocked.read_text() == ""


def test_the_files_name_tells_devices_and_versions_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 (SXM/141 GB)")
    device = torch.device("cpu")
    file = autotune.place(device)
    assert tmp_path in file.parents
    assert file.suffix == ".json"
    assert triton.__version__ in file.name
    assert not set(file.name) & set(" /()")
    monkeypatch.setattr(tile_configs, "KERNELS", 99)
    assert autotune.place(device) != file
