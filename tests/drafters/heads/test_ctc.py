"""The CTC drafter: prefix probabilities by enumeration, plain text, the exact law, training."""

from collections import defaultdict
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads import ctc as drafting
from sapwood.drafters.heads import eagle3 as eagle3_drafting
from sapwood.drafters.heads.ctc import Ctc, empty, following, longer
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.drafters.propose import propose
from sapwood.errors import SapwoodError
from sapwood.heads.ctc import CtcConfig, CtcHead
from sapwood.heads.files import load, save
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.train.ctc import CtcObjective, first_probs, labelled_places
from sapwood.train.parallel import rows_of
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until, tokens_of
from tests.helpers.head_checks import few_tokens
from tests.helpers.head_training import batch_of, corpus, random_head, short_loop, teacher

SLOTS, TOKENS = 4, 3


def make_head(vocab: int = 61, draft_vocab: int = 40) -> CtcHead:
    torch.manual_seed(1)
    shape = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=24)
    config = CtcConfig(shape, 32, vocab, draft_vocab, (0, 1, 2), depth=SLOTS, heads=TOKENS)
    head = CtcHead(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    torch.manual_seed(2)
    head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


# ---------------------------------------------------------------------------- prefix probabilities
def enumerated(slots: FloatArray) -> dict[tuple[int, ...], float]:
    """Probability that the slots stand for a text that begins with each prefix, by all fillings."""
    blank = slots.shape[1] - 1
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for filling in product(range(slots.shape[1]), repeat=len(slots)):
        text = tuple(token for token, _ in groupby(filling) if token != blank)
        chance = float(np.prod([slots[place, token] for place, token in enumerate(filling)]))
        for size in range(len(text) + 1):
            found[text[:size]] += chance
    return found


def prefix_gap(slots: FloatArray) -> float:
    """Largest difference of a prefix probability from the enumeration, over all short texts."""
    wanted = enumerated(slots)
    count = slots.shape[1] - 1
    worst = 0.0
    for size in range(3):
        for text in product(range(count), repeat=size):
            fillings = drafting.empty(slots)
            for token in text:
                fillings = drafting.longer(slots, fillings, token)
            masses = drafting.following(slots, fillings)
            worst = max(worst, abs(fillings.whole - wanted.get(text, 0.0)))
            for token in range(count):
                worst = max(worst, abs(masses[token] - wanted.get((*text, token), 0.0)))
    return worst


def random_slots(count: int = 4, tokens: int = 3) -> FloatArray:
    drawn = np.random.default_rng(7).random((count, tokens + 1)) + 0.05
    made: FloatArray = drawn / drawn.sum(1, keepdims=True)
    return made


def test_prefix_probabilities_are_sums_over_all_fillings() -> None:
    assert prefix_gap(random_slots()) < 1e-12


def test_merging_a_token_that_a_blank_divides_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        drafting, "following", lambda slots, text: (text.token + text.blank)[:-1] @ slots[:, :-1]
    )
    assert prefix_gap(random_slots()) > 1e-3


def test_a_token_that_no_slot_knows_has_no_children() -> None:
    slots = random_slots()
    unknown = longer(slots, longer(slots, empty(slots), 1), -1)
    assert not following(slots, unknown).any()


# ---------------------------------------------------------------------------------------- drafts
def test_drafts_are_the_prefix_probabilities_of_the_heads_slots() -> None:
    head = make_head()
    target = tiny_models.backend("llama")
    recipe = Recipe(
        Ctc(head=head), Static(shape=[3, 2, 2]), Match(), Fixed(nodes=30, depth=4, width=3)
    )
    text = make_text(8, 5)
    for outcome in rounds_until(target, recipe, text, 8, Sampling()):
        tree = outcome.grown
        slots = slow_slots(head, target.model, text)
        for node in np.flatnonzero(tree.expanded).tolist():
            children = tree.children(node)
            assert bool(children) is (int(tree.depths[node]) < TOKENS)
            fillings = empty(slots)
            for token in tree.spell(node)[1:]:
                fillings = longer(slots, fillings, head.vocabulary.tolist().index(token))
            if children:
                law = following(slots, fillings) / fillings.whole
                best = np.sort(law)[::-1][: len(children)]
                assert tree.probs[children] == pytest.approx(best, rel=1e-3, abs=1e-5)
        text = text + outcome.tokens


