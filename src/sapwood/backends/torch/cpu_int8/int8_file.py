"""Saves the int8 weights of a network, so that the next start reads them as they are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sapwood.backends.torch.cpu_int8.array_file import (
    Array,
    ArrayFile,
    UnsuitableFile,
    write_arrays,
)
from sapwood.backends.torch.cpu_int8.block_linear import PackedLayer
from sapwood.backends.torch.cpu_int8.int8_gemm import StreamedMatrix
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear
from sapwood.backends.torch.cpu_int8.network import Int8Layer, Int8Network, Linear
from sapwood.backends.torch.cpu_int8.smoothquant import SHARE, TOKENS

FORMAT = 1  # a new number makes all files again
HEAD = "head"

Arrays = dict[str, Array]


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything beside the weights that their int8 form depends on."""
    numbers = [FORMAT, BLOCK, DEEP, SHARE, TOKENS]
    return {"numbers": numbers, "torch": torch.__version__, "config": dict(config)}


# ------------------------------------------------------------------------------------------ writing
def save(place: Path, facts: Mapping[str, Any], network: Int8Network) -> bool:
    """Write the weights of a network of plain layers; False if the disk does not take them."""
    arrays = arrays_of_linear(HEAD, network.head)
    for index, layer in enumerate(network.layers):
        arrays |= arrays_of_layer(f"{index}.", layer)
    return write_arrays(place, facts, arrays)


def arrays_of_layer(start: str, layer: Int8Layer) -> Arrays:
    """The arrays of a layer, whose names begin with `start`."""
    return {
        f"{start}norm": layer.norm,
        f"{start}mlp_norm": layer.mlp_norm,
        f"{start}bias": layer.bias,
        f"{start}norms": layer.norms,
        f"{start}window": np.array([layer.window], np.int64),
        **arrays_of_linear(f"{start}qkv", layer.qkv),
        **arrays_of_linear(f"{start}out", layer.out),
        **arrays_of_linear(f"{start}gate_up", layer.gate_up),
        **arrays_of_linear(f"{start}down", layer.down),
    }


def arrays_of_linear(name: str, linear: Linear) -> Arrays:
    """The arrays of a linear layer, and its size."""
    assert isinstance(linear, Int8Linear)
    packed: StreamedMatrix = linear.packed
    parts = {f"{name}.{part}": array for part, array in packed.arrays().items()}
    size = np.array([linear.outputs, linear.inputs, linear.fine], np.int64)
    return {f"{name}.size": size, **parts}


# ------------------------------------------------------------------------------------------ reading
def restore(
    place: Path, facts: Mapping[str, Any], layers: int
) -> tuple[list[PackedLayer], Int8Linear] | None:
    """The layers and the output head; None if there is no such file, or it does not suit."""
    try:
        with place.open("rb", buffering=0) as opened:
            file = ArrayFile(opened, facts)
            found = [layer_of(file, f"{index}.") for index in range(layers)]
            return found, linear_of(file, HEAD)
    except (OSError, UnsuitableFile):
        return None


def layer_of(file: ArrayFile, start: str) -> PackedLayer:
    """A layer of the file."""
    bias = vector_of(file, f"{start}bias")
    query_norm, key_norm = vector_of(file, f"{start}norms")
    return PackedLayer(
        norm=vector_of(file, f"{start}norm"),
        qkv=linear_of(file, f"{start}qkv"),
        qkv_bias=bias if len(bias) else None,
        query_norm=query_norm if len(query_norm) else None,
        key_norm=key_norm if len(key_norm) else None,
        out=linear_of(file, f"{start}out"),
        mlp_norm=vector_of(file, f"{start}mlp_norm"),
        gate_up=linear_of(file, f"{start}gate_up"),
        down=linear_of(file, f"{start}down"),
        window=int(vector_of(file, f"{start}window")[0]),
    )


def vector_of(file: ArrayFile, name: str) -> Tensor:
    """A small array of the file as a tensor."""
    return torch.from_numpy(file.read(name))


def linear_of(file: ArrayFile, name: str) -> Int8Linear:
    """A linear layer of the file."""
    outputs, inputs, fine = file.read(f"{name}.size").tolist()
    packed = StreamedMatrix(outputs, inputs)
    for part, array in packed.arrays().items():
        file.fill(f"{name}.{part}", array)
    return (SplitLinear if fine else Int8Linear).of(packed, outputs, inputs)
