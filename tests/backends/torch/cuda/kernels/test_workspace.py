"""Partial sums and counters of kernels: networks that run at the same time share none."""

import threading

import torch

from tests.helpers.triton_mode import DEVICE, require

require()

import pytest

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.cuda.kernels.linear import (
    PARTS,
    Workspace,
    shared_workspace,
    using_workspace,
    workspace,
)
from sapwood.backends.torch.cuda.network import CudaNetwork
from tests.helpers import tiny_models

HERE = torch.device(DEVICE)


def test_a_larger_room_replaces_the_one_in_use_and_counters_stay() -> None:
    own = Workspace(HERE)
    parts, counters = own.take(0)
    assert len(parts) == PARTS
    assert not counters.any()
    more, same = own.take(PARTS + 1)
    assert len(more) > PARTS
    assert same is counters
    assert own.take(5)[0] is more


def test_a_workspace_is_used_by_its_thread_alone() -> None:
    own = Workspace(HERE)
    shared = shared_workspace(HERE).take(0)[0]
    elsewhere = list[torch.Tensor]()
    with using_workspace(own):
        assert workspace(HERE, 0)[0] is own.take(0)[0]
        thread = threading.Thread(target=lambda: elsewhere.append(workspace(HERE, 0)[0]))
        thread.start()
        thread.join()
    assert elsewhere[0] is shared
    assert workspace(HERE, 0)[0] is shared


def test_two_networks_share_neither_sums_nor_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, set[int]] = {}

    def note(self: CudaNetwork, shape: object) -> None:
        used.setdefault(id(self), set()).update(
            room.data_ptr() for room in workspace(self.device, 0)
        )

    monkeypatch.setattr(CudaNetwork, "_launch_kernels", note)
    both = [CudaBackend(tiny_models.make("llama").to(HERE), "tiny") for _ in range(2)]
    for backend in both * 2:
        backend.open([1, 2, 3])
    one, two = used.values()
    assert len(one) == len(two) == 2
    assert not one & two
