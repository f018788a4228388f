"""Targets that draft for themselves: what the variants compute, whose keys they read, and that the text stays."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch import variant as variants
from sapwood.backends.torch.load import build
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.packed.linear import Fine, Linear, unpack
from sapwood.backends.torch.parts import coarse
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import flat
from sapwood.drafters import skipping
from sapwood.drafters.merge import Merge
from sapwood.drafters.quantized_self import QuantizedSelf
from sapwood.drafters.self_skip import SelfSkip, merit
from sapwood.drafters.skipping import Search, spread
from sapwood.drafters.sparse_kv import SparseKv
from sapwood.drafters.suffix import Suffix
from sapwood.engine import Engine, no_loader
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.protocols import Setting, Work
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Draw, Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.testing import law_error
from sapwood.tree import Tree
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests import tiny
from tests.test_packed import random_tree

DEEP = 4  # layers, so that two lie between the first and the last
TEXT = [int(token) for token in np.random.default_rng(0).integers(1, 60, 40)]
PLAIN = Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


@cache
def target(kind: str, name: str = "llama", **extra: Any) -> TorchBackend:
    """A tiny model of four layers, by its own code or packed."""
    model = tiny.make(name, num_hidden_layers=DEEP, **extra)
    return TorchBackend(model, name) if kind == "stock" else build(model, name, "int8", lambda _: None)


def rows_of(backend: Any, session: Any, tree: Tree) -> np.ndarray:
    [scores] = backend.score([Work(session, tree)])
    return np.stack([scores.logits(node) for node in range(len(tree))])


each_target = pytest.mark.parametrize("kind", ["stock", "packed"])
VARIANTS: dict[str, dict[str, Any]] = {
    "skip": {"skip": [2, 5]},
    "bits": {"bits": 4},
    "window": {"sinks": 2, "recent": 8},
}


# --------------------------------------------------------------------------------- what they compute
@torch.inference_mode()
def slow_skip(model: Any, tokens: list[int], skip: list[int]) -> np.ndarray:
    """Logits after the last token, sublayer by sublayer."""
    base = model.model
    x, places = base.embed_tokens(torch.tensor([tokens])), torch.arange(len(tokens))[None]
    mask = torch.full((len(tokens), len(tokens)), torch.finfo(torch.float32).min).triu(1)[None, None]
    for index, layer in enumerate(base.layers):
        if 2 * index not in skip:
            turns = base.rotary_emb(x, places)
            x = x + layer.self_attn(layer.input_layernorm(x), position_embeddings=turns, attention_mask=mask)[0]
        if 2 * index + 1 not in skip:
            x = x + layer.mlp(layer.post_attention_layernorm(x))
    found: np.ndarray = model.lm_head(base.norm(x))[0, -1].numpy()
    return found


@pytest.mark.parametrize("skip", [[2], [3], [2, 3], [2, 5], [2, 3, 4, 5]], ids=str)
def test_skipped_sublayers_add_nothing(skip: list[int]) -> None:
    stock, packed = target("stock"), target("packed")
    for count in (1, 7):  # a text of which nothing is committed shows no key of the whole model
        tokens = TEXT[:count]
        wanted = slow_skip(stock.model, tokens, skip)
        chain = Tree(tokens[0])
        for node, token in enumerate(tokens[1:]):
            chain.add(node, token, 1.0)
        for backend, near in ((stock, 1e-4), (packed, 0.3)):
            made = backend.variant(skip=skip)
            found = rows_of(made, made.open([]), chain)[-1]
            assert np.abs(found - wanted).max() < near * wanted.std()


@torch.inference_mode()
def slow_window(model: Any, text: list[int], tree: Tree, node: int, sinks: int, recent: int) -> np.ndarray:
    """Logits at a node whose path sees the first and the last keys of a text that was read whole."""
    path = tree.spell(node)
    tokens, committed = [*text, *path], len(text)
    mask = torch.full((len(tokens), len(tokens)), torch.finfo(torch.float32).min).triu(1)
    mask[committed:, sinks : committed - recent] = torch.finfo(torch.float32).min
    found: np.ndarray = model(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0, -1].numpy()
    return found


def window_gap(sinks: int, recent: int) -> float:
    """How far a window's logits are from those of the slow reference."""
    stock, tree = target("stock"), random_tree(9)
    made = stock.variant(sinks=sinks, recent=recent)
    found = rows_of(made, made.over(stock.open(TEXT)), tree)
    wanted = [slow_window(stock.model, TEXT, tree, node, sinks, recent) for node in range(len(tree))]
    return float(np.abs(found - np.stack(wanted)).max())


