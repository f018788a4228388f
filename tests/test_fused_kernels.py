"""Every kernel of the CUDA path against arithmetic in float64; on a machine without CUDA in Triton's interpreter."""

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.interpreted import DEVICE, require

require()

from sapwood.backends.torch.fused import launch  # noqa: E402
from sapwood.backends.torch.fused.attention import Cut, attend  # noqa: E402
from sapwood.backends.torch.fused.kernels import project  # noqa: E402
from sapwood.backends.torch.fused.plans import LIBRARY, Plan  # noqa: E402
from sapwood.backends.torch.fused.pointwise import best_tokens, enter  # noqa: E402
from sapwood.backends.torch.fused.qkv import Heads, project_heads  # noqa: E402
from sapwood.backends.torch.fused.stream import LEFT, Margin, Scale, Stream  # noqa: E402

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


def stream(x: Tensor, norm: Tensor, eps: float) -> Stream:
    """Rows on their way into a norm, with room beside them that holds nothing yet."""
    margin = Margin.make(x, len(x) + 3, x.shape[1])
    margin.scaled.fill_(torch.nan)
    margin.squares.fill_(torch.nan)
    return Stream(x, Scale.of(norm, eps), margin)


def projected(x: Tensor | Stream, weight: Tensor, out: Tensor, **options: Any) -> Tensor:
    project(x, weight, out, **options)
    return out


