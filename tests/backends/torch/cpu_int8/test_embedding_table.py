"""Embeddings in 8-bit blocks: the rows of the file, and the same trees as from floats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize

from sapwood.backends.torch.cpu_int8 import int8_gemm
from sapwood.backends.torch.cpu_int8.embedding_table import BYTES, EmbeddingTable
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.engine.loop import Engine
from sapwood.heads.files import save
from sapwood.heads.layers import LayerShape
from sapwood.policies.best import Best
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.eagle_heads import make_head
from tests.helpers.engine_rounds import make_text
from tests.helpers.int8_targets import int8_backend

Q8_0 = GGMLQuantizationType.Q8_0
SHAPE = LayerShape(width=32, heads=6, kv_heads=2, head_width=64, inner=48)


def blocks_of(weights: Any) -> Any:
    """A matrix in blocks of Q8_0, [rows, groups, bytes]."""
    return quantize(weights, Q8_0).reshape(len(weights), -1, BYTES)


def test_rows_are_those_of_the_reference() -> None:
    weights = np.random.default_rng(0).normal(size=(300, 96)).astype(np.float32)
    weights *= np.logspace(-6, 3, 300, dtype=np.float32)[:, None]
    made = EmbeddingTable(blocks_of(weights))
    want = dequantize(quantize(weights, Q8_0), Q8_0)
    assert made.shape == (300, 96)
    tokens = torch.tensor([299, 0, 0, 17])
    np.testing.assert_array_equal(made[tokens].numpy(), want[tokens.numpy()])
    with pytest.raises(ValueError, match="read-only"):
        made.blocks[0, 0, 0] = 1


@pytest.mark.skipif(not int8_gemm.available(), reason="needs eight-bit dot products")
@pytest.mark.parametrize("whole", [True, False])
def test_trees_from_blocks_are_those_from_floats(tmp_path: Path, whole: bool) -> None:
    save(make_head(shape=SHAPE), tmp_path)
    target = int8_backend("llama")
    blocks = blocks_of(target.model.get_input_embeddings().weight.detach().numpy())
    floats = EmbeddingTable(blocks)[torch.arange(len(blocks))]

    def rounds(embedding: Any) -> list[Outcome]:
        recipe = Recipe(Eagle3(head=str(tmp_path)), Best(), Match(), Fixed(nodes=7, depth=4))
        engine = Engine(target, recipe)
        drafter = engine.recipe.drafter
        assert isinstance(drafter, Eagle3)
        drafter.embedding = embedding
        drafter.builder = target.tree_builder(drafter.net, embedding) if whole else None
        return list(engine.rounds(make_text(9, 1), Sampling(max_tokens=24), KeyedRng(0)))

    for ours, theirs in zip(rounds(EmbeddingTable(blocks)), rounds(floats), strict=True):
        assert np.array_equal(ours.grown.tokens, theirs.grown.tokens)
        assert np.array_equal(ours.grown.probs, theirs.grown.probs)
