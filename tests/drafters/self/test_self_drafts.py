"""All self-drafters: the target stays as it is, the same text, the exact law, misfits."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.kv_slots import KvLayout, KvSlots
from sapwood.backends.torch.self_draft import SlotView
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.drafters.self import skip_search
from sapwood.drafters.self.quantized_self import QuantizedSelf
from sapwood.drafters.self.self_skip import SelfSkip
from sapwood.drafters.self.sparse_kv import SparseKv
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.covering import pairwise
from tests.helpers.draw_kinds import each_draw_kind
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.random_trees import random_tree
from tests.helpers.self_draft_targets import (
    DEEP,
    PLAIN,
    TEXT,
    VARIANTS,
    each_target,
    rows_of,
    target,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))


@each_target
@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_leaves_the_target_as_it_is(kind: str, name: str) -> None:
    backend = target(kind)
    tree = random_tree(20)
    before = rows_of(backend, backend.open(TEXT), tree)
    session = backend.open(TEXT)
    made = backend.variant(**VARIANTS[name])
    draft = made.share_session(session)
    assert draft is not None
    assert draft.length == session.length == len(TEXT)
    rows_of(made, draft, random_tree(300))  # more than there is room for at first
    assert np.array_equal(rows_of(backend, session, tree), before)
    session.commit(tree.path(len(tree) - 1))
    assert draft.length == session.length > len(TEXT)
    fresh = backend.open([*TEXT, *tree.spell(len(tree) - 1)])
    assert (
        np.abs(rows_of(made, draft, tree) - rows_of(made, made.share_session(fresh), tree)).max()
        < 1e-4
    )
    for forbidden in (lambda: draft.rewind(1), draft.fork):
        with pytest.raises(ValueError, match="the target's"):
            forbidden()


@each_target
def test_a_draft_that_was_overwritten_is_written_again(kind: str) -> None:
    backend = target(kind)
    tree = random_tree(12)
    made = backend.variant(skip=[2])
    session = backend.open(TEXT)
    ours: Any = made.share_session(session)
    theirs: Any = made.share_session(session)
    first = tree.keep(range(5))
    [alone] = made.score([TreeInput(ours, first)])
    [rest] = made.score([TreeInput(ours, tree, 5)])
    made.score([TreeInput(ours, first)])
    made.score([TreeInput(theirs, random_tree(9, seed=1))])
    [again] = made.score([TreeInput(ours, tree, 5)])
    assert len(again.argmax()) == len(rest.argmax()) == 7
    for row in range(7):
        assert np.abs(again.logits(row) - rest.logits(row)).max() < 1e-4
    assert len(alone.argmax()) == 5


class Undivided:
    """A network that is run as a whole or not at all, as that of CUDA is."""

    precision = "float32"


def test_a_variant_can_go_on_with_the_session_of_another() -> None:
    fused: Any = copy.copy(target("stock"))
    fused.network = Undivided()
    # MLPs: a variant without some attention leaves its keys unwritten, which the other would read
    first, second = (fused.variant(skip=[sublayer]) for sublayer in (3, 5))
    assert first.network is not second.network
    assert first.network.layout is second.network.layout
    session = first.open(TEXT)
    tree = random_tree(12)
    draft = first.share_session(session)
    rows_of(first, draft, tree)
    found = rows_of(second, draft, tree)
    own = rows_of(second, second.share_session(session), tree)
    assert np.abs(found - own).max() < 1e-4


def test_views_of_one_sequence_know_who_wrote_last() -> None:
    layout = KvLayout()
    sequence = KvSlots(layout, 0)
    one, two = SlotView(sequence, layout), SlotView(sequence, layout)
    one.writer = "one"
    two.writer = "two"
    assert one.writer == two.writer == sequence.writer == "two"


def test_sessions_of_another_backend_are_not_looked_into() -> None:
    made = target("stock").variant(skip=[2])
    assert made.share_session(target("packed").open(TEXT)) is None
    assert made.share_session(ToyBackend().open([1])) is None


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


DRAFTERS: dict[str, Callable[[Draw], Any]] = {
    "self-skip": lambda draws: SelfSkip(share=0.5, seconds=0.2, draws=draws),
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
RUNS = [
    ("chain", "greedy"),
    ("beam", "penalised"),
    ("beam", "sampled"),
    ("merge", "greedy"),
    ("merge", "sampled"),
]


@pytest.mark.parametrize(
    ("kind", "name", "shape", "sampling"),
    [(*one, *run) for *one, run in pairwise(["stock", "packed"], DRAFTERS, RUNS)],
)
def test_the_text_is_plain_decodings(kind: str, name: str, shape: str, sampling: str) -> None:
    backend, prompt, (policy, merged) = target(kind), TEXT[:9], SHAPES[shape]
    drafter = DRAFTERS[name](Draw.TOPK)
    drafter = Merge(drafters=[Suffix(), drafter, SparseKv(recent=3)]) if merged else drafter
    plain = rounds_until(backend, PLAIN, prompt, 24, SAMPLINGS[sampling])
    ours = rounds_until(
        backend, Recipe(drafter, policy, Match(), Fixed(12, 3, 4)), prompt, 24, SAMPLINGS[sampling]
    )
    assert tokens_of(ours)[:24] == tokens_of(plain)[:24]
    if sampling == "greedy":
        assert any(outcome.verdict.accepted for outcome in ours)


@pytest.mark.parametrize("prompt", [[5], [5, 6], (TEXT * 4)[:120], (TEXT * 4)[:127]], ids=len)
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_reaches_from_the_first_token_to_the_end_of_the_context(
    name: str, prompt: list[int]
) -> None:
    backend = target("packed")
    # a text that begins at the first token need not reach the end as well
    most = 999 if len(prompt) > 100 else 30
    endless = Sampling(max_tokens=most)
    plain = rounds_until(backend, PLAIN, prompt, most, endless)
    ours = rounds_until(
        backend,
        Recipe(DRAFTERS[name](Draw.TOPK), Best(), Match(), Fixed(7, 4, 3)),
        prompt,
        most,
        endless,
    )
    assert tokens_of(ours)[:most] == tokens_of(plain)[:most]
    if most == 999:
        assert len(prompt) + len(tokens_of(ours)) == backend.info.context


@pytest.mark.parametrize("name", [name for name in tiny_models.NAMES if not name.startswith("gpt")])
@pytest.mark.parametrize(
    "drafter", [SelfSkip(share=1.0), SparseKv(sinks=1, recent=3), QuantizedSelf(bits=5)], ids=str
)
def test_variants_of_every_architecture(drafter: Any, name: str) -> None:
    layers = ["sliding_attention", "full_attention"]
    extra: dict[str, Any] = (
        {"layer_types": [*layers, *layers]}
        if "mixed" in name or "gemma" in name or name == "olmo3"
        else {}
    )
    extra |= {"no_rope_layers": [1, 0] * (DEEP // 2)} if name == "smollm3" else {}
    extra |= {"first_k_dense_replace": DEEP} if name == "deepseek" else {}
    backend = TorchBackend(tiny_models.make(name, num_hidden_layers=DEEP, **extra), name)
    greedy = Sampling(max_tokens=20)
    plain = rounds_until(backend, PLAIN, TEXT[:9], 12, greedy)
    ours = rounds_until(
        backend, Recipe(drafter, Beam(beam=3), Match(), Fixed(12, 3, 4)), TEXT[:9], 12, greedy
    )
    assert tokens_of(ours)[:12] == tokens_of(plain)[:12]
    assert len(backend.model.base_model.layers) == DEEP


@each_draw_kind
@pytest.mark.parametrize(
    "name", [name for name in DRAFTERS if name != "quantized-self"]
)  # packs anew in each replay
def test_the_law_is_the_targets(
    name: str, draws: Draw, policy: Any, verifier: Any, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        skip_search, "write_cached", lambda path, content: False
    )  # each replay begins anew
    monkeypatch.setattr(SelfSkip, "now", staticmethod(lambda: 0.0))
    backend = target("packed", "llama", vocab_size=3)
    recipe = Recipe(DRAFTERS[name](draws), policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert (
        law_error(recipe, backend, sampling, rounds=rounds, horizon=2) <= 1e-12
    )  # rows have the same bits anywhere


@pytest.mark.parametrize(
    "name", ["self-skip", "quantized-self", "sparse-kv", "swift", "draft-verify", "triforce"]
)
def test_backends_without_variants_are_told_so(name: str) -> None:
    with pytest.raises(
        SapwoodError, match="needs variants, which the toy backend does not provide"
    ):
        Engine(ToyBackend(), resolve(name))


def test_models_that_are_not_layers_are_refused() -> None:
    backend = tiny_models.backend("gpt2")
    with pytest.raises(SapwoodError, match="not built as layers"):
        backend.variant(skip=[2])
    greedy = Sampling(max_tokens=20)
    plain = tokens_of(rounds_until(backend, PLAIN, TEXT[:9], 12, greedy))
    for drafter in (SparseKv(sinks=1, recent=3), QuantizedSelf(bits=4)):
        ours = rounds_until(
            backend, Recipe(drafter, Chain(), Match(), Fixed(3, 3, 1)), TEXT[:9], 12, greedy
        )
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
