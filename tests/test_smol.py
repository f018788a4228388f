"""On the built-in model, every recipe says what plain decoding says."""

import functools
from typing import Any

import pytest

from sapwood import LLM
from sapwood.completion import Completion
from sapwood.recipes import RECIPES, resolve
from sapwood.records import Guarantee

# one worker, one thread: two processes of two threads on two cores only wait for each other
pytestmark = [pytest.mark.smol, pytest.mark.slow, pytest.mark.xdist_group("smol")]

PROMPTS = [
    "Name three uses of a paperclip.",
    "Rename total to amount:\ndef add(total, tax):\n    total = total + tax\n    return total",
]
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
TEXT = [name for name in RECIPES if resolve(name).guarantee is Guarantee.TEXT]


@functools.cache
def model() -> LLM:
    return LLM("smollm2", "plain", dtype="float32", device="cpu", threads=1)


@functools.cache
def plain(prompt: str, sampled: bool) -> Completion:
    return model().generate(prompt, max_tokens=32, **(SAMPLED if sampled else {}))


def check(name: str, *, sampled: bool) -> None:
    llm = model().with_recipe(name)
    for prompt in PROMPTS:
        ours = llm.generate(prompt, max_tokens=32, **(SAMPLED if sampled else {}))
        assert ours.tokens == plain(prompt, sampled).tokens, f"{name} departs from plain decoding on {prompt!r}"
        if name != "plain":
            assert ours.stats.passes <= ours.stats.tokens


LOSSLESS = [name for name in RECIPES if resolve(name).guarantee is not Guarantee.LOSSY]


@pytest.mark.parametrize("name", LOSSLESS)
def test_greedy_text_is_plain_decodings(name: str) -> None:
    check(name, sampled=False)


@pytest.mark.parametrize("name", TEXT)
def test_sampled_text_is_plain_decodings_where_promised(name: str) -> None:
    check(name, sampled=True)


def test_the_model_answers_sensibly() -> None:
    assert "Paris" in model().generate("What is the capital of France?", max_tokens=16).text
