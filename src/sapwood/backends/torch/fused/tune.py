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

from sapwood.backends.torch.fused import plans
from sapwood.backends.torch.fused.kernels import project
from sapwood.backends.torch.fused.network import Fused
from sapwood.backends.torch.fused.plans import Plan
from sapwood.backends.torch.fused.qkv import project_heads
from sapwood.backends.torch.fused.stream import LEFT, Stream
from sapwood.backends.torch.llama import Layer
from sapwood.paths import cache_folder

COLD = 200e6  # bytes of weights after which the first ones have left the cache
TIMES = 5
SECONDS = 2.5  # that loading a model may spend here
ORDER = (16, 64, 32, 128)  # rows, those of most passes first

Call = Callable[[Plan], object]


def prepare(network: Fused, seconds: float = SECONDS) -> None:
    """Choose between a few plans for each projection whose shape nobody has measured, as far as the seconds go.

    Compiling takes most of the time. What is not measured now is guessed, and measured when the model is loaded again.
    """
    end, file = monotonic() + seconds, place(network.device)
    recall(file)
    before = dict(plans.MEASURED)
    for rows in ORDER:
        for weight, kind, calls in stages(network, rows).values():
            (n, k), tile = weight.shape, plans.row_tile(rows)
            if plans.known((tile, n, k, kind)) is None and monotonic() < end:
                plans.MEASURED[tile, n, k, kind], _ = fastest(calls, plans.shortlist(rows, n, k, kind))
    if before != plans.MEASURED:
        remember(file)


def tune(network: Fused, rows: int) -> dict[str, float]:
    """Measure all projections for so many rows and remember the best plans; microseconds of each."""
    found = {}
    for name, (weight, kind, calls) in stages(network, rows).items():
        n, k = weight.shape
        best, spent = fastest(calls, plans.candidates(rows, n, k, kind))
        plans.MEASURED[plans.row_tile(rows), n, k, kind] = best
        found[name] = 1e6 * spent
    return found


def fastest(calls: list[Call], several: Iterable[Plan]) -> tuple[Plan, float]:
    """The plan that takes the least time, and its seconds."""
    times = {plan: time(calls, plan) for plan in several}
    best = min(times, key=lambda plan: times[plan])
    return best, times[best]


# ------------------------------------------------------------------------------------ in the cache folder
def place(device: torch.device) -> Path:
    """The file of what was measured on this device."""
    name = f"{torch.cuda.get_device_name(device)}-triton-{triton.__version__}-kernels-{plans.KERNELS}"
    return cache_folder() / "plans" / (re.sub(r"[^\w.-]+", "_", name) + ".json")


def recall(file: Path) -> None:
    """Take over what was measured before; a file that cannot be read is measured anew."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = {(rows, n, k, kind): Plan(**plan) for rows, n, k, kind, plan in json.loads(file.read_text())}
        plans.MEASURED.update(found)


def remember(file: Path) -> None:
    """Store all that was measured; a folder that cannot be written costs a measurement next time."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(".tmp")
        draft.write_text(json.dumps([[*key, asdict(plan)] for key, plan in plans.MEASURED.items()]))
        draft.replace(file)


# -------------------------------------------------------------------------------------------- the projections
def stages(network: Fused, rows: int) -> dict[str, tuple[Tensor, str, list[Call]]]:
    """Each projection: a weight, its kind, and calls on as many layers as the cache cannot hold."""
    model, first = network.model, network.model.layers[0]
    nowhere = torch.full((rows,), -1, device=network.device)  # slots of no seat
    several = {
        "qkv": (first.qkv, "qkv", partial(_qkv, network, rows, nowhere)),
        "out": (first.out, "plain", partial(_out, network, rows)),
        "gate": (first.gate_up, "gate", partial(_gate, network, rows)),
        "down": (first.down, "plain", partial(_down, network, rows)),
    }
    found: dict[str, tuple[Tensor, str, list[Call]]] = {}
    for name, (weight, kind, call) in several.items():
        count = min(len(model.layers), 1 + int(COLD / (weight.numel() * weight.element_size())))
        found[name] = weight, kind, [partial(call, layer) for layer in model.layers[:count]]
    found["head"] = model.head, "norm", [partial(_head, network, rows)] * 2
    return found


def _rows(network: Fused, rows: int) -> Stream:
    """Rows on their way into a norm, as their maker would leave them."""
    desk = network.desk
    return Stream(desk.streams[0, :rows], network.scales[-1], desk.margins[0], parts=LEFT // 2)


def _qkv(network: Fused, rows: int, nowhere: Tensor, layer: Layer, plan: Plan) -> None:
    project_heads(
        _rows(network, rows), layer.qkv, network.desk.queries[:rows], network.pool.planes(0), heads=network.heads,
        angles=network.desk.turns, slots=nowhere, bias=layer.qkv_bias,
        query_norm=layer.query_norm, key_norm=layer.key_norm, plan=plan,
    )  # fmt: skip


def _out(network: Fused, rows: int, layer: Layer, plan: Plan) -> None:
    middle = network.desk.middle[:rows]
    project(network.desk.read[:rows], layer.out, _rows(network, rows), residual=middle, plan=plan)


def _gate(network: Fused, rows: int, layer: Layer, plan: Plan) -> None:
    project(_rows(network, rows), layer.gate_up, network.desk.inner[:rows], gate=True, plan=plan)


def _down(network: Fused, rows: int, layer: Layer, plan: Plan) -> None:
    middle = network.desk.middle[:rows]
    project(network.desk.inner[:rows], layer.down, _rows(network, rows), residual=middle, plan=plan)


def _head(network: Fused, rows: int, plan: Plan) -> None:
    project(_rows(network, rows), network.model.head, network.desk.logits[:rows], plan=plan)


def time(calls: list[Call], plan: Plan) -> float:
    """Seconds of one call; infinite where the plan does not fit the device."""
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
