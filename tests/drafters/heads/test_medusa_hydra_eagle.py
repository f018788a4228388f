"""Medusa, Hydra and EAGLE's first head as drafters: against slow references, plain decoding and the exact law."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle import Eagle
from sapwood.drafters.heads.hydra import Hydra
from sapwood.drafters.heads.medusa import Medusa
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from sapwood.heads import eagle, hydra, medusa
from sapwood.heads.files import load, save
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.rank_paths import RankPaths
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.train.batches import TrainBatch
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.covering import pairwise
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.head_checks import few_tokens
from tests.helpers.reference_heads import states_of

KINDS: dict[str, Any] = {"medusa": Medusa, "hydra": Hydra, "eagle": Eagle}
HEADS = 3
TREE = [4, 3, 1, 1, 1, 2, 1]
each_kind = pytest.mark.parametrize("kind", KINDS)


def make_head(
    kind: str, vocab: int = 61, draft_vocab: int = 40, width: int = 32, **changes: Any
) -> Any:
    """A head with random weights for the tiny models; its vocabulary leaves some tokens out."""
    torch.manual_seed(1)
    head: Any
    if kind == "medusa":
        head = medusa.MedusaHeads(
            medusa.MedusaConfig(width, vocab, HEADS, 2, draft_vocab=draft_vocab, **changes)
        )
    elif kind == "hydra":
        head = hydra.HydraHeads(
            hydra.HydraConfig(width, vocab, HEADS, 2, 24, draft_vocab, **changes)
        )
    else:
        shape = LayerShape(width=width, heads=4, kv_heads=2, head_width=8, inner=48)
        head = eagle.EagleHead(eagle.EagleConfig(shape, width, vocab, draft_vocab, features=(2,)))
    for weight in head.parameters():
        torch.nn.init.normal_(
            weight, std=0.15 if kind == "eagle" else 0.3
        )  # its states feed on themselves
    if draft_vocab:
        torch.manual_seed(2)  # the same tokens for every kind
        head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


# -------------------------------------------------------------------------- against slow references
@torch.inference_mode()
def slow_law(head: Any, text: list[int], path: list[int]) -> tuple[Tensor, Tensor]:
    """State and law after a text, its root last, and a drafted path below it; by whole passes and explicit loops."""
    model = tiny_models.backend("llama").model
    final = model.base_model(torch.tensor([text[:-1]])).last_hidden_state
    batch = TrainBatch(
        torch.tensor([[*text, *path]]), torch.tensor([0]), torch.tensor([0]), final, final
    )
    row = len(text) - 2
    depth = len(path)
    state = states_of(head, model.get_input_embeddings().weight, batch, 0, row, depth + 1)[depth]
    return state, (model.get_output_embeddings().weight[head.vocabulary] @ state).softmax(0)


@each_kind
@pytest.mark.parametrize(
    "policy",
    [Static(shape=[3, 2, 2, 2]), Best(stride=5), RankPaths(nodes=20)],
    ids=lambda policy: type(policy).__name__,
)
def test_children_are_the_best_tokens_of_the_slow_reference(kind: str, policy: Any) -> None:
    head = make_head(kind)
    recipe = Recipe(KINDS[kind](head=head), policy, Match(), Fixed(nodes=40, depth=4, width=4))
    text = [5, 6, 7, 5]
    for outcome in rounds_until(tiny_models.backend("llama"), recipe, text, 12, Sampling()):
        tree = outcome.grown
        assert len(tree) > 10
        for node in np.flatnonzero(tree.expanded).tolist():
            children = tree.children(node)
            depth = int(tree.depths[node])
            if depth >= HEADS and kind != "eagle":
                assert not children
                continue
            state, full_probs = slow_law(head, text, tree.spell(node)[1:])
            assert tree.states[node].numpy() == pytest.approx(state.numpy(), rel=1e-3, abs=1e-3)
            mine = torch.searchsorted(head.vocabulary, torch.from_numpy(tree.tokens[children]))
            assert head.vocabulary[mine].tolist() == tree.tokens[children].tolist()
            assert tree.probs[children] == pytest.approx(full_probs[mine].numpy(), abs=1e-4)
            assert tree.probs[children] == pytest.approx(
                full_probs.topk(len(children)).values.numpy(), abs=1e-4
            )
        text = text + outcome.tokens


def test_siblings_of_medusa_do_not_know_their_parents_and_those_of_hydra_do() -> None:
    for kind, alike in (("medusa", True), ("hydra", False)):
        recipe = Recipe(
            KINDS[kind](head=make_head(kind)),
            Static(shape=[3, 3]),
            Match(),
            Fixed(nodes=12, width=3),
        )
        [outcome, *_] = rounds_until(tiny_models.backend("llama"), recipe, [5, 6, 7], 1, Sampling())
        tree = outcome.grown
        families = {tuple(tree.tokens[tree.children(node)].tolist()) for node in tree.level(1)}
        assert (len(families) == 1) is alike


def test_medusa_finds_more_guesses_when_a_later_level_is_wider() -> None:
    head = make_head("medusa")
    recipe = Recipe(Medusa(head=head), Static(shape=[1, 9]), Match(), Fixed(nodes=12, width=9))
    [outcome, *_] = rounds_until(tiny_models.backend("llama"), recipe, [5, 6, 7], 1, Sampling())
    _, full_probs = slow_law(head, [5, 6, 7], outcome.grown.spell(1)[1:])
    assert outcome.grown.tokens[2:].tolist() == head.vocabulary[full_probs.topk(9).indices].tolist()


def test_medusa_heads_may_bring_output_rows_of_their_own() -> None:
    head = make_head("medusa", draft_vocab=0, own_head=True)
    recipe = Recipe(Medusa(head=head), Static(shape=[4]), Match(), Fixed(nodes=4))
    [outcome, *_] = rounds_until(tiny_models.backend("llama"), recipe, [5, 6, 7], 1, Sampling())
    state, _ = slow_law(head, [5, 6, 7], [])
    wanted = (head.heads[0].lm_head.weight.detach() @ state).topk(4).indices
    assert outcome.grown.tokens[1:].tolist() == wanted.tolist()
    assert not any("d2t" in name for name in head.state_dict())


# ------------------------------------------------------------------------------------ the same text
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "banned": Sampling(
        max_tokens=64, banned=make_head("medusa").vocabulary.tolist()
    ),  # all that the heads know
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}
POLICIES: dict[str, Any] = {
    "chain": Chain(),
    "beam": Beam(beam=3),
    "sparse": RankPaths(),
    "tree": RankPaths(children=TREE),
}


@pytest.mark.parametrize(
    ("kind", "policy", "sampling", "merged"), pairwise(KINDS, POLICIES, SAMPLINGS, [False, True])
)
def test_the_text_is_plain_decodings(kind: str, policy: str, merged: bool, sampling: str) -> None:
    target = tiny_models.backend("llama")
    prompt = [5, 6, 7, 5, 6]
    one = KINDS[kind](head=make_head(kind))
    drafter: Any = Merge(drafters=[Suffix(), one]) if merged else one
    plain = rounds_until(
        target, Recipe(one, Chain(), Match(), Fixed(nodes=0)), prompt, 30, SAMPLINGS[sampling]
    )
    wide = Fixed(nodes=24, depth=3, width=12)
    ours = rounds_until(
        target, Recipe(drafter, POLICIES[policy], Match(), wide), prompt, 30, SAMPLINGS[sampling]
    )
    assert tokens_of(ours)[:30] == tokens_of(plain)[:30]
    assert (max(len(outcome.grown) for outcome in ours) > 1) is (merged or sampling != "banned")


@each_kind
def test_a_prompt_of_one_token_drafts_from_the_second_round_on(kind: str) -> None:
    recipe = Recipe(KINDS[kind](head=make_head(kind)), Static(shape=[3]), Match(), Fixed(nodes=3))
    first, second = rounds_until(tiny_models.backend("llama"), recipe, [5], 2, Sampling())[:2]
    assert (len(first.grown), len(second.grown)) == (1, 4)


@each_kind
@pytest.mark.parametrize(
    ("draws", "policy", "verifier", "rounds"),
    [
        (Draw.IID, Chain(), Speculative(), 2),
        (Draw.IID, RankPaths(children=[2, 1]), Mss(), 1),
        (Draw.SWOR, RankPaths(children=[2, 1]), Rrs(), 1),
        (Draw.MIXED, Static(shape=[2, 1]), Mixed(), 1),
        (Draw.TOPK, RankPaths(), Match(), 2),
    ],
    ids=str,
)
def test_the_law_is_the_targets(
    kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int
) -> None:
    target = few_tokens(3)
    drafter = KINDS[kind](
        head=make_head(kind, vocab=3, draft_vocab=2 if kind == "hydra" else 3), draws=draws
    )
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    assert law_error(recipe, target, sampling, rounds=rounds, horizon=2) <= 1e-12


# -------------------------------------------------------------------------------------------
# misfits
def bind(kind: str, head: Any) -> Any:
    drafter = KINDS[kind](head=head)
    drafter.bind(EngineContext(tiny_models.backend("llama"), flat(), no_loader))
    return drafter


@each_kind
@pytest.mark.parametrize("changes", [{"vocab": 50}, {"width": 24}], ids=str)
def test_a_head_for_another_target_is_refused_in_one_sentence(
    kind: str, changes: dict[str, int]
) -> None:
    with pytest.raises(SapwoodError, match=r"\b(50|24)\b.*\b(61|32)\b.*; ") as caught:
        bind(kind, make_head(kind, **changes))
    assert not re.search(r"[.\n]", str(caught.value))


@each_kind
def test_heads_of_another_kind_and_heads_that_are_not_there_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    other = "hydra" if kind == "medusa" else "medusa"
    with pytest.raises(SapwoodError, match=f"kind {other}; it drafts with {kind} heads"):
        bind(kind, make_head(other))
    with pytest.raises(SapwoodError, match=f"sapwood train {kind} --model llama"):
        bind(kind, "")
    with pytest.raises(SapwoodError, match=re.escape(str(tmp_path / "none"))):
        bind(kind, str(tmp_path / "none"))


def test_a_damaged_vocabulary_is_refused() -> None:
    head = make_head("medusa")
    head.d2t += 40
    with pytest.raises(SapwoodError, match="leaves its 61 tokens; save it again"):
        bind("medusa", head)


@each_kind
def test_heads_survive_their_files_without_the_targets_tables(kind: str, tmp_path: Path) -> None:
    head = bind(kind, make_head(kind).half().float()).net
    save(head, tmp_path)
    found = load(tmp_path)
    assert {name: tensor.tolist() for name, tensor in found.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in head.state_dict().items()
    }
    assert not {"embedding", "output"} & set(found.state_dict())
    assert torch.equal(bind(kind, str(tmp_path)).net.output, head.output)
