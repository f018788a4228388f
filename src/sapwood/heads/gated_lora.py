"""Gated LoRA (arXiv 2507.11851): low-rank adapters for the look-ahead rows of a pass alone.

A linear layer adds the adapter's output to the look-ahead rows and leaves every other row as it is,
to the bit.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sapwood.core.lookahead import RowGate


class GatedLora(nn.Module):
    """Two thin matrices for each linear layer of a model, in the model's order."""

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], rank: int) -> None:
        super().__init__()
        self.down = nn.ParameterList(torch.randn(rank, wide) / wide**0.5 for wide in inputs)
        self.up = nn.ParameterList(torch.zeros(wide, rank) for wide in outputs)

    def install(self, model: Any, gate: RowGate, first: int = 0) -> list[Any]:
        """Hooks that add the adapters, from a layer on, to the gate's rows; each can be removed."""
        found = linear_layers(model, first)
        return [
            layer.register_forward_hook(added(gate, down, up))
            for layer, down, up in zip(found, self.down, self.up, strict=True)
        ]

    @contextmanager
    def installed(self, model: Any, gate: RowGate) -> Iterator[None]:
        """The adapters in the model for the passes inside."""
        hooks = self.install(model, gate)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def added(gate: RowGate, down: Tensor, up: Tensor) -> Any:
    """A hook of a linear layer that adds the adapter's output to the gate's rows."""

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        if gate.rows is None:
            return out
        x = inputs[0].index_select(1, gate.rows)
        more = (x.to(down.dtype) @ down.t()) @ up.t()
        return out.index_add(1, gate.rows, more.to(out.dtype))

    return hook


def linear_layers(model: Any, first: int = 0) -> list[nn.Linear]:
    """Linear layers of the decoder's layers from this one on."""
    return [
        part
        for layer in model.base_model.layers[first:]
        for part in layer.modules()
        if isinstance(part, nn.Linear)
    ]


def shared_copy(model: Any) -> Any:
    """A copy of a model that has modules of its own and shares all tensors."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(each): each for each in tensors})
