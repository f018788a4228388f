"""Every kernel of the CUDA path against arithmetic in float64; on a machine without CUDA in Triton's interpreter."""

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.triton_mode import DEVICE, require

require()

from sapwood.backends.torch.cuda.kernels import launch
from sapwood.backends.torch.cuda.kernels.linear import project
from sapwood.backends.torch.cuda.kernels.pointwise import add_normed, best_tokens, embed_rows
from sapwood.backends.torch.cuda.kernels.prenorm import LEFT, NormBuffers, NormScale, PrenormRows
from sapwood.backends.torch.cuda.kernels.qkv import HeadSizes, project_heads
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig

CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest output
DTYPES = pytest.mark.parametrize("dtype", CLOSE, ids=str)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def close(found: Tensor, wanted: Tensor) -> None:
    gap = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert gap <= CLOSE[found.dtype], f"off by {gap:.2g} of the largest"


def normalised(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.double()


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, device=DEVICE, dtype=dtype)


def stream(x: Tensor, norm: Tensor, eps: float) -> PrenormRows:
    """Rows on their way into a norm, with room beside them that holds nothing yet."""
    norm_buffers = NormBuffers.make(x, len(x) + 3, x.shape[1])
    norm_buffers.scaled.fill_(torch.nan)
    norm_buffers.squares.fill_(1 << 40)
    return PrenormRows(x, NormScale.of(norm, eps), norm_buffers)


def projected(x: Tensor | PrenormRows, weight: Tensor, out: Tensor, **options: Any) -> Tensor:
    project(x, weight, out, **options)
    return out


