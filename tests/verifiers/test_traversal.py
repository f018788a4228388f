"""Traversal verification: ties never part a child from its parent."""

import pytest

from sapwood.core.tree import Tree


def test_ties_never_part_a_child_from_its_parent() -> None:
    """Sure children tie with their parents: the earlier node wins, and a cut that took the later one is an error."""
    tree = Tree(2)
    for parent in range(4):
        tree.add(parent, 1, 1.0)
    assert tree.best(2).parents.tolist() == [-1, 0, 1]
    tree.reach[3:] = (
        2.0  # as if reach rose along the path: then the best leave their parents behind
    )
    with pytest.raises(ValueError, match="cannot be kept without its parent"):
        tree.best(2)