@pytest.mark.parametrize(("sinks", "recent"), [(2, 8), (0, 5), (4, 20), (0, 1)])
def test_a_window_sees_the_first_and_the_last_keys_at_their_true_positions(sinks: int, recent: int) -> None:
    assert window_gap(sinks, recent) < 1e-4


def test_positions_that_close_the_gap_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    close = lambda block: block.length + block.depths[block.since :]  # noqa: E731
    monkeypatch.setattr(Block, "positions", property(close))
    assert window_gap(2, 8) > 0.1


@each_target
def test_a_window_that_holds_the_whole_text_is_the_target(kind: str) -> None:
    backend, tree = target(kind), random_tree(9)
    session = backend.open(TEXT)
    made = backend.variant(sinks=4, recent=100)
    assert np.array_equal(rows_of(made, made.over(session), tree), rows_of(backend, session, tree))


@each_target
def test_a_window_follows_the_text(kind: str) -> None:
    backend = target(kind)
    session = backend.open(TEXT[:3])
    made = backend.variant(sinks=2, recent=8)
    sliding: Any = made.over(session)
    for token in TEXT[3:]:
        held = sliding._length
        rows_of(made, sliding, Tree(token))
        assert min(session.length, 10) <= sliding._length <= 10 + 8 // variants.SLACK
        new = made.over(session)
        assert sliding.length == session.length
        if sliding._length < held:  # it began anew: the same keys as a window that opens here
            assert np.array_equal(rows_of(made, sliding, Tree(token)), rows_of(made, new, Tree(token)))
        rows_of(backend, session, Tree(token))
        session.commit([0])
    session.rewind(5)
    assert np.array_equal(rows_of(made, sliding, Tree(3)), rows_of(made, made.over(session), Tree(3)))


def test_fewer_bits_round_weights_to_whole_steps() -> None:
    weight = torch.randn(5, 33)
    steps = weight.abs().amax(1, keepdim=True) / 7
    assert torch.allclose(coarse(weight, 4), (weight / steps).round() * steps)
    assert all(len(row.unique()) <= 15 for row in coarse(weight, 4))
    fine = Fine(weight)
    same = fine.rounded(8)
    assert type(same) is Linear
    assert same.packed is fine.packed  # the same weights, rows in fewer bits
    assert torch.allclose(unpack(fine.rounded(4).packed), coarse(unpack(fine.packed), 4), atol=1e-2)


@each_target
def test_fewer_bits_say_less_and_less_exactly(kind: str) -> None:
    backend, tree = target(kind), random_tree(24)
    exact = rows_of(backend, backend.open(TEXT), tree)
    gaps = []
    for bits in (8, 6, 4, 2):
        made = backend.variant(bits=bits)
        session = made.over(backend.open(TEXT)) or made.open(TEXT)
        gaps.append(float(np.abs(rows_of(made, session, tree) - exact).mean()))
    assert 0 < gaps[0] < gaps[1] < gaps[2] < gaps[3]


def test_a_float_target_on_a_cpu_drafts_in_packed_weights_with_keys_of_its_own() -> None:
    stock = target("stock")
    made = stock.variant(bits=8)
    assert made.info.dtype == "int8"
    assert made.over(stock.open(TEXT)) is None
    assert stock.variant(bits=8).model is stock.model
    assert target("packed").variant(bits=8).over(target("packed").open(TEXT)) is not None


# -------------------------------------------------------------------------------- whose keys they read
@each_target
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_leaves_the_target_as_it_is(kind: str, name: str) -> None:
    backend, tree = target(kind), random_tree(20)
    before, session = rows_of(backend, backend.open(TEXT), tree), backend.open(TEXT)
    made = backend.variant(**VARIANTS[name])
    draft = made.over(session)
    assert draft is not None
    assert draft.length == session.length == len(TEXT)
    rows_of(made, draft, random_tree(300))  # more than there is room for at first
    assert np.array_equal(rows_of(backend, session, tree), before)
    session.commit(tree.path(len(tree) - 1))
    assert draft.length == session.length > len(TEXT)
    fresh = backend.open([*TEXT, *tree.spell(len(tree) - 1)])
    assert np.abs(rows_of(made, draft, tree) - rows_of(made, made.over(fresh), tree)).max() < 1e-4
    for forbidden in (lambda: draft.rewind(1), draft.fork):
        with pytest.raises(ValueError, match="the target's"):
            forbidden()


