"""Growth step by step: a level is drafted where it pays, and dear drafters are asked where cheap ones are not sure."""

import itertools
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.part import Part
from sapwood.core.protocols import Frontier
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import AcceptanceCounts, Budget, Draw, Outcome, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.policies.best import Best
from sapwood.policies.level_price import FADE, LEAST, RECENT, STALE, LevelPrice, least_reach
from sapwood.policies.reach import value
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed

SCORES = ToyOutput(np.zeros((1, 3)))


def chain(*chances: float, sources: int = 1) -> Tree:
    """An expanded path whose nodes have these chances, valued; `sources` of every node."""
    tree = Tree(0)
    for node, chance in enumerate(chances):
        tree.close(node)
        tree.add(node, 1, chance, source=sources.bit_length() - 1)
    tree.sources[1:] = sources
    value(tree, Raw())
    return tree


class Raw(Part):
    """Believes the drafters."""

    def chance(self, tree: Tree, start: int) -> Any:
        """Their own chances."""
        return tree.probs[start:]


def outcome(tree: Tree, seconds: float = 1.0) -> Outcome:
    """A round with this tree."""
    return Outcome(tree, tree, Verdict((ROOT,), 2), SCORES, 10, StageTimes(seconds, 1.0, 0.0))


# ----------------------------------------------------------------------------------------- the toll
@pytest.mark.parametrize("seed", range(20))
def test_the_toll_is_where_further_nodes_begin_to_pay(seed: int) -> None:
    noise = np.random.default_rng(seed)
    nodes = int(noise.integers(2, 12))
    price = np.append(0.0, np.cumsum(noise.choice([0.0, 0.05, 0.4], size=nodes)))
    tree = Tree(0)
    for reach in noise.uniform(size=int(noise.integers(0, nodes))):
        tree.add(ROOT, len(tree), float(reach))
    value(tree, Raw())
    most = int(noise.integers(1, 4))
    least = least_reach(tree, Budget(nodes, 4, 4, price, rate=1.0), most)

    def profit(further: float) -> float:
        """Of the best tree when so many nodes of this reach can be had."""
        ranked = np.sort(np.append(tree.reach[1:], [further] * most))[::-1][:nodes]
        return float(max(0.0, np.max(np.cumsum(ranked) - price[1 : len(ranked) + 1])))

    own = profit(0.0)
    assert profit(least + 1e-6) > own + 1e-9
    assert profit(max(least - 1e-6, 0.0)) <= own + 1e-9


def test_there_is_no_toll_without_a_price() -> None:
    assert least_reach(chain(0.5), Budget(4, 4, 4, rate=1.0), 8) == 0.0


# --------------------------------------------------------------------------------------- the choice
def test_a_level_is_chosen_where_it_pays() -> None:
    tree = Tree(0)
    for chance in (0.5, 0.3, 0.08):
        tree.add(ROOT, len(tree), chance)
    tree.close(ROOT)
    reach = value(tree, Raw())
    budget = Budget(8, 4, 4, np.linspace(0, 0.4, 9), rate=2.0)  # 0.05 a node
    steps = LevelPrice()
    steps.chance = 0.5
    # the best child of a node of 0.5 has 0.25, of 0.3 it has 0.15, of 0.08 it has 0.04: 0.3 tokens
    # over two rows
    for seconds, wanted in [(0.0, [1, 2]), (0.149, [1, 2]), (0.151, [])]:
        steps.seconds = seconds
        assert steps.choose(tree, reach, budget, 8, owner=steps) == wanted
    steps.seconds = 0.0
    assert steps.choose(tree, reach, budget, 1, owner=steps) == [1]
    assert (
        steps.choose(tree, reach, budget, 1, owner=tree) == []
    )  # one finds out for all what children are like
    steps.nodes = 1
    assert steps.choose(tree, reach, budget, 1, owner=tree) == [1]
    steps.seconds = 0.151
    tree.one_call = True  # deeper levels came with the first one
    assert steps.choose(tree, reach, budget, 8, owner=steps) == [1, 2]


