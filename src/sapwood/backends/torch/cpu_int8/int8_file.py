"""Saves the int8 weights of a network, so that the next start reads them as they are."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
from sapwood.backends.torch.cpu_int8.attention_plan import floats
from sapwood.backends.torch.cpu_int8.block_linear import PackedLayer
from sapwood.backends.torch.cpu_int8.experts import ExpertLinears, parts_of
from sapwood.backends.torch.cpu_int8.int8_gemm import StreamedMatrix
from sapwood.backends.torch.cpu_int8.intrinsics import BLOCK, DEEP
from sapwood.backends.torch.cpu_int8.linear import Int8Linear, SplitLinear
from sapwood.backends.torch.cpu_int8.network import Int8Layer, Int8Network
from sapwood.backends.torch.cpu_int8.smoothquant import SHARE, TOKENS
from sapwood.backends.torch.llama import LayerExtras, LlamaModel, RotaryAngles

FORMAT = 2  # a new number makes all files again
NET = "net"
HEAD = "head"
TENSORS = ("rates", "embedding", "layers", "norm", "head", "other_angles")  # of LlamaModel
# of LayerExtras
PAIRS = ("post_norms", "row_norms")
VECTORS = ("out_bias", "gate_up_bias", "down_bias", "router", "router_bias", "sinks")

Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class StoredNetwork:
    """A network as its file holds it."""

    net: LlamaModel  # its embedding and its head are shapes without memory
    layers: list[PackedLayer]
    head: Int8Linear


def facts_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Everything beside the weights that their int8 form depends on."""
    numbers = [FORMAT, BLOCK, DEEP, SHARE, TOKENS]
    return {"numbers": numbers, "torch": torch.__version__, "config": dict(config)}


# ------------------------------------------------------------------------------------------ writing
def save(place: Path, facts: Mapping[str, Any], network: Int8Network) -> bool:
    """Write the weights of a network of int8 layers; False if they cannot be written."""
    arrays = arrays_of_net(network.net, len(network.layers))
    arrays |= arrays_of_linear(HEAD, network.head)
    for index, layer in enumerate(network.layers):
        arrays |= arrays_of_layer(f"{index}.", layer)
    return write_arrays(place, facts, arrays)


def arrays_of_net(net: LlamaModel, layers: int) -> Arrays:
    """Sizes and options as JSON, final norm and rotary angles."""
    record = {part.name: getattr(net, part.name) for part in fields(net)}
    record = {name: value for name, value in record.items() if name not in TENSORS}
    record |= {"layers": layers, "amplitudes": [one.amplitude for one in net.angles]}
    return {
        NET: np.frombuffer(json.dumps(record).encode(), np.uint8),
        f"{NET}.norm": floats(net.norm),
        f"{NET}.rates": np.stack([floats(one.rates) for one in net.angles]),
    }


def arrays_of_layer(start: str, layer: Int8Layer) -> Arrays:
    """The arrays of a layer, whose names begin with `start`."""
    return {
        f"{start}norm": layer.norm,
        f"{start}mlp_norm": layer.mlp_norm,
        f"{start}bias": layer.bias,
        f"{start}norms": layer.norms,
        f"{start}numbers": np.array([layer.window, layer.rotary, layer.extras.pre_norms], np.int64),
        **arrays_of_extras(start, layer.extras),
        **arrays_of_linear(f"{start}qkv", layer.qkv),
        **arrays_of_linear(f"{start}out", layer.out),
        **arrays_of_linear(f"{start}gate_up", layer.gate_up),
        **arrays_of_linear(f"{start}down", layer.down),
    }


def arrays_of_extras(start: str, extras: LayerExtras) -> Arrays:
    """The parts that are there."""
    found = {name: getattr(extras, name) for name in VECTORS}
    for name in PAIRS:
        pair = getattr(extras, name) or ()
        found |= {f"{name}.{index}": part for index, part in enumerate(pair)}
    return {f"{start}{name}": floats(part) for name, part in found.items() if part is not None}


