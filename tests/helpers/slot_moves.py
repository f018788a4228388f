"""Moves of KV slots in plain torch operations, for the CUDA path's pool where there is no triton."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.cuda import kernels

NAME = "sapwood.backends.torch.cuda.kernels.kv_move"


def move(pool: Tensor, sources: Tensor, first: int, start: int, tile: int) -> None:
    """Copy the slots first + sources of all planes to start, start + 1, ..."""
    assert len(sources) <= tile
    slots = pool.view(pool.shape[0], -1, pool.shape[3] * pool.shape[4])
    slots[:, start : start + len(sources)] = slots[:, first + sources]


def keep(pool: Tensor, path: Tensor, facts: Tensor, tile: int) -> None:
    """Put the nodes of a walked path in their place; facts as `PassArgs` has them."""
    first, _, _, length, stay, stop = facts[:6].tolist()
    move(pool, path[stay:stop], first + length, first + length + stay, tile)


def move_many(pool: Tensor, table: Tensor, tile: int) -> None:
    """Run moves within several sequences."""
    for start, count, *sources in table.tolist():
        move(pool, torch.tensor(sources[:count]), 0, start, tile)


def use(patch: pytest.MonkeyPatch) -> None:
    """Have pools move slots by the functions above."""
    plain = SimpleNamespace(move=move, keep=keep, move_many=move_many)
    patch.setitem(sys.modules, NAME, plain)
    patch.setattr(kernels, "kv_move", plain, raising=False)
