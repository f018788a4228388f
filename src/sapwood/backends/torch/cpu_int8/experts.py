"""Mixtures of experts: routing of rows in float32, and products of each expert's rows.

A row's experts and their shares depend on the row alone, its outputs are added in the order of its
choice, and the products of an expert are those of any int8 layer: the other rows change no bit.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from sapwood.backends.torch.cpu_int8.block_gemm import multiply_groups
from sapwood.backends.torch.cpu_int8.block_linear import BlockLinear
from sapwood.backends.torch.cpu_int8.block_tile import ROW_LINES
from sapwood.backends.torch.cpu_int8.forward import put_row
from sapwood.backends.torch.cpu_int8.int8_gemm import multiply, multiply_fine
from sapwood.backends.torch.cpu_int8.linear import Int8Linear
from sapwood.backends.torch.cpu_int8.pass_args import (
    BLOCKS,
    GATE_UP,
    GROUPED,
    INPUTS,
    SPLIT,
    WHOLE,
)
from sapwood.backends.torch.cpu_int8.pointwise import (
    FAR,
    F,
    compiled,
    exponentiate,
    inlined,
    level,
    open_gate_with,
    shrink,
)


class ExpertLinears:
    """A linear layer of each expert, all of one shape."""

    def __init__(self, parts: Sequence[Int8Linear | BlockLinear]) -> None:
        self.parts = parts
        self.packed = parts[0].packed
        self.form = parts[0].form
        self.inputs = parts[0].inputs
        self.outputs = sum(part.outputs for part in parts)

    def rounded(self, bits: int) -> "ExpertLinears":
        """The layers in fewer bits."""
        return ExpertLinears([part.rounded(bits) for part in self.parts])


def each_expert(make: Callable[[Tensor], Int8Linear | BlockLinear], weight: Tensor) -> Any:
    """A linear layer of a matrix, or of each expert's where there are several."""
    return make(weight) if weight.dim() == 2 else ExpertLinears([make(part) for part in weight])


def parts_of(linear: Any) -> Sequence[Int8Linear | BlockLinear]:
    """The linear layers of all experts; a layer without experts is one."""
    return linear.parts if isinstance(linear, ExpertLinears) else [linear]


# ----------------------------------------------------------------------------------------- routing
@compiled
def route_row(
    row: Any,  # [width], the normed input divided by `scale`
    scale: Any,
    router: Any,  # [width, experts]
    bias: Any,  # [experts], or empty
    normalised: bool,  # shares of the chosen add up to 1
    logits: Any,  # [experts], scratch
    bits: Any,  # [experts] int32, scratch
    picks: Any,  # [chosen] int64, experts with the largest logits, out
    shares: Any,  # [chosen], out
) -> None:
    """Choose the experts of a row."""
    experts = logits.shape[0]
    logits[:] = F(0.0)
    for i in range(row.shape[0]):
        for e in range(experts):
            logits[e] += row[i] * router[i, e]
    for e in range(experts):
        logits[e] = logits[e] * scale + bias[e] if bias.shape[0] else logits[e] * scale
    for j in range(picks.shape[0]):
        best = -1
        most = FAR
        for e in range(experts):
            if logits[e] > most and not taken(picks[:j], e):
                best, most = e, logits[e]
        picks[j] = best
    largest = logits[picks[0]]
    for e in range(experts):
        logits[e] -= largest
    exponentiate(logits, bits)
    total = F(0.0)
    if normalised:
        for j in range(picks.shape[0]):
            total += logits[picks[j]]
    else:
        for e in range(experts):
            total += logits[e]
    for j in range(picks.shape[0]):
        shares[j] = logits[picks[j]] / total


@inlined
def taken(picks: Any, expert: int) -> bool:
    """True if an expert is among these."""
    found = False
    for j in range(picks.shape[0]):
        found |= picks[j] == expert
    return found


@compiled
def group_rows(picks: Any, firsts: Any, active: Any, slots: Any, owners: Any) -> None:
    """Put rows of the same expert side by side.

    Picks [rows, chosen] are experts; firsts [experts + 1] <- first place of each expert's rows,
    active [1 + experts] <- number of experts with rows, and these; slots [rows, chosen] <- places,
    owners [rows * chosen] <- the expert of each place.
    """
    experts = firsts.shape[0] - 1
    firsts[:] = 0
    for r in range(picks.shape[0]):
        for j in range(picks.shape[1]):
            firsts[picks[r, j] + 1] += 1
    active[0] = 0
    for e in range(experts):
        if firsts[e + 1]:
            active[0] += 1
            active[active[0]] = e
        firsts[e + 1] += firsts[e]
    filled = firsts.copy()
    for r in range(picks.shape[0]):
        for j in range(picks.shape[1]):
            slots[r, j] = filled[picks[r, j]]
            owners[slots[r, j]] = picks[r, j]
            filled[picks[r, j]] += 1


