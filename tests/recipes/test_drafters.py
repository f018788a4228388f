"""Recipes of trained heads and of DVI, with random heads: the text of plain decoding."""

import dataclasses
from typing import Any

import pytest

from sapwood.core.types import Guarantee
from sapwood.recipes import resolve
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import same_on_24_prompts
from tests.helpers.head_checks import random_of


@pytest.mark.parametrize("name", ["falcon", "moa", "glide", "cerberus", "owl", "dvi"])
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    recipe = resolve(name)
    assert recipe.guarantee is Guarantee.TEXT
    if name != "dvi":
        drafter: Any = recipe.drafter
        changed = dataclasses.replace(drafter, head=random_of(name))
        recipe = dataclasses.replace(recipe, drafter=changed)
    same_on_24_prompts(tiny_models.backend("llama"), recipe)
