"""On the built-in model, every recipe says what plain decoding says."""

import functools
from typing import Any

import pytest

from sapwood import LLM
from sapwood.core.types import Guarantee
from sapwood.engine.outputs import Completion
from sapwood.recipes import RECIPES, resolve
from sapwood.recipes.available import can_run

# one worker, one thread: two processes of two threads on two cores only wait for each other; the
# same worker as that of the tests of compiled code, so that nothing is compiled twice
pytestmark = [pytest.mark.smol, pytest.mark.slow, pytest.mark.xdist_group("int8")]

PROMPTS = [
    "Name three uses of a paperclip.",
    "Rename total to amount:\ndef add(total, tax):\n    total = total + tax\n    return total",
]
TOKENS = 16  # some ten rounds
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
TEXT = [name for name in RECIPES if resolve(name).guarantee is Guarantee.TEXT]


LOSSLESS = [name for name in RECIPES if resolve(name).guarantee is not Guarantee.LOSSY]
DEFAULT, REFERENCE = "int8", "float32"
RUNS = [(DEFAULT, name) for name in LOSSLESS] + [
    (REFERENCE, name) for name in ("auto", "eagle3", "specinfer")
]


@functools.cache
def model(dtype: str) -> LLM:
    return LLM("smollm2", "plain", dtype=dtype, device="cpu", threads=1)


@functools.cache
def plain(dtype: str, prompt: str, sampled: bool) -> Completion:
    return model(dtype).generate(prompt, max_tokens=TOKENS, **(SAMPLED if sampled else {}))


def check(dtype: str, name: str, *, sampled: bool) -> None:
    if not can_run(name, model(dtype).target.info):
        pytest.skip(
            f"nothing that {name} needs ships with the model; train it, or use another model"
        )
    llm = model(dtype).with_recipe(name)
    # prompts take turns; a recipe that is also sampled meets both
    prompt = PROMPTS[(LOSSLESS.index(name) + sampled) % len(PROMPTS)]
    ours = llm.generate(prompt, max_tokens=TOKENS, **(SAMPLED if sampled else {}))
    assert ours.tokens == plain(dtype, prompt, sampled).tokens, (
        f"{name} departs from plain decoding on {prompt!r}"
    )
    if name != "plain":
        assert ours.stats.passes <= ours.stats.tokens


@pytest.mark.parametrize(("dtype", "name"), RUNS)
def test_greedy_text_is_plain_decodings(dtype: str, name: str) -> None:
    check(dtype, name, sampled=False)


@pytest.mark.parametrize(("dtype", "name"), [run for run in RUNS if run[1] in TEXT])
def test_sampled_text_is_plain_decodings_where_promised(dtype: str, name: str) -> None:
    check(dtype, name, sampled=True)


@pytest.mark.parametrize("dtype", [DEFAULT, REFERENCE])
def test_the_model_answers_sensibly(dtype: str) -> None:
    assert "Paris" in model(dtype).generate("What is the capital of France?", max_tokens=16).text
