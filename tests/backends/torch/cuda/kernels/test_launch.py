"""How kernels are launched: early where the device can, and with all arguments present."""

import pytest
import torch

from tests.helpers.triton_mode import CUDA, require

require()

from sapwood.backends.torch.cuda.kernels import launch


def test_options_name_warps_and_stages() -> None:
    found = launch.options(8, 2)
    assert (found["num_warps"], found["num_stages"]) == (8, 2)
    assert found.get("launch_pdl", False) == launch.EARLY.value


def test_a_kernel_takes_another_tensor_for_one_that_is_not_there() -> None:
    one, other = torch.zeros(1), torch.ones(1)
    assert launch.or_other(one, other) is one
    assert launch.or_other(None, other) is other


@pytest.mark.skipif(CUDA, reason="the answer of a CUDA device is its own")
def test_the_interpreter_never_launches_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert launch.WIDEN.value
    assert not launch.overlaps()


@pytest.mark.parametrize(
    ("capability", "early"), [((8, 9), False), ((9, 0), True), ((10, 0), True)]
)
def test_kernels_overlap_from_hopper_on(
    capability: tuple[int, int], early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "WIDEN", type(launch.WIDEN)(False))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert launch.overlaps() == early
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not launch.overlaps()