@pytest.mark.parametrize(("m", "n", "k"), [(1, 32, 64), (7, 40, 48), (17, 21, 80), (33, 16, 16)])
@DTYPES
def test_project_is_a_matrix_product(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    torch.manual_seed(m)
    x, weight = random(m, k, dtype=dtype), random(n, k, dtype=dtype)
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
    m, n, k, eps = 5, 24, 72, 1e-3
    x, weight = random(m, k, dtype=dtype), random(2 * n if gate else n, k, dtype=dtype)
    options: dict[str, Any] = {}
    wide, scale, shift, base = x.double(), random(k, dtype=dtype), random(n, dtype=dtype), random(m, n, dtype=dtype)
    if norm:
        wide = normalised(x, scale, eps)
    wanted = wide @ weight.double().T
    if gate:
        wanted = torch.nn.functional.silu(wanted[:, :n]) * wanted[:, n:]
    if bias:
        options["bias"] = shift
        wanted = wanted + shift.double()
    if residual:
        options["residual"] = base
        wanted = wanted + base.double()
    rows = stream(x, scale, eps) if norm else x
    close(projected(rows, weight, poisoned(m, n, dtype=dtype), gate=bool(gate), **options), wanted)


@pytest.mark.parametrize("split", [2, 3, 5])
@pytest.mark.parametrize("gate", [False, True])
def test_programs_that_share_inputs_agree_on_the_sum(split: int, gate: bool) -> None:
    torch.manual_seed(split)
    m, n, k = 19, 24, 200
    x, weight, residual = random(m, k), random(2 * n if gate else n, k), random(m, n)
    wanted = x.double() @ weight.double().T
    if gate:
        wanted = torch.nn.functional.silu(wanted[:, :n]) * wanted[:, n:]
    wanted = wanted + residual.double()
    for _ in range(2):  # the second time shows whether the counters were put back
        out = residual.clone()
        close(projected(x, weight, out, residual=out, gate=gate, plan=Plan(16, 16, 32, split=split)), wanted)


@pytest.mark.parametrize("options", [(), ("norm",), ("bias",), ("residual",), ("gate",), ("norm", "gate", "residual")])
def test_the_library_computes_the_same(options: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    m, n, k = 3, 24, 40
    x, weight = random(m, k), random(2 * n if "gate" in options else n, k)
    given: dict[str, Any] = {"bias": random(n), "residual": random(m, n), "gate": True}
    given = {name: value for name, value in given.items() if name in options}
    rows = stream(x, random(k), 1e-2) if "norm" in options else x
    wanted = projected(rows, weight, poisoned(m, n, dtype=x.dtype), **given)
    close(projected(rows, weight, poisoned(m, n, dtype=x.dtype), plan=LIBRARY, **given), wanted.double())


@pytest.mark.parametrize("plan", [Plan(16, 16, 32), Plan(16, 16, 32, split=3), LIBRARY], ids=str)
@pytest.mark.parametrize("n", [40, 16 * LEFT + 5], ids=["few parts", "more parts than are left"])
@DTYPES
def test_a_norm_is_shared_by_the_product_before_it_and_the_one_behind(plan: Plan, n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    m, k, eps = 19, 72, 1e-3
    x, first, second = random(m, k, dtype=dtype), random(n, k, dtype=dtype) / 8, random(24, n, dtype=dtype)
    base, norm = random(m, n, dtype=dtype), 3 * random(n, dtype=dtype)
    middle = stream(poisoned(m, n, dtype=dtype), norm, eps)
    project(x, first, middle, residual=base, plan=plan)
    close(middle.x, x.double() @ first.double().T + base.double())
    assert middle.parts == (0 if plan.library or n > 16 * LEFT else -(-n // 16))
    out = projected(middle, second, poisoned(m, 24, dtype=dtype), plan=Plan(16, 16, 32))
    close(out, normalised(middle.x, norm, eps) @ second.double().T)


@DTYPES
def test_a_pass_begins_with_rows_of_a_table_and_angles_of_their_positions(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    table, norm, lines = (
        random(50, 40, dtype=dtype),
        random(40, dtype=dtype),
        torch.tensor([7, 0, 7, 49], device=DEVICE),
    )
    rows = stream(poisoned(4, 40, dtype=dtype), norm, 1e-3)
    angles, positions = torch.rand(9, 12, device=DEVICE), torch.tensor([8, 0, 3, 3], device=DEVICE)
    turns = torch.zeros(6, 12, device=DEVICE)
    enter(rows, table, lines, angles, positions, turns)
    assert torch.equal(turns, torch.cat((angles[positions], turns.new_zeros(2, 12))))
    assert torch.equal(rows.x, table[lines])
    close(rows.margin.scaled[:4], table[lines].double() * rows.scale.norm.double())
    close(rows.margin.squares[0, :4], table[lines].double().square().sum(1))


# -------------------------------------------------------------------------------- queries, keys, values
def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of heads [m, heads, width] by angles [m, width / 2]."""
    low, high = x.chunk(2, -1)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


@pytest.mark.parametrize(
    ("m", "heads", "plan", "extra"),
    [
        (1, Heads(4, 2, 16), None, ()),
        (5, Heads(3, 1, 20), None, ("bias",)),
        (17, Heads(2, 2, 12), Plan(16, 16, 32), ("norms",)),
        (3, Heads(3, 3, 64), Plan(16, 16, 32), ("bias",)),
        (4, Heads(4, 2, 24), LIBRARY, ("bias", "norms")),
    ],
)
@DTYPES
def test_heads_are_projected_turned_and_kept(
    m: int, heads: Heads, plan: Plan | None, extra: tuple[str, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(m)
    k, eps, slots, width = 48, 1e-3, 40, heads.width
    x, weight, norm = random(m, k, dtype=dtype), random(heads.all * width, k, dtype=dtype), random(k, dtype=dtype)
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


# ------------------------------------------------------------------------------------------ attention
def words_of(mask: Tensor, words: int) -> Tensor:
    """Bits of a mask [rows, nodes], [rows, words]."""
    found = np.zeros((len(mask), words), np.uint64)
    for row, column in mask.nonzero().tolist():
        found[row, column // 64] |= np.uint64(1) << np.uint64(column % 64)
    return torch.from_numpy(found.view(np.int64)).to(DEVICE)


def random_parents(nodes: int, rng: np.random.Generator) -> list[int]:
    return [-1, *(int(rng.integers(max(0, node - 9), node)) for node in range(1, nodes))]


def ancestry(parents: list[int]) -> Tensor:
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        mask[node] |= mask[parent] if parent >= 0 else False
    return mask


@pytest.mark.parametrize(
    ("lengths", "nodes", "heads", "cut", "window"),
    [
        ([7], [1], Heads(4, 2, 16), Cut(4), 0),
        ([0], [5], Heads(3, 1, 20), Cut(4), 0),
        ([33, 0, 5], [9, 1, 3], Heads(6, 2, 8), Cut(4, step=16), 0),
        ([70], [70], Heads(2, 2, 16), Cut(16, step=32), 0),
        ([50, 3], [4, 2], Heads(4, 2, 16), Cut(4, splits=4, step=16), 0),
        ([50], [12], Heads(4, 4, 16), Cut(4, step=16, tail=16), 9),
        ([41], [3], Heads(4, 1, 16), Cut(4, splits=2, step=16), 6),
    ],
)
@DTYPES
def test_a_row_sees_its_text_and_its_ancestors(
    lengths: list[int], nodes: list[int], heads: Heads, cut: Cut, window: int, dtype: torch.dtype
) -> None:
    rng, slots = np.random.default_rng(0), 160
    torch.manual_seed(0)
    planes = random(2, len(lengths), slots, heads.keys, heads.width, dtype=dtype)
    m, count = sum(nodes), 2
    queries, scale = random(m, heads.queries, heads.width, dtype=dtype), 0.3
    blocks, masks, depths, wanted, first = [], [], [], [], 0
    for seat, (length, tree) in enumerate(zip(lengths, nodes, strict=True)):
        mask = ancestry(random_parents(tree, rng))
        depth = mask.sum(1) - 1
        if window:
            mask &= depth[:, None] - depth[None, :] < window
        cuts = [(first + start, min(cut.rows, tree - start)) for start in range(0, tree, cut.rows)]
        blocks += [[seat * slots, length, row, held, tree] for row, held in cuts]
        masks.append(words_of(mask, count))
        depths.append(depth + length)
        old = torch.arange(length)[None, :] > (depth + length)[:, None] - (window or 10**6)
        seen = torch.cat((old, mask), 1).to(DEVICE)
        keys, values = (part.double().repeat_interleave(heads.queries // heads.keys, 1) for part in
                        planes[:, seat, : length + tree])  # fmt: skip
        scores = torch.einsum("mhd,nhd->hmn", queries[first : first + tree].double(), keys) * scale
        law = scores.masked_fill(~seen[None], -torch.inf).softmax(-1)
        wanted.append(torch.einsum("hmn,nhd->mhd", law, values))
        first += tree
    blocks.append([0, 0, 0, 0, 0])  # one that is not used
    out = poisoned(m, heads.queries, heads.width, dtype=dtype)
    attend(
        queries, planes, out, heads=heads, blocks=torch.tensor(blocks, device=DEVICE).T.contiguous(),
        words=torch.cat(masks), positions=torch.cat(depths).to(DEVICE), scale=scale, cut=cut, window=window,
    )  # fmt: skip
    close(out, torch.cat(wanted))


# ------------------------------------------------------------------------------------------ pointwise
@pytest.mark.parametrize("vocab", [61, 5000])
@DTYPES
def test_the_best_token_is_the_lowest_of_equals(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = random(3, vocab, dtype=dtype)
    logits[0, 17] = logits[0, vocab - 1] = 50.0
    logits[1] = 1.0
    best = best_tokens(logits, torch.full((3,), -1, device=DEVICE))
    assert best.tolist() == [17, 0, int(logits[2].argmax())]


# ------------------------------------------------------------------------------------- one after the other
EARLY = {"attention.py": "_attend", "level.py": "_attend"}  # read what was written several kernels before


def test_every_kernel_waits_for_the_one_before() -> None:
    """Kernels may be launched while others run: what is read before the wait may not be there yet."""
    parts = [(file.name, part) for file in Path(launch.__file__).parent.glob("*.py") for part in jitted(file)]
    touching = {part.name for _, part in parts if {"tl.load", "tl.store", "tl.atomic_add"} & {*calls(part)}}
    kernels = [(file, part) for file, part in parts if part.name.startswith("_")]
    for file, part in kernels:
        before = list(itertools.takewhile(lambda line: ast.unparse(line) != "wait()", part.body))
        assert len(before) < len(part.body), f"{part.name} of {file} does not wait"
        early = {name for line in before for name in calls(line)} & {"tl.load", "tl.store", "tl.atomic_add", *touching}
        allowed = {"tl.load", "told", "taken"} if EARLY.get(file) == part.name else set()
        assert early <= allowed, f"{part.name} of {file} reads or writes before it waits"
    assert len(kernels) > 20


def jitted(file: Path) -> list[ast.FunctionDef]:
    """The functions of a file that Triton compiles."""
    found = [part for part in ast.walk(ast.parse(file.read_text())) if isinstance(part, ast.FunctionDef)]
    return [part for part in found if "triton.jit" in decorators(part)]


def calls(part: ast.AST) -> list[str]:
    """The names that are called somewhere in it."""
    return [ast.unparse(call.func) for call in ast.walk(part) if isinstance(call, ast.Call)]


def decorators(part: ast.FunctionDef) -> str:
    return " ".join(ast.unparse(line) for line in part.decorator_list)