@each_target
def test_a_draft_that_was_overwritten_is_written_again(kind: str) -> None:
    backend, tree = target(kind), random_tree(12)
    made, session = backend.variant(skip=[2]), backend.open(TEXT)
    ours: Any = made.over(session)
    theirs: Any = made.over(session)
    first = tree.keep(range(5))
    [alone] = made.score([Work(ours, first)])
    [rest] = made.score([Work(ours, tree, 5)])
    made.score([Work(ours, first)])
    made.score([Work(theirs, random_tree(9, seed=1))])
    [again] = made.score([Work(ours, tree, 5)])
    assert len(again.argmax()) == len(rest.argmax()) == 7
    for row in range(7):
        assert np.abs(again.logits(row) - rest.logits(row)).max() < 1e-4
    assert len(alone.argmax()) == 5


def test_sessions_of_another_backend_are_not_looked_into() -> None:
    made = target("stock").variant(skip=[2])
    assert made.over(target("packed").open(TEXT)) is None
    assert made.over(Toy().open([1])) is None


@each_target
def test_weights_are_shared(kind: str) -> None:
    backend: Any = target(kind)
    made: Any = backend.variant(skip=[2])
    assert made.network.layout is backend.network.layout
    if kind == "stock":
        assert made.network.model.model.layers[1].mlp is backend.model.model.layers[1].mlp
        assert made.network.model.model.layers[0] is backend.model.model.layers[0]
    else:
        assert made.network.layers is backend.network.layers
    assert backend.model.config.num_hidden_layers == len(backend.model.model.layers) == DEEP


# ------------------------------------------------------------------------------------ the same text
DRAFTERS: dict[str, Callable[[Draw], Any]] = {
    "self-skip": lambda draws: SelfSkip(share=0.5, seconds=1.0, draws=draws),
    "quantized-self": lambda draws: QuantizedSelf(bits=4, draws=draws),
    "quantized-self-8": lambda draws: QuantizedSelf(draws=draws),
    "sparse-kv": lambda draws: SparseKv(sinks=1, recent=4, draws=draws),
}
SHAPES: dict[str, tuple[Any, bool]] = {
    "chain": (Chain(), False),
    "beam": (Beam(beam=3), False),
    "merge": (Best(), True),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


def rounds_of(backend: Any, recipe: Recipe, prompt: list[int], count: int, sampling: Sampling) -> list[Outcome]:
    found: list[Outcome] = []
    for outcome in Engine(backend, recipe).rounds(prompt, sampling, Keyed(3)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= count:
            break
    return found


def tokens_of(rounds: list[Outcome]) -> list[int]:
    return [token for outcome in rounds for token in outcome.tokens]


RUNS = [("chain", "greedy"), ("beam", "penalised"), ("beam", "sampled"), ("merge", "greedy"), ("merge", "sampled")]


@pytest.mark.parametrize(("shape", "sampling"), RUNS)
@pytest.mark.parametrize("name", DRAFTERS)
@each_target
def test_the_text_is_plain_decodings(kind: str, name: str, shape: str, sampling: str) -> None:
    backend, prompt, (policy, merged) = target(kind), TEXT[:9], SHAPES[shape]
    drafter = DRAFTERS[name](Draw.TOPK)
    drafter = Merge(drafters=[Suffix(), drafter, SparseKv(recent=3)]) if merged else drafter
    plain = rounds_of(backend, PLAIN, prompt, 40, SAMPLINGS[sampling])
    ours = rounds_of(backend, Recipe(drafter, policy, Match(), Fixed(12, 3, 4)), prompt, 40, SAMPLINGS[sampling])
    assert tokens_of(ours)[:40] == tokens_of(plain)[:40]
    if sampling == "greedy":
        assert any(outcome.verdict.accepted for outcome in ours)


@pytest.mark.parametrize("prompt", [[5], [5, 6], (TEXT * 4)[:120], (TEXT * 4)[:127]], ids=len)
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_reaches_from_the_first_token_to_the_end_of_the_context(name: str, prompt: list[int]) -> None:
    backend, endless = target("packed"), Sampling(max_tokens=999)
    plain = rounds_of(backend, PLAIN, prompt, 999, endless)
    ours = rounds_of(backend, Recipe(DRAFTERS[name](Draw.TOPK), Best(), Match(), Fixed(7, 4, 3)), prompt, 999, endless)
    assert tokens_of(ours) == tokens_of(plain)
    assert len(prompt) + len(tokens_of(ours)) == backend.info.context


def test_the_target_over_all_its_keys_is_never_refused() -> None:
    greedy = Sampling(max_tokens=64)
    for kind in ("stock", "packed"):
        ours = rounds_of(target(kind), Recipe(SparseKv(), Chain(), Match(), Fixed(4, 4, 1)), TEXT[:9], 40, greedy)
        assert all(outcome.verdict.accepted == len(outcome.tree) - 1 for outcome in ours)


@pytest.mark.parametrize("name", [name for name in tiny.NAMES if not name.startswith("gpt")])
@pytest.mark.parametrize("drafter", [SelfSkip(share=1.0), SparseKv(sinks=1, recent=3), QuantizedSelf(bits=5)], ids=str)
def test_variants_of_every_architecture(drafter: Any, name: str) -> None:
    layers = ["sliding_attention", "full_attention"]
    extra: dict[str, Any] = {"layer_types": [*layers, *layers]} if "mixed" in name or "gemma" in name else {}
    extra |= {"first_k_dense_replace": DEEP} if name == "deepseek" else {}
    backend = TorchBackend(tiny.make(name, num_hidden_layers=DEEP, **extra), name)
    greedy = Sampling(max_tokens=20)
    plain = rounds_of(backend, PLAIN, TEXT[:9], 12, greedy)
    ours = rounds_of(backend, Recipe(drafter, Beam(beam=3), Match(), Fixed(12, 3, 4)), TEXT[:9], 12, greedy)
    assert tokens_of(ours)[:12] == tokens_of(plain)[:12]
    assert len(backend.model.base_model.layers) == DEEP


# ------------------------------------------------------------------------------------- the same law
LAWS: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 2),
    (Draw.IID, Static(shape=[2, 1]), Mss(), 1),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
    (Draw.MIXED, Static(shape=[2, 1]), Mixed(), 1),
    (Draw.TOPK, Best(), Match(), 2),
]


