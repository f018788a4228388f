"""Compile the CUDA kernels of a round without a GPU, to find errors and resource use.

    python tools/kernels.py --capability 8.6

Needs triton, which on Linux comes with torch for CUDA (`pip install triton`), and no GPU. Prints a
line for each kernel of a pass, with plain and with quantised weights, of an EAGLE-3 draft and of
verification: warps, stages, bytes of shared memory, registers, and bytes of the stack, which holds
spilled registers. Fails if a kernel needs more shared memory than a device of this compute
capability has, or spills more than a few registers.

A process compiles for one capability: kernels read it when they are imported.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

# KB of shared memory of a program by compute capability
SHARED = {"8.0": 163, "8.6": 99, "8.9": 99, "9.0": 227, "10.0": 227, "12.0": 99}
ROWS = (1, 16, 64, 128)  # of a pass
REQUESTS = 8  # whose trees are drafted together
TEXT = 4  # rows of new text of each of them
VOCAB = 4096
STACK = 64  # bytes of spilled registers that a program may have: the assembler's choice
TREE = (3, 16, 8)  # depth, beam and width of a drafted tree: root, first level and a later one
LENGTHS = (512, 1 << 15)  # of texts: few groups of keys, and too many for one program each
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model, whose kernels are compiled."""

    queries: int  # heads
    keys: int  # heads
    head_width: int
    width: int
    inner: int
    dtype: torch.dtype
    head_norms: bool = False  # norms of queries and keys
    row_norms: bool = False  # over all of them
    post_norms: bool = False  # of the outputs of attention and MLP
    biased: bool = False  # output projection and MLP
    activation: str = "silu"
    cap: float = 0.0  # of attention and logits
    embedding_scale: float = 1.0
    window: int = 0
    angles: int = 1  # tables of rotary angles
    experts: int = 0
    chosen: int = 0

    @property
    def drafted(self) -> bool:
        """True if a draft and its verification are compiled too: heads have sizes of their own."""
        return not (self.row_norms or self.post_norms)


MODELS = {
    "135m": ModelSizes(9, 3, 64, 576, 1536, torch.float16),  # SmolLM2
    "8b": ModelSizes(32, 8, 128, 4096, 14336, torch.bfloat16),
    "8b-norms": ModelSizes(32, 8, 128, 4096, 12288, torch.bfloat16, head_norms=True),
    # parts of gemma 2 and 3, with biases; of olmo 2 and olmoe
    "gemma": ModelSizes(
        16, 8, 256, 3840, 15360, torch.bfloat16, head_norms=True, post_norms=True, biased=True,
        activation="gelu_pytorch_tanh", cap=30.0, embedding_scale=62.0, window=1024, angles=2,
    ),
    "olmoe": ModelSizes(
        16, 16, 128, 2048, 1024, torch.bfloat16, row_norms=True, experts=64, chosen=8
    ),
}  # fmt: skip


Variants = dict[Any, dict[Any, int]]  # kernel -> key of a variant -> its number


class Imagined:
    """A driver without a device: kernels are compiled, not launched."""

    class utils:  # noqa: N801
        """Properties of the device."""

        @staticmethod
        def load_binary(*_: Any) -> tuple[int, ...]:
            """A dummy handle."""
            return 0, 0, 0, 0, 1024

    def __init__(self, capability: tuple[int, int]) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        """The device to compile for."""
        return GPUTarget("cuda", 10 * self.capability[0] + self.capability[1], 32)

    def get_current_device(self) -> int:
        """Number of the device."""
        return 0

    def get_current_stream(self, _: int) -> int:
        """No stream."""
        return 0


@dataclass(frozen=True, slots=True)
class ImaginedProperties:
    """What torch would say about the device."""

    shared_memory_per_block_optin: int  # bytes


