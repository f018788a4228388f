"""Heads with layers over the text as drafters: whole texts as reference, plain text, exact law."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads import head_base, text_layers_base
from sapwood.drafters.heads.text_layers_base import TextLayersBase
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.drafters.propose import propose
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError
from sapwood.heads.files import load, save
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.covering import pairwise
from tests.helpers.engine_rounds import make_text, rounds_until, tokens_of
from tests.helpers.head_checks import few_tokens
from tests.helpers.text_heads import DRAFTERS, law_of, make_head

each_kind = pytest.mark.parametrize("kind", DRAFTERS)


# -------------------------------------------------------------------------- against whole texts
def departure(kind: str, policy: Any, count: int = 12) -> float:
    """Largest difference of a drafted probability from that of whole texts, some rounds long."""
    target = tiny_models.backend("llama")
    head = make_head(kind)
    limits = Fixed(nodes=60, depth=4, width=24)
    recipe = Recipe(DRAFTERS[kind](head=head), policy, Match(), limits)
    text = make_text(9, 5)
    worst = 0.0
    for outcome in rounds_until(target, recipe, text, count, Sampling()):
        tree = outcome.grown
        assert len(tree) > 4
        for node in np.flatnonzero(tree.expanded).tolist():
            children = tree.children(node)
            assert bool(children) is (int(tree.depths[node]) < head.config.heads)
            if children:
                output, probs = law_of(head, target.model, text, tree.spell(node)[1:])
                gap = (tree.states[node] - output).abs().max()
                best = probs.topk(len(children)).values.numpy()
                worst = max(worst, float(gap), float(np.abs(tree.probs[children] - best).max()))
                known = head.vocabulary.tolist()
                assert set(tree.tokens[children].tolist()) <= set(known)
        text = text + outcome.tokens
    return worst


@each_kind
@pytest.mark.parametrize("policy", [Static(shape=[3, 2, 2, 1]), Best(stride=5)], ids=str)
def test_drafts_are_those_of_training_over_whole_texts(kind: str, policy: Any) -> None:
    assert departure(kind, policy) < 1e-3


@each_kind
def test_a_long_text_is_read_in_pieces(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_layers_base, "CHUNK", 4)
    assert departure(kind, Static(shape=[2, 1]), 4) < 1e-3


@each_kind
def test_states_in_another_order_would_be_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(self: Any, outcome: Outcome) -> None:
        whole(self, outcome)
        states, tokens = self.unread_[-1]
        self.unread_[-1] = states.flip(0), tokens

    whole = TextLayersBase.observe
    wide = Static(shape=[24, 1])  # so wide that tokens are accepted
    assert departure(kind, wide) < 1e-3
    monkeypatch.setattr(TextLayersBase, "observe", backwards)
    assert departure(kind, wide) > 1e-2


# ------------------------------------------------------------------------------------ the same text
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "banned": Sampling(max_tokens=64, banned=make_head("clover").vocabulary.tolist()),
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


@pytest.mark.parametrize(
    ("kind", "sampling", "policy", "merged"),
    pairwise(DRAFTERS, SAMPLINGS, [Chain(), Beam(beam=3)], [False, True]),
    ids=str,
)
def test_the_text_is_plain_decodings(kind: str, policy: Any, merged: bool, sampling: str) -> None:
    target = tiny_models.backend("llama")
    prompt = [5, 6, 7, 5, 6]
    one = DRAFTERS[kind](head=make_head(kind))
    drafter: Any = Merge(drafters=[Suffix(), one]) if merged else one
    plain = rounds_until(
        target, Recipe(one, Chain(), Match(), Fixed(nodes=0)), prompt, 30, SAMPLINGS[sampling]
    )
    wide = Fixed(nodes=24, depth=3, width=12)
    ours = rounds_until(
        target, Recipe(drafter, policy, Match(), wide), prompt, 30, SAMPLINGS[sampling]
    )
    assert tokens_of(ours)[:30] == tokens_of(plain)[:30]
    assert (max(len(outcome.grown) for outcome in ours) > 1) is (merged or sampling != "banned")


@each_kind
def test_a_prompt_of_one_token_drafts_from_the_second_round_on(kind: str) -> None:
    drafter = DRAFTERS[kind](head=make_head(kind))
    recipe = Recipe(drafter, Static(shape=[3]), Match(), Fixed(nodes=3))
    first, second = rounds_until(tiny_models.backend("llama"), recipe, [5], 2, Sampling())[:2]
    assert (len(first.grown), len(second.grown)) == (1, 4)


# ---------------------------------------------------------------------------------- the exact law
LAWS = [
    (Draw.IID, Chain(), Speculative(), 2),
    (Draw.IID, Static(shape=[2, 1]), Mss(), 1),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
    (Draw.MIXED, Static(shape=[2, 1]), Mixed(), 1),
    (Draw.TOPK, Static(shape=[2, 1]), Match(), 2),
]


def error_of(kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int) -> float:
    vocab = 3 if rounds == 1 else 2  # two rounds of three tokens take ten seconds
    drafter = DRAFTERS[kind](head=make_head(kind, vocab=vocab, draft_vocab=2), draws=draws)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    asked: dict[str, Any] = {"rounds": rounds, "horizon": 2, "prompt": [1, 0, 1]}
    return float(law_error(recipe, few_tokens(vocab), sampling, **asked))


@each_kind
@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
def test_the_law_is_the_targets(
    kind: str, draws: Draw, policy: Any, verifier: Any, rounds: int
) -> None:
    assert error_of(kind, draws, policy, verifier, rounds) <= 1e-12


@each_kind
def test_a_draft_that_is_not_drawn_from_its_law_would_be_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_law(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        source = rest[-1]
        known = np.flatnonzero(probs)
        told = probs.copy()
        told[known] = probs[known[::-1]]
        tree.proposals[node, source] = told

    monkeypatch.setattr(head_base, "propose", other_law)
    assert error_of(kind, Draw.IID, Chain(), Speculative(), 2) > 1e-3


# ----------------------------------------------------------------------------------------- misfits
def bind(kind: str, head: Any) -> Any:
    drafter = DRAFTERS[kind](head=head)
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
def test_heads_survive_their_files_without_the_targets_tables(kind: str, tmp_path: Path) -> None:
    head = bind(kind, make_head(kind).half().float()).net
    save(head, tmp_path)
    found = load(tmp_path)
    assert {name: tensor.tolist() for name, tensor in found.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in head.state_dict().items()
    }
    assert not {"embedding", "output"} & set(found.state_dict())
    assert torch.equal(bind(kind, str(tmp_path)).net.output, head.output)
