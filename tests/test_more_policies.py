"""Tree policies of the literature, each against a slow telling of its own rule."""

import dataclasses
import functools
import heapq
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.arrays import FloatArray
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import flat
from sapwood.drafters.model import Model
from sapwood.engine import Engine, grow, no_loader
from sapwood.estimators.raw import Raw
from sapwood.part import Part
from sapwood.policies import accepted as tests_of_siblings
from sapwood.policies.accepted import OFTEN, TRUST, USUAL, Accepted, Book
from sapwood.policies.beam import Beam
from sapwood.policies.cast import STALE, Cast
from sapwood.policies.ddd import Ddd
from sapwood.policies.dsbd import Dsbd, accepted, width
from sapwood.policies.dyspec import DySpec
from sapwood.policies.opt_tree import OptTree
from sapwood.policies.pace import Pace
from sapwood.policies.rsd import Rsd
from sapwood.policies.sequoia import Sequoia, children, choose, solve
from sapwood.policies.slots import places
from sapwood.policies.sparse import Ranks, breadth_first
from sapwood.policies.specexec import SpecExec
from sapwood.protocols import Drafter, Frontier, Policy, Request, Setting, Verifier
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Budget, Draw, Outcome, Times, Verdict
from sapwood.rng import Keyed, Rng
from sapwood.sampling import Sampler, Sampling, softmax
from sapwood.testing import law_error
from sapwood.testing.exact import outcomes
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs

SEEDS = st.integers(0, 10_000)
EXACT = 1e-12


