"""Loads Llama-like models with weights in 8 or 4 bits onto a CUDA device, one layer at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sapwood.backends.torch.cuda.backend import CudaBackend
from sapwood.backends.torch.lazy_model import LazyMatrix, LazyModel
from sapwood.backends.torch.llama import LlamaLayer, LlamaModel, frame, layers_of
from sapwood.backends.torch.quant_checkpoint import (
    CheckpointFormat,
    QuantCheckpoint,
    dequantised_model,
)
from sapwood.backends.torch.quant_weight import (
    FORMATS,
    QuantWeight,
    stacked,
    to_blocks_of_4,
    to_rows,
)
from sapwood.errors import SapwoodError

# the projections of a layer, each with the modules that it may be made of
LINEARS = {
    "qkv": (("q_proj", "k_proj", "v_proj"), ("qkv_proj",)),
    "out": (("o_proj",),),
    "gate_up": (("gate_proj", "up_proj"), ("gate_up_proj",)),
    "down": (("down_proj",),),
}
BLOCK_OF = {"qkv": "self_attn", "out": "self_attn", "gate_up": "mlp", "down": "mlp"}
CPU = torch.device("cpu")

Progress = Callable[[str], None]


def load_floats(
    model: Any,  # of transformers, on a CPU in the number format of the activations
    name: str,
    dtype: str,
    device: torch.device,
    load: Callable[[], Any],
    progress: Progress,
) -> CudaBackend:
    """A backend whose projections are quantised while they move to the device."""
    net = frame(model)
    if net is None:
        raise refusal(name, dtype)

    def layers() -> Iterator[LlamaLayer]:
        for index, layer in enumerate(placed_layers(model, device)):
            progress(f"quantising layer {index + 1} of {len(model.model.layers)}")
            made = {part: quantised(weight, dtype) for part, weight in weights_of(layer).items()}
            yield replace(layer, **cast(Any, made))

    head = to_rows(net.head.to(device), FORMATS["fp8" if dtype == "fp8" else "int8"])
    return backend_of(net, tuple(layers()), head, model.config, name, dtype, device, load)


def load_checkpoint(
    folder: Path,
    name: str,
    layout: CheckpointFormat,
    device: torch.device,
    dtype: torch.dtype,  # of activations
    load: Callable[[], Any],
    progress: Progress,
) -> CudaBackend:
    """A backend with the 4-bit weights of a checkpoint in AWQ's or GPTQ's layout as they are."""
    checkpoint = QuantCheckpoint(folder, name, layout)
    model = dequantised_model(folder, name, layout, CPU, dtype, whole=False)
    net = frame(model)
    if net is None:
        raise refusal(name, "int4")

    def layers() -> Iterator[LlamaLayer]:
        for index in range(len(model.model.layers)):
            check_parts(checkpoint, index)
        for index, layer in enumerate(placed_layers(model, device)):
            progress(f"reading layer {index + 1} of {len(model.model.layers)}")
            made = {
                part: stacked(checkpoint.packed(linears_of(checkpoint, index, part))).to(device)
                if weight.is_meta
                else to_rows(weight, torch.int8)  # a projection that was left in floats
                for part, weight in weights_of(layer).items()
            }
            yield replace(layer, **cast(Any, made))

    head = to_rows(net.head.to(device), torch.int8)
    return backend_of(net, tuple(layers()), head, model.config, name, "int4", device, load)


def check_parts(checkpoint: QuantCheckpoint, index: int) -> None:
    """Refuse a layer in which only some parts of one projection are quantised."""
    for part, choices in LINEARS.items():
        start = f"model.layers.{index}.{BLOCK_OF[part]}."
        for names in choices:
            if len({checkpoint.has(start + linear) for linear in names}) > 1:
                raise SapwoodError(
                    f"model {checkpoint.name!r} has some of {', '.join(names)} in 4 bits and "
                    "others not, which the kernels cannot read; use --dtype int8"
                )


def placed_layers(model: Any, device: torch.device) -> Iterator[LlamaLayer]:
    """The layers of a model on a device, which keeps none of their weights here."""
    found = layers_of(model)
    for module in model.model.layers:
        for parameter in module.parameters():
            if not parameter.is_meta:
                parameter.data = parameter.data.to(device)
        yield next(found)
        module.to("meta")


def weights_of(layer: LlamaLayer) -> dict[str, Tensor]:
    """The projections of a layer by name."""
    return {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.gate_up, "down": layer.down}


def linears_of(checkpoint: QuantCheckpoint, index: int, part: str) -> list[str]:
    """Names of the quantised modules that make one projection of a layer."""
    start = f"model.layers.{index}.{BLOCK_OF[part]}."
    names = next(some for some in LINEARS[part] if checkpoint.has(start + some[0]))
    return [start + linear for linear in names]


def quantised(weight: Tensor, dtype: str) -> QuantWeight:
    """A projection in this format, which the kernels take in place of the tensor."""
    if weight.dim() != 2:
        raise SapwoodError(f"experts have no products in {dtype} on a GPU; use float16")
    return to_blocks_of_4(weight) if dtype == "int4" else to_rows(weight, FORMATS[dtype])


def backend_of(
    net: LlamaModel,
    layers: tuple[LlamaLayer, ...],
    head: QuantWeight,
    config: Any,
    name: str,
    dtype: str,
    device: torch.device,
    load: Callable[[], Any],
) -> CudaBackend:
    """A backend whose transformers model is loaded only for its own code."""
    embedding = net.embedding.to(device)
    found = replace(
        net,
        embedding=embedding,
        layers=layers,
        norm=net.norm.to(device),
        rates=net.rates.to(device),
        other_angles=tuple(
            replace(angles, rates=angles.rates.to(device)) for angles in net.other_angles
        ),
        head=cast(Any, head),
    )
    model = LazyModel(
        config,
        LazyMatrix(lambda: embedding),
        LazyMatrix(lambda: head.floats().to(embedding.dtype)),
        load,
        device,
        embedding.dtype,
    )
    return CudaBackend(model, name, found=found, weights=dtype)


def refusal(name: str, dtype: str) -> SapwoodError:
    """The error for a model that the kernels cannot run."""
    return SapwoodError(
        f"model {name!r} cannot be run in {dtype} on a GPU: its layers are not Llama-like; "
        "use float16"
    )
