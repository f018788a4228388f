"""Adaptive, tree-based speculative decoding: the same output, faster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapwood.core.part import Part
    from sapwood.core.sampling import Sampling
    from sapwood.core.tree import Tree
    from sapwood.engine.loop import Engine
    from sapwood.engine.outputs import Completion, Stats, Step
    from sapwood.engine.sampling_options import SamplingOptions
    from sapwood.errors import SapwoodError
    from sapwood.llm import LLM
    from sapwood.recipe import Recipe
    from sapwood.tokenizer.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "Part",
    "Recipe",
    "Sampling",
    "SamplingOptions",
    "SapwoodError",
    "Stats",
    "Step",
    "Tokenizer",
    "Tree",
]

# name -> module; nothing is imported until it is named
HOMES = {
    "LLM": "llm",
    "Completion": "engine.outputs",
    "Engine": "engine.loop",
    "Part": "core.part",
    "Recipe": "recipe",
    "Sampling": "core.sampling",
    "SamplingOptions": "engine.sampling_options",
    "SapwoodError": "errors",
    "Stats": "engine.outputs",
    "Step": "engine.outputs",
    "Tokenizer": "tokenizer.tokenizer",
    "Tree": "core.tree",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"sapwood.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