@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "quantized-self"])  # packs anew in each replay
def test_the_law_is_the_targets(
    name: str, draws: Draw, policy: Any, verifier: Any, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skipping, "keep", lambda path, content: False)  # each replay begins anew
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: 0.0))
    backend = target("packed", "llama", vocab_size=3)
    recipe = Recipe(DRAFTERS[name](draws), policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert law_error(recipe, backend, sampling, rounds=rounds, horizon=2) <= 1e-12  # rows have the same bits anywhere


# -------------------------------------------------------------------------------------- the search
def make_search(path: Path, layers: int = 12, count: int = 6) -> Search:
    return Search(layers, count, path / "set.json", Keyed(0))


def test_sets_leave_the_first_and_the_last_layer_alone(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    seen = {search.best}
    for _ in range(60):
        sublayers = search.propose()
        assert len(set(sublayers)) == 6
        assert min(sublayers) >= 2
        assert max(sublayers) <= 21
        assert sublayers != search.best
        seen.add(sublayers)
    assert len(seen) > 50
    assert [make_search(tmp_path).propose() for _ in range(2)] == [make_search(tmp_path).propose()] * 2
    assert spread(range(2, 22), 5) == (4, 8, 12, 16, 20)
    assert make_search(tmp_path, layers=2).best == ()


def test_the_search_finds_what_can_be_skipped(tmp_path: Path) -> None:
    useless = {3, 5, 8, 13, 18, 20}
    search = make_search(tmp_path)

    def said(sublayers: tuple[int, ...]) -> tuple[float, float]:
        return len(useless & set(sublayers)) / 6, 0.5

    for _ in range(400):
        sublayers = search.propose()
        search.judge(sublayers, said(sublayers), said(search.best))
    assert set(search.best) == useless
    assert search.merit == (1.0, 0.5)
    assert make_search(tmp_path).best == search.best  # it was kept


def test_a_set_must_be_better_on_the_same_text(tmp_path: Path) -> None:
    search = make_search(tmp_path)
    best, other = search.best, search.propose()
    assert not search.judge(other, (0.5, 0.1), (0.5, 0.1))
    assert search.best == best
    assert search.judge(other, (0.5, 0.2), (0.5, 0.1))
    assert search.best == other
    assert search.stale == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        json.dumps({"layers": 12, "skip": [1, 2, 3, 4, 5, 6], "tries": 1}),
        json.dumps({"layers": 9, "skip": [2, 3, 4, 5, 6, 7], "tries": 1}),
        json.dumps({"layers": 12, "skip": [2, 3], "tries": 1}),
        json.dumps({"layers": 12, "skip": "all", "tries": 1}),
    ],
)
def test_a_damaged_file_is_left_alone(content: str, tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(content)
    assert make_search(tmp_path).best == spread(range(2, 22), 6)


@each_target
def test_merit_is_what_a_variant_would_have_said(kind: str) -> None:
    backend = target(kind)
    made, session = backend.variant(skip=[2]), backend.open(TEXT[:10])
    said, chance = merit(made, session, TEXT[10:20])
    hits, chances = 0, []
    for end in range(11, 20):
        prefix = backend.open(TEXT[:10])
        chain = Tree(TEXT[10])
        for node, token in enumerate(TEXT[11:end]):
            chain.add(node, token, 1.0)
        row = rows_of(made, made.over(prefix), chain)[-1].astype(float)
        law = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        hits += int(np.argmax(row)) == TEXT[end]
        chances.append(law[TEXT[end]])
    assert said == pytest.approx(hits / 9)
    assert chance == pytest.approx(np.mean(chances), abs=1e-6)


@each_target
def test_the_set_is_searched_while_decoding_and_kept(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: 0.0))
    backend = target(kind)
    for seconds, tried in ((1.0, True), (0.0, False)):
        engine = Engine(backend, Recipe(SelfSkip(share=0.5, seconds=seconds), Chain(), Match(), Fixed(3, 3, 1)))
        drafter: Any = engine.recipe.drafter
        begun, first = drafter.search.tries, drafter.search.best
        for _ in engine.rounds(TEXT[:9], Sampling(max_tokens=60), Keyed(0)):
            pass
        assert (drafter.search.tries > begun) is tried
        if tried:
            assert drafter.search.best != first
            assert json.loads(drafter.search.path.read_text())["skip"] == list(drafter.search.best)
            again = SelfSkip(share=0.5)
            again.bind(Setting(backend, flat(), no_loader))
            assert again.search.best == drafter.search.best


