"""Shapes of trees that are grown whole: what a controller's prices and the last trees make of them."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.goodput import Goodput
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import RATIO_DECAY as FADE
from sapwood.core.types import RATIO_PRIOR as PRIOR
from sapwood.core.types import AcceptanceRatio, Budget, Outcome, StageTimes, TreeShape, Verdict
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import no_loader
from sapwood.policies.best import Best
from sapwood.policies.whole_tree_stats import BEGIN, FIRST, RECENT, STALE, STEPS, WholeTreeStats

SCORES = ToyOutput(np.zeros((1, 3)))
PASS = 1.0  # seconds of a pass over one row


@dataclasses.dataclass
class Machine:
    """Drafts and checks on a simulated clock: each level is right with a known chance."""

    keep: float  # chance that the draft is right at one more depth
    level: float  # seconds of a level of drafting
    begin: float = 0.05  # seconds of drafting whatever the depth
    row: float = 0.001  # seconds of one more row

    def curve(self) -> CostModel:
        return CostModel([1, 64], [0], [[PASS, PASS + 63 * self.row]])

    def round(self, levels: TreeShape | None, noise: np.random.Generator, beam: int) -> Outcome:
        """One round; without levels no tree at all."""
        if levels is None:
            tree = Tree(0)
            return Outcome(tree, tree, Verdict((0,), 9), SCORES, 5, StageTimes(0.0, PASS))
        grown = self.tree(levels, beam)
        cut = grown.pruned = grown.best(levels.nodes)
        run = int(np.argmin(np.append(noise.random(levels.depth) < self.keep, False)))
        path = cut.path(
            max(
                (node for node in range(len(cut)) if chain(cut, node, run)),
                key=lambda n: cut.depths[n],
            )
        )
        times = StageTimes(self.begin + self.level * levels.depth, PASS + self.row * (len(cut) - 1))
        return Outcome(grown, cut, Verdict(tuple(path), 9), SCORES, 5, times)

    def tree(self, levels: TreeShape, beam: int) -> Tree:
        """The first child goes on, the others are there to fill the tree."""
        tree = Tree(0)
        first_path = 0
        for _ in range(levels.depth):
            tree.close(first_path)
            chances = [self.keep] + [0.01] * (levels.width - 1)
            children = [tree.add(first_path, token, chance) for token, chance in enumerate(chances)]
            tree.reach[children] = tree.reach[first_path] * np.array(chances)
            for other in children[1:beam]:
                tree.close(other)
            first_path = children[0]
        tree.valued = len(tree)
        return tree

    def speed(self, depth: int, nodes: int) -> float:
        """Tokens a second of trees of a fixed depth, when all that is accepted lies on the kept spine."""
        tokens = 1 + sum(self.keep**step for step in range(1, depth + 1))
        return tokens / (PASS + self.begin + self.level * depth + self.row * nodes)


def chain(tree: Tree, node: int, run: int) -> bool:
    """Whether a node lies on the spine, no deeper than the draft was right."""
    return tree.depths[node] <= run and not tree.tokens[tree.path(node)[1:]].any()


def decode(machine: Machine, rounds: int) -> Iterator[tuple[TreeShape | None, Outcome]]:
    """Rounds of `best` and `goodput`, with the shape of each tree."""
    policy = Best(stride=4)
    controller = Goodput(width=3)
    noise = np.random.default_rng(0)
    setting = EngineContext(ToyBackend(), machine.curve(), no_loader)
    request = RequestContext([0, 1, 2], Sampler(Sampling(), [0, 1, 2]), ToyBackend().open([0, 1]))
    for part in (policy, controller):
        part.bind(setting)
        part.reset(request)
    for _ in range(rounds):
        budget = controller.budget()
        levels = policy.tree_shape(budget) if budget.nodes else None
        outcome = machine.round(levels, noise, policy.stride)
        yield levels, outcome
        policy.observe(outcome)
        controller.observe(outcome)


def depths(machine: Machine, rounds: int = 200) -> list[int]:
    return [0 if levels is None else levels.depth for levels, _ in decode(machine, rounds)]


@pytest.mark.parametrize("level", [0.005, 0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("keep", [0.6, 0.8])
def test_the_depth_goes_where_it_is_fastest(level: float, keep: float) -> None:
    machine = Machine(keep, level)
    found = depths(machine)
    speeds = {depth: machine.speed(depth, 20) for depth in [*STEPS, 0] if depth <= 16}
    late = found[100:]
    assert np.mean([speeds[depth] for depth in late]) > 0.93 * max(speeds.values())


def test_cheap_drafting_goes_deep_and_dear_drafting_does_not() -> None:
    cheap, dear = (np.mean(depths(Machine(0.8, level))[100:]) for level in (0.01, 0.3))
    assert cheap > 8
    assert dear < 4


def test_drafting_that_cannot_pay_rests() -> None:
    found = depths(Machine(0.3, 1.0))
    assert found.count(0) > 100


def test_the_first_trees_are_neither_flat_nor_endless() -> None:
    found = depths(Machine(0.8, 0.02), 8)
    assert found[:FIRST] == [BEGIN] * FIRST
    assert all(depth in STEPS for depth in found)


def test_one_slow_round_does_not_end_drafting() -> None:
    machine = Machine(0.8, 0.02)
    policy = Best(stride=4)
    controller = Goodput(width=3)
    noise = np.random.default_rng(0)
    for part in (policy, controller):
        part.bind(EngineContext(ToyBackend(), machine.curve(), no_loader))
    controller.reset(
        RequestContext([0, 1, 2], Sampler(Sampling(), [0, 1, 2]), ToyBackend().open([0, 1]))
    )
    found = []
    for turn in range(80):
        levels = policy.tree_shape(controller.budget())
        assert levels is not None
        found.append(levels.depth)
        assert controller.budget().nodes, turn
        outcome = machine.round(levels, noise, policy.stride)
        if turn in (0, 1, 2, 30):  # something was compiled: a hundred times as long
            slow = StageTimes(100 * outcome.times.draft, 100 * outcome.times.verify)
            outcome = dataclasses.replace(outcome, times=slow)
        policy.observe(outcome)
        controller.observe(outcome)
    assert found[-1] >= 6


def test_seconds_of_preparing_a_depth_are_forgotten() -> None:
    machine = Machine(0.8, 0.04, begin=0.5)
    noise = np.random.default_rng(0)
    policy = Best(stride=4)
    controller = Goodput(width=3)
    for part in (policy, controller):
        part.bind(EngineContext(ToyBackend(), machine.curve(), no_loader))
    controller.reset(
        RequestContext([0, 1, 2], Sampler(Sampling(), [0, 1, 2]), ToyBackend().open([0, 1]))
    )
    trees: Counter[int] = Counter()
    found = []
    for _ in range(200):
        budget = controller.budget()
        levels = policy.tree_shape(budget) if budget.nodes else None
        found.append(0 if levels is None else levels.depth)
        outcome = machine.round(levels, noise, policy.stride)
        longer = (4000, 20)[trees[found[-1]]] if levels is not None and trees[found[-1]] < 2 else 1
        trees[found[-1]] += 1
        times = StageTimes(longer * outcome.times.draft, outcome.times.verify)
        policy.observe(outcome := dataclasses.replace(outcome, times=times))
        controller.observe(outcome)
    assert np.mean(found[100:]) > 6


def test_depths_that_were_not_tried_for_long_are_tried_again() -> None:
    ahead = WholeTreeStats()
    machine = Machine(0.5, 0.1)
    rest: Any = np.random.default_rng(0)
    ahead.observe(machine.round(TreeShape(20, 6, 4, 3), rest, 4))
    deep = ahead.expected(6)
    for _ in range(STALE - 1):
        ahead.observe(machine.round(TreeShape(20, 2, 4, 3), rest, 4))
    assert ahead.expected(6)[2:] == pytest.approx(deep[2:])
    ahead.levels[1] = 0.45, 0.5
    for _ in range(2):
        ahead.observe(machine.round(TreeShape(20, 2, 4, 3), rest, 4))
    fade = ahead.levels[1][0] / ahead.levels[1][1]
    known = ahead.expected(2)[1]
    assert ahead.expected(4)[2:] == pytest.approx([known * fade, known * fade**2])


def test_what_deep_trees_showed_on_a_hard_text_holds_on_an_easy_one() -> None:
    ahead = WholeTreeStats()
    noise = np.random.default_rng(0)
    for keep, depth, rounds in ((0.5, 6, RECENT), (0.9, 3, 4 * RECENT)):
        for _ in range(rounds):
            ahead.observe(Machine(keep, 0.1).round(TreeShape(20, depth, 1, 1), noise, 1))
    ahead.promises = [AcceptanceRatio() for _ in ahead.promises]  # by the drafter's word alone
    assert ahead.expected(6) == pytest.approx(
        [0.9, 0.9**2, 0.9**3, *(0.9**3 * 0.5**step for step in (1, 2, 3))], rel=0.05
    )


def test_nothing_known_is_hopeful() -> None:
    assert WholeTreeStats().depth(Budget(9, 9, 2), 0.5) > 1
    assert WholeTreeStats().depth(Budget(9, 9, 2), 0.0) == 9
    assert WholeTreeStats().depth(Budget(9, 4, 2, price=np.zeros(10)), 0.0) == 4


@pytest.mark.parametrize(("said", "true"), [(0.6, 0.8), (0.8, 0.6)])
def test_a_drafter_that_misjudges_itself_is_corrected_by_what_was_accepted(
    said: float, true: float
) -> None:
    ahead = WholeTreeStats()
    noise = np.random.default_rng(1)
    for _ in range(400):
        outcome = Machine(true, 0.1).round(TreeShape(4, 4, 1, 1), noise, 1)
        for tree in (outcome.grown, outcome.tree):
            tree.reach[:] = said**tree.depths
        ahead.observe(outcome)
    found = ahead.expected(4)
    word = [said**depth for depth in range(1, 5)]
    assert all(
        abs(mine - true**depth) < abs(its - true**depth)
        for depth, (mine, its) in enumerate(zip(found, word, strict=True), 1)
    )
    assert ahead.hope(4) == pytest.approx(sum(true**depth for depth in range(1, 5)), rel=0.15)


def test_a_promise_is_believed_until_it_is_broken() -> None:
    promise = AcceptanceRatio()
    assert promise.ratio == 1.0
    for _ in range(200):
        promise.add(2.0, 1.0)
    lasting = 1 / (1 - FADE)
    assert promise.ratio == pytest.approx((lasting + PRIOR) / (2 * lasting + PRIOR), rel=0.01)
    broken = promise.ratio
    for _ in range(100):
        promise.fade()
    assert broken < promise.ratio < 1.0
