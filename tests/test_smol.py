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
pytestmark = [pytest.mark.smol, pytest.mark.slow]

PROMPTS = [
    "Name three uses of a paperclip.",
    "Rename total to amount:\ndef add(total, tax):\n    total = total + tax\n    return total",
]
TOKENS = 12  # some eight rounds
FEWER = {"specexec": 5}  # tokens, where a pass has a thousand nodes and takes a second
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7}
TEXT = [name for name in RECIPES if resolve(name).guarantee is Guarantee.TEXT]
LOSSLESS = [name for name in RECIPES if resolve(name).guarantee is not Guarantee.LOSSY]
DEFAULT, REFERENCE = "int8", "float32"
BOTH = ("auto", "eagle3")  # greedy and sampled; of the others that promise the text, every second


def ways(name: str) -> tuple[bool, ...]:
    """Whether the recipe is run with sampling, or without, or both."""
    if name not in TEXT:
        return (False,)
    return (False, True) if name in BOTH else (TEXT.index(name) % 2 == 0,)


RUNS = [(DEFAULT, name, sampled) for name in LOSSLESS for sampled in ways(name)] + [
    (REFERENCE, "auto", True),
    (REFERENCE, "eagle3", False),
    (REFERENCE, "specinfer", False),
]


@functools.cache
def model(dtype: str) -> LLM:
    return LLM("smollm2", "plain", dtype=dtype, device="cpu", threads=1)


@functools.lru_cache(1)  # greedy and sampled texts of a recipe follow each other
def speculative(dtype: str, name: str) -> LLM:
    return model(dtype).with_recipe(name)


@functools.cache
def plain(dtype: str, prompt: str, sampled: bool) -> Completion:
    return model(dtype).generate(prompt, max_tokens=TOKENS, **(SAMPLED if sampled else {}))


def check(dtype: str, name: str, *, sampled: bool) -> None:
    if not can_run(name, model(dtype).target.info):
        pytest.skip(
            f"nothing that {name} needs ships with the model; train it, or use another model"
        )
    llm = speculative(dtype, name)
    # prompts take turns, with each way
    prompt = PROMPTS[(LOSSLESS.index(name) // 2 + sampled) % len(PROMPTS)]
    count = FEWER.get(name, TOKENS)
    ours = llm.generate(prompt, max_tokens=count, **(SAMPLED if sampled else {}))
    assert ours.tokens == plain(dtype, prompt, sampled).tokens[:count], (
        f"{name} departs from plain decoding on {prompt!r}"
    )
    if name != "plain":
        assert ours.stats.passes <= ours.stats.tokens


@pytest.mark.parametrize(
    ("dtype", "name", "sampled"),
    [
        pytest.param(
            dtype, name, sampled, id=f"{dtype}-{name}-{'sampled' if sampled else 'greedy'}"
        )
        for dtype, name, sampled in RUNS
    ],
)
def test_text_is_plain_decodings(dtype: str, name: str, sampled: bool) -> None:
    check(dtype, name, sampled=sampled)


@pytest.mark.parametrize("dtype", [DEFAULT, REFERENCE])
def test_the_model_answers_sensibly(dtype: str) -> None:
    assert "Paris" in model(dtype).generate("What is the capital of France?", max_tokens=16).text
