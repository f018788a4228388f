"""Random prompts, rounds of an engine on them, and the tokens of these rounds."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sapwood.backends.torch.backend import TorchBackend
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe
from sapwood.recipes import resolve


def make_text(count: int, seed: int, vocab: int = 61) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]


def tokens_of(rounds: list[Outcome]) -> list[int]:
    return [token for outcome in rounds for token in outcome.tokens]


def rounds_until(
    backend: Any, recipe: Recipe, prompt: list[int], count: int, sampling: Sampling
) -> list[Outcome]:
    """Rounds until so many tokens are emitted, or the context is full."""
    found: list[Outcome] = []
    for outcome in Engine(backend, recipe).rounds(prompt, sampling, KeyedRng(3)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= count:
            break
    return found


def first_rounds(
    target: TorchBackend, recipe: Recipe, prompt: list[int], count: int, sampling: Sampling
) -> list[Outcome]:
    """That many rounds, or all that the context holds."""
    engine = Engine(target, recipe)
    found = zip(range(count), engine.rounds(prompt, sampling, KeyedRng(3)), strict=False)
    return [outcome for _, outcome in found]


def plain_tokens(
    backend: TorchBackend, prompt: Sequence[int], count: int, ends: Sequence[int]
) -> list[int]:
    """Tokens of plain decoding: so many, or up to the first of `ends`."""
    found: list[int] = []
    rounds = Engine(backend, resolve("plain")).rounds(
        prompt, Sampling(max_tokens=count), KeyedRng(0)
    )
    for outcome in rounds:
        found += outcome.tokens
        if len(found) >= count or found[-1] in ends:
            break
    return found


# greedy texts of plain decoding on the 24 prompts, by target, tokens and vocabulary; the target is
# kept with them, so that no other one gets its id
PLAIN_TEXTS: dict[tuple[int, int, int], tuple[Any, list[list[int]]]] = {}


def same_on_24_prompts(backend: Any, recipe: Recipe, count: int = 6, vocab: int = 61) -> None:
    """Assert that a recipe decodes 24 random prompts greedily as plain decoding does."""
    prompts = [make_text(3 + seed % 7, seed, vocab) for seed in range(24)]
    key = id(backend), count, vocab
    if key not in PLAIN_TEXTS:
        texts = [plain_tokens(backend, prompt, count, ()) for prompt in prompts]
        PLAIN_TEXTS[key] = backend, texts
    ticks = itertools.count()
    # a busy machine must not make drafting look slow
    engine = Engine(backend, recipe, now=lambda: next(ticks) * 1e-3)
    grown = 0
    for prompt, plain in zip(prompts, PLAIN_TEXTS[key][1], strict=True):
        text: list[int] = []
        for outcome in engine.rounds(prompt, Sampling(max_tokens=count), KeyedRng(0)):
            text += outcome.tokens
            grown += len(outcome.grown) - 1
            if len(text) >= count:
                break
        assert text[:count] == plain[:count], f"prompt {prompt}"
    assert grown  # something was drafted