class Oracle(Part):
    """A drafter whose law after a path is a function of the path alone; draws are fixed by the seed."""

    needs: frozenset[str] = frozenset()

    def __init__(self, seed: int, vocab: int = 3, *, sampled: bool = False) -> None:
        self.seed, self.vocab, self.sampled, self.calls, self.asked = seed, vocab, sampled, 0, 0
        self.draws = Draw.SWOR if sampled else Draw.TOPK

    def law(self, path: tuple[int, ...]) -> FloatArray:
        """Chances after a path, [vocab]; a part of the mass is on tokens that are never proposed."""
        return np.random.default_rng([self.seed, *path]).dirichlet(np.full(self.vocab + 1, 0.6))[:-1]

    def order(self, path: tuple[int, ...]) -> list[int]:
        """Tokens in the order of their ranks, or as drawn without replacement."""
        law, noise = self.law(path), np.random.default_rng([1, self.seed, *path]).random(self.vocab)
        keys = np.log(noise) / law if self.sampled else law
        found: list[int] = np.argsort(-keys, kind="stable").tolist()
        return found

    def turns(self, path: tuple[int, ...]) -> list[tuple[int, float]]:
        """(token, its probability at its turn)."""
        law, left, found = self.law(path), 1.0, []
        for token in self.order(path):
            found.append((token, law[token] / left if self.sampled else law[token]))
            left -= law[token]
        return found

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Children of each node, as many as asked for."""
        self.calls += 1
        for node, most in frontier:
            self.asked += 1
            for rank, (token, prob) in enumerate(self.turns(tuple(tree.spell(node)[1:]))[:most]):
                tree.add(node, token, min(float(prob), 1.0), rank=rank, sampled=self.sampled)


def run(policy: Any, drafter: Drafter, budget: Budget) -> Tree:
    policy.bind(Setting(Toy(), flat(), no_loader))
    policy.reset(request())
    return policy.prune(grow(0, drafter, policy, budget, Keyed(0)), budget)  # type: ignore[no-any-return]


def request(sampling: Sampling | None = None) -> Request:
    return Request([0], Sampler(sampling or Sampling(temperature=1.0), [0]), Toy().open([]))


def paths(tree: Tree) -> set[Ranks]:
    """The nodes of a tree, by their tokens."""
    return {tuple(tree.spell(node)[1:]) for node in range(1, len(tree))}


def reaches(oracle: Oracle, depth: int, fade: float = 1.0) -> dict[Ranks, float]:
    """Path probability of every node of the whole tree."""
    found: dict[Ranks, float] = {(): 1.0}
    for length in range(depth):
        for path in [path for path in found if len(path) == length]:
            found |= {(*path, token): found[path] * prob * fade for token, prob in enumerate(oracle.law(path))}
    del found[()]
    return found


# ------------------------------------------------------------------------------------ chosen trees
def subtrees(nodes: frozenset[Ranks], every: list[Ranks], size: int) -> set[frozenset[Ranks]]:
    """Every subtree of so many nodes."""
    found = {frozenset[Ranks]()}
    for _ in range(size):
        found = {tree | {path} for tree in found for path in every if path not in tree and path[:-1] in tree | {()}}
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_opt_tree_is_the_longest_of_all_subtrees(seed: int, nodes: int) -> None:
    oracle = Oracle(seed, vocab=2)
    tree = run(OptTree(gain=0.0), oracle, Budget(nodes, 3, 2))
    worth = reaches(oracle, 3)
    best = max(sum(worth[path] for path in one) for one in subtrees(frozenset(), list(worth), nodes))
    assert sum(worth[path] for path in paths(tree)) == pytest.approx(best)


@given(SEEDS, st.integers(1, 40))
def test_opt_tree_leaves_out_only_what_cannot_enter(seed: int, nodes: int) -> None:
    oracle = Oracle(seed)
    tree = run(OptTree(gain=0.0), oracle, Budget(nodes, 4, 3))
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(sorted(reaches(oracle, 4).values())[::-1][:nodes])
    assert oracle.calls <= 4  # one call a level
    assert oracle.asked <= 1 + 3 * nodes


@given(SEEDS, st.sampled_from([0.02, 0.1, 0.3, 0.6]))
def test_opt_tree_stops_when_a_level_adds_too_little(seed: int, gain: float) -> None:
    nodes, depth, oracle = 6, 4, Oracle(seed)
    worth = reaches(oracle, depth)
    lengths = [
        sum(sorted((reach for path, reach in worth.items() if len(path) <= height), reverse=True)[:nodes])
        for height in range(depth + 1)
    ]
    gains = np.diff(lengths)
    stop = next((height for height in range(1, depth) if gains[height - 1] <= gain), depth)
    policy = OptTree(gain=gain)
    tree = grow(0, oracle, policy, Budget(nodes, depth, 3), Keyed(0))
    policy.prune(tree, Budget(nodes, depth, 3))  # fills in the reach of the last level
    assert sum(sorted(tree.reach[1:])[-nodes:]) == pytest.approx(lengths[stop])
    assert tree.height <= stop
    assert gains[tree.height : stop].sum() == pytest.approx(0.0)  # sooner only where no leaf could add anything


@given(SEEDS, st.sampled_from([0.0, 0.2, 0.5, 0.9]))
def test_ddd_stops_where_the_beam_holds_too_little(seed: int, least: float) -> None:
    oracle, beam, looks = Oracle(seed), 2, [2, 3]
    tree = grow(0, oracle, Ddd(beam=beam, least=least, looks=looks), Budget(99, 5, 3), Keyed(0))
    full = grow(0, oracle, Beam(beam=beam), Budget(99, 5, 3), Keyed(0))
    held = {depth: sum(sorted(full.reach[full.level(depth)])[-beam:]) for depth in range(1, 5)}
    expected = next((depth for depth in looks if held[depth] < least), 5)
    assert tree.height == expected
    assert np.array_equal(tree.tokens, full.tokens[: len(tree)])


def test_ddd_looks_at_the_beam_and_not_at_the_level() -> None:
    tree = Tree(0)
    tree.extend(ROOT, list(range(4)), [0.3, 0.3, 0.2, 0.2])
    policy = Ddd(beam=2, least=0.7, looks=[1])
    assert not policy.frontier(tree, Budget(9, 9, 4))  # the two best hold 0.6, all four 1.0
    assert len(Ddd(beam=3, least=0.7, looks=[1]).frontier(tree, Budget(9, 9, 4))) == 3
    assert len(Ddd(beam=2, least=0.7, looks=[2]).frontier(tree, Budget(9, 9, 4))) == 2
    assert policy.levels(Budget(9, 9, 4)) is None  # type: ignore[func-returns-value]


@given(SEEDS, st.integers(1, 60), st.sampled_from([1, 4, 128]), st.sampled_from([0.0, 0.01, 0.1]))
def test_specexec_holds_the_best_paths_marked_down(seed: int, nodes: int, stride: int, least: float) -> None:
    oracle = Oracle(seed)
    tree = run(SpecExec(stride=stride, fade=0.9, least=least), oracle, Budget(nodes, 4, 3))
    worth = sorted((reach for reach in reaches(oracle, 4, 0.9).values() if reach >= least), reverse=True)[:nodes]
    assert sorted(tree.reach[1:], reverse=True) == pytest.approx(worth)


def test_specexec_goes_deeper_where_steps_are_marked_down_less() -> None:
    oracle = Oracle(5)
    heights = [run(SpecExec(fade=fade), oracle, Budget(20, 9, 3)).depths.mean() for fade in (0.3, 0.95)]
    assert heights[0] < heights[1]


# ------------------------------------------------------------------------------------ drawn trees
def filled(oracle: Oracle, nodes: int, depth: int, most: int, least: float) -> list[Ranks]:
    """Algorithm 1 of DySpec, told slowly: pop the best place, draw there, push below and beside."""
    found: list[Ranks] = []
    heap: list[tuple[float, int, Ranks, int]] = [(-1.0, 0, (), 0)]
    names = itertools.count(1)
    while heap and len(found) < nodes:
        worth, _, path, index = heapq.heappop(heap)
        if -worth < least:
            break
        token, prob = oracle.turns(path)[index]
        found.append((*path, token))
        if len(path) + 1 < depth:
            heapq.heappush(heap, (worth * prob, next(names), (*path, token), 0))
        if index + 1 < most:
            heapq.heappush(heap, (worth * (1 - prob), next(names), path, index + 1))
    return found


@given(SEEDS, st.integers(1, 40), st.integers(1, 3), st.sampled_from([1, 2, 50]))
def test_dyspec_fills_places_in_the_order_of_their_chance(seed: int, nodes: int, most: int, stride: int) -> None:
    oracle = Oracle(seed, sampled=True)
    tree = run(DySpec(stride=stride), oracle, Budget(nodes, 4, most))
    assert paths(tree) == set(filled(oracle, nodes, 4, most, 0.0))
    if stride == 1:
        inner = {path[:-1] for path in filled(oracle, nodes, 4, most, 0.0)}
        assert oracle.asked == len(inner)  # whoever has children in the tree was asked, nobody else


@given(SEEDS, st.sampled_from([0.02, 0.1, 0.3]))
def test_dyspec_by_a_threshold_goes_level_by_level(seed: int, least: float) -> None:
    oracle = Oracle(seed, sampled=True)
    tree = run(DySpec(threshold=least, stride=64), oracle, Budget(500, 5, 3))
    assert paths(tree) == set(filled(oracle, 500, 5, 3, least))
    assert oracle.calls <= 5


@given(SEEDS)
def test_places_are_valued_by_what_is_left(seed: int) -> None:
    oracle, tree = Oracle(seed, sampled=True), Tree(0)
    oracle.expand(tree, [(ROOT, 3)], Keyed(0))
    place, through = places(tree)
    law, order = oracle.law(()), oracle.order(())
    assert through[1:] == pytest.approx(law[order])
    assert place[1:] == pytest.approx(1.0 - np.append(0.0, np.cumsum(law[order])[:-1]))


def test_a_chosen_nodes_place_is_worth_the_node() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.25])
    tree.add(ROOT, 0, 0.8, sampled=True)  # drawn from the quarter that is left
    tree.add(1, 2, 0.5, sampled=True)
    place, through = places(tree)
    assert place.tolist() == [1.0, 0.5, 0.25, 0.25, 0.5]
    assert through.tolist() == [1.0, 0.5, 0.25, 0.2, 0.25]


@dataclasses.dataclass
class Peeking(DySpec):
    """Values a place by the token that was drawn there: the known mistake."""

    def fill(self, tree: Tree, budget: Budget, wants: int) -> tuple[list[int], list[int]]:
        kept, wanted = super().fill(tree, budget, wants)
        through = places(tree)[1]
        return [node for node in kept if through[node] >= 0.2], wanted


@dataclasses.dataclass
class ByMass(Rsd):
    """Cuts a drawn level by path probability: the known mistake."""

    def arrivals(self, tree: Tree, beam: list[int], count: int) -> list[int]:
        level = [child for node in beam for child in tree.children(node)]
        through = places(tree)[1]
        return sorted(sorted(level, key=lambda node: -through[node])[:count])


RULES: list[tuple[Draw, Verifier]] = [(Draw.SWOR, Rrs()), (Draw.IID, Mss()), (Draw.MIXED, Mixed())]
DRAWN: list[Policy] = [DySpec(), DySpec(threshold=0.3, stride=9), Rsd(beam=2), Rsd(beam=2, seed=1), Rsd(beam=1)]
CASES = [(policy, Draw.SWOR, Rrs()) for policy in DRAWN] + [
    (policy, *rule) for policy in DRAWN[1:3] for rule in RULES[1:]
]
SMALL = Fixed(nodes=4, depth=2, width=2)


def gap(policy: Policy, draws: Draw, verifier: Verifier, salt: str = "a") -> float:
    return law_error(Recipe(Model(model=Toy("draft"), draws=draws), policy, verifier, SMALL), Toy(salt))


@pytest.mark.parametrize(("policy", "draws", "verifier"), CASES, ids=str)
def test_drawn_trees_keep_the_law_where_siblings_are_judged_in_turn(
    policy: Policy, draws: Draw, verifier: Verifier
) -> None:
    assert gap(policy, draws, verifier) <= EXACT


@pytest.mark.parametrize("policy", [Peeking(), ByMass(beam=2)], ids=lambda policy: type(policy).__name__)
def test_a_cut_by_the_drawn_token_is_seen(policy: Policy) -> None:
    assert gap(policy, Draw.SWOR, Rrs()) > 1e-4


# ------------------------------------------------------------------------------------ the stochastic beam
def raced(law: dict[Ranks, float], beam: int) -> dict[tuple[tuple[Ranks, ...], tuple[Ranks, ...]], float]:
    """Law of the beams of two levels: the first to come, without replacement, of all texts of two tokens."""
    found: dict[tuple[tuple[Ranks, ...], tuple[Ranks, ...]], float] = defaultdict(float)
    firsts = len({path[:1] for path in law})

    def go(come: tuple[Ranks, ...], weight: float) -> None:
        tops = tuple(dict.fromkeys(path[:1] for path in come))
        if len(come) >= beam and len(tops) >= min(beam, firsts):
            found[tops[:beam], come[:beam]] += weight
            return
        left = {path: mass for path, mass in law.items() if path not in come}
        for path, mass in left.items():
            go((*come, path), weight * mass / sum(left.values()))

    go((), 1.0)
    return found


@pytest.mark.parametrize(("seed", "beam"), [(0, 1), (0, 2), (1, 2), (0, 3)])
def test_the_stochastic_beam_is_a_sample_without_replacement(seed: int, beam: int) -> None:
    toy, budget = Toy(f"draft {seed}"), Budget(2 * beam, 2, 3)
    sampling = Sampling(temperature=1.0, max_tokens=9)

    def beams(rng: Rng) -> tuple[tuple[Ranks, ...], tuple[Ranks, ...]]:
        drafter, policy, asked = Model(model=toy, draws=Draw.SWOR), Rsd(beam=beam), request(sampling)
        drafter.bind(Setting(Toy(), flat(), no_loader))
        drafter.reset(asked)
        policy.reset(asked)
        policy.rng_ = rng  # its own noise is enumerated as well
        tree = grow(0, drafter, policy, budget, rng)
        kept = policy.prune(tree, budget)
        assert len(paths(kept)) == len(kept) - 1, "a path came twice"
        one, two = [tuple(tuple(tree.spell(node)[1:]) for node in level) for level in policy.beams_[1:]]
        return one, two

    law: dict[Ranks, float] = {
        (a, b): float(chances(toy, ())[a] * chances(toy, (a,))[b]) for a in range(3) for b in range(3)
    }
    found: dict[Any, float] = defaultdict(float)
    for weight, result in outcomes(beams):
        found[result] += weight
    expected = raced(law, beam)
    assert found.keys() == expected.keys()
    assert all(found[key] == pytest.approx(expected[key], abs=EXACT) for key in expected)


def chances(toy: Toy, path: Ranks) -> FloatArray:
    """The toy's law after the prompt [0] and a path."""
    outcome = next(Engine(toy, resolve("plain")).rounds([0, *path], Sampling(), Keyed(0)))
    logits = outcome.scores.logits(0)
    return softmax(logits)