@torch.inference_mode()
def slow_slots(head: CtcHead, model: Any, text: list[int]) -> FloatArray:
    """The slots' probabilities behind a text, as training computes them."""
    from sapwood.train.batches import TrainBatch

    head.attach(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    tokens = torch.tensor([text])
    states = model.base_model(tokens, output_hidden_states=True).hidden_states
    features = torch.cat([states[layer] for layer in head.config.features], -1)
    batch = TrainBatch(tokens, torch.tensor([0]), torch.tensor([0]), features, features)
    rows = rows_of(head, model.get_input_embeddings().weight, batch)
    outputs = torch.stack([states[0, len(text) - 2] for states in rows])
    found: FloatArray = head.slots(outputs).double().exp().numpy()
    return found


@pytest.mark.parametrize("policy", [Chain(), Beam(beam=3)], ids=str)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=64),
        Sampling(max_tokens=64, repetition_penalty=1.3),
        Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
    ],
    ids=["greedy", "penalised", "sampled"],
)
@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_the_text_is_plain_decodings(policy: Any, sampling: Sampling, merged: bool) -> None:
    target = tiny_models.backend("llama")
    one = Ctc(head=make_head())
    drafter: Any = Merge(drafters=[Suffix(), one]) if merged else one
    plain = Recipe(one, Chain(), Match(), Fixed(nodes=0))
    ours = Recipe(drafter, policy, Match(), Fixed(nodes=16, depth=4, width=3))
    made = [
        tokens_of(rounds_until(target, recipe, [5, 6, 7, 5, 6], 30, sampling))[:30]
        for recipe in (plain, ours)
    ]
    assert made[0] == made[1]


def error_of(draws: Draw, policy: Any, verifier: Any, rounds: int) -> float:
    vocab = 3 if rounds == 1 else 2  # two rounds of three tokens take seconds
    drafter = Ctc(head=make_head(vocab, 2), draws=draws)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=2, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    asked: dict[str, Any] = {"rounds": rounds, "horizon": 2, "prompt": [1, 0, 1]}
    return float(law_error(recipe, few_tokens(vocab), sampling, **asked))


@pytest.mark.parametrize(
    ("draws", "policy", "verifier", "rounds"),
    [
        (Draw.IID, Chain(), Speculative(), 2),
        (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
        (Draw.TOPK, Static(shape=[2, 1]), Match(), 1),
    ],
    ids=str,
)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any, rounds: int) -> None:
    assert error_of(draws, policy, verifier, rounds) <= 1e-12


def test_a_draft_that_is_not_drawn_from_its_law_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def other_law(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        known = np.flatnonzero(probs)
        told = probs.copy()
        told[known] = probs[known[::-1]]
        tree.proposals[node, rest[-1]] = told

    monkeypatch.setattr(eagle3_drafting, "propose", other_law)
    assert error_of(Draw.IID, Chain(), Speculative(), 2) > 1e-3


# ---------------------------------------------------------------------------------------- training
OBJECTIVE = CtcObjective(slots=5, heads=3, vocabulary=48, inner=24, places=64)


def test_the_loss_is_minus_the_log_of_all_fillings_of_the_next_tokens() -> None:
    guide = teacher()
    small = replace(OBJECTIVE, vocabulary=48, places=4)
    head = random_head(small, guide)
    batch = batch_of(small, guide, [0, 3])
    texts, rows, tokens = labelled_places(head, batch, 4)
    assert len(texts) == 4
    outputs = rows_of(head, guide.embedding, batch)
    losses, right = [], []
    for text, row, wanted in zip(texts.tolist(), rows.tolist(), tokens.tolist(), strict=True):
        following_tokens = batch.tokens[text, row + 2 : row + 5]
        assert head.vocabulary[wanted].tolist() == following_tokens.tolist()
        slots = head.slots(torch.stack([states[text, row] for states in outputs]))
        probs = slots.detach().exp().numpy()
        fillings = empty(probs)
        for token in wanted:
            fillings = longer(probs, fillings, token)
        losses.append(-np.log(fillings.token[-1] + fillings.blank[-1]) / 3)
        first = following(probs, empty(probs))
        assert first_probs(slots[:, None]).detach().numpy()[0] == pytest.approx(first, abs=1e-9)
        right.append(int(first.argmax()) == wanted[0])
    result = small.loss(head, guide, batch)
    assert result.loss.item() == pytest.approx(float(np.mean(losses)), rel=1e-6)
    assert float(result.agreement[0]) == pytest.approx(float(np.mean(right)))
    slopes = torch.autograd.grad(result.loss, list(head.parameters()))
    assert all(float(slope.abs().max()) > 0 for slope in slopes)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    fast = replace(OBJECTIVE, rate=1e-2, matrix_rate=2e-2)
    head, notes = short_loop(fast, corpus(), tmp_path).run()
    assert notes.curve[-1].loss < notes.curve[0].loss * 0.9
    save(head, tmp_path / "saved")
    found = load(tmp_path / "saved")
    assert isinstance(found, CtcHead)
    assert found.config == head.config
    assert set(found.state_dict()) == set(head.state_dict())


def test_a_batch_without_answers_teaches_nothing() -> None:
    guide = teacher()
    head = random_head(OBJECTIVE, guide)
    batch = batch_of(OBJECTIVE, guide, [0, 3])
    batch.lengths.copy_(batch.answers)
    assert OBJECTIVE.loss(head, guide, batch).loss.item() == 0.0


def test_more_tokens_than_slots_are_refused() -> None:
    with pytest.raises(SapwoodError, match="slots=2 cannot hold heads=3"):
        replace(OBJECTIVE, slots=2)
    with pytest.raises(SapwoodError, match="5 tokens do not fit into 4 slots"):
        CtcHead(replace(make_head().config, heads=5))