@compiled
def add_experts(
    x: Any, y: Any, scales: Any, slots: Any, owners: Any, shares: Any, bias: Any, norm: Any,
    eps: Any, spare: Any,
) -> None:  # fmt: skip
    """Add the outputs of a row's experts to x [n]: those at slots of y, by their shares.

    The experts have a bias each, [experts, n] or [experts, 0].
    """
    spare[:] = F(0.0)
    for j in range(slots.shape[0]):
        factor = scales[slots[j]] * shares[j]
        for i in range(x.shape[0]):
            spare[i] += y[slots[j], i] * factor
        if bias.shape[1]:
            own = bias[owners[slots[j]]]
            for i in range(x.shape[0]):
                spare[i] += own[i] * shares[j]
    if norm.shape[0]:
        rate = level(spare, eps)
        for i in range(x.shape[0]):
            spare[i] = spare[i] * norm[i] * rate
    for i in range(x.shape[0]):
        x[i] += spare[i]


# ----------------------------------------------------------------------------- stages of a pass
@inlined
def route_rows(extra: Any, work: Any, room: Any, layer: int, start: int, stop: int) -> None:
    """Choose the experts of some rows."""
    router = extra.routers[layer]
    for r in range(start, stop):
        route_row(
            work.entered[r, : router.shape[0]],
            work.scales[r],
            router,
            extra.router_bias[layer],
            extra.normalised,
            room.routes[r, 0],
            room.routes[r, 1].view(np.int32),
            room.picks[r],
            room.shares[r],
        )


@inlined
def copy_rows(work: Any, room: Any, form: int, start: int, stop: int) -> None:
    """Copy the integers and scales of some rows to the places of their experts."""
    lines = 1 if form == WHOLE else ROW_LINES if form == GROUPED else 2
    for r in range(start, stop):
        for j in range(room.slots.shape[1]):
            slot = room.slots[r, j]
            room.routed[lines * slot : lines * (slot + 1)] = work.whole[lines * r : lines * (r + 1)]
            room.scales[slot] = work.scales[r]


@inlined
def expert_products(
    extra: Any, work: Any, room: Any, layer: int, part: int, start: int, stop: int
) -> None:
    """Some blocks of outputs, counted over the experts with rows."""
    blocks = extra.experts[layer, part - GATE_UP, 0, BLOCKS]
    rows = room.routed if part == GATE_UP else work.whole
    for place in range(start // blocks, -(-stop // blocks)):
        expert = room.active[1 + place]
        where = extra.experts[layer, part - GATE_UP, expert]
        first = room.firsts[expert]
        count = room.firsts[expert + 1] - first
        low = max(start - place * blocks, 0)
        high = min(stop - place * blocks, blocks)
        out = work.products[first:]
        if where[INPUTS] == GROUPED:
            multiply_groups(where, rows[ROW_LINES * first :], count, low, high, out, -1)
        elif where[INPUTS] == SPLIT:
            multiply_fine(where, rows[2 * first :], count, low, high, out, -1)
        else:
            multiply(where, rows[first:], count, low, high, out, -1)


@inlined
def gate_experts(
    net: Any, extra: Any, work: Any, room: Any, layer: int, start: int, stop: int, worker: int
) -> None:
    """Gate the outputs of experts at some places and quantise them for the down projection."""
    where = extra.experts[layer, 1, 0]
    for slot in range(start, stop):
        row = work.products[slot]
        entered = work.entered[slot, : net.inner]
        open_gate_with(
            row[: net.inner],
            row[net.inner : 2 * net.inner],
            extra.gate_bias[layer, room.owners[slot]],
            room.scales[slot],
            extra.gate,
            entered,
            work.bits[worker, : net.inner],
        )
        # not in the scales of rows, which are set for the next layer while these are still read
        room.scales[slot] = shrink(entered, entered)
        put_row(entered, where, work.whole, slot)