def test_chosen_beams_have_no_noise() -> None:
    oracle = Oracle(2)
    tree = run(Rsd(beam=3), oracle, Budget(9, 3, 3))
    same = run(Rsd(beam=3, seed=7), Oracle(2), Budget(9, 3, 3))
    assert paths(tree) == paths(same)
    for depth in (1, 2, 3):
        assert len(tree.level(depth)) == 3


@given(st.integers(0, 12), st.integers(1, 4))
def test_beams_fit_the_budget(nodes: int, beam: int) -> None:
    tree = run(Rsd(beam=beam), Oracle(1, sampled=True), Budget(nodes, 3, 3))
    assert len(tree) - 1 <= nodes
    assert all(len(tree.level(depth)) <= beam for depth in (1, 2, 3))
    assert len(tree) - 1 == min(nodes, sum(min(beam, 3**depth) for depth in (1, 2, 3)))


# ------------------------------------------------------------------------------------ sequoia
Shape = tuple[Any, ...]  # a tree as the tuple of its subtrees


@functools.cache
def shapes(rows: int, depth: int, fan: int) -> list[Shape]:
    """Every ordered tree of so many rows, none deeper than `depth`."""
    if rows == 1:
        return [()]
    return [tuple(kids) for kids in forests(rows - 1, depth - 1, fan)] if depth else []


