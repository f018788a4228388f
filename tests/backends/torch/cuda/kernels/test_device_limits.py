"""Limits of the device, as torch tells them; without a device those of the largest one."""

from types import SimpleNamespace

import pytest
import torch

from sapwood.backends.torch.cuda.kernels import device_limits
from sapwood.backends.torch.cuda.kernels.device_limits import LARGEST

# the functions remember their answer, so that tests ask the ones below
shared_limit = device_limits.shared_limit.__wrapped__
is_hopper = device_limits.is_hopper.__wrapped__


def given(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], shared: int) -> None:
    """A device of this compute capability, with this many bytes of shared memory."""
    properties = SimpleNamespace(shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)


def test_the_limits_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, (8, 6), 99 << 10)
    assert shared_limit() == 99 << 10
    assert not is_hopper()
    given(monkeypatch, (9, 0), 227 << 10)
    assert shared_limit() == LARGEST
    assert is_hopper()
    given(monkeypatch, (10, 0), 227 << 10)
    assert not is_hopper()


def test_without_a_device_they_are_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert shared_limit() == LARGEST
    assert is_hopper()
