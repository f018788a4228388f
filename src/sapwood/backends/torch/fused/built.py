"""Trees on the host from the words that a growth has left on the device."""

import numpy as np

from sapwood.arrays import IntArray
from sapwood.backends.torch.fused.layer import Form
from sapwood.backends.torch.fused.tree import ints, reals
from sapwood.tree import Tree


def build_grown(form: Form, mark: int, words: IntArray) -> Tree:
    """All drafted nodes on the host; `mark` is the bit of their drafter."""
    size = form.size
    expanded = np.zeros(size, bool)
    expanded[0] = True
    expanded[ints(words, "opened", form.opened)] = True
    sources = np.full(size, mark)
    sources[0] = 0
    return Tree.from_columns(
        ints(words, "grown_tokens", size),
        ints(words, "grown_parents", size),
        form.depths,
        reals(words, "grown_probs", size),
        reach=reals(words, "grown_reach", size),
        ranks=form.ranks,
        sources=sources,
        expanded=expanded,
    )


def build_checked(form: Form, size: int, mark: int, words: IntArray) -> Tree:
    """The checked nodes on the host."""
    kept, sources = ints(words, "kept", size), np.full(size, mark)
    sources[0] = 0
    expanded = np.zeros(form.size, bool)
    expanded[0] = True
    expanded[ints(words, "opened", form.opened)] = True
    return Tree.from_columns(
        ints(words, "tokens", size),
        ints(words, "parents", size),
        ints(words, "depths", size),
        reals(words, "probs", size),
        reach=reals(words, "reach", size),
        ranks=ints(words, "ranks", size),
        sources=sources,
        expanded=expanded[kept],
        kept=kept,
    )