def forests(rows: int, depth: int, fan: int) -> list[list[Shape]]:
    """Every ordered row of at most `fan` trees."""
    if rows == 0:
        return [[]]
    if fan == 0:
        return []
    return [
        [first, *rest]
        for size in range(1, rows + 1)
        for first in shapes(size, depth, FAN)
        for rest in forests(rows - size, depth, fan - 1)
    ]


FAN = 3


def tokens_of(shape: Shape, vector: tuple[float, ...]) -> float:
    """Expected tokens: the root's own, and those of the child that is accepted."""
    return 1.0 + sum(chance * tokens_of(kid, vector) for chance, kid in zip(vector, shape, strict=False))


@pytest.mark.parametrize("vector", [(0.6, 0.15, 0.07), (0.3, 0.3, 0.3), (0.1, 0.0, 0.5), (0.9, 0.02, 0.01)])
def test_sequoia_finds_the_best_of_all_trees(vector: tuple[float, ...]) -> None:
    table = solve(vector, 6, 4)
    for rows, depth in itertools.product(range(1, 8), range(5)):
        every = shapes(rows, depth, FAN)
        best = max((tokens_of(shape, vector) for shape in every), default=-math.inf)
        assert table.tokens[depth, rows] == pytest.approx(best)
        if every:
            found = table.tree(rows, depth)
            assert len(found) == rows - 1
            assert max(map(len, found), default=0) <= depth
            assert tokens_of(shape_of(found), vector) == pytest.approx(best)
            assert breadth_first(children(found)) == found