def test_a_slow_try_is_paid_off_by_resting(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: float(next(ticks))))  # each try takes a second
    recipe = Recipe(SelfSkip(share=0.5, seconds=0.25, enough=1.0), Chain(), Match(), Fixed(1, 1, 1))
    engine = Engine(target("packed"), recipe)
    rounds = list(engine.rounds(TEXT[:9], Sampling(max_tokens=80), Keyed(0)))
    drafter: Any = engine.recipe.drafter
    assert 2 <= drafter.search.tries <= len(rounds) / 4 + 1


# ---------------------------------------------------------------------------------------- misfits
@pytest.mark.parametrize("name", ["self-skip", "quantized-self", "sparse-kv", "swift", "draft-verify", "triforce"])
def test_backends_without_variants_are_told_so(name: str) -> None:
    with pytest.raises(SapwoodError, match="needs variants, which the toy backend does not provide"):
        Engine(Toy(), resolve(name))


def test_models_that_are_not_layers_are_refused() -> None:
    backend = tiny.backend("gpt2")
    with pytest.raises(SapwoodError, match="not built as layers"):
        backend.variant(skip=[2])
    greedy = Sampling(max_tokens=20)
    plain = tokens_of(rounds_of(backend, PLAIN, TEXT[:9], 12, greedy))
    for drafter in (SparseKv(sinks=1, recent=3), QuantizedSelf(bits=4)):
        ours = rounds_of(backend, Recipe(drafter, Chain(), Match(), Fixed(3, 3, 1)), TEXT[:9], 12, greedy)
        assert tokens_of(ours)[:12] == plain[:12]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SelfSkip(share=1.5), "share=1.5 must be from 0 to 1"),
        (lambda: SelfSkip(window=0), "window=0 must be at least 1"),
        (lambda: QuantizedSelf(bits=1), "bits=1 must be from 2 to 8"),
        (lambda: SparseKv(recent=0), "recent=0 must be at least 1"),
        (lambda: SparseKv(sinks=-1), "sinks=-1 must be at least 0"),
    ],
)
def test_options_are_checked(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(SapwoodError, match=words):
        make()
