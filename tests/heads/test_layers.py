"""The blocks that all heads share, against single numbers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.core.array_types import BoolArray
from sapwood.heads.layers import (
    FEW,
    Attention,
    GatedMLP,
    LayerShape,
    RMSNorm,
    head_logits,
    output_logits,
    rotate,
)

SHAPE = LayerShape(width=6, heads=4, kv_heads=2, head_width=4, inner=10, theta=100.0)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 2, FEW, FEW + 1])
def test_logits_are_the_same_by_rows_and_by_columns(rows: int) -> None:
    states, output = noise(rows, 6), noise(9, 6, seed=1)
    found = output_logits(states, output)
    assert found.shape == (rows, 9)
    assert found.is_contiguous()
    assert torch.allclose(found, states @ output.T, atol=1e-5)


def test_logits_keep_leading_sizes() -> None:
    states, output = noise(2, 3, 6), noise(9, 6, seed=1)
    assert output_logits(states, output).shape == (2, 3, 9)
    assert torch.allclose(output_logits(states, output), states @ output.T, atol=1e-5)


def test_any_module_can_be_an_output_head() -> None:
    linear = torch.nn.Linear(6, 9, bias=False)
    states = noise(3, 6)
    assert torch.allclose(head_logits(linear, states), linear(states), atol=1e-5)
    double = torch.nn.Sequential(linear, torch.nn.Flatten(1))
    assert torch.equal(head_logits(double, states), double(states))


def test_a_norm_follows_the_inputs_precision() -> None:
    norm = RMSNorm(6, 1e-5)
    torch.nn.init.normal_(norm.weight)
    x = noise(2, 6)
    wanted = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    assert torch.allclose(norm(x), wanted, atol=1e-5)
    assert norm(x.bfloat16()).dtype == torch.bfloat16


def test_rotation_turns_pairs_by_their_position() -> None:
    x = noise(2, 3, 4)  # heads, rows, width
    positions = torch.tensor([0, 3, 17])
    found = rotate(x, positions, 100.0)
    for head in range(2):
        for row, position in enumerate(positions.tolist()):
            for pair in range(2):
                angle = position * 100.0 ** (-pair / 2)
                low, high = float(x[head, row, pair]), float(x[head, row, pair + 2])
                turned = found[head, row]
                assert float(turned[pair]) == pytest.approx(
                    low * math.cos(angle) - high * math.sin(angle), abs=1e-5
                )
                assert float(turned[pair + 2]) == pytest.approx(
                    high * math.cos(angle) + low * math.sin(angle), abs=1e-5
                )


def test_products_of_rotated_rows_depend_on_their_distance() -> None:
    query, key = noise(1, 1, 4), noise(1, 1, 4, seed=1)
    products = [
        float(
            (
                rotate(query, torch.tensor([at + 5]), 100.0)
                * rotate(key, torch.tensor([at]), 100.0)
            ).sum()
        )
        for at in (0, 3, 40)
    ]
    assert products == pytest.approx([products[0]] * 3, abs=1e-4)


def loop_attention(attention: Attention, x: Tensor, seen: BoolArray) -> Tensor:
    """Attention row by row, head by head."""
    rows = x.shape[1]
    query, key, value = attention.project(x, torch.arange(rows)[None])
    read = torch.zeros(rows, SHAPE.heads * SHAPE.head_width)
    for row in range(rows):
        keys = np.flatnonzero(seen[row]).tolist()
        for head in range(SHAPE.heads):
            group = head // (SHAPE.heads // SHAPE.kv_heads)
            weights = (key[0, group, keys] @ query[0, head, row] / 2.0).softmax(0)
            at = slice(head * SHAPE.head_width, (head + 1) * SHAPE.head_width)
            read[row, at] = weights @ value[0, group, keys]
    out: Tensor = attention.o_proj(read)
    return out


@torch.no_grad()
def test_attention_reads_what_its_mask_shows() -> None:
    torch.manual_seed(0)
    attention = Attention(SHAPE, inputs=12)
    x = noise(1, 5, 12)
    seen = np.tril(np.ones((5, 5), bool))
    seen[4, 1] = seen[3, 2] = False
    query, key, value = attention.project(x, torch.arange(5)[None])
    assert query.shape == (1, 4, 5, 4)
    assert key.shape == value.shape == (1, 2, 5, 4)
    found = attention.attend(query, key, value, torch.from_numpy(seen))
    assert torch.allclose(found[0], loop_attention(attention, x, seen), atol=1e-5)
    causal = attention.attend(query, key, value, None, causal=True)
    full = loop_attention(attention, x, np.tril(np.ones((5, 5), bool)))
    assert torch.allclose(causal[0], full, atol=1e-5)


@torch.no_grad()
def test_the_gate_multiplies_what_goes_up() -> None:
    torch.manual_seed(0)
    mlp = GatedMLP(SHAPE)
    x = noise(3, 6)
    gate, up = x @ mlp.gate_proj.weight.T, x @ mlp.up_proj.weight.T
    wanted = (gate * gate.sigmoid() * up) @ mlp.down_proj.weight.T
    assert torch.allclose(mlp(x), wanted, atol=1e-6)
