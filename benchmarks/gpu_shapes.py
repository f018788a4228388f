"""Passes of larger models, with random weights made on the device: part (d) of gpu.py."""

import gc
from typing import Any

import numpy as np
import torch
from gpu_tools import Limit, Record, random_tree, seconds_of

# width, heads, key heads, head width, inner width, vocabulary, layers
SHAPES = {
    "tiny": (32, 4, 2, 16, 48, 64, 1),
    "1B": (2048, 32, 8, 64, 8192, 128256, 16),
    "8B": (4096, 32, 8, 128, 14336, 128256, 32),
    "32B": (5120, 40, 8, 128, 27648, 152064, 64),
}
CONTEXTS = {"tiny": (16, 40)}
DEFAULT_CONTEXTS = (512, 4096, 32768)
# sessions -> nodes of each; a pass has at most 512 rows
BATCHES: dict[int, tuple[int, ...]] = {1: (1, 64), 8: (1, 64), 32: (1, 16)}
SPARE = 6e9  # bytes that stay free


def shapes_part(
    names: list[str], device: torch.device, rate: float, times: int, limit: Limit, record: Record
) -> None:
    """Milliseconds of a pass, against reading weights and keys once at copy speed."""
    kept: dict[str, Any] = {}
    for name in names:
        if limit.left > 0:
            kept[name] = shape_part(name, device, rate, times, limit, record)
            record.keep("shapes", kept)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def shape_part(
    name: str, device: torch.device, rate: float, times: int, limit: Limit, record: Record
) -> list[dict[str, Any]]:
    """The passes of one model."""
    from sapwood.backends.torch.cuda.kernels.autotune import prepare
    from sapwood.backends.torch.cuda.network import CudaNetwork

    model = make(name, device)
    network = CudaNetwork(model, slots=1024)
    if device.type == "cuda":
        prepare(network)
    weights = sum(
        part.numel()
        for layer in model.layers
        for part in (layer.qkv, layer.out, layer.gate_up, layer.down)
    )
    floor = 2 * (weights + model.head.numel()) / rate
    record.say(
        f"(d) {name}: {2 * weights / 1e9:.1f} GB of weights, "
        f"read in {1e3 * floor:.3f} ms at copy speed"
    )
    found = []
    for context in CONTEXTS.get(name, DEFAULT_CONTEXTS):
        cells = []
        for batch, sizes in BATCHES.items():
            if limit.left <= 0 or not fill_pool(network, batch, context):
                cells.append(f"{batch} sessions: -")
                continue
            keys = (
                4 * batch * context * len(model.layers) * model.kv_heads * model.head_width / rate
            )
            for nodes in sizes:
                spent = one_pass(network, batch, nodes, context, times)
                over = spent / (floor + keys)
                cells.append(f"{batch}x{nodes} {1e3 * spent:.3f} ms ({over:.2f}x)")
                found.append(
                    {
                        "context": context,
                        "batch": batch,
                        "nodes": nodes,
                        "ms": 1e3 * spent,
                        "floor_ms": 1e3 * floor,
                        "with_keys_ms": 1e3 * (floor + keys),
                        "over": over,
                    }
                )
        record.say(f"    context {context}: " + "  ".join(cells))
    return found


def make(name: str, device: torch.device) -> Any:
    """A Llama-like model of random weights."""
    from sapwood.backends.torch.llama import LlamaLayer, LlamaModel

    width, heads, keys, each, inner, vocab, layers = SHAPES[name]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def keyed_draw(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=device).normal_(std=0.02)

    def one() -> torch.Tensor:
        return torch.ones(width, dtype=dtype, device=device)

    made = tuple(
        LlamaLayer(
            one(),
            keyed_draw((heads + 2 * keys) * each, width),
            None,
            None,
            None,
            keyed_draw(width, heads * each),
            one(),
            keyed_draw(2 * inner, width),
            keyed_draw(width, inner),
            0,
        )
        for _ in range(layers)
    )
    rates = 1e4 ** (-torch.arange(each // 2, device=device).float() / (each // 2))
    return LlamaModel(
        width,
        heads,
        keys,
        each,
        inner,
        vocab,
        1e-5,
        each**-0.5,
        rates,
        1.0,
        keyed_draw(vocab, width),
        made,
        one(),
        keyed_draw(vocab, width),
    )


def fill_pool(network: Any, batch: int, context: int) -> bool:
    """Give the KV pool `batch` sequences of random keys and values; False if they do not fit."""
    pool = network.pool
    heads = network.heads
    slots = context + 128
    need = 2 * pool.layers * batch * slots * heads.keys * heads.width * pool.like.element_size()
    if network.device.type == "cuda":
        free = (
            torch.cuda.mem_get_info(network.device)[0]
            + pool.kept.numel() * pool.kept.element_size()
        )
        if need > free - SPARE:
            return False
    pool.kept = torch.empty(0)
    network._passes.clear()
    gc.collect()
    if network.device.type == "cuda":
        torch.cuda.empty_cache()
    pool.kept = pool._empty(batch, slots).normal_()
    pool.version += 1
    return True


def load_of(network: Any, batch: int, nodes: int, context: int) -> Any:
    """The rows of a pass over a tree in each of these sequences."""
    from sapwood.backends.torch.cuda.pass_inputs import PassRows, SessionRows, pack

    tree = random_tree(nodes, network.model.vocab, np.random.default_rng(0))
    slots = network.pool.slots
    starts = [place * slots for place in range(batch)]
    return PassRows(
        np.tile(tree.tokens, batch),
        np.tile(context + tree.depths, batch),
        np.concatenate([start + context + np.arange(nodes) for start in starts]),
        [
            SessionRows(place * nodes, nodes, start, context, nodes, chain=nodes == 1)
            for place, start in enumerate(starts)
        ],
        np.tile(pack(tree.ancestors()), (batch, 1)),
    )


@torch.inference_mode()
def one_pass(network: Any, batch: int, nodes: int, context: int, times: int) -> float:
    """Seconds of one captured pass."""
    load = load_of(network, batch, nodes, context)
    for _ in range(3):  # eager, captured, replayed
        network.run_pass(load, (), head=True)
    return seconds_of(network.last, times, network.device.type == "cuda")
