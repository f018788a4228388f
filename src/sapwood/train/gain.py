"""Gain of a trained head: the recipe that uses it against plain decoding, side by side."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
LOSS = 1.6  # of tokens per pass, to drafting and to wider passes: speedups measured on a CPU


@dataclass(frozen=True, slots=True)
class Gain:
    """Speedup over plain decoding of the same answers, the prefill left out."""

    speedup: float
    tokens_per_pass: float
    prompts: int


def measured_gain(
    model: str, kind: str, folder: Path | None, seconds: float, **options: Any
) -> Gain | None:
    """Decode a few answers with and without the head, for about so many seconds.

    `folder` is that of a head that recipes do not find. None if there is no time or no answer.
    """
    deadline = time.monotonic() + seconds
    drafter = None if folder is None else f"{kind}(head={str(folder)!r})"
    try:
        llm = LLM(model, "auto", drafter=drafter, **options)
        plain = llm.with_recipe("plain")
        for each in (llm, plain):  # loads and compiles
            each.generate(PROMPTS[-1], max_tokens=8)
        spent = np.zeros(2)
        passes = tokens = prompts = 0
        for prompt in PROMPTS:
            if prompts and time.monotonic() >= deadline:
                break
            found = [each.generate(prompt, max_tokens=LENGTH).stats for each in (plain, llm)]
            spent += [one.seconds - one.prefill_s for one in found]
            passes += found[1].passes
            tokens += found[1].tokens
            prompts += 1
    except SapwoodError:  # such as a model without a tokenizer
        return None
    return Gain(float(spent[0] / spent[1]), tokens / passes, prompts)


def expected_tokens(agreement: list[float]) -> float:
    """Tokens per pass of a chain whose steps are right so often, each after the one before."""
    return 1 + float(np.cumprod(agreement).sum())


def expected_speedup(agreement: list[float]) -> float:
    """A rough guess while training; at its end the speedup is measured."""
    return max(1.0, expected_tokens(agreement) / LOSS)
