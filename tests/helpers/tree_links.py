"""SGLang's way from a tree mask to an accepted path: parents, links, and the walk along them."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def parents_of(mask: np.ndarray[Any, Any]) -> list[int]:
    """The nearest node before each one that its row marks; -1 where there is none."""
    before = np.tril(mask, -1)
    return [int(np.flatnonzero(row)[-1]) if row.any() else -1 for row in before]


def walk_links(
    tokens: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], wanted: Sequence[int]
) -> list[int]:
    """Tokens of a pass whose target wants these: first child, then siblings, then one more."""
    parents = parents_of(mask)
    node = 0
    said = []
    for token in wanted:
        said.append(token)
        children = [child for child, parent in enumerate(parents) if parent == node]
        found = [child for child in children if int(tokens[child]) == token]
        if not found:
            break
        node = found[0]
    return said