def shape_of(found: list[Ranks], path: Ranks = ()) -> Shape:
    """A list of paths as nested tuples."""
    below = sorted(other for other in found if other[:-1] == path and len(other) == len(path) + 1)
    assert [other[-1] for other in below] == list(range(len(below))), "siblings must fill up in order"
    return tuple(shape_of(found, other) for other in below)


@given(st.lists(st.floats(0, 0.5), min_size=12, max_size=12), st.floats(0, 0.3), st.floats(0, 2))
def test_sequoia_takes_the_size_and_depth_that_pay(steps: list[float], level: float, rate: float) -> None:
    tokens = solve((0.6, 0.15, 0.07), 12, 5).tokens
    price = np.cumsum([0.0, *steps])
    rows, depth = choose(tokens, Budget(12, 5, 3, price, rate=rate), level)

    def profit(rows: int, depth: int) -> float:
        return float(tokens[depth, rows] - price[rows - 1] - rate * level * depth)

    best = max(profit(rows, depth) for rows in range(1, 14) for depth in range(6))
    assert profit(rows, depth) == pytest.approx(best)


def test_sequoia_grows_its_tree_within_any_budget() -> None:
    for nodes, depth, most in [(10, 4, 3), (10, 1, 3), (10, 9, 1), (2, 2, 2)]:
        tree = run(Sequoia(), Oracle(0, sampled=True), Budget(nodes, depth, most))
        expected = solve(Accepted().vector(most), nodes, depth)
        rows, deep = choose(expected.tokens, Budget(nodes, depth, most), 0.0)
        assert len(tree) == min(rows, 1 + sum(most**level for level in range(1, depth + 1)))
        assert tree.height == deep


