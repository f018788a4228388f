"""Products with weights in 8 and 4 bits against float64; without CUDA in Triton's interpreter."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sapwood.backends.torch import quant_weight
from sapwood.backends.torch.quant_weight import QuantWeight
from tests.helpers import quant_weights
from tests.helpers.triton_mode import CUDA, DEVICE, require

require()

from sapwood.backends.torch.cuda.kernels.linear import project
from sapwood.backends.torch.cuda.kernels.prenorm import NormBuffers, NormScale, PrenormRows
from sapwood.backends.torch.cuda.kernels.qkv import HeadSizes, project_heads
from sapwood.backends.torch.cuda.kernels.quant_product import plan_for
from sapwood.backends.torch.cuda.kernels.tile_configs import TileConfig

CLOSE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}  # of the largest output
FORMS = pytest.mark.parametrize("form", quant_weights.MAKERS)


def random(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def made(form: str, n: int, k: int) -> QuantWeight:
    return quant_weights.MAKERS[form](n, k).to(torch.device(DEVICE))


def close(found: Tensor, wanted: Tensor) -> None:
    gap = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert gap <= CLOSE[found.dtype], f"off by {gap:.2g} of the largest"


def same_bits(one: Tensor, two: Tensor) -> None:
    """Equal on a device; the interpreter's products are numpy's, whose sums go by their shape."""
    if CUDA:
        assert torch.equal(one, two)
    else:
        close(one, two.double())


def restored(weight: QuantWeight, dtype: torch.dtype) -> Tensor:
    """The weights as the kernel multiplies them; scales of rows are applied behind the sums."""
    wide = weight.floats()
    return (wide if weight.form == quant_weight.ROWS8 else wide.to(dtype)).double()


@FORMS
@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [(3, 40, 128, torch.float16), (17, 21, 256, torch.float16), (1, 32, 384, torch.bfloat16)],
    ids=str,
)
def test_a_product_is_that_of_the_restored_weights(
    form: str, m: int, n: int, k: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(m)
    x = random(m, k, dtype=dtype)
    weight = made(form, n, k)
    out = torch.full((m, n), torch.nan, device=DEVICE, dtype=dtype)
    project(x, weight, out)
    close(out, x.double() @ restored(weight, dtype).T)


@pytest.mark.parametrize("k", [48, 72, 200])
@pytest.mark.parametrize("form", ["int8", "minimum4x32", "signed8x32"])
def test_inputs_need_not_fill_a_block(form: str, k: int) -> None:
    torch.manual_seed(k)
    x = random(5, k)
    weight = made(form, 24, k)
    out = torch.full((5, 24), torch.nan, device=DEVICE, dtype=x.dtype)
    project(x, weight, out, plan=TileConfig(16, 16, 64))
    close(out, x.double() @ restored(weight, x.dtype).T)


@FORMS
def test_a_norm_a_gate_a_residual_and_parts_work_as_with_plain_weights(form: str) -> None:
    torch.manual_seed(1)
    m, n, k = 5, 24, 384
    x, residual = random(m, k), random(m, n)
    norm = torch.rand(k, device=DEVICE).half() + 0.5
    weight = made(form, 2 * n, k)
    wide = x.double()
    wide = wide * (wide.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * norm.double()
    wanted = wide @ restored(weight, x.dtype).T
    wanted = torch.nn.functional.silu(wanted[:, :n]) * wanted[:, n:] + residual.double()
    rows = PrenormRows(x, NormScale.of(norm, 1e-3), NormBuffers.make(x, m, k))
    out = residual.clone()
    project(rows, weight, out, residual=out, gate=True, plan=TileConfig(16, 16, 64), split=3)
    close(out, wanted)


@FORMS
def test_queries_keys_and_values_are_those_of_the_restored_weights(form: str) -> None:
    torch.manual_seed(2)
    heads, k, m = HeadSizes(4, 2, 16), 128, 5
    x = random(m, k)
    weight = made(form, heads.all * heads.width, k)
    scale = NormScale.of(torch.ones(k, device=DEVICE).half(), 1e-3)
    angles = torch.rand(m, heads.width, device=DEVICE)
    slots = torch.arange(m, device=DEVICE)
    found = []
    for some in (weight, restored(weight, x.dtype).half()):
        queries = random(m, heads.queries, heads.width)
        planes = random(2, m, heads.keys, heads.width)
        rows = PrenormRows(x, scale, NormBuffers.make(x, m, k))
        project_heads(rows, some, queries, planes, heads=heads, angles=angles, slots=slots)
        found.append((queries, planes))
    for one, two in zip(*found, strict=True):
        close(one, two.double())


@FORMS
def test_a_row_has_the_same_bits_for_any_number_of_rows_and_any_tile(form: str) -> None:
    torch.manual_seed(3)
    x = random(33, 384)
    weight = made(form, 40, 384)
    outs = []
    for m, plan in itertools.product(
        (1, 33), (TileConfig(16, 16, 128), TileConfig(64, 32, 128), TileConfig(16, 64, 128))
    ):
        out = random(m, 40)
        project(x[:m].contiguous(), weight, out, plan=plan)
        outs.append(out)
    for out in outs[1:]:
        same_bits(out[0], outs[0][0])
        same_bits(out, outs[-1][: len(out)])


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: quant_weights.zero4(8, 1024, 256), 128),
        (lambda: quant_weights.zero4(8, 384, 96), 32),
        (lambda: quant_weights.zero4(8, 384, 128), 512),
        (lambda: quant_weights.minimum4(8, 384, 32), 512),
    ],
)
def test_steps_of_a_product_begin_with_a_group_or_lie_within_one(
    make: Callable[[], QuantWeight], wanted: int
) -> None:
    weight = make().to(torch.device(DEVICE))
    assert plan_for(1, weight, "plain", TileConfig(16, 16, 512)).inputs == wanted
    torch.manual_seed(4)
    x = random(2, weight.inputs)
    out = random(2, 8)
    project(x, weight, out, plan=TileConfig(16, 16, 512), split=2)
    close(out, x.double() @ restored(weight, x.dtype).T)
