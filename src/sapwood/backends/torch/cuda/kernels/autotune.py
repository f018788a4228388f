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
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.llama import LlamaLayer
from sapwood.common.cache_dir import cache_folder

COLD = 200e6  # bytes of weights after which the first ones have left the cache
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
    """Each projection: a weight, its kind, and calls on as many layers as the cache cannot hold."""
    model = network.model
    first = network.model.layers[0]
    nowhere = torch.full((rows,), -1, device=network.device)  # no slot is written
    several = {
        "qkv": (first.qkv, "qkv", partial(_qkv, network, rows, nowhere)),
        "out": (first.out, "plain", partial(_out, network, rows)),
        "gate": (first.gate_up, "gate", partial(_gate, network, rows)),
        "down": (first.down, "plain", partial(_down, network, rows)),
    }
    found: dict[str, tuple[Tensor, str, list[Call]]] = {}
    for name, (weight, kind, call) in several.items():
        count = min(len(model.layers), 1 + int(COLD / weight.nbytes))
        found[name] = weight, kind, [partial(call, layer) for layer in model.layers[:count]]
    found["head"] = model.head, "norm", [partial(_head, network, rows)] * 2
    return found


def _rows(network: CudaNetwork, rows: int) -> PrenormRows:
    """`PrenormRows` as the kernel before would leave them."""
    buffers = network.buffers
    return PrenormRows(
        buffers.streams[0, :rows], network.scales[-1], buffers.norm_buffers[0], parts=LEFT // 2
    )


def _qkv(
    network: CudaNetwork, rows: int, nowhere: Tensor, layer: LlamaLayer, plan: TileConfig
) -> None:
    project_heads(
        _rows(network, rows), layer.qkv, network.buffers.queries[:rows], network.pool.planes(0),
        heads=network.heads,
        angles=network.buffers.row_angles, slots=nowhere, bias=layer.qkv_bias,
        query_norm=layer.query_norm, key_norm=layer.key_norm, plan=plan,
    )  # fmt: skip


def _out(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    middle = network.buffers.middle[:rows]
    project(
        network.buffers.attention_out[:rows],
        layer.out,
        _rows(network, rows),
        residual=middle,
        plan=plan,
    )


def _gate(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    project(_rows(network, rows), layer.gate_up, network.buffers.inner[:rows], gate=True, plan=plan)


def _down(network: CudaNetwork, rows: int, layer: LlamaLayer, plan: TileConfig) -> None:
    middle = network.buffers.middle[:rows]
    project(
        network.buffers.inner[:rows], layer.down, _rows(network, rows), residual=middle, plan=plan
    )


def _head(network: CudaNetwork, rows: int, plan: TileConfig) -> None:
    project(_rows(network, rows), network.model.head, network.buffers.logits[:rows], plan=plan)


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
