"""Recipes that predict several tokens at once, with tiny random parts: the text of plain decoding."""

import dataclasses
from typing import Any

import pytest
import torch

from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.drafters.compose.pard import Pard
from sapwood.engine.loop import Engine
from sapwood.heads.layers import LayerShape
from sapwood.heads.mask_rows import MaskRowsConfig, MaskRowsHead
from sapwood.heads.medusa import MedusaConfig, MedusaHeads
from sapwood.heads.medusa2 import Medusa2Heads
from sapwood.heads.parallel import ParallelConfig, ParallelHead
from sapwood.heads.ppd import PpdHead
from sapwood.recipe import Recipe
from sapwood.recipes import multi_token, resolve
from tests.helpers import mtp_checkpoints, tiny_models
from tests.helpers.engine_rounds import make_text, plain_tokens, same_on_24_prompts
from tests.helpers.lookahead_heads import gated_masks, streams


def scattered(head: Any) -> Any:
    """The head with random weights, which guess something."""
    torch.manual_seed(1)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return head


def medusa_heads() -> Any:
    return scattered(MedusaHeads(MedusaConfig(32, 61, 5)))


def parallel_head() -> Any:
    shape = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)
    head = ParallelHead(ParallelConfig(shape, 32, 61, 61, (0, 1, 2), depth=6))
    scattered(head).use_vocabulary(torch.arange(61))
    return head


def medusa2_heads() -> Any:
    return scattered(Medusa2Heads(MedusaConfig(32, 61, 5)))


def mask_rows() -> Any:
    return scattered(MaskRowsHead(MaskRowsConfig(32, 61, 4)))


def prompt_tokens() -> Any:
    return scattered(PpdHead(MaskRowsConfig(32, 61, 3)))


HEADS: dict[str, Any] = {
    "blockwise": medusa_heads,
    "medusa2": medusa2_heads,
    "pass": mask_rows,
    "diffuspec": parallel_head,
    "ppd": prompt_tokens,
    "knows-the-future": lambda: gated_masks(tiny_models.backend("llama").model, rows=8),
    "speculative-streaming": lambda: streams(tiny_models.backend("llama").model, rows=4),
}


def made(name: str) -> tuple[Any, Recipe]:
    """A target and the recipe of this name, with a random head where it needs one."""
    recipe = resolve(name)
    if name in HEADS:
        drafter = dataclasses.replace(recipe.drafter, head=HEADS[name]())  # type: ignore[type-var]
        return tiny_models.backend("llama"), dataclasses.replace(recipe, drafter=drafter)
    if name.startswith("mtp"):
        return mtp_checkpoints.target("qwen"), recipe
    if name == "pard":
        drafter = Pard(model=tiny_models.backend("qwen2"), mask=60)
        return tiny_models.backend("llama"), dataclasses.replace(recipe, drafter=drafter)
    return tiny_models.backend("llama"), recipe


@pytest.mark.parametrize("name", [entry.name for entry in multi_token.ENTRIES])
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    target, recipe = made(name)
    assert recipe.guarantee in (Guarantee.TEXT, Guarantee.LAW)
    same_on_24_prompts(target, recipe)


def test_blockwise_keeps_the_longest_prefix_of_its_heads_best_tokens() -> None:
    target, recipe = made("blockwise")
    heads = recipe.drafter.head  # type: ignore[attr-defined]
    model = target.model
    prompt = make_text(7, 3)
    plain = plain_tokens(target, prompt, 40, ())
    text = list(prompt)
    for _, outcome in zip(
        range(5),
        Engine(target, recipe).rounds(prompt, Sampling(max_tokens=40), KeyedRng(0)),
        strict=False,
    ):
        with torch.inference_mode():
            state = model.base_model(torch.tensor([text[:-1]])).last_hidden_state[0, -1]
            rows = model.get_output_embeddings().weight
            block = [int((rows @ head(state)).argmax()) for head in heads.heads]
        assert outcome.tree.tokens[1:].tolist() == block
        rest = plain[len(text) - len(prompt) :]
        right = next((i for i, (a, b) in enumerate(zip(block, rest, strict=False)) if a != b), 5)
        assert outcome.tokens == rest[: right + 1]
        text += outcome.tokens