def round_of(tree: Tree, path: tuple[int, ...]) -> Outcome:
    return Outcome(tree, tree, Verdict(path, 0), None, 0, Times())  # type: ignore[arg-type]


def test_acceptance_is_counted_by_place() -> None:
    tree, record = Tree(0), Accepted()
    tree.extend(ROOT, [1, 2, 3], [0.5, 0.3, 0.1])
    tree.extend(2, [1, 2], [0.5, 0.3])
    tree.extend(4, [1], [0.5])
    record.observe(round_of(tree, (0, 2, 4)))  # the second of three, the first of two, then none of one
    assert record.tested[:4].tolist() == [3, 2, 1, 0]
    assert record.taken[:4].tolist() == [1, 1, 0, 0]
    assert record.vector(2) == pytest.approx(
        ((1 + TRUST * USUAL[0]) / (3 + TRUST), (1 + TRUST * USUAL[1]) / (2 + TRUST)), abs=1e-3
    )
    assert Accepted().vector(3) == pytest.approx(USUAL[:3], abs=1e-3)
    assert USUAL.sum() < 1


def test_acceptance_is_forgotten_slowly() -> None:
    record, tree = Accepted(), Tree(0)
    tree.extend(ROOT, [1], [0.5])
    for _ in range(int(tests_of_siblings.MEMORY) + 5):
        record.observe(round_of(tree, (0, 1)))
    assert record.tested[0] <= tests_of_siblings.MEMORY
    for _ in range(3000):
        record.observe(round_of(tree, (0,)))
    assert record.vector(1)[0] < 0.3


def play(policy: Policy, sampling: Sampling, tokens: int) -> list[Outcome]:
    recipe = Recipe(Model(model=Toy("draft")), policy, resolve("suffix").verifier, Fixed(nodes=8, depth=3, width=3))
    return list(itertools.islice(Engine(Toy(context=512), recipe).rounds([0, 1, 2], sampling, Keyed(1)), tokens))


