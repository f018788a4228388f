"""Token trees as sequences: every leaf's sequence holds its own path and no other node."""

from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.llamacpp.sequence_ids import COMMITTED, Branch, branches, by_branch


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], int]:
    """Parents of a random tree, and the first node that is new."""
    nodes = draw(st.integers(1, 25))
    parents = [COMMITTED, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]
    return parents, draw(st.integers(0, len(parents) - 1))


def path(parents: list[int], node: int) -> list[int]:
    found = []
    while node != COMMITTED:
        found.append(node)
        node = parents[node]
    return found[::-1]


def test_a_chain_is_one_branch() -> None:
    found, through = branches([COMMITTED, 0, 1], 0)
    assert found == [Branch(2, COMMITTED)]
    assert through == [[0], [0], [0]]


def test_a_fork_is_two_branches_that_share_their_stem() -> None:
    found, through = branches([COMMITTED, 0, 0, 1], 0)
    assert found == [Branch(2, COMMITTED), Branch(3, COMMITTED)]
    assert through == [[0, 1], [1], [0], [1]]


def test_new_nodes_hang_on_those_that_were_scored() -> None:
    found, through = branches([COMMITTED, 0, 1, 0], 2)
    assert found == [Branch(2, 1), Branch(3, 0)]
    assert through == [[0], [1]]


@given(trees())
def test_each_branch_holds_the_new_nodes_of_its_leafs_path(tree: tuple[list[int], int]) -> None:
    parents, since = tree
    found, through = branches(parents, since)
    assert len(through) == len(parents) - since
    for number, branch in enumerate(found):
        new = [node for node in path(parents, branch.leaf) if node >= since]
        assert [
            node for node in range(since, len(parents)) if number in through[node - since]
        ] == new
        assert branch.stem == parents[new[0]]
        assert branch.stem < since
    leaves = {node for node in range(since, len(parents)) if node not in parents}
    assert {branch.leaf for branch in found} == leaves
    assert all(through)  # every node lies on some branch


@given(trees())
def test_nodes_are_ordered_branch_by_branch(tree: tuple[list[int], int]) -> None:
    parents, since = tree
    order = by_branch(parents, since)
    assert sorted(order) == list(range(since, len(parents)))
    place = {node: at for at, node in enumerate(order)}
    for node in order:
        below = [other for other in order if node in path(parents, other)]
        assert sorted(place[other] for other in below) == list(
            range(place[node], place[node] + len(below))
        )
    for node in range(-1, len(parents)):
        children = [child for child in range(since, len(parents)) if parents[child] == node]
        assert sorted(children, key=place.__getitem__) == children


def test_the_first_path_comes_first() -> None:
    #     0
    #   1   2
    #  3 4   5
    assert by_branch([COMMITTED, 0, 0, 1, 1, 2], 0) == [0, 1, 3, 4, 2, 5]
    assert by_branch([COMMITTED, 0, 0, 1, 1, 2], 3) == [3, 4, 5]
