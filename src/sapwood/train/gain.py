"""Gain of a trained head: `auto` with it and without it against plain decoding, in turns."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common import drafter_store
from sapwood.errors import SapwoodError
from sapwood.llm import LLM

KINDS = ("eagle3",)  # which `auto` uses by itself
LENGTH = 64  # tokens of an answer
PROMPTS = (  # that no training data holds
    "Why do leaves turn red and yellow in autumn?",
    "Write a polite reply to a guest who asks for a late check-out.",
    "Explain in simple words what a hash table is.",
    "Name four things to pack for a hike in the mountains, and say why.",
    "Tell me about the history of the bicycle.",
    "Give me a recipe for a soup with lentils and carrots.",
)
# tokens per pass over speedup, as measured on a CPU: drafting and wider passes take time
LOSS = 1.6


@dataclass(frozen=True, slots=True)
class Gain:
    """Speedups over plain decoding of the same answers, the prefill left out."""

    speedup: float
    tokens_per_pass: float
    prompts: int
    without: float  # of `auto` without this head: with an earlier one, or with lookups

    @property
    def pays(self) -> bool:
        """True when `auto` is at least as fast with the head as without it."""
        return self.speedup >= self.without


def measured_gain(
    model: str, kind: str, folder: Path, seconds: float, *, found: bool = False, **options: Any
) -> Gain | None:
    """Decode a few answers with and without the head, for about so many seconds.

    `found`: recipes find the head of this folder by themselves. None if there is no time or no
    answer.
    """
    deadline = time.monotonic() + seconds
    drafter = None if found else f"{kind}(head={str(folder)!r})"
    try:
        llm = LLM(model, "auto", drafter=drafter, **options)
        with drafter_store.ignored(folder) if found else nullcontext():
            ways = [llm.with_recipe("plain"), llm, llm.with_recipe("auto")]
        for each in ways:  # loads and compiles
            each.generate(PROMPTS[-1], max_tokens=8)
        spent = np.zeros(len(ways))
        passes = tokens = prompts = 0
        for prompt in PROMPTS:
            if prompts and time.monotonic() >= deadline:
                break
            stats = [each.generate(prompt, max_tokens=LENGTH).stats for each in ways]
            spent += [one.seconds - one.prefill_s for one in stats]
            passes += stats[1].passes
            tokens += stats[1].tokens
            prompts += 1
    except SapwoodError:  # such as a model without a tokenizer
        return None
    plain, with_head, without = spent
    return Gain(float(plain / with_head), tokens / passes, prompts, float(plain / without))


def expected_tokens(agreement: list[float]) -> float:
    """Tokens per pass of a chain whose steps are right so often, each after the one before."""
    return 1 + float(np.cumprod(agreement).sum())


def expected_speedup(agreement: list[float]) -> float:
    """A rough guess while training; at its end the speedup is measured."""
    return max(1.0, expected_tokens(agreement) / LOSS)