def test_sequoia_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    play(Sequoia(), Sampling(max_tokens=400), 3 * OFTEN)
    assert not list(tmp_path.rglob("*.json")), "without a word to keep it under, nothing is kept"
    play(Sequoia(store="a drafter"), Sampling(max_tokens=400), OFTEN - 1)
    assert not list(tmp_path.rglob("*.json")), "few rounds are not worth a file"
    play(Sequoia(store="a drafter"), Sampling(max_tokens=400), 3 * OFTEN)
    [path] = tmp_path.rglob("*.json")
    stored = json.loads(path.read_text())
    assert stored["greedy"]["tested"][0] >= 3 * OFTEN
    assert not any(stored["sampled"]["tested"])
    assert breadth_first(stored["children"]["greedy"])
    book = Book(Toy().info.model, "a drafter")
    assert book.records["greedy"].tested.tolist() == stored["greedy"]["tested"]
    path.write_text(json.dumps({"greedy": {"tested": [1], "taken": [2]}}))
    assert not Book(Toy().info.model, "a drafter").records["greedy"].tested.any()


def test_sequoia_learns_the_shape_that_fits() -> None:
    policy = Sequoia(every=1)
    policy.bind(Setting(Toy(), flat(), no_loader))
    shapes_seen = []
    for taken in (0, 2):
        policy.reset(request())
        tree = Tree(0)
        tree.extend(ROOT, [1, 2, 3], [0.5, 0.3, 0.1])
        for _ in range(200):
            policy.observe(round_of(tree, (0, taken + 1)))
        shapes_seen.append(children(policy._within(Budget(6, 6, 3))))
        policy.book = Book("other", "")
    assert shapes_seen[0] == [1] * 6  # the first guess is always right: a chain
    assert shapes_seen[1][0] == 3  # it is always the third: no tree without it


# ------------------------------------------------------------------------------------ prices and widths
def timed(levels: int, nodes: int, seconds: float) -> Outcome:
    """A round that expanded so many nodes on so many levels."""
    tree, node = Tree(0), ROOT
    tree.close(ROOT)
    for _ in range(levels - 1):
        node = tree.add(node, 0, 0.5)
        tree.close(node)
    for index in range(nodes - levels):
        tree.close(tree.add(int(tree.parents[node]), index + 1, 0.5))
    return Outcome(tree, tree, Verdict((0,), 0), None, 0, Times(draft=seconds))  # type: ignore[arg-type]


def test_pace_finds_the_line() -> None:
    pace = Pace()
    assert pace.seconds(5) == pace.each == 0.0
    for levels, nodes in [(2, 2), (3, 9), (4, 5), (2, 8), (5, 6)]:
        pace.observe(timed(levels, nodes, 0.1 * levels + 0.02 * nodes))
    assert pace.seconds(7) == pytest.approx(0.1 + 0.14)
    before = pace.seconds(7)
    pace.observe(timed(3, 5, 1e6))  # something else happened
    assert pace.seconds(7) < 4 * before


def test_pace_never_runs_backwards() -> None:
    pace = Pace()
    for levels, nodes, seconds in [(2, 2, 1.0), (2, 9, 0.5), (4, 5, 0.1), (2, 8, 0.7)]:
        pace.observe(timed(levels, nodes, seconds))
        assert pace.level >= 0
        assert pace.node >= 0
    alike = Pace()
    alike.observe(timed(3, 3, 0.6))
    assert alike.seconds(1) == pytest.approx(alike.each) == pytest.approx(0.2)


def cast(level: float, node: float, **options: Any) -> Cast:
    policy = Cast(**options)
    policy.bind(Setting(Toy(), flat(), no_loader))
    policy.reset(request())
    policy.pace.level, policy.pace.node = level, node
    return policy


@given(SEEDS)
def test_cast_without_a_clock_is_a_beam(seed: int) -> None:
    budget = Budget(12, 4, 3)
    ours, beam = cast(1.0, 1.0, beam=2), Beam(beam=2)
    trees = [grow(0, Oracle(seed), policy, budget, Keyed(0)) for policy in (ours, beam)]
    assert np.array_equal(trees[0].tokens, trees[1].tokens)
    assert paths(ours.prune(trees[0], budget)) == paths(beam.prune(trees[1], budget))


