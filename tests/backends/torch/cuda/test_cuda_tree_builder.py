"""Whole growth on the device against the same tree grown step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree, RoundBuffer
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.torch.cuda.draft.eagle_layer import BANDS, CELLS, EDGES, RANKS, LevelSizes
from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.protocols import EngineContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import AcceptanceRatio, Budget, Outcome, TreeShape, Verdict
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.estimators import binned
from sapwood.estimators.binned import Binned
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.whole_tree_stats import BEAM, STEPS, WholeTreeStats
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models, triton_mode
from tests.helpers.eagle_heads import beam_recipe, tame_head
from tests.helpers.engine_rounds import first_rounds, make_text
from tests.helpers.triton_mode import DEVICE
from tests.helpers.whole_tree_targets import WholeTreeTarget, assert_same_tree, backends, take_turns

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
    recipe = beam_recipe(tame_head(norm_before_residual=after), beam, budget)
    accepted = 0
    for seed in range(3):
        prompt = make_text(4 + 9 * seed, seed)
        ours, theirs = (
            first_rounds(target, recipe, prompt, 5, Sampling(max_tokens=99))
            for target in (whole, steps)
        )
        assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert isinstance(one.tree, DeviceTree)
            assert_same_tree(one.grown, other.grown)
            assert_same_tree(one.tree, other.tree)
        accepted += sum(outcome.verdict.accepted for outcome in ours)
    assert accepted or shape != "paper"  # rounds that keep drafted rows are among those compared


def test_calibrated_chances_value_nodes_as_the_estimator_does() -> None:
    noise = np.random.default_rng(0)
    head = tame_head()
    trees = []
    for target in backends():
        engine = Engine(target, beam_recipe(head, 4, Fixed(nodes=20, depth=5, width=4), Binned()))
        table: Any = engine.recipe.policy
        table.estimator.trials[:] = noise.integers(0, 30, table.estimator.trials.shape)
        table.estimator.hits[:] = table.estimator.trials * 0.4
        noise = np.random.default_rng(0)
        trees.append(next(iter(engine.rounds(make_text(9, 1), Sampling(), KeyedRng(0)))))
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
    recipe = beam_recipe(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))
    prompt = make_text(3 * MAX_NEW_ROWS + 1, 5)
    ours, theirs = (
        first_rounds(target, recipe, prompt, 3, Sampling(max_tokens=99))
        for target in (whole, steps)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)


def test_two_requests_take_turns() -> None:
    drafter: Any = take_turns(
        beam_recipe(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))
    ).recipe.drafter
    assert sorted(drafter.builder.pool.free) == [0, 1]


def test_slots_grow_under_a_running_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sapwood.backends.torch.cuda.draft.head_kv_pool.SLOTS", 4)
    monkeypatch.setattr("sapwood.backends.torch.cuda.draft.head_kv_pool.CAPACITY", 1)
    steps, whole = backends()
    recipe = beam_recipe(tame_head(), 3, Fixed(nodes=9, depth=3, width=3))
    prompt = make_text(5, 3)
    ours, theirs = (
        first_rounds(target, recipe, prompt, 20, Sampling(max_tokens=99))
        for target in (whole, steps)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=24),
        Sampling(max_tokens=24, temperature=0.8),
        Sampling(max_tokens=24, temperature=0.8, top_p=0.9),
        Sampling(max_tokens=24, repetition_penalty=1.3),
    ],
    ids=["greedy", "sampled", "truncated", "penalised"],
)
@pytest.mark.parametrize("prompt", [[5], [5, 6], make_text(30, 1), make_text(120, 1)], ids=len)
def test_the_text_is_plain_decodings(prompt: list[int], sampling: Sampling) -> None:
    steps, whole = backends()
    recipe = beam_recipe(tame_head(), 4, Fixed(nodes=20, depth=4, width=4))
    plain = Recipe(recipe.drafter, Chain(), Match(), Fixed(nodes=0))
    texts = [
        [
            token
            for outcome in first_rounds(target, made, prompt, 24, sampling)
            for token in outcome.tokens
        ][:24]
        for target, made in ((whole, recipe), (steps, plain))
    ]
    assert texts[0] == texts[1]


def test_a_form_counts_its_nodes() -> None:
    form = LevelSizes(depth=4, beam=3, width=2)
    assert [form.rows(depth) for depth in range(4)] == [1, 2, 3, 3]
    assert [form.first(depth) for depth in range(1, 6)] == [1, 3, 7, 13, 19]
    assert form.size == 19 == len(form.depths) == len(form.ranks)
    assert form.opened == 8
    assert form.depths.tolist() == [0] + [1] * 2 + [2] * 4 + [3] * 6 + [4] * 6


def test_a_form_beyond_the_buffers_is_grown_step_by_step() -> None:
    _, whole = backends()
    recipe = beam_recipe(tame_head(), 10, Fixed(nodes=200, depth=3, width=10))
    [outcome] = first_rounds(whole, recipe, make_text(9, 1), 1, Sampling())
    assert not isinstance(outcome.tree, DeviceTree)


def priced(target: TorchBackend, level: float, node: float, depth: int = 12) -> list[Outcome]:
    """Rounds of `best` at a price of a level and of a node, in tokens."""

    @dataclass
    class Priced(Fixed):
        """A fixed budget with prices."""

        def budget(self) -> Budget:
            return Budget(30, depth, 4, node * np.arange(31), level / BEAM)

    recipe = Recipe(Eagle3(head=tame_head()), Best(stride=8), Match(), Priced())
    return first_rounds(target, recipe, make_text(9, 1), 12, Sampling(max_tokens=99))


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
    best.bind(EngineContext(ToyBackend("a"), flat(), no_loader))
    shape = best.tree_shape(Budget(63, depth, 4))
    assert shape is not None
    assert (shape.width, shape.beam == BEAM) == (BEAM, depth <= 10)
    assert (
        LevelSizes(depth, shape.beam, shape.width).size <= CAPACITY
    )  # else it is not grown on the device


def test_a_device_is_told_of_every_shape_before_any_text() -> None:
    asked: list[Sequence[TreeShape]] = []

    @dataclass
    class Told(Suffix):
        def accepts_seed(self) -> bool:
            return False

        def prepare(self, shapes: Sequence[TreeShape]) -> None:
            asked.append(shapes)

        def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
            return None

        def prelaunch(self, shape: TreeShape, tree: Tree) -> None:
            return None

    recipe = Recipe(Merge(drafters=[Told()]), Best(stride=8), Match(), Goodput(width=6))
    best = Engine(ToyBackend("a"), recipe).recipe.policy
    assert isinstance(best, Best)
    [several] = asked
    forms = {(levels.depth, levels.beam, levels.width) for levels in several}
    for depth in STEPS[:8]:
        shape = best.tree_shape(Budget(63, depth, 6))
        assert shape is not None
        assert (shape.depth, shape.beam, shape.width) in forms


def test_expectations_are_the_best_shape_of_a_known_tree() -> None:
    ahead = WholeTreeStats()
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
    # by the drafter's word alone
    ahead.promises = [AcceptanceRatio() for _ in ahead.promises]
    ahead.promise = AcceptanceRatio()
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
    triton_mode.require()
    from sapwood.backends.torch.cuda.backend import CudaBackend
    from sapwood.backends.torch.cuda.draft import draft_kernels as level
    from sapwood.backends.torch.cuda.draft import tree_builder
    from sapwood.backends.torch.cuda.verify import device_verifier, verify_kernels

    triton_mode.few_programs(monkeypatch)
    monkeypatch.setattr(tree_builder, "kernels", lambda device: level)
    monkeypatch.setattr(device_verifier, "kernels", lambda device: verify_kernels)
    monkeypatch.setattr(
        CudaBackend, "tree_builder", lambda self, head, embedding: CudaTreeBuilder(head, embedding)
    )
    return CudaBackend


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("shape", "length"), [("narrow", 2 * MAX_NEW_ROWS + 5), ("wide", 9), ("flat", 9)]
)
def test_kernels_grow_the_same_tree(kernels: Any, shape: str, length: int, after: bool) -> None:
    beam, budget = SHAPES[shape]
    whole = WholeTreeTarget(tiny_models.make("llama").to(DEVICE), "tiny")
    recipe = beam_recipe(tame_head(norm_before_residual=after), beam, budget)
    prompt = make_text(length, 5)
    ours = first_rounds(whole, recipe, prompt, 3, Sampling(max_tokens=99))
    theirs = first_rounds(backends()[0], recipe, prompt, 3, Sampling(max_tokens=99))
    for one, other in zip(ours, theirs, strict=True):
        assert isinstance(one.tree, DeviceTree)
        assert_same_tree(one.grown, other.grown)
        assert_same_tree(one.tree, other.tree)


def counting(calls: list[int], wait: Any) -> Any:
    """The same method, with its calls counted."""

    def counted(round_buffer: RoundBuffer, *turn: Any) -> Any:
        calls.append(1)
        return wait(round_buffer, *turn)

    return counted


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_round_stays_on_the_device(
    kernels: Any, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused = kernels(tiny_models.make("llama").to(DEVICE), "tiny")
    sampling = Sampling(max_tokens=99, temperature=temperature)
    recipe = beam_recipe(tame_head(), 3, Fixed(nodes=12, depth=3, width=4))
    prompt = make_text(9, 5)
    brought = list[int]()
    monkeypatch.setattr(RoundBuffer, "wait", counting(brought, RoundBuffer.wait))
    monkeypatch.setattr(
        "sapwood.backends.torch.cuda.network.CAPTURE_AFTER", 2
    )  # both ways to begin a pass
    ours = first_rounds(fused, recipe, prompt, 5, sampling)
    assert len(brought) == len(ours)  # one transfer to the host per round
    theirs = first_rounds(backends()[0], recipe, prompt, 5, sampling)
    assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert_same_tree(one.tree, other.tree)
        assert one.verdict == other.verdict


# ------------------------------------------------------------------------------------- a real model
@pytest.mark.smol
@pytest.mark.slow
def test_the_shipped_head_grows_the_same_trees() -> None:
    from sapwood.backends.torch.load import load
    from sapwood.tokenizer.tokenizer import Tokenizer

    loaded, folder = load("smollm2", device="cpu")
    steps, whole = (kind(loaded.model, "smollm2") for kind in (TorchBackend, WholeTreeTarget))
    text = Tokenizer.load(folder)
    recipe = Recipe(Eagle3(), Beam(beam=10), Match(), Fixed(nodes=59, depth=6, width=10))
    for prompt in ("What is the capital of France?", "def add(a, b):"):
        tokens = text.chat([{"role": "user", "content": prompt}])
        ours, theirs = (
            first_rounds(target, recipe, tokens, 3, Sampling(max_tokens=99))
            for target in (whole, steps)
        )
        assert [outcome.tokens for outcome in ours] == [outcome.tokens for outcome in theirs]
        assert any(outcome.verdict.accepted for outcome in ours)
        for one, other in zip(ours, theirs, strict=True):
            assert isinstance(one.tree, DeviceTree)
            assert_same_tree(one.tree, other.tree, 2e-4)  # single precision over six steps
