"""Language models on a CPU in int8, a pass in one compiled call."""

from typing import Any

from sapwood.backends.torch.architectures import frame, layers_of
from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.block_linear import float_head, to_blocks
from sapwood.backends.torch.cpu_int8.extended_network import ExtendedNetwork
from sapwood.backends.torch.cpu_int8.linear import available
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.cpu_int8.smoothquant import channel_rms, smooth_layer


def pack(model: Any, bits: int = 8) -> Int8Network | None:
    """A transformers model as a packed network; None if it cannot be one, or without kernels."""
    net = frame(model)
    runs = available() if bits == 8 else int8_gemm.available()
    if net is None or not runs:
        return None
    made = ExtendedNetwork if net.extended else Int8Network
    if bits < 8:
        return made(net, map(to_blocks, layers_of(model)), float_head(net.head))
    return made(net, map(smooth_layer, layers_of(model), channel_rms(model)))
