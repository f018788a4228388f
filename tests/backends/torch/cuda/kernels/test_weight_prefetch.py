"""Weights in the order in which a pass reads them, and which of them are fetched ahead; the device is a fake."""

from dataclasses import replace

import pytest
import torch

from tests.helpers import llama_parts
from tests.helpers.triton_mode import require

require()

from sapwood.backends.torch.cuda.kernels import weight_prefetch
from sapwood.backends.torch.cuda.kernels.weight_prefetch import (
    ALIGNED,
    following,
    in_order,
    parts,
    worth,
)
from sapwood.backends.torch.llama import LlamaModel


@pytest.fixture
def model() -> LlamaModel:
    return llama_parts.make_model(*(llama_parts.make_layer(seed) for seed in (10, 20, 30)))


@pytest.fixture
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_prefetch, "worth", lambda model: True)


def test_a_host_has_nothing_to_fetch(model: LlamaModel) -> None:
    assert not worth(model)
    assert in_order(model) is model
    assert following(model) == [None] * 3


class OnDevice:
    """An embedding that says it lies on a CUDA device."""

    device = torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "room", "wanted"),
    [((9, 0), 1 << 30, True), ((8, 9), 1 << 30, False), ((9, 0), 1000, False)],
)
def test_fetching_pays_on_devices_that_can_where_layers_fit_the_cache(
    model: LlamaModel,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    room: int,
    wanted: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(weight_prefetch, "ROOM", room)
    there = replace(model, embedding=OnDevice())  # type: ignore[arg-type]
    assert worth(there) == wanted


def test_weights_that_end_between_requests_are_not_fetched(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    odd = replace(model.layers[1], down=torch.zeros(3, 7))
    assert odd.down.nbytes % ALIGNED
    there = replace(
        model,
        embedding=OnDevice(),  # type: ignore[arg-type]
        layers=(model.layers[0], odd),
    )
    assert not worth(there)


@pytest.mark.usefixtures("worthwhile")
def test_weights_are_laid_out_as_they_are_read(model: LlamaModel) -> None:
    ordered = in_order(model)
    place = parts(ordered.layers[0])[0].data_ptr()
    for before, layer in zip(model.layers, ordered.layers, strict=True):
        for old, new in zip(parts(before), parts(layer), strict=True):
            assert torch.equal(old, new)
            assert new.data_ptr() == place
            place += new.nbytes
        assert layer.norm is before.norm
        assert layer.window == before.window


@pytest.mark.usefixtures("worthwhile")
def test_what_follows_a_gate_reaches_to_the_next_one(model: LlamaModel) -> None:
    ordered = in_order(model)
    for index, ahead in enumerate(following(ordered)):
        layer = ordered.layers[index]
        several = [layer.down]
        if index + 1 < len(ordered.layers):
            after = ordered.layers[index + 1]
            several += [after.qkv, after.out, after.gate_up]
        assert ahead is not None
        assert ahead.data_ptr() == layer.down.data_ptr()
        assert torch.equal(ahead, torch.cat([part.flatten() for part in several]))


@pytest.mark.usefixtures("worthwhile")
def test_weights_that_lie_apart_are_not_fetched(model: LlamaModel) -> None:
    ahead = following(model)
    assert ahead[:2] == [None, None]
    assert ahead[2] is not None  # the last layer's own, which has nothing behind it
    assert torch.equal(ahead[2], model.layers[2].down.flatten())
