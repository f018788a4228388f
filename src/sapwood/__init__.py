"""Adaptive, tree-based speculative decoding: the same output, faster."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sapwood.api import LLM
    from sapwood.completion import Completion, Stats, Step
    from sapwood.engine import Engine
    from sapwood.errors import SapwoodError
    from sapwood.part import Part
    from sapwood.recipe import Recipe
    from sapwood.sampling import Sampling
    from sapwood.text import Text
    from sapwood.tree import Tree

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Completion",
    "Engine",
    "Part",
    "Recipe",
    "Sampling",
    "SapwoodError",
    "Stats",
    "Step",
    "Text",
    "Tree",
]

# name -> module; nothing is imported until it is named
HOMES = {
    "LLM": "api",
    "Completion": "completion",
    "Engine": "engine",
    "Part": "part",
    "Recipe": "recipe",
    "Sampling": "sampling",
    "SapwoodError": "errors",
    "Stats": "completion",
    "Step": "completion",
    "Text": "text",
    "Tree": "tree",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'sapwood' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"sapwood.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
