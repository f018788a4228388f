"""Whole growth on the device against the same tree grown step by step."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.fused.desk import TEXT
from sapwood.backends.torch.fused.grow import Grower
from sapwood.backends.torch.fused.layer import BANDS, CELLS, EDGES, RANKS, Form
from sapwood.backends.torch.fused.tree import DeviceTree, Parcel
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.cost import flat
from sapwood.drafters.eagle import Eagle
from sapwood.drafters.merge import Merge
from sapwood.drafters.suffix import Suffix
from sapwood.engine import Engine, no_loader
from sapwood.estimators import binned
from sapwood.estimators.binned import Binned
from sapwood.estimators.raw import Raw
from sapwood.policies.ahead import BEAM, STEPS, Ahead
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.promise import Promise
from sapwood.protocols import Setting
from sapwood.recipe import Recipe
from sapwood.records import Budget, Levels, Outcome, Verdict
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.tree import CAPACITY, Tree
from sapwood.verifiers.match import Match
from tests import interpreted, tiny
from tests.interpreted import CUDA, DEVICE
from tests.test_eagle_drafter import make_head, make_text


class Whole(TorchBackend):
    """A backend whose device grows whole trees; here the device is the CPU."""

    def grower(self, head: Any, embedding: torch.Tensor) -> Grower:
        return Grower(head, embedding)


@cache
def backends() -> tuple[TorchBackend, Whole]:
    model = tiny.make("llama")
    return TorchBackend(model, "tiny"), Whole(model, "tiny")


def tame_head(**changes: Any) -> Any:
    """A random head whose laws do not magnify the last bits of a state."""
    head = make_head(**changes)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(0.5 if parameter.dim() > 1 else 1.0)
    return head


def rounds(target: TorchBackend, recipe: Recipe, prompt: list[int], count: int, sampling: Sampling) -> list[Outcome]:
    """That many rounds, or all that the context holds."""
    engine = Engine(target, recipe)
    found = zip(range(count), engine.rounds(prompt, sampling, Keyed(3)), strict=False)
    return [outcome for _, outcome in found]


def recipe_of(head: Any, beam: int, budget: Fixed, estimator: Any = None) -> Recipe:
    return Recipe(Eagle(head=head), Beam(beam=beam, estimator=estimator or Raw()), Match(), budget)


def assert_same_tree(ours: Tree, theirs: Tree, close: float = 1e-5) -> None:
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    for name in ("parents", "depths", "ranks", "sources", "expanded", "sampled"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert ours.probs[1:] == pytest.approx(theirs.probs[1:], abs=close)
    assert ours.reach == pytest.approx(theirs.reach, abs=close)
    assert (ours.kept is None) == (theirs.kept is None)
    assert ours.kept is None or ours.kept.tolist() == (theirs.kept if theirs.kept is not None else ours.kept).tolist()


SHAPES = {
    "paper": (10, Fixed(nodes=59, depth=8, width=10)),
    "narrow": (2, Fixed(nodes=7, depth=4, width=3)),
    "wide": (7, Fixed(nodes=20, depth=3, width=2)),  # a beam that the first levels cannot fill
    "chain": (1, Fixed(nodes=5, depth=5, width=1)),
    "flat": (4, Fixed(nodes=6, depth=1, width=9)),
    "all": (3, Fixed(nodes=100, depth=3, width=4)),  # more than there is to keep
}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("shape", SHAPES)
def test_whole_growth_gives_the_tree_of_steps(shape: str, after: bool) -> None:
    beam, budget = SHAPES[shape]
    steps, whole = backends()
    recipe = recipe_of(tame_head(norm_before_residual=after), beam, budget)
    accepted = 0
    for seed in range(3):
        prompt = make_text(4 + 9 * seed, seed)
        ours, theirs = (rounds(target, recipe, prompt, 8, Sampling(max_tokens=99)) for target in (whole, steps))
        assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert isinstance(one.tree, DeviceTree)
            assert_same_tree(one.grown, other.grown)
            assert_same_tree(one.tree, other.tree)
        accepted += sum(outcome.verdict.accepted for outcome in ours)
    assert accepted or shape != "paper"  # rounds that keep drafted rows are among those compared


def test_calibrated_chances_value_nodes_as_the_estimator_does() -> None:
    noise = np.random.default_rng(0)
    head, trees = tame_head(), []
    for target in backends():
        engine = Engine(target, recipe_of(head, 4, Fixed(nodes=20, depth=5, width=4), Binned()))
        table: Any = engine.recipe.policy
        table.estimator.trials[:] = noise.integers(0, 30, table.estimator.trials.shape)
        table.estimator.hits[:] = table.estimator.trials * 0.4
        noise = np.random.default_rng(0)
        trees.append(next(iter(engine.rounds(make_text(9, 1), Sampling(), Keyed(0)))))
    theirs, ours = trees
    assert isinstance(ours.tree, DeviceTree)
    assert_same_tree(ours.grown, theirs.grown)
    assert_same_tree(ours.tree, theirs.tree)


def test_cells_are_the_estimators() -> None:
    assert tuple(binned.EDGES) == EDGES
    assert (binned.RANKS, binned.DEPTHS) == (RANKS, BANDS)
    assert (len(EDGES) + 1) * RANKS * BANDS == CELLS


def test_long_prompts_and_pauses_are_read_before_the_growth() -> None:
    steps, whole = backends()
    recipe = recipe_of(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))
    prompt = make_text(3 * TEXT + 1, 5)
    ours, theirs = (rounds(target, recipe, prompt, 3, Sampling(max_tokens=99)) for target in (whole, steps))
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)


def take_turns(recipe: Recipe) -> Engine:
    """Two requests round by round in turn, whose trees must be those of steps; the engine that ran them."""
    steps, whole = backends()
    prompts, engine = [make_text(7, 1), make_text(12, 2)], Engine(whole, recipe)
    running = [engine.rounds(prompt, Sampling(max_tokens=99), Keyed(3)) for prompt in prompts]
    turns = [[next(one) for one in running] for _ in range(4)]
    for place, prompt in enumerate(prompts):
        for turn, other in zip(turns, rounds(steps, recipe, prompt, 4, Sampling(max_tokens=99)), strict=True):
            assert_same_tree(turn[place].tree, other.tree)
    for one in running:
        one.close()
    return engine


def test_two_requests_take_turns() -> None:
    drafter: Any = take_turns(recipe_of(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))).recipe.drafter
    assert sorted(drafter.grower.pool.free) == [0, 1]


def test_slots_grow_under_a_running_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.backends.torch.fused.seats.SLOTS", 4)
    monkeypatch.setattr("sapwood.backends.torch.fused.seats.CAPACITY", 1)
    steps, whole = backends()
    recipe = recipe_of(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))
    prompt = make_text(5, 3)
    ours, theirs = (rounds(target, recipe, prompt, 20, Sampling(max_tokens=99)) for target in (whole, steps))
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=40),
        Sampling(max_tokens=40, temperature=0.8),
        Sampling(max_tokens=40, temperature=0.8, top_p=0.9),
        Sampling(max_tokens=40, repetition_penalty=1.3),
    ],
    ids=["greedy", "sampled", "truncated", "penalised"],
)
@pytest.mark.parametrize("prompt", [[5], [5, 6], make_text(30, 1), make_text(120, 1)], ids=len)
def test_the_text_is_plain_decodings(prompt: list[int], sampling: Sampling) -> None:
    steps, whole = backends()
    recipe = recipe_of(tame_head(), 4, Fixed(nodes=20, depth=4, width=4))
    plain = Recipe(recipe.drafter, Chain(), Match(), Fixed(nodes=0))
    texts = [
        [token for outcome in rounds(target, made, prompt, 40, sampling) for token in outcome.tokens][:40]
        for target, made in ((whole, recipe), (steps, plain))
    ]
    assert texts[0] == texts[1]


def test_a_form_counts_its_nodes() -> None:
    form = Form(depth=4, beam=3, width=2)
    assert [form.rows(depth) for depth in range(4)] == [1, 2, 3, 3]
    assert [form.first(depth) for depth in range(1, 6)] == [1, 3, 7, 13, 19]
    assert form.size == 19 == len(form.depths) == len(form.ranks)
    assert form.opened == 8
    assert form.depths.tolist() == [0] + [1] * 2 + [2] * 4 + [3] * 6 + [4] * 6


def test_a_form_beyond_the_buffers_is_grown_step_by_step() -> None:
    _, whole = backends()
    recipe = recipe_of(tame_head(), 10, Fixed(nodes=200, depth=3, width=10))
    [outcome] = rounds(whole, recipe, make_text(9, 1), 1, Sampling())
    assert not isinstance(outcome.tree, DeviceTree)


def priced(target: TorchBackend, level: float, node: float, depth: int = 12) -> list[Outcome]:
    """Rounds of `best` at a price of a level and of a node, in tokens."""

    @dataclass
    class Priced(Fixed):
        """A fixed budget with prices."""

        def budget(self) -> Budget:
            return Budget(30, depth, 4, node * np.arange(31), level / BEAM)

    recipe = Recipe(Eagle(head=tame_head()), Best(stride=8), Match(), Priced())
    return rounds(target, recipe, make_text(9, 1), 12, Sampling(max_tokens=99))


def test_depth_and_size_follow_their_prices() -> None:
    _, whole = backends()
    shapes = {}
    for level, node in ((0.0, 0.0), (0.02, 0.0), (0.3, 0.0), (0.0, 0.05)):
        last = priced(whole, level, node)[-1]
        assert isinstance(last.tree, DeviceTree)
        shapes[level, node] = int(last.grown.depths[-1]), len(last.tree) - 1
    assert shapes[0.0, 0.0] == (12, 30)
    assert 12 >= shapes[0.02, 0.0][0] > shapes[0.3, 0.0][0] >= 1
    assert 30 > shapes[0.0, 0.05][1] >= 1


@pytest.mark.parametrize("depth", [1, 4, 8, 12, 16])
def test_deep_trees_have_fewer_leaves_and_as_many_children(depth: int) -> None:
    best = Best(stride=8)
    best.bind(Setting(Toy("a"), flat(), no_loader))
    shape = best.levels(Budget(63, depth, 4))
    assert shape is not None
    assert (shape.width, shape.beam == BEAM) == (BEAM, depth <= 10)
    assert Form(depth, shape.beam, shape.width).size <= CAPACITY  # else it is not grown on the device


def test_a_device_is_told_of_every_shape_before_any_text() -> None:
    asked: list[list[Levels]] = []

    @dataclass
    class Told(Suffix):
        def prepare(self, several: list[Levels]) -> None:
            asked.append(several)

    recipe = Recipe(Merge(drafters=[Told()]), Best(stride=8), Match(), Goodput(width=6))
    best = Engine(Toy("a"), recipe).recipe.policy
    assert isinstance(best, Best)
    [several] = asked
    forms = {(levels.depth, levels.beam, levels.width) for levels in several}
    for depth in STEPS[:8]:
        shape = best.levels(Budget(63, depth, 6))
        assert shape is not None
        assert (shape.depth, shape.beam, shape.width) in forms


def test_expectations_are_the_best_shape_of_a_known_tree() -> None:
    ahead = Ahead()
    grown = Tree.from_columns(
        np.arange(5),
        np.array([-1, 0, 0, 1, 3]),
        np.array([0, 1, 1, 2, 3]),
        np.ones(5),
        reach=np.array([1, 0.8, 0.2, 0.4, 0.2]),
    )
    grown.pruned = grown
    scores: Any = None
    for _ in range(3):
        ahead.observe(Outcome(grown, grown, Verdict((0,), 1), scores, 5))
    ahead.promises, ahead.promise = [Promise() for _ in ahead.promises], Promise()  # by the drafter's word alone
    assert ahead.expected(5) == pytest.approx([1.0, 0.4, 0.2, 0.1, 0.05])
    assert ahead.depth(Budget(9, 9, 2), 0.15) == 3
    assert ahead.depth(Budget(9, 9, 2), 0.06) == 4
    assert ahead.depth(Budget(9, 2, 2), 0.06) == 2
    assert ahead.depth(Budget(9, 9, 2), 0.0) == 9
    assert ahead.size(Budget(9, 9, 2)) == 9
    assert ahead.size(Budget(9, 9, 2, price=0.15 * np.arange(10))) == 3
    assert ahead.size(Budget(9, 9, 2, price=9.0 * np.arange(10))) == 1


# ------------------------------------------------------------------------------------------ kernels
@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Growth, pass and verdict by kernels: on a CUDA device, or in Triton's interpreter."""
    if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no CUDA device, and TRITON_INTERPRET=1 is not set")
    pytest.importorskip("triton", reason="triton is not installed")
    interpreted.require()
    from sapwood.backends.torch.fused import draws, grow, level, plans, verify
    from sapwood.backends.torch.fused.backend import FusedBackend

    if not CUDA:  # few programs: the interpreter's time goes by their number
        monkeypatch.setattr(plans, "first_guess", lambda m, *more: plans.Plan(plans.row_tile(m), 256, 256))
    monkeypatch.setattr(grow, "kernels", lambda device: level)
    monkeypatch.setattr(verify, "kernels", lambda device: draws)
    monkeypatch.setattr(FusedBackend, "grower", lambda self, head, embedding: Grower(head, embedding))
    return FusedBackend


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("shape", "length"), [("narrow", 2 * TEXT + 5), ("wide", 9), ("flat", 9)])
def test_kernels_grow_the_same_tree(kernels: Any, shape: str, length: int, after: bool) -> None:
    beam, budget = SHAPES[shape]
    whole = Whole(tiny.make("llama").to(DEVICE), "tiny")
    recipe, prompt = recipe_of(tame_head(norm_before_residual=after), beam, budget), make_text(length, 5)
    ours = rounds(whole, recipe, prompt, 3, Sampling(max_tokens=99))
    theirs = rounds(backends()[0], recipe, prompt, 3, Sampling(max_tokens=99))
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one.tree, DeviceTree)
        assert_same_tree(one.grown, other.grown)
        assert_same_tree(one.tree, other.tree)


