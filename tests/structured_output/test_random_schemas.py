"""Random schemas, sampled outputs: whatever the model would rather say, what it says fits the schema."""

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from sapwood import LLM
from sapwood.backends.toy import ToyBackend
from sapwood.structured_output import json_schema
from tests.helpers import byte_tokenizer, random_schemas

DRAFT = jsonschema.Draft202012Validator
CASES = 1000
FEW = 150  # in the everyday run
RECIPES = ("auto", "plain", "specinfer")  # trees, none, draws at random judged by q


@cache
def llm(recipe: str) -> LLM:
    """A model with random laws over single bytes: it likes no text better than another."""
    return LLM(
        ToyBackend("cases", vocab=byte_tokenizer.SIZE, context=2048),
        recipe,
        text=byte_tokenizer.text(),
    )


def answer(seed: int) -> tuple[Any, str, str, str]:
    """A schema, what was said under it, why that ended, and the recipe."""
    asked = random_schemas.schema(seed)
    recipe = RECIPES[seed % len(RECIPES)]
    done = llm(recipe).generate(
        "Say:",
        raw=True,
        temperature=1.0 + seed % 2,
        seed=seed,
        max_tokens=1200,
        grammar=json_schema(asked),
    )
    return asked, done.text, done.finish, recipe


def check(seeds: range) -> None:
    finished = 0
    for seed in seeds:
        asked, text, finish, recipe = answer(seed)
        if finish == "length":
            continue
        finished += 1
        try:
            jsonschema.validate(json.loads(text), asked, DRAFT, format_checker=DRAFT.FORMAT_CHECKER)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(
                f"case {seed} by {recipe}: {text!r} does not fit {asked}"
            ) from error
    assert finished >= 0.97 * len(seeds), f"{finished} of {len(seeds)} came to an end"


def test_sampled_outputs_fit_their_schemas() -> None:
    check(range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FEW, CASES, 50))
def test_further_outputs_fit_their_schemas(start: int) -> None:
    check(range(start, min(start + 50, CASES)))


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_speculation_changes_no_text(seed: int) -> None:
    grammar = json_schema(random_schemas.schema(seed))
    said = [
        llm(recipe)
        .generate("Say:", raw=True, temperature=1.0, seed=seed, max_tokens=300, grammar=grammar)
        .text
        for recipe in ("auto", "plain")
    ]
    assert said[0] == said[1]
