"""Trained heads in packed layers: what drafts for a packed target should cost as little as it does."""

import copy

import torch
from torch import Tensor, nn

from sapwood.backends.torch.packed import kernels
from sapwood.backends.torch.packed.linear import Linear

SMALL = 1 << 16  # weights below which packing saves nothing


class PackedLinear(nn.Module):
    """A linear layer with eight-bit weights; each row is rounded by its own largest magnitude."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.inner, self.bias = Linear(linear.weight), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs in float32, [..., outputs]."""
        exact = x.reshape(-1, self.inner.inputs).float().contiguous()
        rows, scales = torch.empty_like(exact), torch.empty(len(exact), 1)
        kernels.present(exact.numpy(), rows.numpy(), scales.numpy()[:, 0])
        out = self.inner(rows).mul_(scales)
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], self.inner.outputs)


def pack_linears(net: nn.Module) -> nn.Module:
    """A copy of a module with its large linear layers packed."""
    net = copy.deepcopy(net).requires_grad_(False)
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.numel() >= SMALL:
                setattr(module, name, PackedLinear(child))
    return net