def count_variants(launch: Callable[[], None]) -> Variants:
    """The variants of each kernel that some launches need, in their order; none is compiled."""
    compile_variant = jit.JITFunction._do_compile
    found: Variants = {}

    def note(self: Any, key: Any, *_: Any) -> None:
        known = found.setdefault(self, {})
        known.setdefault(key, len(known))

    jit.JITFunction._do_compile = note
    try:
        launch()
    finally:
        jit.JITFunction._do_compile = compile_variant
    return found


def share(part: int, parts: int, variants: Variants) -> None:
    """Compile those variants of each kernel that are dealt to one of several parts.

    Each part has at least one variant of each kernel, and each variant has a part.
    """
    compile_variant = jit.JITFunction._do_compile

    def compile_some(self: Any, key: Any, *asked: Any) -> Any:
        known = variants[self]
        few = part >= len(known)  # this part comes after each variant has one
        chosen = known[key] == part % len(known) if few else known[key] % parts == part
        return compile_variant(self, key, *asked) if chosen else None

    jit.JITFunction._do_compile = compile_some


def imagine(name: str) -> list[Any]:
    """Make every launch compile only; compiled kernels are added to the returned list."""
    found: list[Any] = []
    seen: set[int] = set()
    run = jit.JITFunction.run
    major, minor = (int(part) for part in name.split("."))
    properties = ImaginedProperties(SHARED[name] << 10)

    def compiled(self: Any, *asked: Any, **more: Any) -> Any:
        made = run(self, *asked, **{**more, "warmup": True})
        if made is not None and id(made) not in seen:
            seen.add(id(made))
            found.append(made)
        return made

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *_: (major, minor)
    cuda.get_device_properties = lambda *_: properties
    cuda.get_device_name = lambda *_: f"a card of compute capability {name}"
    driver.set_active(Imagined((major, minor)))
    jit.JITFunction.run = compiled
    return found


def a_pass(rows: int, sizes: ModelSizes) -> None:
    """Launch the kernels of one layer, and those before and after all layers."""
    from sapwood.backends.torch.cuda.kernels.linear import project
    from sapwood.backends.torch.cuda.kernels.pointwise import best_tokens, embed_rows, normalise
    from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers, NormScale, PrenormRows
    from sapwood.backends.torch.cuda.kernels.qkv import HeadSizes

    width = sizes.width
    heads = HeadSizes(sizes.queries, sizes.keys, sizes.head_width)

    def some(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=sizes.dtype)

    def stream() -> PrenormRows:
        scale = NormScale.of(torch.ones(width, dtype=sizes.dtype), 1e-5)
        return PrenormRows(some(rows, width), scale, NormBuffers.make(some(1), rows, width))

    numbers = torch.zeros(rows, dtype=torch.int64)
    x = stream()
    middle = stream()
    turns = torch.zeros(sizes.angles, rows, heads.width)
    embed_rows(
        x,
        some(VOCAB, width),
        numbers,
        numbers,
        torch.zeros(LENGTHS[0], sizes.angles * heads.width),
        numbers,
        turns,
        sizes.embedding_scale,
    )
    projected_heads(x, turns[0], heads, sizes, some)
    attentions(rows, heads, some, sizes)
    sublayer_end(some(rows, heads.queries * heads.width), x, middle, sizes, some)
    mlp(middle, x, sizes, some)
    project(x, some(VOCAB, width), some(rows, VOCAB), cap=sizes.cap)
    normalise(x.x, x.scale, some(rows, width))
    best_tokens(some(rows, VOCAB), numbers)


def projected_heads(
    x: Any, turns: torch.Tensor, heads: Any, sizes: ModelSizes, some: Callable[..., torch.Tensor]
) -> None:
    """Launch the projection of queries, keys and values."""
    from sapwood.backends.torch.cuda.kernels.linear import project
    from sapwood.backends.torch.cuda.kernels.qkv import project_heads
    from sapwood.backends.torch.cuda.kernels.row_norms import turn_rows

    rows = len(x.x)
    numbers = torch.zeros(rows, dtype=torch.int64)
    planes = some(2, 1, LENGTHS[0], heads.keys, heads.width)
    weight = some(heads.all * heads.width, sizes.width)
    queries = some(rows, heads.queries, heads.width)
    if sizes.row_norms:
        made = some(rows, heads.all * heads.width)
        norms = some(heads.queries * heads.width), some(heads.keys * heads.width)
        for inputs in (x, x.x):  # with a norm before it, and without
            project(inputs, weight, made)
        turn_rows(
            made, queries, planes, heads=heads, norms=norms, eps=1e-5, angles=turns, slots=numbers
        )
        return
    norm = some(heads.width) if sizes.head_norms else None
    project_heads(
        x, weight, queries, planes, heads=heads, angles=turns, slots=numbers, query_norm=norm,
        key_norm=norm,
    )  # fmt: skip


