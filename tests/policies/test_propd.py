"""Pruning inside the target: the pass in two parts, the early head, the line of seconds, and that the text stays."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import build
from sapwood.backends.toy import ToyBackend
from sapwood.common import early_head
from sapwood.common.early_head import EarlyHead, numbers
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext, RequestContext, TreeInput
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, Verdict
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.drafters.self.sparse_kv import SparseKv
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies import propd
from sapwood.policies.chain import Chain
from sapwood.policies.propd import Propd, RoundCostLine, drafted, ranks_of
from sapwood.policies.static import Static
from sapwood.recipe import Recipe, parse
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.random_trees import random_tree

DEEP = 3
TEXT = [int(token) for token in np.random.default_rng(0).integers(1, 60, 30)]
PLAIN = Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0))
each_target = pytest.mark.parametrize("kind", ["stock", "packed"])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


@cache
def target(kind: str, name: str = "llama", **extra: Any) -> TorchBackend:
    model = tiny_models.make(name, num_hidden_layers=DEEP, **extra)
    return (
        TorchBackend(model, name) if kind == "stock" else build(model, name, "int8", lambda _: None)
    )


def table(scores: Any, rows: int) -> np.ndarray:
    return np.stack([scores.logits(row) for row in range(rows)])


def cut_of(tree: Tree, seed: int) -> list[int]:
    """Nodes of a random part of the tree that holds every node's ancestors."""
    keep = np.random.default_rng(seed).random(len(tree)) < 0.8
    keep[1] = False
    return [node for node in range(len(tree)) if all(keep[above] for above in tree.path(node)[1:])]


# ------------------------------------------------------------------------------ a pass in two parts
def both_ways(kind: str, name: str, layer: int, seed: int) -> tuple[Any, Any]:
    """The same part of a tree by two parts of a pass and by one, each with what comes after a commit."""
    backend = target(kind, name)
    tree = random_tree(24, seed)
    backend.watch([0, 1, 2, 3])
    sized = tree.keep(range(18))
    final = tree.keep([node for node in cut_of(tree, seed) if node < 18])
    found = []
    for split in (True, False):
        session = backend.open(TEXT)
        if split:
            states = backend.layer_input(TreeInput(session, sized), layer)
            assert states.shape == (18, 32)
            assert session.entered is not None
        [scores] = backend.score([TreeInput(session, final)])
        hidden = scores.hidden(range(len(final)), [0, 1, 2, 3]).numpy()
        session.commit(final.path(len(final) - 1))
        [after] = backend.score([TreeInput(session, tree)])
        found.append((table(scores, len(final)), hidden, table(after, len(tree))))
    return found[0], found[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_a_packed_pass_in_two_parts_has_the_same_bits(name: str, layer: int, seed: int) -> None:
    for ours, wanted in zip(*both_ways("packed", name, layer, seed), strict=True):
        assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "phi3", "mixtral", "olmoe"])
def test_a_stock_pass_in_two_parts_is_the_same_but_for_rounding(
    name: str, layer: int, seed: int
) -> None:
    target("stock", name).check_layer(layer)
    for ours, wanted in zip(*both_ways("stock", name, layer, seed), strict=True):
        assert np.abs(ours - wanted).max() < 1e-4


def test_keys_left_where_they_were_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sapwood.backends.torch.kv_slots import KvSlots

    move = KvSlots.move
    calls = []

    def lazy(self: KvSlots, slots: list[int], start: int) -> None:
        calls.append(slots)
        if len(calls) > 1:  # the first one is that of a tree that goes on
            move(self, slots, start)

    monkeypatch.setattr(KvSlots, "move", lazy)
    ours, wanted = both_ways("packed", "llama", 2, 1)
    assert np.array_equal(ours[0], wanted[0])  # the other layers have keys of their own
    assert not np.array_equal(
        ours[2], wanted[2]
    )  # what comes after the commit reads those of the first ones


