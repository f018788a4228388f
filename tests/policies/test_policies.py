"""Policies: which nodes they grow, which they keep, and what they may not look at."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import Drafter, EngineContext, Frontier, Policy
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.engine.request_decoder import grow
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.groups import Groups
from sapwood.policies.reach import value, worth
from sapwood.policies.static import Static

WIDTH, DEPTH = 3, 4
SEEDS = st.integers(0, 10_000)


class Oracle(Part):
    """A drafter with a random chance table: children of a path are a function of the path alone."""

    draws = Draw.TOPK
    needs: frozenset[str] = frozenset()

    def __init__(self, seed: int, sampled: bool = False) -> None:
        self.seed = seed
        self.sampled = sampled
        self.expanded = 0

    def chances(self, path: tuple[int, ...]) -> FloatArray:
        full_probs = np.random.default_rng([self.seed, *path]).dirichlet(np.full(WIDTH + 1, 0.6))
        return np.sort(full_probs[:WIDTH])[::-1]

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            self.expanded += 1
            for rank, chance in enumerate(self.chances(tuple(tree.spell(node)))[:width].tolist()):
                tree.add(node, rank, chance, rank=rank, sampled=self.sampled)


def run(policy: Policy, drafter: Drafter, budget: Budget) -> Tree:
    return policy.prune(grow(0, drafter, policy, budget, KeyedRng(0)), budget)


def all_reaches(oracle: Oracle, depth: int) -> list[float]:
    """Reach of every node of the whole tree, by brute force, largest first."""
    found = []
    for length in range(1, depth + 1):
        for path in itertools.product(range(WIDTH), repeat=length):
            steps = [oracle.chances((0, *path[:at]))[path[at]] for at in range(length)]
            found.append(float(np.prod(steps)))
    return sorted(found, reverse=True)


@given(SEEDS, st.integers(1, 30), st.integers(1, 3))
def test_best_first_trees_hold_the_largest_reaches(seed: int, nodes: int, stride: int) -> None:
    oracle = Oracle(seed)
    tree = run(Best(stride=stride, estimator=Raw()), oracle, Budget(nodes, DEPTH, WIDTH))
    best = all_reaches(oracle, DEPTH)[:nodes]
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(best)
    assert oracle.expanded <= nodes + stride  # nothing is drafted that could not enter


@given(SEEDS, st.integers(1, 20))
def test_a_wide_beam_finds_the_same_tree(seed: int, nodes: int) -> None:
    oracle = Oracle(seed)
    budget = Budget(nodes, 3, WIDTH)
    tree = run(Beam(beam=WIDTH**3), oracle, budget)
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(all_reaches(oracle, 3)[:nodes])


@given(SEEDS, st.integers(1, 4))
def test_a_narrow_beam_expands_the_best_leaves_of_each_level(seed: int, beam: int) -> None:
    oracle = Oracle(seed)
    policy = Beam(beam=beam)
    tree = grow(0, oracle, policy, Budget(99, DEPTH, WIDTH), KeyedRng(0))
    value(tree, policy.estimator)
    for depth in range(tree.height):
        level = sorted(tree.level(depth), key=lambda node: -tree.reach[node])
        assert sorted(node for node in level if tree.expanded[node]) == sorted(level[:beam])


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.3, 1.5]), min_size=1, max_size=40),
)
def test_worth_is_the_global_optimum_of_any_staircase(
    chances: list[float], steps: list[float]
) -> None:
    tree = Tree(0)
    tree.extend(ROOT, list(range(len(chances))), chances)
    value(tree, Raw())
    nodes = len(steps)
    price = np.cumsum([0.25, *steps])  # what the root alone costs does not matter
    ranked = sorted(chances, reverse=True)

    def profit(size: int) -> float:
        return sum(ranked[:size]) - float(price[size] - price[0])

    size = worth(tree, Budget(nodes, 9, 9, price))
    assert profit(size) == pytest.approx(
        max(profit(other) for other in range(min(nodes, len(chances)) + 1)), abs=1e-9
    )
    assert worth(tree, Budget(nodes, 9, 9)) == min(nodes, len(chances))


def test_worth_looks_beyond_a_flat_stair() -> None:
    tree = Tree(0)
    tree.extend(ROOT, list(range(12)), [0.3] * 12)
    value(tree, Raw())
    price = np.array(
        [0.0, *[1.0] * 12]
    )  # the first extra row costs a token, the next eleven are free
    assert worth(tree, Budget(12, 9, 9, price)) == 12
    assert worth(tree, Budget(3, 9, 9, price)) == 0  # three nodes bring 0.9 and cost 1


@given(SEEDS)
def test_prices_stop_growth_and_cut_what_does_not_pay(seed: int) -> None:
    oracle = Oracle(seed)
    policy = Best(estimator=Raw())
    price = 0.2 * np.arange(31)
    tree = run(policy, oracle, Budget(30, DEPTH, WIDTH, price))
    assert (tree.reach[1:] >= 0.2).all()
    assert len(tree) - 1 == sum(reach > 0.2 for reach in all_reaches(oracle, DEPTH)[:30])
    assert all(policy_reach > 0.2 for policy_reach in tree.reach[tree.expanded])


def test_dear_drafting_stops_growth() -> None:
    oracle = Oracle(1)
    cheap = grow(0, oracle, Best(estimator=Raw()), Budget(30, DEPTH, WIDTH), KeyedRng(0))
    dear = grow(0, oracle, Best(estimator=Raw()), Budget(30, DEPTH, WIDTH, draft=0.4), KeyedRng(0))
    assert len(dear) < len(cheap)
    assert (dear.reach[dear.expanded] > 0.4).all()
    assert grow(0, oracle, Best(), Budget(30, DEPTH, WIDTH, draft=1.5), KeyedRng(0)).height == 0


@given(SEEDS, st.integers(0, 6), st.integers(1, 6))
def test_chain_is_a_path(seed: int, nodes: int, depth: int) -> None:
    tree = run(Chain(), Oracle(seed), Budget(nodes, depth, WIDTH))
    assert tree.parents.tolist() == list(range(-1, min(nodes, depth)))


def test_chain_leaves_other_drafters_siblings_out() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.1, 0.9])
    tree.extend(1, [3, 4], [0.5, 0.5])
    assert Chain().prune(tree, Budget(5, 5, 2)).tokens.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("budget", "levels"),
    [
        (Budget(99, 9, 9), [1, 2, 6, 6]),
        (Budget(14, 9, 9), [1, 2, 6, 6]),
        (Budget(13, 9, 9), [1, 2, 6]),  # the last level does not fit and is not begun
        (Budget(99, 2, 9), [1, 2, 6]),
        (Budget(99, 9, 2), [1, 2, 4, 4]),
        (Budget(1, 9, 9), [1]),
    ],
)
def test_static_has_its_shape(budget: Budget, levels: list[int]) -> None:
    tree = run(Static(shape=[2, 3, 1]), Oracle(0), budget)
    assert [len(tree.level(depth)) for depth in range(tree.height + 1)] == levels


# ------------------------------------------------------------------------ whole groups, unseen
def sampled_tree(seed: int) -> Tree:
    """A random tree of sampled sibling groups."""
    random = np.random.default_rng(seed)
    tree = Tree(0)
    for _ in range(8):
        able = [node for node in range(len(tree)) if not tree.expanded[node]]
        parent = int(random.choice(able))
        for slot in range(int(random.integers(1, 4))):
            tree.add(
                parent, int(random.integers(5)), float(random.random()), rank=slot, sampled=True
            )
        tree.close(parent)
    return tree


def redrawn(tree: Tree, parent: int, seed: int) -> Tree:
    """The same tree, where the children of one node were drawn differently."""
    random = np.random.default_rng(seed)
    other = tree.keep(range(len(tree)))
    for child in other.children(parent):
        other.tokens[child], other.probs[child] = int(random.integers(5)), float(random.random())
    return other


@given(SEEDS, SEEDS, st.integers(0, 18))
def test_groups_never_looks_at_the_tokens_of_a_group_it_cuts(
    seed: int, again: int, nodes: int
) -> None:
    tree = sampled_tree(seed)
    budget = Budget(nodes, 9, 3)
    for parent in [node for node in range(len(tree)) if tree.children(node)]:
        fates = set()
        for version in (tree, redrawn(tree, parent, again)):
            kept = Groups().prune(version.keep(range(len(version))), budget)
            stays = {int(node) for node in (kept.kept if kept.kept is not None else [])}
            fates.add(frozenset(stays & set(version.children(parent))))
        assert len(fates) == 1, f"whether the children of {parent} stay depends on their own tokens"
        assert fates <= {frozenset(), frozenset(tree.children(parent))}, "a group was cut in half"


@given(SEEDS, st.integers(0, 18))
def test_groups_keeps_the_groups_of_the_likeliest_parents(seed: int, nodes: int) -> None:
    tree = sampled_tree(seed)
    policy = Groups()
    kept = policy.prune(tree, Budget(nodes, 9, 3))
    assert len(kept) - 1 <= nodes
    if kept is tree:
        return
    assert kept.kept is not None
    stays = set(kept.kept.tolist())
    parents = [node for node in range(len(tree)) if tree.children(node)]
    in_ = [tree.reach[node] for node in parents if set(tree.children(node)) <= stays]
    out = [tree.reach[node] for node in parents if not set(tree.children(node)) <= stays]
    assert min(in_, default=1.0) >= max(out, default=0.0)


def test_groups_expands_likely_nodes_only() -> None:
    oracle = Oracle(3)
    policy = Groups(floor=0.2)
    tree = grow(0, oracle, policy, Budget(60, 3, WIDTH), KeyedRng(0))
    assert (tree.reach[tree.expanded] >= 0.2).all()
    shallow = [
        node for node in range(len(tree)) if tree.depths[node] < 3 and tree.reach[node] >= 0.2
    ]
    assert tree.expanded[shallow].all()


@given(SEEDS, st.integers(1, 12))
def test_groups_stops_when_other_drafters_have_filled_the_budget(seed: int, nodes: int) -> None:
    class Twice(Oracle):
        def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
            super().expand(tree, frontier, rng)
            super().expand(tree, frontier, rng)

    budget = Budget(nodes, 5, WIDTH)
    tree = grow(0, Twice(seed, sampled=True), Groups(floor=0.0), budget, KeyedRng(0))
    levels = [len(tree.level(depth)) for depth in range(tree.height + 1)]
    assert sum(levels[1:-1]) <= nodes  # a level is begun only while there is room


@pytest.mark.parametrize("policy", [Beam(), Best(), Chain(), Groups(), Static()], ids=str)
@pytest.mark.parametrize("width", [4, 12])
def test_large_budgets_stay_within_what_a_tree_holds(policy: Policy, width: int) -> None:
    class Certain(Oracle):
        def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
            for node, wide in frontier:
                tree.extend(node, list(range(wide)), [0.9**rank for rank in range(wide)])

    policy.bind(EngineContext(ToyBackend(), flat(), no_loader))
    tree = run(policy, Certain(0), Budget(1000, 24, width))
    assert 0 < len(tree) - 1 <= 1000


def test_reach_is_the_product_of_chances_and_is_computed_once() -> None:
    asked: list[int] = []

    class Counted(Raw):
        def chance(self, tree: Tree, start: int) -> FloatArray:
            asked.append(start)
            return super().chance(tree, start)

    tree = Tree(0)
    estimator = Counted()
    below = tree.add(tree.add(ROOT, 1, 0.5), 2, 0.4)
    assert value(tree, estimator)[below] == pytest.approx(0.2)
    value(tree, estimator)
    tree.add(below, 3, 1.5)  # an estimate above 1 counts as 1
    assert value(tree, estimator)[-1] == pytest.approx(0.2)
    assert asked == [1, 3]
