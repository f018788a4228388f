"""Parts that gpt-oss has beside other models: sinks, biased routers and experts, a clamped gate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch import llama
from sapwood.backends.torch.architectures import describe, frame, halves, layers_of
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import attention, experts, int8_file, int8_gemm, pointwise
from sapwood.backends.torch.cpu_int8.extended_network import ExtendedNetwork
from sapwood.backends.torch.llama import LayerExtras, LlamaLayer
from sapwood.core.protocols import TreeInput
from sapwood.errors import SapwoodError
from sapwood.testing.backend_contract import line
from tests.helpers import tiny_models
from tests.helpers.int8_targets import PACKABLE, TEXT
from tests.helpers.random_trees import random_tree
from tests.helpers.reference_llama import reference_logits

NAME = "gpt-oss-eager"
PARTS = {  # what a layer says without a part
    "sinks": {"sinks": None},
    "router bias": {"router_bias": None},
    "biases of gate and up": {"gate_up_bias": None},
    "biases of down": {"down_bias": None},
    "output bias": {"out_bias": None},
}


def without(layer: LlamaLayer, change: dict[str, Any]) -> LlamaLayer:
    return replace(layer, extras=replace(layer.extras or LayerExtras(), **change))


def logits_of(change: dict[str, Any], **sizes: Any) -> np.ndarray:
    """Logits of a text by the int8 network, whose layers are changed."""
    model = tiny_models.make(NAME)
    net = frame(model)
    assert net is not None
    layers = (without(layer, change) for layer in layers_of(model))
    backend = TorchBackend(model, NAME, ExtendedNetwork(replace(net, **sizes), layers))
    [scores] = backend.score([TreeInput(backend.open(TEXT[:1]), line(TEXT[1:]))])
    return np.stack([scores.logits(row) for row in range(len(TEXT) - 1)])


@torch.inference_mode()
def reference_of(change: dict[str, Any], **sizes: Any) -> np.ndarray:
    """The same in double precision, without quantisation."""
    net = describe(tiny_models.make(NAME))
    assert net is not None
    layers = tuple(without(layer, change) for layer in net.layers)
    return reference_logits(replace(net, layers=layers, **sizes), torch.tensor(TEXT)).numpy()[1:]


def likeness(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


@pytest.mark.parametrize("part", PARTS)
def test_a_lost_part_is_noticed(part: str) -> None:
    whole, lost = logits_of({}), logits_of(PARTS[part])
    assert likeness(whole, reference_of({})) > 0.995
    assert likeness(lost, reference_of(PARTS[part])) > 0.99
    assert likeness(whole, lost) < 0.99


@pytest.mark.parametrize(
    "sizes", [{"gate_limit": 0.0}, {"gate_limit": 0.7}, {"gate_slope": 0.5}], ids=str
)
def test_the_clamp_and_the_slope_of_the_gate_are_the_models(sizes: dict[str, float]) -> None:
    changed = logits_of({}, **sizes)
    sizes = {name: size or 1e9 for name, size in sizes.items()}  # the definition always clamps
    assert likeness(changed, reference_of({}, **sizes)) > 0.99
    assert likeness(changed, logits_of({})) < 0.995


# -------------------------------------------------------------------------------------- the pieces
@pytest.mark.parametrize("limit", [7.0, 0.5])
@pytest.mark.parametrize("biased", [False, True])
def test_the_clamped_gate(limit: float, biased: bool) -> None:
    rng = np.random.default_rng(0)
    gates, ups = (rng.normal(0, 6, 50).astype(np.float32) for _ in range(2))
    bias = rng.normal(0, 1, (2, 50 if biased else 0)).astype(np.float32)
    out = np.empty(50, np.float32)
    form = pointwise.gate_form("swigluoai", 1.702, limit)
    pointwise.open_gate_with(gates, ups, bias, np.float32(1.5), form, out, np.empty(50, np.int32))
    gate, up = (x.astype(float) * 1.5 for x in (gates, ups))
    if biased:
        gate, up = gate + bias[0], up + bias[1]
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    want = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
    np.testing.assert_allclose(out, want, rtol=2e-5, atol=2e-5)


def test_a_sink_has_the_bits_that_its_logit_has_as_a_key() -> None:
    for sink in (-30.0, -1.0, 0.0, 2.5, 30.0):
        found = attention.mass_with_sink(np.float32(3.0), np.float32(0.5), np.float32(sink))
        assert found == pytest.approx(3.0 + np.exp(sink - 0.5), rel=2e-6)
    none = attention.mass_with_sink(np.float32(3.0), np.float32(0.5), pointwise.FAR)
    assert none == np.float32(3.0)
    far = attention.mass_with_sink(np.float32(3.0), np.float32(0.5), np.float32(1e30))
    assert np.isfinite(far)
    assert far > 1e20


def test_a_router_with_a_bias() -> None:
    rng = np.random.default_rng(1)
    row, router = rng.normal(size=8), rng.normal(size=(8, 5))
    bias = rng.normal(0, 3, 5)
    picks, shares = np.empty(2, np.int64), np.empty(2, np.float32)
    given = [part.astype(np.float32) for part in (row, router, bias)]
    experts.route_row(
        given[0], np.float32(0.5), given[1], given[2], True,
        np.empty(5, np.float32), np.empty(5, np.int32), picks, shares,
    )  # fmt: skip
    logits = row @ router * 0.5 + bias
    want = np.argsort(-logits)[:2]
    assert picks.tolist() == want.tolist()
    assert picks.tolist() != np.argsort(-(logits - bias))[:2].tolist()
    terms = np.exp(logits[want] - logits[want].max())
    np.testing.assert_allclose(shares, terms / terms.sum(), rtol=1e-5)


def test_every_place_has_its_expert() -> None:
    picks = np.array([[2, 0], [4, 2], [0, 4]])
    firsts, active = np.empty(6, np.int64), np.empty(6, np.int64)
    slots, owners = np.empty((3, 2), np.int64), np.empty(6, np.int64)
    experts.group_rows(picks, firsts, active, slots, owners)
    assert owners.tolist() == [0, 0, 2, 2, 4, 4]
    assert np.array_equal(owners[slots], picks)


def test_gate_and_up_come_in_turns() -> None:
    turns = torch.arange(2 * 6).reshape(2, 6)
    assert halves(turns).tolist() == [[0, 2, 4, 1, 3, 5], [6, 8, 10, 7, 9, 11]]


@pytest.mark.skipif(not int8_gemm.available(), reason="there is one form of the pass here")
@pytest.mark.parametrize("head_width", [8, 64])  # 64 has vector kernels
def test_both_forms_of_the_pass_have_the_same_bits(head_width: int) -> None:
    model = tiny_models.make(NAME, head_dim=head_width)
    net = frame(model)
    assert net is not None
    network = ExtendedNetwork(net, layers_of(model))
    tree = random_tree(24)
    found = []
    for runner in (network.runner, None):
        network.runner = runner
        backend = TorchBackend(model, NAME, network)
        [scores] = backend.score([TreeInput(backend.open(TEXT), tree)])
        found.append(np.stack([scores.logits(node) for node in range(len(tree))]))
    assert np.array_equal(found[0], found[1])


@pytest.mark.skipif(not int8_gemm.available(), reason="this processor has no int8 files")
def test_a_file_of_int8_weights_has_all_parts(tmp_path: Path) -> None:
    model = tiny_models.make(NAME)
    net = frame(model)
    assert net is not None
    network = ExtendedNetwork(net, layers_of(model))
    assert int8_file.save(tmp_path / "weights", {}, network)
    stored = int8_file.restore(tmp_path / "weights", {})
    assert stored is not None
    again = ExtendedNetwork(
        replace(stored.net, embedding=net.embedding), stored.layers, stored.head
    )
    found = []
    for each in (network, again):
        backend = TorchBackend(model, NAME, each)
        [scores] = backend.score([TreeInput(backend.open(TEXT), line(TEXT))])
        found.append(np.stack([scores.logits(node) for node in range(len(TEXT))]))
    assert np.array_equal(found[0], found[1])


# ------------------------------------------------------------------------------------------ on CUDA
def test_the_cuda_kernels_do_not_take_it() -> None:
    for name in PACKABLE:
        found = frame(tiny_models.make(name))
        assert found is not None
        assert found.cpu_only == (name in (NAME, "granite"))
    assert llama.describe(tiny_models.make(NAME)) is None


def test_the_cuda_network_refuses_a_description_with_sinks() -> None:
    pytest.importorskip("triton")
    from sapwood.backends.torch.cuda.backend import CudaBackend

    model = tiny_models.make(NAME)
    with pytest.raises(SapwoodError, match=NAME):
        CudaBackend(model, NAME, found=describe(model))
