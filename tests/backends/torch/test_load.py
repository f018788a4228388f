"""Choices on the way from a model's name to a backend: device, number format, network, and sentences of errors."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sapwood.backends.torch import load as module
from sapwood.backends.torch.load import brief, build, find_device, find_dtype, load, repair_advice
from sapwood.errors import SapwoodError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def silent(message: str) -> None:
    """Progress that nobody reads."""


# ---------------------------------------------------------------------------------- device, format
@pytest.mark.parametrize(("there", "wanted"), [(True, "cuda"), (False, "cpu")])
@pytest.mark.parametrize("name", [None, "auto"])
def test_cuda_is_taken_where_it_is(
    name: str | None, there: bool, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert find_device(name) == torch.device(wanted)


def test_a_device_by_name() -> None:
    assert find_device("cpu") == CPU


@pytest.mark.parametrize("name", ["gpu", "", "meta", "cpu:x"])
def test_a_device_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(SapwoodError, match=f"device '{name}' cannot be used here; use cpu, cuda"):
        find_device(name)


@pytest.mark.parametrize(
    ("name", "device", "wanted"),
    [
        (None, CPU, torch.float32),
        ("auto", CPU, torch.float32),
        ("int8", CPU, torch.float32),
        ("float16", CPU, torch.float16),
        (None, CUDA, torch.float16),
        ("int8", CUDA, torch.float16),
        ("int4", CUDA, torch.float16),
        ("fp8", CUDA, torch.float16),
        ("bfloat16", CUDA, torch.bfloat16),
        ("float32", CUDA, torch.float32),
    ],
)
def test_weights_are_read_in_the_format_of_the_device(
    name: str | None, device: torch.device, wanted: torch.dtype
) -> None:
    assert find_dtype(name, device) == wanted


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("int8", "meta", "'int8' runs on cpu and cuda only; on meta use float16"),
        ("fp8", "cpu", "'fp8' runs on cuda only; on cpu use int8"),
    ],
)
def test_a_format_without_products_on_a_device_is_refused(
    name: str, device: str, message: str
) -> None:
    with pytest.raises(SapwoodError, match=message):
        find_dtype(name, torch.device(device))


# --------------------------------------------------------------------------------------- the network
class FakeBackend:
    def __init__(self, model: Any, name: str, network: Any = None) -> None:
        self.network = network


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Backends are fakes; the list notes who was asked for a packed network."""
    asked: list[str] = []

    def packed(model: Any, progress: Any, bits: int) -> Any:
        assert bits == 8
        asked.append("packed")
        return model.packed

    monkeypatch.setattr(module, "TorchBackend", FakeBackend)
    monkeypatch.setattr(module, "packed", packed)
    monkeypatch.setattr(module, "on_cuda", lambda model, name, progress: "on cuda")
    return asked


def model_on(device: torch.device, packed: Any = None) -> Any:
    return SimpleNamespace(device=device, packed=packed)


def test_a_model_on_cuda_takes_its_kernels(fakes: list[str]) -> None:
    found: Any = build(model_on(CUDA), "model", None, silent)
    assert found == "on cuda"
    assert fakes == []


@pytest.mark.parametrize("dtype", [None, "auto", "int8"])
def test_a_cpu_packs_what_can_be_packed(fakes: list[str], dtype: str | None) -> None:
    found: Any = build(model_on(CPU, "network"), "model", dtype, silent)
    assert found.network == "network"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_format_that_was_asked_for_is_not_packed(fakes: list[str], dtype: str) -> None:
    found: Any = build(model_on(CPU, "network"), "model", dtype, silent)
    assert found.network is None
    assert fakes == []


def test_what_cannot_be_packed_runs_as_it_is_unless_int8_was_asked_for(fakes: list[str]) -> None:
    found: Any = build(model_on(CPU), "model", None, silent)
    assert found.network is None
    with pytest.raises(SapwoodError, match="model 'name' cannot be run in int8 here; use float32"):
        build(model_on(CPU), "name", "int8", silent)


def test_without_numba_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_numba", lambda: False)
    assert module.packed(object(), lambda message: pytest.fail(message)) is None
    assert module.directly(Path("none"), "model", CPU, None, silent) is None


@pytest.mark.parametrize(("device", "dtype"), [(CUDA, None), (CPU, "float32")])
def test_the_way_past_transformers_is_for_int8_on_a_cpu(
    device: torch.device, dtype: str | None
) -> None:
    assert module.directly(Path("none"), "model", device, dtype, silent) is None


@pytest.mark.parametrize(
    ("dtype", "capability", "triton"),
    [(torch.float32, (9, 0), True), (torch.float16, (7, 5), True), (torch.float16, (9, 0), False)],
)
def test_kernels_are_for_half_precision_on_recent_devices_with_triton(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, capability: tuple[int, int], triton: bool
) -> None:
    monkeypatch.setattr(module, "TorchBackend", FakeBackend)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    spec = object() if triton else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(module, "describe", lambda model: pytest.fail("it is not asked for"))
    found: Any = module.on_cuda(SimpleNamespace(dtype=dtype, device=CUDA), "model", silent)
    assert isinstance(found, FakeBackend)


# -------------------------------------------------------------------------------------- sentences
def test_training_needs_weights_that_are_not_packed() -> None:
    with pytest.raises(SapwoodError, match="'int8' has no weights to train with; use float32"):
        load("smollm2", dtype="int8", stock=True)


def test_options_are_checked_before_anything_is_looked_for() -> None:
    with pytest.raises(SapwoodError, match="dtype 'half' is not known"):
        load("no/such/model", dtype="half", device="nowhere")


def test_damage_in_our_own_cache_says_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    own = tmp_path / "models" / "one"
    assert repair_advice(own) == f"delete {own}, it is made again"
    assert repair_advice(tmp_path.parent / "elsewhere") == "download it again"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("one", "one"), ("one\n  two\nthree", "one two"), ("\n\none", "one"), ("", "ValueError")],
)
def test_errors_of_others_are_shortened(text: str, wanted: str) -> None:
    assert brief(ValueError(text)) == wanted


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match=r"has no config\.json in .*; use a folder saved by"):
        module.read_model(tmp_path, "model", CPU, torch.float32)