def counting(calls: list[int], wait: Any) -> Any:
    """The same method, with its calls counted."""

    def counted(parcel: Parcel, *turn: Any) -> Any:
        calls.append(1)
        return wait(parcel, *turn)

    return counted


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_round_stays_on_the_device(kernels: Any, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fused, sampling = kernels(tiny.make("llama").to(DEVICE), "tiny"), Sampling(max_tokens=99, temperature=temperature)
    recipe, prompt, brought = recipe_of(tame_head(), 3, Fixed(nodes=12, depth=3, width=4)), make_text(9, 5), list[int]()
    monkeypatch.setattr(Parcel, "wait", counting(brought, Parcel.wait))
    monkeypatch.setattr("sapwood.backends.torch.fused.network.OFTEN", 2)  # both ways to begin a pass
    ours = rounds(fused, recipe, prompt, 5, sampling)
    assert len(brought) == len(ours)  # one transfer to the host per round
    theirs = rounds(backends()[0], recipe, prompt, 5, sampling)
    assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)
        assert one.verdict == other.verdict


# -------------------------------------------------------------------------------------- a real model
@pytest.mark.smol
@pytest.mark.slow
def test_the_shipped_head_grows_the_same_trees() -> None:
    from sapwood.backends.torch.load import load
    from sapwood.text import Text

    loaded, folder = load("smollm2", device="cpu")
    steps, whole = (kind(loaded.model, "smollm2") for kind in (TorchBackend, Whole))
    text = Text.load(folder)
    recipe = Recipe(Eagle(), Beam(beam=10), Match(), Fixed(nodes=59, depth=6, width=10))
    for prompt in ("What is the capital of France?", "Count from one to ten.", "def add(a, b):"):
        tokens = text.chat([{"role": "user", "content": prompt}])
        ours, theirs = (rounds(target, recipe, tokens, 6, Sampling(max_tokens=99)) for target in (whole, steps))
        assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
        assert any(outcome.verdict.accepted for outcome in ours)
        for one, other in zip(ours, theirs, strict=True):
            assert isinstance(one.tree, DeviceTree)
            assert_same_tree(one.tree, other.tree, 2e-4)  # single precision over six steps