def arrays_of_linear(name: str, linear: Any) -> Arrays:
    """The arrays of a linear layer, or of one for each expert, and their sizes."""
    experts = len(linear.parts) if isinstance(linear, ExpertLinears) else 0
    found: Arrays = {f"{name}.experts": np.array([experts], np.int64)}
    for index, part in enumerate(parts_of(linear)):
        assert isinstance(part, Int8Linear)
        start = f"{name}.{index}"
        found[f"{start}.size"] = np.array([part.outputs, part.inputs, part.fine], np.int64)
        packed: StreamedMatrix = part.packed
        found |= {f"{start}.{kind}": array for kind, array in packed.arrays().items()}
    return found


# ------------------------------------------------------------------------------------------ reading
def restore(place: Path, facts: Mapping[str, Any]) -> StoredNetwork | None:
    """The network of a file; None if there is no such file, or it does not suit."""
    try:
        with place.open("rb", buffering=0) as opened:
            file = ArrayFile(opened, facts)
            net, count = net_of(file)
            layers = [layer_of(file, f"{index}.") for index in range(count)]
            head = linear_of(file, HEAD)
            return StoredNetwork(net, layers, head)
    except (OSError, UnsuitableFile):
        return None


def net_of(file: ArrayFile) -> tuple[LlamaModel, int]:
    """The description of the model, and the number of its layers."""
    try:
        record = json.loads(file.read(NET).tobytes())
        count = int(record.pop("layers"))
        amplitudes = record.pop("amplitudes")
        table = torch.empty((record["vocab"], record["width"]), device="meta")
        angles = [
            RotaryAngles(rates, amplitude)
            for rates, amplitude in zip(vector_of(file, f"{NET}.rates"), amplitudes, strict=True)
        ]
        made = LlamaModel(
            **record,
            rates=angles[0].rates,
            embedding=table,
            layers=(),
            norm=vector_of(file, f"{NET}.norm"),
            head=table,
            other_angles=tuple(angles[1:]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UnsuitableFile from error
    return made, count


def layer_of(file: ArrayFile, start: str) -> PackedLayer:
    """A layer of the file."""
    bias = vector_of(file, f"{start}bias")
    query_norm, key_norm = vector_of(file, f"{start}norms")
    window, rotary, pre_norms = vector_of(file, f"{start}numbers").tolist()
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
        window=window,
        rotary=rotary,
        extras=extras_of(file, start, bool(pre_norms)),
    )


def extras_of(file: ArrayFile, start: str, pre_norms: bool) -> LayerExtras:
    """The parts of a layer that Llama's lacks."""
    found: dict[str, Any] = {
        name: vector_of(file, f"{start}{name}") for name in VECTORS if f"{start}{name}" in file
    }
    for name in PAIRS:
        if f"{start}{name}.0" in file:
            found[name] = tuple(vector_of(file, f"{start}{name}.{index}") for index in (0, 1))
    return LayerExtras(pre_norms=pre_norms, **found)


def vector_of(file: ArrayFile, name: str) -> Tensor:
    """A small array of the file as a tensor."""
    return torch.from_numpy(file.read(name))


def linear_of(file: ArrayFile, name: str) -> Any:
    """A linear layer of the file, or the layers of experts."""
    [experts] = file.read(f"{name}.experts").tolist()
    parts = [part_of(file, f"{name}.{index}") for index in range(max(1, experts))]
    return ExpertLinears(parts) if experts else parts[0]


def part_of(file: ArrayFile, name: str) -> Int8Linear:
    """One linear layer of the file."""
    outputs, inputs, fine = file.read(f"{name}.size").tolist()
    packed = StreamedMatrix(outputs, inputs)
    for kind, array in packed.arrays().items():
        file.fill(f"{name}.{kind}", array)
    return (SplitLinear if fine else Int8Linear).of(packed, outputs, inputs)
