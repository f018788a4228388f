"""A path is committed as a whole or refused as a whole, wherever in it the fault lies."""

import numpy as np
import pytest

from sapwood.core.tree import check_path

#   0 ── 1 ── 3
#   └─── 2 ── 4
PARENTS = np.array([-1, 0, 0, 1, 2])


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4], (0, 2, 4)])
def test_paths_from_the_root_pass(path: list[int]) -> None:
    check_path(path, PARENTS)


@pytest.mark.parametrize("path", [[0, 1, 5], [5, 1, 3], [0, 5, 3], [0, 1, -1], [-1, 1], [-5], [5]])
def test_one_node_that_was_not_scored_among_others_that_were(path: list[int]) -> None:
    with pytest.raises(ValueError, match="5 nodes were scored"):
        check_path(path, PARENTS)


@pytest.mark.parametrize(
    "path",
    [
        [],
        [1],  # does not start at the root
        [1, 3],
        [0, 3],  # leaves a node out
        [0, 1, 4],  # goes on below another node
        [0, 2, 3],
        [0, 1, 2],
        [0, 0],
        [0, 1, 1],
        [3, 1, 0],
    ],
)
def test_scored_nodes_that_are_no_path(path: list[int]) -> None:
    with pytest.raises(ValueError, match="not a path that starts at the root"):
        check_path(path, PARENTS)
