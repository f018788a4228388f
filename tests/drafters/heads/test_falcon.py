"""Falcon against a slow reference, plain decoding, the exact law, and its training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.falcon import Falcon
from sapwood.drafters.propose import propose
from sapwood.errors import SapwoodError
from sapwood.heads.falcon import FalconConfig, FalconHead
from sapwood.heads.layers import LayerShape
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train.batches import TrainBatch
from sapwood.train.falcon import FalconObjective, places_of, rows_ahead
from sapwood.train.labels import label
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until
from tests.helpers.head_checks import (
    SAMPLINGS,
    bound,
    check_files,
    check_learns,
    check_text,
    law_off,
    randomised,
)
from tests.helpers.head_training import batch_of, random_head, teacher
from tests.helpers.state_head_training import mlp, normed, projected, read

torch.set_num_threads(1)
SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)
SMALL = FalconObjective(vocabulary=48, inner=24, rate=0.02, matrix_rate=0.05)


def make_head(vocab: int = 61, draft_vocab: int = 40, layer: int = 2) -> FalconHead:
    head = FalconHead(FalconConfig(SHAPE, 32, vocab, draft_vocab, layer))
    made: FalconHead = randomised(head, 0.15, vocab, draft_vocab)
    return made


def slow_block(head: Any, pairs: list[tuple[Tensor, Tensor]], first: int) -> list[Tensor]:
    """States predicted by rows from `first` on, which see all rows, themselves and later ones."""
    joined = torch.stack([torch.cat((embed, state)) for state, embed in pairs])
    rows = head.lstm(joined[None])[0][0]
    made = [projected(head.self_attn, row, place) for place, row in enumerate(rows)]
    found = []
    for place in range(first, len(rows)):
        seen = [(key, value) for _, key, value in made]
        middle = rows[place] + read(head.self_attn, made[place][0], seen)
        found.append(middle + mlp(head.mlp, normed(head.post_attention_layernorm, middle)))
    return found


@torch.inference_mode()
def slow_state(head: Any, text: list[int], path: list[int]) -> Tensor:
    """The state that predicts what follows a drafted path below a text, its root last."""
    model = tiny_models.backend("llama").model
    table = model.get_input_embeddings().weight
    finals = model.base_model(torch.tensor([text[:-1]])).last_hidden_state[0]
    pairs = [(state, table[token]) for state, token in zip(finals, text[1:], strict=True)]
    block = slow_block(head, pairs, len(pairs) - 2)
    for start in range(0, len(path) - 1, 2):
        drafted = path[start : start + 2]
        pairs += [(state, table[token]) for state, token in zip(block, drafted, strict=True)]
        block = slow_block(head, pairs, len(pairs) - 2)
    return block[len(path) % 2]


@pytest.mark.parametrize(
    "policy",
    [Static(shape=[3, 2, 2, 1, 1]), Best(stride=5)],
    ids=lambda policy: type(policy).__name__,
)
def test_children_are_the_best_tokens_of_the_slow_reference(policy: Any) -> None:
    head = make_head()
    recipe = Recipe(Falcon(head=head), policy, Match(), Fixed(nodes=30, depth=5, width=4))
    model = tiny_models.backend("llama").model
    text = [5, 6, 7, 5]
    for outcome in rounds_until(tiny_models.backend("llama"), recipe, text, 8, Sampling()):
        tree = outcome.grown
        assert tree.height >= 3
        for node in np.flatnonzero(tree.expanded).tolist():
            state = slow_state(head, text, tree.spell(node)[1:])
            assert tree.states[node].numpy() == pytest.approx(state.numpy(), rel=1e-3, abs=1e-3)
            with torch.no_grad():
                rows = model.get_output_embeddings().weight[head.vocabulary]
                probs = (rows @ state.clone()).softmax(0)
            children = tree.children(node)
            best = probs.topk(len(children))
            assert tree.probs[children] == pytest.approx(best.values.numpy(), abs=1e-4)
        text = text + outcome.tokens


def test_one_call_drafts_two_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    attend = Falcon._attend

    def counted(self: Falcon, *given: Any) -> Tensor:
        calls.append(1)
        return attend(self, *given)

    monkeypatch.setattr(Falcon, "_attend", counted)
    recipe = Recipe(Falcon(head=make_head()), Chain(), Match(), Fixed(nodes=6, depth=6, width=1))
    rounds_until(tiny_models.backend("llama"), recipe, [5, 6, 7, 5], 1, Sampling())
    assert len(calls) == 3


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", [Chain(), Beam(beam=3)], ids=lambda one: type(one).__name__)
def test_the_text_is_plain_decodings(policy: Any, sampling: str) -> None:
    check_text(Falcon(head=make_head()), policy, SAMPLINGS[sampling])


LAWS: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 2),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
]


@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any, rounds: int) -> None:
    vocab = 3 if rounds == 1 else 2  # two rounds of three tokens take half a minute
    drafter = Falcon(head=make_head(vocab, vocab), draws=draws)
    assert law_off(drafter, policy, verifier, rounds, vocab) <= 1e-12


def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second token of a block is drawn from its own distribution, and stated as another."""

    def wrong(tree: Any, node: int, *rest: Any) -> None:
        propose(tree, node, *rest)
        if int(tree.depths[node]) % 2:
            for name, probs in list(tree.proposals.items()):
                if name[0] == node:
                    tree.proposals[name] = np.roll(probs, 1)

    monkeypatch.setattr(head_base, "propose", wrong)
    drafter = Falcon(head=make_head(3, 3), draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3


def test_two_rows_of_text_are_needed() -> None:
    recipe = Recipe(Falcon(head=make_head()), Static(shape=[3]), Match(), Fixed(nodes=3))
    target = tiny_models.backend("llama")
    sizes = [len(one.grown) for one in rounds_until(target, recipe, [5], 3, Sampling())[:3]]
    assert sizes == [1, 1, 4]
    assert len(rounds_until(target, recipe, [5, 6, 7], 1, Sampling())[0].grown) == 4


def test_heads_survive_their_files(tmp_path: Path) -> None:
    check_files(Falcon, make_head(), tmp_path)


def test_a_head_for_another_target_is_refused() -> None:
    with pytest.raises(SapwoodError, match="after 3 layers and llama has 2"):
        bound(Falcon(head=make_head(layer=3)))
    with pytest.raises(SapwoodError, match="50 tokens"):
        bound(Falcon(head=make_head(vocab=50)))


# ---------------------------------------------------------------------------------------- training
def test_every_row_is_trained_in_both_places_of_a_block() -> None:
    head = random_head(SMALL, teacher())
    batch = batch_of(SMALL, teacher(), [0, 3])
    none = torch.zeros_like(batch.tokens, dtype=torch.bool)
    first, second = places_of(head, batch, none)
    table = teacher().embedding
    pairs = [(batch.final[1, place], table[batch.tokens[1, place + 1]]) for place in range(9)]
    torch.testing.assert_close(second[1, 8], slow_block(head, pairs, 8)[0])
    torch.testing.assert_close(first[1, 7], slow_block(head, pairs, 7)[0])


def test_a_glance_shows_rows_the_state_and_token_two_places_ahead() -> None:
    head = random_head(SMALL, teacher())
    batch = batch_of(SMALL, teacher(), [0, 3])
    labels = label(head, teacher(), batch, 0.0)
    ahead = rows_ahead(batch, labels, 0.2)
    rows, _ = labels.rows(1)
    assert int(ahead.sum()) == int(0.2 * len(rows))
    assert not ahead[:, 1::2].any()
    assert torch.equal(ahead, rows_ahead(batch, labels, 0.2))
    table = teacher().embedding
    pairs = []
    for place in range(9):
        at = place + 2 if ahead[1, place] else place
        pairs.append((batch.final[1, at], table[batch.tokens[1, at + 1]]))
    _, second = places_of(head, batch, ahead)
    torch.testing.assert_close(second[1, 8], slow_block(head, pairs, 8)[0])


def test_the_loss_is_that_of_states_and_probs() -> None:
    objective = FalconObjective(vocabulary=48, inner=24, glance=0.0, hard=0.0)
    head = random_head(objective, teacher())
    batch: TrainBatch = batch_of(objective, teacher(), [0, 3])
    none = torch.zeros_like(batch.tokens, dtype=torch.bool)
    words = head.vocabulary.tolist()
    lost = []
    for states in places_of(head, batch, none):
        for text in range(2):
            for place in range(int(batch.answers[text]), int(batch.lengths[text])):
                if int(batch.tokens[text, place]) not in words or place < 3:
                    continue
                goal = batch.final[text, place - 1]
                state = states[text, place - 3]
                probs = (teacher().head[head.vocabulary] @ goal).softmax(0)
                logs = (teacher().head[head.vocabulary] @ state).log_softmax(0)
                gap = (state - goal).abs()
                huber = torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()
                lost.append(huber - 0.1 * (probs * logs).sum())
    lesson = objective.loss(head, teacher(), batch)
    assert lesson.loss.item() == pytest.approx(torch.stack(lost).mean().item(), rel=1e-6)


def test_the_loss_falls(tmp_path: Path) -> None:
    check_learns(SMALL, tmp_path)
