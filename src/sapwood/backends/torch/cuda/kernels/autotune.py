"""Find the fastest plan of each projection of a model by timing it on the model's own weights.

What was found is kept in the cache folder, so that a shape is measured once on a machine.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import triton
from torch import Tensor

from sapwood.backends.torch.cuda.kernels import tile_configs
from sapwood.backends.torch.cuda.kernels.linear import project
from sapwood.backends.torch.cuda.kernels.prenorm import LEFT, PrenormRows
from sapwood.backends.torch.cuda.kernels.qkv import project_heads
from sapwood.backends.torch.cuda.kernels.quant_product import kind_of
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig
from sapwood.backends.torch.cuda.network import NO_EXTRAS, CudaNetwork
from sapwood.backends.torch.llama import LayerExtras, LlamaLayer
from sapwood.common.cache_dir import cache_folder

COLD = 200e6  # bytes of weights to read before the first ones have left the cache
TIMES = 5
SECONDS = 2.5  # of tuning while a model is loaded
ORDER = (16, 64, 32, 128)  # rows, those of most passes first

Call = Callable[[TileConfig], object]


def prepare(network: CudaNetwork, seconds: float = SECONDS) -> None:
    """Choose between a few plans for each projection not timed on such a card, within `seconds`.

    Compiling takes most of the time. What is not measured now is guessed, and measured when the
    model is loaded again.
    """
    end = monotonic() + seconds
    file = place(network.device)
    load_measured(file)
    before = dict(tile_configs.MEASURED)
    for rows in ORDER:
        for weight, base, calls in stages(network, rows).values():
            (n, k), tile, kind = weight.shape, tile_configs.row_tile(rows), kind_of(base, weight)
            if not tile_configs.timed((tile, n, k, kind)) and monotonic() < end:
                tile_configs.MEASURED[tile, n, k, kind], _ = fastest(
                    calls, tile_configs.shortlist(rows, n, k, kind)
                )
    if before != tile_configs.MEASURED:
        save_measured(file)


def tune(network: CudaNetwork, rows: int) -> dict[str, float]:
    """Measure all projections for this many rows and keep the best plans; microseconds of each."""
    found = {}
    for name, (weight, base, calls) in stages(network, rows).items():
        (n, k), kind = weight.shape, kind_of(base, weight)
        best, spent = fastest(calls, tile_configs.candidates(rows, n, k, kind))
        tile_configs.MEASURED[tile_configs.row_tile(rows), n, k, kind] = best
        found[name] = 1e6 * spent
    return found


def fastest(calls: list[Call], several: Iterable[TileConfig]) -> tuple[TileConfig, float]:
    """The plan that takes the least time, and its seconds."""
    times = {plan: time(calls, plan) for plan in several}
    best = min(times, key=lambda plan: times[plan])
    return best, times[best]


# ------------------------------------------------------------------------------------ stored plans
def place(device: torch.device) -> Path:
    """The file of plans that were measured on this device."""
    gpu = torch.cuda.get_device_name(device)
    name = f"{gpu}-triton-{triton.__version__}-kernels-{tile_configs.KERNELS}"
    return cache_folder() / "plans" / (re.sub(r"[^\w.-]+", "_", name) + ".json")


def load_measured(file: Path) -> None:
    """Load stored plans; an unreadable file is measured again."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = {
            (rows, n, k, kind): TileConfig(**plan)
            for rows, n, k, kind, plan in json.loads(file.read_text())
        }
        tile_configs.MEASURED.update(found)