# ---------------------------------------------------------------------------------- what is learned
def test_the_seconds_of_a_level_are_those_of_one_more() -> None:
    steps = LevelPrice()
    for levels in itertools.islice(itertools.cycle([1, 2, 5, 3]), 40):
        steps.observe(outcome(chain(*[0.9] * levels), 3.0 + 2.0 * levels), first=False)
    assert steps.seconds == pytest.approx(2.0)
    before = steps.seconds
    steps.observe(outcome(chain(0.9, 0.9), 1000.0), first=False)  # the machine stood still
    assert steps.seconds < 3 * before
    steps.observe(outcome(chain(0.9, 0.9), 1000.0), first=True)  # a prompt was read
    assert steps.seconds < 3 * before


def test_where_all_trees_are_alike_a_level_is_cheap_so_that_deeper_ones_show_its_price() -> None:
    steps = LevelPrice()
    for _ in range(10):
        steps.observe(outcome(chain(0.9, 0.9), 6.0), first=False)
    assert steps.seconds == pytest.approx(LEAST * 3.0)
    assert 0 < FADE < 1


def test_the_price_stays_when_trees_become_alike_and_follows_the_machine() -> None:
    steps = LevelPrice()
    for levels in itertools.islice(itertools.cycle([1, 2, 5, 3]), 40):
        steps.observe(outcome(chain(*[0.9] * levels), 6.0 + 2.0 * levels), first=False)
    for _ in range(300):
        steps.observe(outcome(chain(0.9), 8.0), first=False)
    assert steps.seconds == pytest.approx(2.0, rel=0.1)  # not the 8 that a tree of one level takes
    for _ in range(300):
        steps.observe(outcome(chain(0.9), 16.0), first=False)  # half as fast
    assert steps.seconds == pytest.approx(4.0, rel=0.1)


def test_terms_are_for_one_alone_until_a_tree_was_seen() -> None:
    steps, budget, (one, other) = (
        LevelPrice(),
        Budget(3, 4, 4, np.arange(4.0), 0.0, 1.0),
        (object(), object()),
    )
    counts = AcceptanceCounts(np.zeros(0), np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1)), 1.0, 1.0)
    first = steps.terms(budget, 1, counts, owner=one)
    assert first is not None
    assert first.chance == 1.0
    assert steps.terms(budget, 1, counts, owner=other) is None
    steps.nodes = 1
    assert steps.terms(budget, 1, counts, owner=other) is not None


def test_levels_that_only_look_things_up_are_not_counted() -> None:
    steps = LevelPrice()
    for _ in range(20):
        steps.observe(outcome(chain(0.9, sources=2), 4.0), first=False)
        steps.observe(outcome(chain(*[0.9] * 16, sources=1), 0.1), first=False)
    assert steps.seconds == pytest.approx(LEAST * 4.0)


def test_the_chance_of_a_best_child_follows_the_text_and_is_forgotten() -> None:
    steps = LevelPrice()
    for _ in range(RECENT):
        steps.observe(outcome(chain(0.2, 0.2)), first=False)
    assert steps.chance == pytest.approx(0.2)
    for _ in range(RECENT):
        steps.observe(outcome(chain(0.8)), first=False)
    assert 0.5 < steps.chance < 0.8
    for _ in range(RECENT - 1):
        steps.observe(outcome(Tree(0)), first=False)
    assert steps.chance < 0.8
    steps.observe(outcome(Tree(0)), first=False)
    assert steps.chance == 1.0


# ------------------------------------------------------------------------------------- in an engine
def test_a_machine_that_was_busy_is_measured_anew() -> None:
    steps = LevelPrice()
    for _ in range(3):
        steps.observe(outcome(chain(0.9, 0.9), seconds=50.0), first=False)
    assert steps.seconds > 1
    for _ in range(STALE):
        steps.observe(outcome(Tree(0)), first=False)
    assert steps.seconds == 0
    for _ in range(3):
        steps.observe(outcome(chain(0.9, 0.9), seconds=0.5), first=False)
    assert steps.seconds <= 0.25


