"""Layer skipping: skipped sublayers add nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.core.tree import Tree
from tests.helpers.self_draft_targets import TEXT, rows_of, target


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


@torch.inference_mode()
def slow_skip(model: Any, tokens: list[int], skip: list[int]) -> np.ndarray:
    """Logits after the last token, sublayer by sublayer."""
    base = model.model
    x = base.embed_tokens(torch.tensor([tokens]))
    places = torch.arange(len(tokens))[None]
    mask = torch.full((len(tokens), len(tokens)), torch.finfo(torch.float32).min).triu(1)[
        None, None
    ]
    for index, layer in enumerate(base.layers):
        if 2 * index not in skip:
            turns = base.rotary_emb(x, places)
            x = (
                x
                + layer.self_attn(
                    layer.input_layernorm(x), position_embeddings=turns, attention_mask=mask
                )[0]
            )
        if 2 * index + 1 not in skip:
            x = x + layer.mlp(layer.post_attention_layernorm(x))
    found: np.ndarray = model.lm_head(base.norm(x))[0, -1].numpy()
    return found


@pytest.mark.parametrize("skip", [[2], [3], [2, 3], [2, 5], [2, 3, 4, 5]], ids=str)
def test_skipped_sublayers_add_nothing(skip: list[int]) -> None:
    stock = target("stock")
    packed = target("packed")
    for count in (1, 7):  # a text of which nothing is committed shows no key of the whole model
        tokens = TEXT[:count]
        wanted = slow_skip(stock.model, tokens, skip)
        chain = Tree(tokens[0])
        for node, token in enumerate(tokens[1:]):
            chain.add(node, token, 1.0)
        for backend, near in ((stock, 1e-4), (packed, 0.3)):
            made = backend.variant(skip=skip)
            found = rows_of(made, made.open([]), chain)[-1]
            assert np.abs(found - wanted).max() < near * wanted.std()