def sublayer_end(
    inner: torch.Tensor, x: Any, out: Any, sizes: ModelSizes, some: Callable[..., torch.Tensor]
) -> None:
    """Launch the last projection of a sublayer, whose outputs are added to the rows x."""
    from sapwood.backends.torch.cuda.kernels.linear import project
    from sapwood.backends.torch.cuda.kernels.pointwise import add_normed

    width = sizes.width
    weight = some(width, inner.shape[1])
    bias = some(width) if sizes.biased else None
    project(inner, weight, out, bias=bias, residual=x.x)
    if sizes.post_norms:
        made = some(len(inner), width)
        project(inner, weight, made)
        for leaves in (False, True):
            add_normed(made, torch.ones(width), x.x, out, leaves=leaves)


def mlp(middle: Any, x: Any, sizes: ModelSizes, some: Callable[..., torch.Tensor]) -> None:
    """Launch an MLP, or a mixture of experts."""
    from sapwood.backends.torch.cuda.kernels.expert_buffers import ExpertBuffers
    from sapwood.backends.torch.cuda.kernels.experts import add_experts
    from sapwood.backends.torch.cuda.kernels.launch import EARLY
    from sapwood.backends.torch.cuda.kernels.linear import project

    rows, width, experts = len(x.x), sizes.width, sizes.experts
    inner = some(rows, sizes.inner)
    gates = some(2 * sizes.inner, width)
    bias = some(2 * sizes.inner) if sizes.biased else None
    ahead = some(1 << 20) if EARLY.value else None  # the prefetch needs as new a device
    inputs = [middle.x, middle] if sizes.post_norms else [middle]
    for each in inputs if not experts else ():
        project(each, gates, inner, gate=True, activation=sizes.activation, bias=bias, ahead=ahead)
    if not experts:
        sublayer_end(inner, middle, x, sizes, some)
        return
    buffers = ExpertBuffers.make(some(1), rows, experts, sizes.chosen, sizes.inner, width)
    add_experts(
        middle, some(experts, width), some(experts, 2 * sizes.inner, width),
        some(experts, width, sizes.inner), x, buffers, torch.zeros(rows, dtype=torch.int64),
        normalised=False, activation=sizes.activation,
    )  # fmt: skip