def levels_of(draft_seconds: float, salt: str = "target", rounds: int = 40) -> list[int]:
    """Levels drafted in each round when a draft pass takes so long, a target's pass one second whatever its size."""
    time = [0.0]

    class Timed(ToyBackend):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            time[0] += self.takes
            return super().score(work, chunks)

        takes = 1.0

    class Small(Timed):
        takes = draft_seconds

    recipe = Recipe(DraftModel(model=Small(salt)), Best(stride=4), Match(), Goodput(depth=8))
    cost = CostModel([1, 1024], [0], [[1.0, 1.0]])
    engine = Engine(Timed("target", context=4000), recipe, cost, now=lambda: time[0])
    found = itertools.islice(
        engine.rounds([0, 1, 2], Sampling(max_tokens=9000), KeyedRng(0)), rounds
    )
    return [len({*one.grown.depths[one.grown.expanded].tolist()}) for one in found]


def test_cheap_drafts_go_deep_and_dear_ones_do_not() -> None:
    right_and_cheap = levels_of(0.01)
    right_and_dear = levels_of(2.5)
    assert min(right_and_cheap) == 8
    assert np.mean(right_and_dear[1:]) < 1
    wrong_and_cheap = levels_of(0.01, "other")
    wrong = levels_of(0.2, "other")
    assert np.mean(wrong[10:]) < np.mean(wrong_and_cheap[10:]) < 8


# ---------------------------------------------------------------------------------- asking in order
class Sayer(Part):
    """Gives every node one child of this chance, and remembers where it was asked."""

    draws = Draw.TOPK
    needs = frozenset[str]()

    def __init__(self, token: int, chance: float, *, sampled: bool = False) -> None:
        self.token = token
        self.chance = chance
        self.sampled = sampled
        self.asked = list[int]()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """The child."""
        for node, _ in frontier:
            self.asked.append(node)
            tree.add(
                node,
                self.token,
                self.chance / (1 + tree.depths[node]),
                source=self.source,
                sampled=self.sampled,
            )


@pytest.mark.parametrize(
    ("enough", "sampled", "asked"),
    [
        (1.0, False, [0, 1]),
        (0.91, False, [0, 1]),
        (0.8, False, [1]),
        (0.4, False, []),
        (0.4, True, [0, 1]),
    ],
)
def test_later_drafters_are_asked_where_earlier_ones_are_not_sure(
    enough: float, sampled: bool, asked: list[int]
) -> None:
    first = Sayer(1, 0.9, sampled=sampled)
    second = Sayer(2, 0.5)
    merged = Merge(drafters=[first, second], enough=enough)
    merged.late_ = []
    merged.number(0)
    tree = Tree(0)
    tree.add(ROOT, 5, 0.0)
    merged.expand(tree, [(ROOT, 1), (1, 1)], KeyedRng(0))
    assert first.asked == [0, 1]
    assert second.asked == asked


@pytest.mark.parametrize("enough", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("draws", [Draw.TOPK, Draw.SWOR, Draw.MIXED])
def test_the_law_is_kept_whoever_is_asked(enough: float, draws: Draw) -> None:
    for first in (Suffix(), DraftModel(model=ToyBackend("draft 0"))):
        merged = Merge(
            drafters=[first, DraftModel(model=ToyBackend("draft 1"), draws=draws)], enough=enough
        )
        verifier = Match() if draws is Draw.TOPK else Mixed()
        recipe = Recipe(merged, Static(shape=[1, 1]), verifier, Fixed(nodes=8, depth=2, width=1))
        assert law_error(recipe, ToyBackend("a"), prompt=(0, 1, 2, 0, 1)) <= 1e-12