def test_cast_expands_the_nodes_that_pay() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.5, 0.25, 0.15, 0.05])
    budget = Budget(30, 9, 4, rate=10.0)
    asked = {node: len(cast(0.0, node).frontier(tree, budget)) for node in (0.001, 0.01, 0.02, 0.03, 0.06)}
    assert asked == {0.001: 4, 0.01: 3, 0.02: 2, 0.03: 1, 0.06: 0}  # the last: not even the best pays for its level
    assert len(cast(0.0, 0.01, breadth=2.0).frontier(tree, budget)) == 2


def test_cast_deepens_while_the_next_level_pays() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1], [0.5])
    policy, budget = cast(0.03, 0.0), Budget(30, 9, 4, rate=10.0)
    assert policy.frontier(tree, budget)  # 0.5 tokens against 0.3
    grown = Tree(0)
    grown.extend(ROOT, [1], [0.5])
    grown.extend(1, [1, 2], [0.3, 0.1])
    grown.close(ROOT)
    grown.close(1)
    policy.observe(round_of(grown, (0,)))  # this level passed on two fifths: 0.2 tokens are to be expected
    assert not policy.frontier(tree, budget)
    assert Cast(depth=0.5).paper
    assert cast(0.03, 0.0, depth=0.0).frontier(tree, budget)
    for _ in range(STALE):
        policy.observe(round_of(Tree(0), (0,)))
    assert policy.frontier(tree, budget), "what was seen long ago is tried again"


def test_cast_checks_the_nodes_that_pay() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.5, 0.25, 0.15, 0.05])
    budget = Budget(4, 9, 4, price=0.1 * np.arange(5))
    assert len(cast(0, 0).prune(tree, budget)) == 4
    assert len(cast(0, 0, size=2.0).prune(tree, budget)) == 3
    assert len(cast(0, 0, size=9.0).prune(tree, budget)) == 1


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5))
def test_dsbd_counts_accepted_beams(weights: list[float]) -> None:
    firsts = [weight / (sum(weights) + 0.5) for weight in weights]
    law = np.zeros(len(firsts) + 1)

    def test(left: int, turn: int, open_: float, count: int, weight: float) -> None:
        """Every way the tests can go: since the last acceptance `turn` were refused, and `open_` is not spent."""
        if not left:
            law[count] += weight
            return
        yes = firsts[turn] / open_
        test(left - 1, 0, 1.0, count + 1, weight * yes)
        test(left - 1, turn + 1, open_ - firsts[turn], count, weight * (1 - yes))

    test(len(firsts), 0, 1.0, 0, 1.0)
    assert accepted(firsts) == pytest.approx(law)
    for sure in (0.1, 0.5, 0.7, 0.95):
        wide = [count for count in range(len(firsts) + 1) if law[count:].sum() >= sure]
        assert width(firsts, sure) == max(wide)


def test_dsbd_is_wide_where_drafts_are_trusted() -> None:
    tree = Tree(0)
    tree.extend(ROOT, [1, 2, 3, 4], [0.94, 0.03, 0.01, 0.01])
    assert len(Dsbd(estimator=Raw()).frontier(tree, Budget(30, 9, 4))) == 4
    timid = Tree(0)
    timid.extend(ROOT, [1, 2, 3, 4], [0.2, 0.1, 0.05, 0.05])
    assert len(Dsbd(estimator=Raw()).frontier(timid, Budget(30, 9, 4))) == 1
    assert len(Dsbd(estimator=Raw(), narrowest=3).frontier(timid, Budget(30, 9, 4))) == 3
    assert len(Dsbd(estimator=Raw(), beam=2).frontier(tree, Budget(30, 9, 4))) == 2
    assert accepted([0.9, 0.9]).sum() == pytest.approx(1.0)  # estimates that add up to more than one


def test_trees_that_look_while_they_grow_are_not_grown_whole() -> None:
    for policy in (Ddd(), Dsbd(), OptTree(), Cast(), SpecExec(), DySpec(), Rsd(), Sequoia()):
        shape = getattr(policy, "levels", None)
        assert shape is None or shape(Budget(8, 4, 2)) is None
