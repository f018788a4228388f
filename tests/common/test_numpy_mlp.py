"""Small networks in numpy compute what torch computes, and read back from a folder."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sapwood.common.numpy_mlp import MlpBundle, NumpyMlp, load
from sapwood.errors import SapwoodError
from tests.helpers.hidden_state_toy import random_net, random_part


def twin(net: NumpyMlp) -> nn.Module:
    """The same network, built from torch's own layers."""
    layers = [nn.Linear(weight.shape[1], weight.shape[0]) for weight in net.weights]
    for layer, weight, bias in zip(layers, net.weights, net.biases, strict=True):
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    act: nn.Module = nn.SiLU() if net.activation == "silu" else nn.ReLU()

    class Twin(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = (values - torch.from_numpy(net.mean)) / torch.from_numpy(net.scale)
            for layer in layers[:-1]:
                after = act(layer(values))
                values = values + after if net.residual else after
            last: torch.Tensor = layers[-1](values)
            return last

    return Twin()


@pytest.mark.parametrize(
    ("activation", "residual"), itertools.product(["relu", "silu"], [False, True])
)
def test_a_net_computes_what_torch_computes(activation: str, residual: bool) -> None:
    widths = [16, 16, 16, 3] if residual else [16, 48, 8, 3]
    net = random_net(widths, 1, activation=activation, residual=residual)
    noise = np.random.default_rng(0)
    net.mean[:], net.scale[:] = noise.normal(size=16), noise.uniform(0.5, 2, size=16)
    inputs = noise.normal(size=(5, 16)).astype(np.float32)
    expected = twin(net)(torch.from_numpy(inputs)).detach().numpy()
    np.testing.assert_allclose(net(inputs), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(net(inputs[2]), expected[2], rtol=1e-4, atol=1e-4)


def test_a_bundle_reads_back(tmp_path: Path) -> None:
    made = MlpBundle(
        "ltd",
        {"depth": random_net([4, 3, 1], 0), "size": random_net([2, 2, 2], 1, residual=True)},
        {"a": 1},
    )
    made.save(tmp_path / "deep" / "down")
    found = load(str(tmp_path / "deep" / "down"), "ltd", "any")
    assert found.facts == {"a": 1}
    for name, net in made.nets.items():
        inputs = np.ones(net.width)
        coarse = dataclasses.replace(
            net, weights=[weight.astype(np.float16).astype(np.float32) for weight in net.weights]
        )
        assert np.array_equal(found.nets[name](inputs), coarse(inputs))
        assert all(weight.dtype == np.float32 for weight in found.nets[name].weights)
        assert (found.nets[name].residual, found.nets[name].activation) == (
            net.residual,
            net.activation,
        )


def test_folders_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    random_part("c2t", tmp_path / "c2t")
    with pytest.raises(SapwoodError, match="holds a trained c2t, not judge; name another folder"):
        load(str(tmp_path / "c2t"), "judge", "any")
    with pytest.raises(
        SapwoodError, match=r"holds no model\.safetensors; name the folder of a trained judge"
    ):
        load(str(tmp_path), "judge", "any")
    (tmp_path / "c2t" / "config.json").write_text("{")
    with pytest.raises(SapwoodError, match="holds no trained c2t that can be read; train it again"):
        load(str(tmp_path / "c2t"), "c2t", "any")
