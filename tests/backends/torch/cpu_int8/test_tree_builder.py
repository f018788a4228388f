"""Whole trees of a packed head: the trees that policy and head make step by step, from seeds too, by any team."""

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cpu_int8 import int8_gemm, tree_builder
from sapwood.backends.torch.cpu_int8.thread_team import PREFETCHER, address_ranges, fetch_all
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Drafter, EngineContext, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import AcceptanceCounts, Budget, GrowthRule, Outcome, TreeShape
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.estimators.binned import EDGES, Binned
from sapwood.heads.files import save
from sapwood.heads.layers import LayerShape
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.level_price import LevelPrice
from sapwood.policies.reach import worth
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers.eagle_heads import make_head
from tests.helpers.engine_rounds import make_text
from tests.helpers.int8_targets import int8_backend

pytestmark = pytest.mark.skipif(
    not int8_gemm.available(), reason="this processor has no eight-bit dot products"
)
SHAPE = LayerShape(width=32, heads=6, kv_heads=2, head_width=64, inner=48)
PRICE = np.append(
    0.0, np.cumsum(np.linspace(0.05, 0.4, 20))
)  # tokens that trees of so many nodes must bring
LEVEL = 0.05  # seconds of a level
NONE = np.zeros((16, len(EDGES) + 1, 6, 5))
NO_COUNTS = AcceptanceCounts(EDGES, NONE, NONE, 4.0, 8.0)