def save_measured(file: Path) -> None:
    """Store all measured plans; a failure to write costs a measurement next time."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".tmp")
        draft.write_text(
            json.dumps([[*key, asdict(plan)] for key, plan in tile_configs.MEASURED.items()])
        )
        draft.replace(file)


# ------------------------------------------------------------------------------------- projections
def stages(network: CudaNetwork, rows: int) -> dict[str, tuple[Tensor, str, list[Call]]]:
    """Each projection: a weight, its kind, and calls on as many layers as the cache cannot hold.

    Experts are not among them.
    """
    model = network.model
    first = network.model.layers[0]
    extras = first.extras or NO_EXTRAS
    nowhere = torch.full((rows,), -1, device=network.device)  # no slot is written
    several = {
        "qkv": (first.qkv, _qkv_kind(extras), partial(_qkv, network, rows, nowhere)),
        "out": (first.out, "plain", partial(_out, network, rows)),
        "gate": (first.gate_up, "gate", partial(_gate, network, rows)),
        "down": (first.down, "plain", partial(_down, network, rows)),
    }
    if model.experts:  # their tiles are guessed
        del several["gate"], several["down"]
    found: dict[str, tuple[Tensor, str, list[Call]]] = {}
    for name, (weight, kind, call) in several.items():
        count = min(len(model.layers), 1 + int(COLD / weight.nbytes))
        found[name] = weight, kind, [partial(call, layer) for layer in model.layers[:count]]
    found["head"] = model.head, "norm", [partial(_head, network, rows)] * 2
    return found


def _qkv_kind(extras: LayerExtras) -> str:
    """The kind of the projection of queries, keys and values."""
    if extras.row_norms is None:
        return "qkv"
    return "norm" if extras.pre_norms else "plain"


def _rows(network: CudaNetwork, rows: int) -> PrenormRows:
    """`PrenormRows` as the kernel before would leave them."""
    buffers = network.buffers
    return PrenormRows(
        buffers.streams[0, :rows], network.scales[-1], buffers.norm_buffers[0], parts=LEFT // 2
    )


def _inputs(network: CudaNetwork, rows: int, extras: LayerExtras) -> PrenormRows | Tensor:
    """Inputs of a sublayer, normed if the layer norms them."""
    found = _rows(network, rows)
    return found if extras.pre_norms else found.x


def _qkv(
    network: CudaNetwork, rows: int, nowhere: Tensor, layer: LlamaLayer, plan: TileConfig
) -> None:
    extras = layer.extras or NO_EXTRAS
    if extras.row_norms is not None:
        made = network.scratch.qkv[:rows]
        project(_inputs(network, rows, extras), layer.qkv, made, bias=layer.qkv_bias, plan=plan)
        return
    project_heads(
        _rows(network, rows), layer.qkv, network.buffers.queries[:rows], network.pool.planes(0),
        heads=network.heads,
        angles=network.buffers.row_angles[0], slots=nowhere, bias=layer.qkv_bias,
        query_norm=layer.query_norm, key_norm=layer.key_norm, plan=plan,
    )  # fmt: skip


def _out(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    extras = layer.extras or NO_EXTRAS
    inputs = network.buffers.attention_out[:rows]
    _add(network, inputs, layer.out, extras.out_bias, extras, plan)


def _gate(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    extras = layer.extras or NO_EXTRAS
    project(
        _inputs(network, rows, extras), layer.gate_up, network.buffers.inner[:rows], gate=True,
        activation=network.model.activation, bias=extras.gate_up_bias, plan=plan,
    )  # fmt: skip


def _down(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    extras = layer.extras or NO_EXTRAS
    inputs = network.buffers.inner[:rows]
    _add(network, inputs, layer.down, extras.down_bias, extras, plan)


def _add(
    network: CudaNetwork,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    extras: LayerExtras,
    plan: TileConfig,
) -> None:
    """The projection at the end of a sublayer, with what it is fused with."""
    rows = len(inputs)
    if extras.post_norms is not None:
        project(inputs, weight, network.scratch.outputs[:rows], bias=bias, plan=plan)
        return
    middle = network.buffers.middle[:rows]
    project(inputs, weight, _rows(network, rows), bias=bias, residual=middle, plan=plan)


def _head(network: CudaNetwork, rows: int, plan: TileConfig) -> None:
    project(
        _rows(network, rows), network.model.head, network.buffers.logits[:rows],
        cap=network.model.logit_cap, plan=plan,
    )  # fmt: skip


def time(calls: list[Call], plan: TileConfig) -> float:
    """Seconds of one call; infinite if the plan does not fit the device."""
    cuda: Any = torch.cuda  # parts of it have no types
    try:
        calls[0](plan)
        torch.cuda.synchronize()
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, capture_error_mode="thread_local"):
            for call in calls:
                call(plan)
    except Exception as error:
        if "resource" in str(error).lower() or "shared memory" in str(error).lower():
            return float("inf")
        raise
    graph.replay()
    spent: list[float] = []
    for _ in range(TIMES):
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        spent.append(start.elapsed_time(end) / 1e3 / len(calls))
    return sorted(spent)[TIMES // 2]
