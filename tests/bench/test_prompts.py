"""Prompts that are made by rule: the same everywhere, each of the shape that its suite promises."""

import re

import pytest

from sapwood.bench import prompts
from sapwood.bench.prompts import (
    BUILT_IN,
    QUESTIONS,
    RENAMED,
    SIZE,
    RandomPrompt,
    chooser,
    copy_prompts,
    edit_prompts,
    json_prompts,
    ledger,
    listing,
    long_prompts,
    noise_prompts,
)
from sapwood.core.rng import uniforms

LINE = re.compile(
    r"Delivery (\d+): ([\w ]+) ordered (\d+) ([\w ]+) for the yard in (\w+), and the load ([\w ]+)\."
)


# ------------------------------------------------------------------------------------------ words
def test_words_are_picked_by_their_key() -> None:
    words = ("a", "b", "c")
    first = chooser(1)
    picked = [first(*words) for _ in range(300)]
    again = chooser(1)
    assert [again(*words) for _ in range(300)] == picked
    assert picked == [words[int(3 * place)] for place in uniforms(1, 300)]
    assert all(60 < picked.count(word) < 140 for word in words)
    other = chooser(2)
    assert [other(*words) for _ in range(300)] != picked


def test_a_ledger_is_lines_of_one_form() -> None:
    lines = ledger(7, 12).splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found)
    assert [int(match[1]) for match in found if match] == list(range(1, 13))
    for match in found:
        assert match is not None
        assert match[2] in prompts.PEOPLE
        assert match[4] in prompts.THINGS
        assert match[5] in prompts.PLACES
        assert match[6] in prompts.STATES


def test_a_longer_ledger_begins_with_a_shorter_one() -> None:
    assert ledger(7, 20).startswith(ledger(7, 5) + "\n")
    assert ledger(7, 5) != ledger(8, 5)
    assert ledger(7, 0) == ""


@pytest.mark.parametrize("key", range(5))
def test_a_listing_is_python_that_uses_one_variable(key: int) -> None:
    code, name = listing(key, 3)
    found: dict[str, object] = {}
    exec(compile(code, "listing", "exec"), found)
    functions = [value for word, value in found.items() if word != "__builtins__"]
    assert len(functions) == 3
    assert name in prompts.NOUNS
    assert code.count(f"{name}=0") == 3
    assert len(re.findall(rf"\b{name}\b", code)) == 6 * 3


# ----------------------------------------------------------------------------------------- suites
def test_suites_have_their_sizes() -> None:
    sizes = {name: len(made()) for name, made in BUILT_IN.items()}
    rules = dict.fromkeys(("copy", "edit", "random", "json", "long"), SIZE)
    assert sizes == {**rules, "chat": len(QUESTIONS)}
    assert len(set(QUESTIONS)) == len(QUESTIONS)


def test_copy_asks_for_text_that_stands_in_the_prompt() -> None:
    for number, prompt in enumerate(copy_prompts()):
        order, _, text = prompt.partition("\n\n")
        assert text == ledger(100 + number, 5 + number % 4)
        assert ("word for word" in order) == (number % 2 == 0)
        assert ("quote the full sentence" in order) == (number % 2 == 1)


def test_edit_renames_a_variable_to_one_that_is_not_there() -> None:
    for prompt in edit_prompts():
        match = re.match(r"Rename the variable `(\w+)` to `(\w+)` in this code", prompt)
        assert match is not None
        code = prompt.split("```python\n")[1].removesuffix("```")
        assert re.search(rf"\b{match[1]}\b", code)
        assert match[2] in RENAMED
        assert not re.search(rf"\b{match[2]}\b", code)
        compile(code, "prompt", "exec")


def test_json_asks_for_the_keys_of_a_delivery() -> None:
    for number, prompt in enumerate(json_prompts()):
        order, _, text = prompt.partition("\n\n")
        assert "JSON" in order
        assert all(key in order for key in ("number", "customer", "amount", "goods", "place"))
        assert len(text.splitlines()) == 3 + number % 3
        assert "{" not in prompt


def test_long_texts_hold_the_line_that_is_asked_for() -> None:
    for number, prompt in enumerate(long_prompts()):
        lines = [line for line in prompt.splitlines() if LINE.fullmatch(line)]
        assert len(lines) == 60 + 5 * number
        asked = re.search(r"What happened to delivery (\d+)\?", prompt)
        assert (asked is not None) == (number % 2 == 1)
        if asked is not None:
            assert any(line.startswith(f"Delivery {asked[1]}:") for line in lines)


# ------------------------------------------------------------------------------------------ noise
def test_random_tokens_are_spread_over_the_vocabulary() -> None:
    tokens = RandomPrompt(5, 4000).tokens(10)
    assert min(tokens) == 0
    assert max(tokens) == 9
    assert all(320 < tokens.count(token) < 480 for token in range(10))
    assert tokens == [int(10 * place) for place in uniforms(5, 4000)]
    assert RandomPrompt(5, 10).tokens(1) == [0] * 10


def test_noise_prompts_differ() -> None:
    made = noise_prompts()
    assert len({tuple(one.tokens(1000)) for one in made}) == SIZE
    assert {one.length for one in made} == {prompts.NOISE}