@each_target
def test_nodes_that_did_not_enter_are_run_from_the_first_layer(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(12)
    session = backend.open(TEXT)
    sized = tree.keep(range(9))
    backend.layer_input(TreeInput(session, sized), 1)
    entered = session.entered
    assert entered is not None
    assert entered.rows_of(sized).tolist() == list(range(9))  # type: ignore[union-attr]
    assert entered.rows_of(tree.keep(range(4))).tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    other = tree.keep(range(4))
    twin = tree.keep(range(4))
    other.tokens[3] += 1
    twin.parents[3] = 2 - int(twin.parents[3] == 2)
    outside = tree.keep(tree.path(11))
    for stranger in (other, twin, tree, outside):
        assert -1 in entered.rows_of(stranger)  # type: ignore[operator]
    assert entered.rows_of(Tree(int(tree.tokens[ROOT]) + 1)) is None  # another root
    for stranger in (other, tree, outside, random_tree(4, seed=3)):
        backend.layer_input(TreeInput(session, sized), 1)
        [scores] = backend.score([TreeInput(session, stranger)])
        [wanted] = backend.score([TreeInput(backend.open(TEXT), stranger)])
        assert np.abs(table(scores, len(stranger)) - table(wanted, len(stranger))).max() < 1e-4


@each_target
def test_a_tree_enters_node_by_node(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(12)
    whole, steps = (backend.open(TEXT) for _ in range(2))
    wanted = numbers(backend.layer_input(TreeInput(whole, tree), 2))
    found = [
        numbers(backend.layer_input(TreeInput(steps, tree.keep(range(stop)), since), 2))
        for since, stop in ((0, 1), (1, 5), (5, 6), (6, 12))
    ]
    assert np.abs(np.concatenate(found) - wanted).max() < 1e-4
    again = numbers(
        backend.layer_input(TreeInput(steps, tree, 3), 2)
    )  # not where it stopped: all are run
    assert np.abs(again - wanted[3:]).max() < 1e-4
    [ours], [theirs] = (backend.score([TreeInput(session, tree)]) for session in (steps, whole))
    assert np.abs(table(ours, 12) - table(theirs, 12)).max() < 1e-4


@each_target
def test_a_rewound_session_has_entered_nothing(kind: str) -> None:
    backend = target(kind)
    session = backend.open(TEXT)
    sized = random_tree(9)
    backend.layer_input(TreeInput(session, sized), 1)
    session.rewind(4)
    assert session.entered is None


@each_target
def test_one_that_entered_is_scored_beside_others(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(12)
    first, second, third = (backend.open(TEXT[:length]) for length in (9, 20, 30))
    sized = tree.keep(range(9))
    final = tree.keep(range(5))
    backend.layer_input(TreeInput(second, sized), 1)
    works = [TreeInput(first, tree), TreeInput(second, final), TreeInput(third, sized)]
    found = backend.score(works)
    for work, scores, length in zip(works, found, (9, 20, 30), strict=True):
        [wanted] = backend.score([TreeInput(backend.open(TEXT[:length]), work.tree)])
        rows = len(work.tree)
        assert np.abs(table(scores, rows) - table(wanted, rows)).max() < 1e-4


def test_a_draft_over_the_same_keys_ends_what_entered() -> None:
    backend = target("packed")
    tree = random_tree(12)
    session = backend.open(TEXT)
    made = backend.variant(skip=[2])
    backend.layer_input(TreeInput(session, tree), 1)
    made.score([TreeInput(made.share_session(session), random_tree(5))])  # type: ignore[arg-type]
    assert session.entered is None


def test_models_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(SapwoodError, match="not built as layers"):
        tiny_models.backend("gpt2").check_layer(1)
    made: Any = transformers.GraniteForCausalLM
    scaled = made(transformers.GraniteConfig(**tiny_models.COMMON, embedding_multiplier=3.0))
    with pytest.raises(SapwoodError, match="more than to run its layers"):
        TorchBackend(scaled, "granite").check_layer(1)
    for kind in ("stock", "packed"):
        with pytest.raises(
            SapwoodError, match="layer=3 must be from 1 to 2 in a model of 3 layers"
        ):
            target(kind).check_layer(3)
    with pytest.raises(
        SapwoodError, match="needs hidden, layers, which the toy backend does not provide"
    ):
        Engine(ToyBackend(), Recipe(Recycling(), Propd(), Match(), Fixed()))


# -------------------------------------------------------------------------------------- the head
def samples(rows: int, width: int = 12, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    noise = np.random.default_rng(seed)
    early = noise.normal(size=(rows, width))
    return early, np.tanh(early @ np.random.default_rng(9).normal(size=(width, width)))


def test_the_map_is_ridge_regression_whatever_the_order(tmp_path: Path) -> None:
    early, final = samples(400)
    head = EarlyHead(12, tmp_path / "a")
    for part in np.array_split(np.arange(400), 7):
        head.learn(early[part], final[part])
    seen = head.fitted
    rows = early[:seen] / np.sqrt((early[:seen] ** 2).mean(1, keepdims=True))
    rows = np.append(rows, np.ones((seen, 1)), 1)
    energy = (rows**2).sum(0)
    loud = np.diag(np.sqrt(early_head.RIDGE * energy + early_head.TINY * energy.mean()))
    stacked = np.concatenate((rows, loud)), np.concatenate((final[:seen], np.zeros((13, 12))))
    wanted = np.linalg.lstsq(*stacked, rcond=None)[0]
    assert seen >= early_head.FEW
    assert head.map == pytest.approx(wanted, abs=1e-6)
    assert head.guess(early[:3]) == pytest.approx(rows[:3] @ wanted, abs=1e-5)


def test_what_was_learned_is_kept_and_goes_on(tmp_path: Path) -> None:
    early, final = samples(300)
    head = EarlyHead(12, tmp_path / "head.npz")
    head.save()
    assert not head.path.exists()  # nothing is known yet
    head.learn(early, final)
    head.save()
    again = EarlyHead(12, head.path)
    assert again.seen == 300
    assert again.guess(early[:5]) == pytest.approx(head.guess(early[:5]), abs=1e-4)
    before = head.path.stat().st_mtime_ns
    again.save()
    assert head.path.stat().st_mtime_ns == before  # nothing new
    assert list(tmp_path.iterdir()) == [head.path]
    assert EarlyHead(13, head.path).seen == 0  # another model's
    for damage in (b"", b"PK\x03\x04", head.path.read_bytes()[:200]):
        head.path.write_bytes(damage)
        assert EarlyHead(12, head.path).seen == 0


def test_broken_states_are_not_learned_from(tmp_path: Path) -> None:
    early, final = samples(300)
    head = EarlyHead(12, tmp_path / "a")
    head.learn(np.full((3, 12), np.nan), final[:3])
    head.learn(early, final)
    assert head.seen == 300
    assert np.isfinite(head.map).all()


def test_wide_states_are_seen_through_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_head, "MOST", 8)
    head = EarlyHead(12, tmp_path / "a")
    head.learn(*samples(300))
    assert head.map.shape == (9, 12)
    assert set(np.unique(head.signs)) == {-1.0, 1.0}  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------- the line
@pytest.mark.parametrize("seed", range(5))
def test_the_line_is_weighted_least_squares(seed: int) -> None:
    noise = np.random.default_rng(seed)
    line = RoundCostLine(0.2, 0.05)
    usual: dict[int, float] = {}
    last: dict[int, int] = {}
    for turn in range(1, 40):
        size = int(noise.integers(1, 9)) * 4
        seconds = 0.02 + 0.001 * size + 0.002 * float(noise.random())
        line.observe(size, seconds)
        usual[size], last[size] = (
            usual.get(size, seconds) + 0.2 * (seconds - usual.get(size, seconds)),
            turn,
        )
    sizes = sorted(usual)
    weights = np.exp(-0.05 * (39 - np.array([last[size] for size in sizes])))
    slope, base = np.polyfit(sizes, [usual[size] for size in sizes], 1, w=np.sqrt(weights))
    assert line.fit() == pytest.approx((base, slope), rel=1e-6)
    reach = np.sort(noise.random(20))[::-1]
    rates = [(1 + reach[:size].sum()) / (base + slope * size) for size in range(1, 21)]
    assert line.size(reach) == 1 + int(np.argmax(rates))


def test_the_line_of_few_rounds_or_falling_seconds() -> None:
    line = RoundCostLine(0.2, 0.02)
    reach = np.full(9, 0.5)
    assert [line.size(reach[:0]), line.size(reach)] == [0, 9]
    for size in (9, 5, 3):
        assert line.size(reach) == size  # the first rounds try several
        line.observe(size, 0.5 - 0.01 * size)
    assert line.fit()[1] == 0.0
    assert line.size(reach) == 9
    assert line.size(reach[:0]) == 0
    steep = RoundCostLine(0.2, 0.02)
    for size in (10, 20, 30):
        steep.observe(size, 0.02 * size - 0.1)
    assert steep.fit()[0] >= 0


# ------------------------------------------------------------------------------------- the policy
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prune from the first rounds on, at sizes that do not depend on the clock."""
    monkeypatch.setattr(early_head, "FEW", 8)
    monkeypatch.setattr(propd, "SURE", 1)
    monkeypatch.setattr(Propd, "now", staticmethod(lambda: 0.0))
    monkeypatch.setattr(RoundCostLine, "size", lambda self, reach: len(reach))


def test_children_stay_where_the_early_head_lets_them_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    backend: Any = target("packed")
    policy = Propd(policy=Static(shape=[6, 3]), layer=1)
    policy.bind(EngineContext(backend, flat(), no_loader))
    policy.reset(RequestContext(TEXT, Sampler(Sampling(), TEXT), backend.open(TEXT[:-1])))
    assert policy.head.fitted == len(TEXT) - 1
    policy.ranks.extend([20])
    tree = Tree(TEXT[-1])
    for token in range(6):
        tree.extend(tree.add(ROOT, token, 0.1), [7, 8, 9], [0.3, 0.2, 0.1])
    kept = policy.prune(tree, Fixed(40, 2, 6).budget())
    states = numbers(backend.layer_input(TreeInput(backend.open(TEXT[:-1]), tree), 1))
    wanted = [ROOT]
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        logits = backend.logits_of(policy.head.guess(states[[parent]])).logits(0)
        better = sum(float(other) > float(logits[tree.tokens[node]]) for other in logits)
        if parent in wanted and better <= 20:
            wanted.append(node)
    assert kept.kept is not None
    assert kept.kept.tolist() == wanted
    assert 1 < len(wanted) < len(tree)
    assert policy.session_.entered is not None  # type: ignore[attr-defined]
    assert ranks_of(np.array([0.1, 0.5, 0.5, 0.9]), np.array([0, 1, 3])) == [3, 1, 0]


def test_a_right_draft_that_was_dropped_counts_too() -> None:
    grown = Tree(1)
    first, _, missed = (grown.add(ROOT, token, 0.3) for token in (2, 3, 4))
    below = grown.add(first, 5, 0.5)
    checked = grown.keep([first, below])
    whole = Outcome(grown, checked, Verdict((0, 1, 2), 9), None, 3)  # type: ignore[arg-type]
    assert drafted(whole) == [2, 5]
    dropped = Outcome(grown, checked, Verdict((0,), 4), None, 3)  # type: ignore[arg-type]
    assert missed == 3
    assert drafted(dropped) == [4]
    assert drafted(Outcome(grown, grown, Verdict((0,), 8), None, 3)) == []  # type: ignore[arg-type]


def test_the_rank_that_passes_follows_the_record() -> None:
    policy = Propd(layer=1, recall=0.7)
    policy.bind(EngineContext(target("packed"), flat(), no_loader))
    assert policy.most is None
    policy.head.fitted = 1
    policy.ranks.extend(range(propd.SURE - 1))
    assert policy.most is None
    policy.ranks.clear()
    policy.ranks.extend([0, 3, 5, 40] * 8)
    assert policy.most == 5


SAMPLINGS = {
    "greedy": Sampling(max_tokens=90),
    "penalised": Sampling(max_tokens=90, repetition_penalty=1.3),
    "sampled": Sampling(max_tokens=90, temperature=0.8, top_p=0.9),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", [Recycling(), SparseKv(sinks=1, recent=4)], ids=str)
@each_target
def test_the_text_is_plain_decodings(
    kind: str, drafter: Any, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(monkeypatch)
    backend = target(kind)
    prompt = TEXT[:20]
    recipe = Recipe(drafter, Propd(recall=0.7), Match(), Fixed(24, 3, 6))
    plain = rounds_until(backend, PLAIN, prompt, 60, SAMPLINGS[sampling])
    ours = rounds_until(backend, recipe, prompt, 60, SAMPLINGS[sampling])
    assert tokens_of(ours)[:60] == tokens_of(plain)[:60]
    assert any(outcome.verdict.accepted for outcome in ours)
    pruned = [outcome for outcome in ours if 1 < len(outcome.tree) < min(25, len(outcome.grown))]
    assert pruned, "nothing was pruned"


@each_target
def test_the_text_reaches_the_end_of_the_context_with_the_clock_on(kind: str) -> None:
    backend = target(kind)
    endless = Sampling(max_tokens=999)
    plain = rounds_until(backend, PLAIN, TEXT[:20], 999, endless)
    ours = rounds_until(
        backend, Recipe(Recycling(), Propd(), Match(), Fixed(16, 3, 4)), TEXT[:20], 999, endless
    )
    assert tokens_of(ours) == tokens_of(plain)


def test_the_law_is_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    eager(monkeypatch)
    monkeypatch.setattr(EarlyHead, "save", lambda self: None)  # each replay begins anew
    monkeypatch.setattr(early_head, "FEW", 2)
    monkeypatch.setattr(Propd, "most", property(lambda self: 1 if self.head.fitted else None))
    backend = target("packed", "llama", vocab_size=3)
    recipe = Recipe(SparseKv(recent=1), Propd(), Match(), Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=4)
    assert law_error(recipe, backend, sampling, prompt=(0, 1, 2, 1), rounds=2, horizon=3) <= 1e-12


def test_draws_that_q_rules_judge_may_not_be_pruned() -> None:
    with pytest.raises(Unsound, match="prunes single nodes by their own token"):
        Recipe(Recycling(draws=Draw.SWOR), Propd(), Rrs(), Fixed())
    assert (
        parse("recycling + propd(layer=2, policy=best) + match + fixed").policy.prunes
        is Propd.prunes
    )


def test_options_are_checked() -> None:
    for options, words in (
        ({"recall": 1.5}, "recall=1.5 must be"),
        ({"layer": -1}, "layer=-1 must be at least 0"),
    ):
        with pytest.raises(SapwoodError, match=words):
            Propd(**options)
