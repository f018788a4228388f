"""Trained heads with int8 linear layers."""

import copy

import torch
from torch import Tensor, nn

from sapwood.backends.torch.cpu_int8 import pointwise
from sapwood.backends.torch.cpu_int8.linear import Int8Linear

SMALL = 1 << 16  # weights below which int8 saves no time


class QuantLinear(nn.Module):
    """A linear module with int8 weights; each row is scaled by its own largest magnitude."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inner = Int8Linear(linear.weight)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs in float32, [..., outputs]."""
        exact = x.reshape(-1, self.inner.inputs).float().contiguous()
        rows = torch.empty_like(exact)
        scales = torch.empty(len(exact), 1)
        pointwise.present(exact.numpy(), rows.numpy(), scales.numpy()[:, 0])
        out = self.inner(rows).mul_(scales)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.inner.outputs)


def pack_linears(net: nn.Module) -> nn.Module:
    """A copy of a module with its large linear layers in int8."""
    net = copy.deepcopy(net).requires_grad_(False)
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.numel() >= SMALL:
                setattr(module, name, QuantLinear(child))
    return net