def quantised_weights(n: int, k: int) -> list[Any]:
    """A weight in each form of 8 and 4 bits that the device can read."""
    from sapwood.backends.torch import quant_weight as forms

    rows = [torch.int8, *([forms.FP8] if torch.cuda.get_device_capability() >= (8, 9) else ())]
    found = [
        forms.QuantWeight(forms.ROWS8, n, k, 0, torch.empty(n, k, dtype=kind), torch.ones(n))
        for kind in rows
    ]
    blocks = (
        (forms.MINIMUM4, 32),
        (forms.ZERO4, 64),
        (forms.ZERO4, 128),
        (forms.ZERO4, 32),
        (forms.ZERO8, 32),
    )
    for form, group in blocks:
        size = group if form == forms.ZERO8 else group // 2
        data = torch.empty(k // group, n, size, dtype=torch.uint8)
        scales = torch.empty(k // group, n, dtype=torch.int32)
        found.append(forms.QuantWeight(form, n, k, group, data, scales))
    return found


def a_quantised_pass(rows: int, sizes: ModelSizes) -> None:
    """Launch the products of one layer and of the head with weights in 8 and 4 bits."""
    from sapwood.backends.torch.cuda.kernels.linear import project
    from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers, NormScale, PrenormRows
    from sapwood.backends.torch.cuda.kernels.qkv import HeadSizes, project_heads

    width = sizes.width
    heads = HeadSizes(sizes.queries, sizes.keys, sizes.head_width)
    inside = heads.queries * heads.width
    numbers = torch.zeros(rows, dtype=torch.int64)

    def some(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=sizes.dtype)

    def stream() -> PrenormRows:
        scale = NormScale.of(torch.ones(width, dtype=sizes.dtype), 1e-5)
        return PrenormRows(some(rows, width), scale, NormBuffers.make(some(1), rows, width), 1)

    norm = some(heads.width) if sizes.head_norms else None
    planes = some(2, 1, LENGTHS[0], heads.keys, heads.width)
    qkv, out, gate_up, down, head = (
        quantised_weights(n, k)
        for n, k in (
            (heads.all * heads.width, width),
            (width, inside),
            (2 * sizes.inner, width),
            (width, sizes.inner),
            (VOCAB, width),
        )
    )
    for weight in qkv:
        project_heads(
            stream(), weight, some(rows, heads.queries, heads.width), planes, heads=heads,
            angles=torch.zeros(rows, heads.width), slots=numbers, query_norm=norm, key_norm=norm,
        )  # fmt: skip
    for weight in (*out, *down):
        project(some(rows, weight.inputs), weight, stream(), residual=some(rows, width))
    for weight in gate_up:
        project(stream(), weight, some(rows, sizes.inner), gate=True)
    for weight in head:
        if weight.data.dtype is not torch.uint8 or weight.group == 32:  # 4-bit heads: of GGUF files
            project(stream(), weight, some(rows, VOCAB))


def attentions(rows: int, heads: Any, some: Callable[..., torch.Tensor], sizes: ModelSizes) -> None:
    """Launch attention of short and long texts, of chains and trees."""
    from sapwood.backends.torch.cuda.kernels.attention import attend
    from sapwood.backends.torch.cuda.kernels.attention_tiles import FIELDS, WORD
    from sapwood.backends.torch.cuda.kernels.open_paths import open_paths
    from sapwood.backends.torch.cuda.pass_inputs import tiles_for

    numbers = torch.zeros(rows, dtype=torch.int64)
    queries = some(rows, heads.queries, heads.width)
    planes = some(2, 1, LENGTHS[0], heads.keys, heads.width)
    for length in LENGTHS:
        for trees in (False, True) if rows > 1 else (False,):
            tiles = tiles_for(rows, 1, length, heads, trees, rows)
            blocks = torch.zeros(FIELDS, -(-rows // tiles.rows), dtype=torch.int64)
            words = numbers[:, None].repeat(1, -(-rows // WORD) if trees else 1)
            attend(
                queries, planes, queries.clone(), heads=heads, blocks=blocks, positions=numbers,
                paths=open_paths(words, numbers, blocks, tiles), scale=0.1, tiles=tiles,
                window=sizes.window, cap=sizes.cap,
            )  # fmt: skip


def head_weights(sizes: ModelSizes) -> Any:
    """Weights of an EAGLE-3 head for the model."""
    from sapwood.backends.torch.cuda.draft.eagle_layer import EagleWeights
    from sapwood.backends.torch.cuda.kernels.prenorm import NormScale

    def some(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=sizes.dtype)

    width, d, inside = sizes.width, sizes.head_width, sizes.queries * sizes.head_width
    scale = NormScale.of(torch.ones(width, dtype=sizes.dtype), 1e-5)
    rows = (sizes.queries + 2 * sizes.keys) * d
    return EagleWeights(
        heads=sizes.queries, kv_heads=sizes.keys, head_width=d, inner=sizes.inner, eps=1e-5,
        after=False, rates=torch.ones(d // 2), embedding=some(VOCAB, width),
        vocabulary=torch.arange(VOCAB), fuse=some(width, 3 * width), token_norm=some(width),
        state_norm=some(width), qkv=some(rows, 2 * width), out=some(width, inside),
        mlp_norm=scale, gate_up=some(2 * sizes.inner, width), down=some(width, sizes.inner),
        norm=scale, head=some(VOCAB, width),
    )  # fmt: skip


def a_draft(sizes: ModelSizes) -> Any:
    """Launch the kernels of a draft that starts from a verdict; the builder that drafted."""
    from sapwood.backends.torch.cuda.draft import draft_kernels, tree_builder
    from sapwood.backends.torch.cuda.draft.eagle_layer import level_sizes

    weights = head_weights(sizes)
    vars(tree_builder)["describe"] = lambda *_: weights
    head = SimpleNamespace(config=SimpleNamespace(features=(0, 1, 2)))
    builder = tree_builder.CudaTreeBuilder(head, weights.embedding)
    builder.ops = draft_kernels
    levels = level_sizes(*TREE)
    builder._ensure_buffers(levels)
    depths, ranks = (torch.from_numpy(column) for column in (levels.depths, levels.ranks))
    builder.body_after_verdict(levels, depths, ranks)
    batch = builder.batch(REQUESTS)
    batch.run(levels, TEXT)
    return builder


def a_verdict(rows: int, sizes: ModelSizes, builder: Any) -> None:
    """Launch the kernels between two passes: verification, moved keys, the next pass's inputs."""
    from sapwood.backends.torch.cuda.draft.device_tree import LONGEST
    from sapwood.backends.torch.cuda.kernels import kv_move
    from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
    from sapwood.backends.torch.cuda.pass_inputs import shape_of_one
    from sapwood.backends.torch.cuda.pass_setup import place
    from sapwood.backends.torch.cuda.verify import verify_kernels

    held = builder.round_buffer
    heads = HeadSizes(sizes.queries, sizes.keys, sizes.head_width)
    logits = torch.empty(rows, VOCAB, dtype=sizes.dtype)
    tokens = held.field("target_tokens")
    gumbel = torch.empty(4, VOCAB, dtype=torch.float64)
    verify_kernels.noise(torch.zeros(4, dtype=torch.int64), VOCAB, gumbel)
    temperature = torch.ones(1, dtype=torch.float64)
    verify_kernels.keyed_draw(logits, gumbel, held.rows.depths, temperature, tokens)
    warmth = torch.ones(rows, dtype=torch.float64)
    verify_kernels.draw_rows(logits, torch.zeros(rows, dtype=torch.int64), warmth, tokens[:rows])
    verify_kernels.walk(held, tokens, rows)
    states = [torch.empty(rows, sizes.width, dtype=sizes.dtype) for _ in range(3)]
    verify_kernels.gather_features(held, states)
    facts = torch.zeros(6, dtype=torch.int64)
    builder.ops.write_pass_args(held, builder.args.scalars, facts)
    pool = torch.empty(2, 1, LENGTHS[0], heads.keys, heads.width, dtype=sizes.dtype)
    kv_move.move(pool, torch.zeros(3, dtype=torch.int64), 0, 0, 4)
    kv_move.move_many(pool, torch.zeros(2, 2 + 32, dtype=torch.int64), 32)
    kv_move.keep(pool, held.path, facts, triton.next_power_of_2(LONGEST))
    shape = shape_of_one(rows, LENGTHS[0], -(-rows // 64), True, heads, rows > 1)
    inputs: Any = SimpleNamespace(on_device=torch.zeros(shape.size + rows * 2, dtype=torch.int64))
    place(held.rows, facts, inputs, shape)


def a_batch_verdict(sizes: ModelSizes, builder: Any) -> None:
    """Launch the kernels between two rounds of several requests on the device."""
    from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
    from sapwood.backends.torch.cuda.kernels.attention_tiles import HeadSizes
    from sapwood.backends.torch.cuda.rounds import round_kernels
    from sapwood.backends.torch.cuda.rounds.round_reference import ARGS, CARRY
    from sapwood.backends.torch.cuda.tree_rows import shape_of_trees

    def words(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int64)

    draft = builder.batch(REQUESTS)
    each = 8  # rows of a request
    rows = REQUESTS * each
    args, carry, live = words(REQUESTS, ARGS), words(REQUESTS, CARRY), words(1)
    given, fields = draft.args, draft.fields
    features = draft.hidden_states.new_zeros(REQUESTS, MAX_NEW_ROWS, draft.hidden_states.shape[1])
    states = [torch.empty(rows, sizes.width, dtype=sizes.dtype) for _ in range(3)]
    heads = HeadSizes(sizes.queries, sizes.keys, sizes.head_width)
    shape = shape_of_trees(rows, LENGTHS[0], True, heads, sparse=False)
    pool = torch.empty(2, 1, LENGTHS[0], heads.keys, heads.width, dtype=sizes.dtype)
    heat = torch.ones(rows, dtype=torch.float64)
    round_kernels.take_args(args, carry, given.scalars, given.tokens, given.roots)
    round_kernels.take_features(args, features, draft.hidden_states)
    inputs = words(shape.size + rows)
    round_kernels.place_trees(fields, given.scalars, live, inputs, shape, each, whole=True)
    round_kernels.noise_keys(args, fields, given.scalars, words(rows), heat, each)
    round_kernels.walk_trees(fields, words(rows), live, each)
    round_kernels.keep_paths(pool, fields, given.scalars, live)
    round_kernels.carry_over(fields, given.scalars, live, carry)
    round_kernels.carry_features(fields, states, live, features, each)


def needs(kernel: Any) -> tuple[str, str]:
    """Registers of a thread, and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", usage) for name in ("REG", "STACK"))
    return registers.group(1) if registers else "?", stack.group(1) if stack else "?"


def name_of(kernel: Any) -> str:
    """Module and function of a kernel."""
    return f"{kernel.src.fn.module.rpartition('.')[2]}.{kernel.metadata.name}"


def a_round(rows: int, sizes: ModelSizes) -> None:
    """Launch every kernel of a round once: pass, draft and what is between them."""
    with torch.inference_mode():
        a_pass(rows, sizes)
        if not sizes.drafted:
            return
        a_quantised_pass(rows, sizes)
        builder = a_draft(sizes)
        a_verdict(rows, sizes, builder)
        a_batch_verdict(sizes, builder)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments of the command line."""
    parser = argparse.ArgumentParser(description="Compile the CUDA kernels of a round.")
    parser.add_argument("--capability", choices=SHARED, default="9.0")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of a pass")
    parser.add_argument("--models", choices=MODELS, nargs="+", default=tuple(MODELS))
    about = "of the variants of each kernel those of one of several parts, at least one"
    parser.add_argument("--part", type=int, nargs=2, metavar=("NUMBER", "PARTS"), help=about)
    return parser.parse_args(given)


def main() -> int:
    """Compile the kernels and print their resource use; the number of those that do not fit."""
    asked = arguments()
    limit = SHARED[asked.capability] << 10
    found = imagine(asked.capability)
    rounds = [(model, rows) for model in asked.models for rows in asked.rows]
    if asked.part:
        every = count_variants(lambda: [a_round(rows, MODELS[model]) for model, rows in rounds])
        share(*asked.part, every)
    failed = 0
    for model, rows in rounds:
        done = len(found)
        a_round(rows, MODELS[model])
        for kernel in found[done:]:
            facts, (registers, stack) = kernel.metadata, needs(kernel)
            line = f"{name_of(kernel):36s} {model:8s} rows {rows:3d} warps {facts.num_warps}"
            line += f" stages {facts.num_stages} shared {facts.shared:6d}"
            line += f" registers {registers:>3s} stack {stack}"
            fits = facts.shared <= limit and int(stack) <= STACK
            failed += not fits
            sys.stdout.write(line + ("\n" if fits else " DOES NOT FIT\n"))
            sys.stdout.flush()
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