@dataclass
class Priced(Fixed):
    """A budget at prices that stay."""

    rate: float = 1.0

    def budget(self) -> Budget:
        """The same in every round."""
        return Budget(self.nodes, self.depth, self.width, PRICE[: self.nodes + 1], 0.0, self.rate)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A head on disk, which a packed target makes its own."""
    save(make_head(shape=SHAPE), tmp_path)
    return str(tmp_path)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a level always takes as long."""
    monkeypatch.setattr(LevelPrice, "_time", lambda self, *_: setattr(self, "seconds", LEVEL))


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """A team of so many."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rounds(
    drafter: Drafter, controller: Any, prompt: Sequence[int], whole: bool, **options: Any
) -> list[Outcome]:
    """The rounds of a request, with whole trees or step by step."""
    engine = Engine(int8_backend("llama"), Recipe(drafter, Best(stride=3), Match(), controller))
    for part in (engine.recipe.drafter, *getattr(engine.recipe.drafter, "drafters", ())):
        if isinstance(part, Eagle3) and not whole:
            part.builder = None
    return list(engine.rounds(list(prompt), Sampling(max_tokens=40, **options), KeyedRng(0)))


def text_of(found: Sequence[Outcome]) -> list[int]:
    return [token for outcome in found for token in outcome.tokens]


COLUMNS = ("tokens", "parents", "depths", "ranks", "sources", "expanded")


def check_same(ours: Tree, theirs: Tree) -> None:
    """The same nodes in the same order, with the same figures but for rounding."""
    for column in COLUMNS:
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
    np.testing.assert_allclose(ours.probs, theirs.probs, rtol=1e-4)
    np.testing.assert_allclose(ours.reach, theirs.reach, rtol=1e-3)


# -------------------------------------------------------------------------------- against the steps
@pytest.mark.usefixtures("steady", "threads")
@pytest.mark.parametrize(
    "controller",
    [
        Fixed(nodes=7, depth=4, width=3),
        Priced(nodes=20, depth=6, width=4),
        Priced(nodes=3, rate=0.3),
    ],
)
@pytest.mark.parametrize("length", [3, 20, 90])
def test_a_whole_tree_is_the_one_grown_step_by_step(
    folder: str, controller: Any, length: int
) -> None:
    prompt = make_text(length, 1)
    whole, steps = (
        rounds(Eagle3(head=folder), controller, prompt, grown) for grown in (True, False)
    )
    assert [outcome.verdict for outcome in whole] == [outcome.verdict for outcome in steps]
    for ours, theirs in zip(whole, steps, strict=True):
        check_same(ours.grown, theirs.grown)
        assert np.array_equal(ours.tree.tokens, theirs.tree.tokens)
    assert max(len(outcome.grown) for outcome in whole) > 3


@pytest.mark.usefixtures("steady")
def test_a_dear_level_is_left_out_and_the_text_read_later(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rounds(Eagle3(head=folder), Priced(nodes=20, depth=6, width=4), make_text(9, 1), True)
    assert 1 < max(len(np.unique(outcome.grown.depths)) for outcome in found) <= 7
    monkeypatch.setattr(LevelPrice, "_time", lambda self, *_: setattr(self, "seconds", 9.0))
    dear = rounds(Eagle3(head=folder), Priced(nodes=20, depth=6, width=4), make_text(9, 1), True)
    assert text_of(dear) == text_of(found)
    assert (
        sum(len(outcome.grown) > 1 for outcome in dear) < len(dear) / 4
    )  # now and then one shows what has changed


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_a_seed_the_text_is_plain_decodings(folder: str, temperature: float) -> None:
    prompt = [*make_text(12, 1), *make_text(12, 1)]
    merged = Merge(drafters=[Suffix(), Eagle3(head=folder)])
    found = rounds(merged, Fixed(nodes=7, depth=4, width=3), prompt, True, temperature=temperature)
    engine = Engine(int8_backend("llama"), Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0)))
    sampling = Sampling(max_tokens=40, temperature=temperature)
    plain = list(engine.rounds(prompt, sampling, KeyedRng(0)))
    assert text_of(found)[:40] == text_of(plain)[:40]
    sources = np.concatenate([outcome.grown.sources[1:] for outcome in found])
    assert {1, 2} <= set(sources.tolist())


# --------------------------------------------------------------------------------------------- cut
@pytest.mark.usefixtures("steady")
def test_what_pays_was_found_on_the_way(folder: str) -> None:
    found = rounds(Eagle3(head=folder), Priced(nodes=20, depth=6, width=4), make_text(20, 1), True)
    whole = [outcome for outcome in found if outcome.grown.priced is not None]
    assert len(whole) > 10  # the others were grown step by step
    assert all(outcome.tree is outcome.grown.priced[1] for outcome in whole)  # type: ignore[index]


@pytest.mark.parametrize("price", [None, PRICE, PRICE * 0.02, PRICE * 9])
@pytest.mark.parametrize("nodes", [1, 5, 20])
def test_a_cut_tree_is_the_one_that_the_policy_cuts(price: FloatArray | None, nodes: int) -> None:
    rng = np.random.default_rng(nodes)
    budget = Budget(nodes, 6, 3, price, rate=0.0 if price is None else 1.0)
    for _ in range(50):
        seed = Tree(0)
        for token in range(
            1, int(rng.integers(2, 40))
        ):  # chances of 1 and of a half: many nodes are worth the same
            seed.add(
                int(rng.integers(token)),
                token,
                float(rng.choice([0.5, 1.0])),
                rank=token % 3,
                source=token % 4,
            )
        growth_ = tree_builder.TreeState(
            None,  # type: ignore[arg-type]
            0,
            GrowthRule(budget, 1, NO_COUNTS, least=2.0, level=99.0),
            seed,
            0,
        )
        assert not growth_.goes_on
        tree = growth_.tree()
        assert tree.priced is not None
        assert tree.priced[0] is budget
        cut = tree.priced[1]
        theirs = tree.best(worth(tree, budget))
        for column in (*COLUMNS, "probs", "reach", "kept"):
            assert np.array_equal(getattr(cut, column), getattr(theirs, column)), column


def test_prices_without_a_rate_are_left_to_the_policy() -> None:
    budget = Budget(5, 6, 3, PRICE, rate=0.0)
    rule = GrowthRule(budget, 1, NO_COUNTS, least=2.0)
    assert tree_builder.TreeState(None, 0, rule, Tree(0), 0).tree().priced is None  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- seeds
def begun(folder: str) -> Any:
    """A drafter at the beginning of a request."""
    engine = Engine(
        int8_backend("llama"), Recipe(Eagle3(head=folder), Best(), Match(), Fixed(nodes=7))
    )
    return RequestDecoder(engine, make_text(9, 1), Sampling(max_tokens=40), KeyedRng(0)).drafter


def levels_of(budget: Budget, **terms: Any) -> TreeShape:
    """Levels for a drafter that looks at the tree in hand."""
    return TreeShape(
        budget.nodes, budget.depth, 4, budget.width, terms=GrowthRule(budget, 4, NO_COUNTS, **terms)
    )


def seed_of(root: int, chain: Sequence[int], prob: float) -> Tree:
    """A path that somebody else has proposed."""
    tree = Tree(root)
    tip = ROOT
    for token in chain:
        tip = tree.add(tip, token, prob, source=3)
    return tree


def test_a_sure_seed_needs_no_head(folder: str) -> None:
    drafter = begun(folder)
    budget = Priced(nodes=5, depth=4, width=3).budget()
    root = make_text(9, 1)[-1]
    tree = drafter.draft_tree(root, levels_of(budget, level=0.5), seed_of(root, [7, 8, 9], 0.99))
    assert tree.tokens.tolist() == [root, 7, 8, 9]
    assert not tree.expanded.any()
    np.testing.assert_allclose(tree.reach, 0.99 ** np.arange(4))
    assert drafter.unread_  # it can still be asked
    assert len(drafter.draft_tree(root, levels_of(budget, level=0.5))) > 1


def test_what_the_head_says_too_gains_a_source_and_trust(folder: str) -> None:
    drafter = begun(folder)
    root = make_text(9, 1)[-1]
    levels = levels_of(Budget(nodes=9, depth=2, width=3))
    alone = drafter.draft_tree(root, levels)
    first = alone.tokens[1:4].tolist()
    drafter = begun(folder)
    seed = seed_of(root, [first[1], 60], 0.2)
    tree = drafter.draft_tree(root, levels, seed)
    assert tree.tokens[1:5].tolist() == [first[1], 60, first[0], first[2]]
    assert tree.sources[1:5].tolist() == [9, 8, 1, 1]
    assert tree.probs[1] == pytest.approx(1 - 0.8 * (1 - alone.probs[2]))
    assert tree.reach[2] == pytest.approx(0.2 * tree.probs[1])  # below a node that is trusted more
    assert tree.ranks[:5].tolist() == [0, 0, 0, 0, 2]


def test_nodes_are_valued_as_the_estimator_does() -> None:
    rng = np.random.default_rng(0)
    binned = Binned()
    binned.bind(EngineContext(None, None, None))  # type: ignore[arg-type]
    binned.trials[:] = rng.integers(0, 50, binned.trials.shape)
    binned.hits[:] = binned.trials * rng.random(binned.trials.shape)
    seed = Tree(0)
    for token in range(1, 60):
        seed.add(
            int(rng.integers(max(0, token - 9), token)),
            token,
            float(rng.random()),
            rank=token % 8,
            source=token % 4,
        )
    counts = binned.export_table().counts
    assert counts is not None
    terms = GrowthRule(Budget(nodes=9, depth=2, width=3), 1, counts)
    grown = tree_builder.TreeState(None, 0, terms, seed, 0).grown  # type: ignore[arg-type]
    reach = grown.reach[: len(seed)]
    chances = np.append(1.0, np.minimum(binned.chance(seed, 1), 1.0))
    np.testing.assert_allclose(reach[1:], reach[seed.parents[1:]] * chances[1:])


# ------------------------------------------------------------------------------ after the next pass
def test_weights_are_fetched_after_one_pass_only(folder: str) -> None:
    drafter = begun(folder)
    root = make_text(9, 1)[-1]
    PREFETCHER.take()
    drafter.draft_tree(root, levels_of(Budget(nodes=9, depth=2, width=3)))
    places = PREFETCHER.take()
    assert len(places) == 6
    assert places[:, 1].sum() == sum(part.packed.bytes.nbytes for part in drafter.builder.parts)
    assert not len(PREFETCHER.take())
    PREFETCHER.want(places)
    target = int8_backend("llama")
    tree = Tree(root)
    target.score([TreeInput(target.open([1, 2, 3]), tree)])
    assert not len(PREFETCHER.take())
    for worker in (1, 2):
        fetch_all(places, worker, 3)  # reads all of it without a fault


def test_what_is_to_be_fetched_stays_in_memory() -> None:
    array = np.arange(64)
    alive = weakref.ref(array)
    places = address_ranges([array])
    assert places.tolist() == [[array.ctypes.data, array.nbytes]]
    del array
    assert alive() is not None
    del places
    assert alive() is None
