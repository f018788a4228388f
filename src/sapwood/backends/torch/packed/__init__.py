"""Llama-like models on a CPU, in eight-bit weights, row by row the same numbers whatever else is in the pass."""

from typing import Any

from sapwood.backends.torch.llama import frame, layers_of
from sapwood.backends.torch.packed.linear import available
from sapwood.backends.torch.packed.network import LONGEST, Packed
from sapwood.backends.torch.packed.smooth import even, listen
from sapwood.backends.torch.support import context_of


def pack(model: Any) -> Packed | None:
    """A transformers model on a CPU in packed form; None where it is not Llama-like or torch lacks the kernels."""
    net = frame(model)
    if net is None or not available() or context_of(model.config.get_text_config()) > LONGEST:
        return None
    return Packed(net, map(even, layers_of(model), listen(model)))