@pytest.mark.parametrize(("m", "n", "k"), [(1, 32, 64), (7, 40, 48), (17, 21, 80), (33, 16, 16)])
@DTYPES
def test_project_is_a_matrix_product(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(m)
    x = random(m, k, dtype=dtype)
    weight = random(n, k, dtype=dtype)
    out = projected(x, weight, poisoned(m, n, dtype=dtype))
    close(out, x.double() @ weight.double().T)


@pytest.mark.parametrize(
    ("norm", "bias", "residual", "gate"), [c for c in itertools.product((0, 1), repeat=4) if sum(c)]
)
@DTYPES
def test_project_does_all_of_a_layers_arithmetic(
    norm: int, bias: int, residual: int, gate: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    m = 5
    n = 24
    k = 72
    eps = 1e-3
    x = random(m, k, dtype=dtype)
    weight = random(2 * n if gate else n, k, dtype=dtype)
    options: dict[str, Any] = {}
    wide = x.double()
    scale = random(k, dtype=dtype)
    shift = random(len(weight), dtype=dtype)
    base = random(m, n, dtype=dtype)
    if norm:
        wide = normalised(x, scale, eps)
    wanted = wide @ weight.double().T
    if bias:
        options["bias"] = shift
        wanted = wanted + shift.double()
    if gate:
        wanted = torch.nn.functional.silu(wanted[:, :n]) * wanted[:, n:]
    if residual:
        options["residual"] = base
        wanted = wanted + base.double()
    rows = stream(x, scale, eps) if norm else x
    close(projected(rows, weight, poisoned(m, n, dtype=dtype), gate=bool(gate), **options), wanted)


@DTYPES
def test_a_gate_may_be_gelu_and_outputs_may_be_capped(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = random(5, 48, dtype=dtype)
    weight = random(32, 48, dtype=dtype) / 4
    made = x.double() @ weight.double().T
    capped = projected(x, weight, poisoned(5, 32, dtype=dtype), cap=3.0)
    close(capped, 3 * (made / 3).tanh())
    gated = torch.nn.functional.gelu(made[:, :16], approximate="tanh") * made[:, 16:]
    out = poisoned(5, 16, dtype=dtype)
    close(projected(x, weight, out, gate=True, activation="gelu_pytorch_tanh"), gated)


@pytest.mark.parametrize("leaves", [False, True])
@DTYPES
def test_a_norm_of_outputs_is_added_to_the_rows_before(leaves: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    made = random(4, 40, dtype=dtype)
    base = random(4, 40, dtype=dtype)
    after = random(40)
    rows = stream(poisoned(4, 40, dtype=dtype), random(40, dtype=dtype), 1e-3)
    add_normed(made, after, base, rows, leaves=leaves)
    close(rows.x, base.double() + normalised(made, after, 1e-3))
    assert rows.parts == leaves
    out = projected(rows, weight := random(24, 40, dtype=dtype), poisoned(4, 24, dtype=dtype))
    close(out, normalised(rows.x, rows.scale.norm * rows.scale.lift, 1e-3) @ weight.double().T)


@pytest.mark.parametrize("split", [2, 3, 5])
@pytest.mark.parametrize("gate", [False, True])
def test_programs_that_share_inputs_agree_on_the_sum(split: int, gate: bool) -> None:
    torch.manual_seed(split)
    m = 19
    n = 24
    k = 200
    x = random(m, k)
    weight = random(2 * n if gate else n, k)
    residual = random(m, n)
    wanted = x.double() @ weight.double().T
    if gate:
        wanted = torch.nn.functional.silu(wanted[:, :n]) * wanted[:, n:]
    wanted = wanted + residual.double()
    for _ in range(2):  # the second time shows whether the counters were put back
        out = residual.clone()
        close(
            projected(
                x, weight, out, residual=out, gate=gate, plan=TileConfig(16, 16, 32), split=split
            ),
            wanted,
        )


@pytest.mark.parametrize(
    ("plan", "split"),
    [(TileConfig(16, 16, 32), 1), (TileConfig(16, 16, 32), 3), (TileConfig(32, 64, 16), 2)],
    ids=str,
)
@pytest.mark.parametrize("n", [40, 16 * LEFT + 5], ids=["few parts", "more parts than are left"])
@DTYPES
def test_a_norm_is_shared_by_the_product_before_it_and_the_one_behind(
    plan: TileConfig, split: int, n: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    m = 19
    k = 72
    eps = 1e-3
    x = random(m, k, dtype=dtype)
    first = random(n, k, dtype=dtype) / 8
    second = random(24, n, dtype=dtype)
    base = random(m, n, dtype=dtype)
    norm = 3 * random(n, dtype=dtype)
    middle = stream(poisoned(m, n, dtype=dtype), norm, eps)
    project(x, first, middle, residual=base, plan=plan, split=split)
    close(middle.x, x.double() @ first.double().T + base.double())
    tiles = -(-n // plan.outputs)
    assert middle.parts == (tiles if tiles <= LEFT else 0)
    out = projected(middle, second, poisoned(m, 24, dtype=dtype), plan=TileConfig(16, 16, 32))
    close(out, normalised(middle.x, norm, eps) @ second.double().T)


@DTYPES
def test_a_pass_begins_with_rows_of_a_table_and_angles_of_their_positions(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(4)
    table = random(50, 40, dtype=dtype)
    norm = random(40, dtype=dtype)
    lines = torch.tensor([7, 0, 7, 49], device=DEVICE)
    before = torch.tensor([3, 49], device=DEVICE)
    given = torch.tensor([7, 0, 7, -2], device=DEVICE)  # the last one is in `before`
    rows = stream(poisoned(4, 40, dtype=dtype), norm, 1e-3)
    angles = torch.rand(9, 24, device=DEVICE)  # of two kinds of layers
    positions = torch.tensor([8, 0, 3, 3], device=DEVICE)
    turns = torch.zeros(2, 6, 12, device=DEVICE)
    embed_rows(rows, table, given, before, angles, positions, turns)
    for found, part in zip(turns, angles.chunk(2, 1), strict=True):
        assert torch.equal(found, torch.cat((part[positions], turns.new_zeros(2, 12))))
    assert torch.equal(rows.x, table[lines])
    close(rows.norm_buffers.scaled[:4], table[lines].double() * rows.scale.norm.double())
    unit = 2.0**-20 if dtype is torch.bfloat16 else 2.0**-24
    found = (rows.norm_buffers.squares[0, :4].double() * unit).float()
    close(found, table[lines].double().square().sum(1))
    embed_rows(rows, table, given, before, angles, positions, turns, 5.5)
    close(rows.x, table[lines].double() * 5.5)


# ---------------------------------------------------------------------------- queries, keys, values
def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of heads [m, heads, width] by angles [m, width / 2]."""
    low, high = x.chunk(2, -1)
    cosine = angles.cos()[:, None]
    sine = angles.sin()[:, None]
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


@pytest.mark.parametrize(
    ("m", "heads", "plan", "extra"),
    [
        (1, HeadSizes(4, 2, 16), None, ()),
        (5, HeadSizes(3, 1, 20), None, ("bias",)),
        (17, HeadSizes(2, 2, 12), TileConfig(16, 16, 32), ("norms",)),
        (3, HeadSizes(3, 3, 64), TileConfig(16, 16, 32), ("bias",)),
        (4, HeadSizes(4, 2, 24), TileConfig(16, 32, 16), ("bias", "norms")),
    ],
)
@DTYPES
def test_heads_are_projected_turned_and_kept(
    m: int, heads: HeadSizes, plan: TileConfig | None, extra: tuple[str, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(m)
    k = 48
    eps = 1e-3
    slots = 40
    width = heads.width
    x = random(m, k, dtype=dtype)
    weight = random(heads.all * width, k, dtype=dtype)
    norm = random(k, dtype=dtype)
    bias = random(heads.all * width, dtype=dtype) if "bias" in extra else None
    norms = [random(width, dtype=dtype) if "norms" in extra else None for _ in range(2)]
    rates = torch.rand(width // 2, device=DEVICE, dtype=torch.float64)
    places = torch.arange(slots, device=DEVICE)[:, None] * rates
    angles = torch.cat((places.cos(), places.sin()), -1).float()
    positions = torch.randint(slots, (m,), device=DEVICE)
    where = torch.randperm(slots, device=DEVICE)[:m]
    where[m // 2 :: 3] = -1  # rows that are not kept
    queries = poisoned(m, heads.queries, width, dtype=dtype)
    planes = poisoned(2, slots, heads.keys, width, dtype=dtype)
    project_heads(
        stream(x, norm, eps), weight, queries, planes, heads=heads, angles=angles[positions], slots=where,
        bias=bias, query_norm=norms[0], key_norm=norms[1], plan=plan,
    )  # fmt: skip
    made = normalised(x, norm, eps) @ weight.double().T
    if bias is not None:
        made = made + bias.double()
    ends = heads.queries, heads.queries + heads.keys
    parts = list(made.view(m, -1, width).tensor_split(ends, 1))
    for i, head_norm in enumerate(norms):
        parts[i] = parts[i] if head_norm is None else normalised(parts[i], head_norm, eps)
        parts[i] = turned(parts[i], positions[:, None] * rates)
    close(queries, parts[0])
    kept = where >= 0
    if kept.any():
        close(planes[0, where[kept]], parts[1][kept])
        close(planes[1, where[kept]], parts[2][kept])
    others = torch.ones(slots, dtype=torch.bool, device=DEVICE)
    others[where[kept]] = False
    assert planes[:, others].isnan().all(), "a slot that nobody named was written"


# ------------------------------------------------------------------------------------------
# pointwise
@pytest.mark.parametrize("vocab", [61, 5000])
@DTYPES
def test_the_best_token_is_the_lowest_of_equals(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = random(3, vocab, dtype=dtype)
    logits[0, 17] = logits[0, vocab - 1] = 50.0
    logits[1] = 1.0
    best = best_tokens(logits, torch.full((3,), -1, device=DEVICE))
    assert best.tolist() == [17, 0, int(logits[2].argmax())]


# ------------------------------------------------------------------------------ one after the other
EARLY = {
    "attention.py": "_attend",
    "draft_kernels.py": "_attend",
}  # read what was written several kernels before


def test_every_kernel_waits_for_the_one_before() -> None:
    """Kernels may be launched while others run: what is read before the wait may not be there yet."""
    parts = [
        (file.name, part)
        for file in Path(launch.__file__).parents[1].rglob("*.py")
        for part in jitted(file)
    ]
    touching = {
        part.name for _, part in parts if {"tl.load", "tl.store", "tl.atomic_add"} & {*calls(part)}
    }
    kernels = [(file, part) for file, part in parts if part.name.startswith("_")]
    for file, part in kernels:
        before = list(itertools.takewhile(lambda line: ast.unparse(line) != "wait()", part.body))
        assert len(before) < len(part.body), f"{part.name} of {file} does not wait"
        early = {name for line in before for name in calls(line)} & {
            "tl.load",
            "tl.store",
            "tl.atomic_add",
            *touching,
        }
        allowed = (
            {"tl.load", "block_fields", "taken", "loaded", "path_nodes"}
            if EARLY.get(file) == part.name
            else set()
        )
        assert early <= allowed, f"{part.name} of {file} reads or writes before it waits"
    assert len(kernels) > 20


def jitted(file: Path) -> list[ast.FunctionDef]:
    """The functions of a file that Triton compiles."""
    found = [
        part for part in ast.walk(ast.parse(file.read_text())) if isinstance(part, ast.FunctionDef)
    ]
    return [part for part in found if "triton.jit" in decorators(part)]


def calls(part: ast.AST) -> list[str]:
    """The names that are called somewhere in it."""
    return [ast.unparse(call.func) for call in ast.walk(part) if isinstance(call, ast.Call)]


def decorators(part: ast.FunctionDef) -> str:
    return " ".join(ast.unparse(line) for line in part.decorator_list)
