"""The mixture of attentions against a slow reference, plain decoding, the exact law, its training."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.glide import Glide
from sapwood.drafters.heads.moa import Moa
from sapwood.errors import SapwoodError
from sapwood.heads.glide import GlideHead
from sapwood.heads.layers import LayerShape
from sapwood.heads.moa import MoaConfig, MoaHead
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.cape import Cape
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train.glide import GlideObjective, last_layer
from sapwood.train.moa import MoaObjective, depths_of
from sapwood.train.teacher import Teacher
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
    misstated,
    randomised,
)
from tests.helpers.head_training import batch_of, corpus, random_head, short_loop, teacher
from tests.helpers.state_head_training import mlp, normed, projected, read

torch.set_num_threads(1)
SHAPE = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)
FEATURES = (0, 1, 2)
SMALL = MoaObjective(depth=3, vocabulary=48, inner=24, rate=0.01, matrix_rate=0.02)


def make_head(vocab: int = 61, draft_vocab: int = 40, **changes: Any) -> MoaHead:
    config = MoaConfig(SHAPE, vocab, draft_vocab, changes.get("features", FEATURES))
    made: MoaHead = randomised(MoaHead(config), 0.15, vocab, draft_vocab)
    return made


def slow_memory(head: Any, features: Tensor) -> Tensor:
    """One memory row: the layers of a token attend to each other, head by head."""
    block = head.remember
    parts = features.view(len(block.norms), -1)
    rows = [normed(norm, part) for norm, part in zip(block.norms, parts, strict=True)]
    made = [
        (block.qkv.weight @ (row + place)).view(3, block.heads, -1)
        for row, place in zip(rows, block.places, strict=True)
    ]
    outs = []
    for row, (query, _, _) in zip(rows, made, strict=True):
        heads = []
        for number in range(block.heads):
            products = torch.stack([query[number] @ key[number] for _, key, _ in made])
            weights = (products / math.sqrt(query.shape[-1])).softmax(0)
            heads.append(weights @ torch.stack([value[number] for _, _, value in made]))
        outs.append(row + block.leave.weight @ torch.cat(heads))
    return torch.stack(outs).mean(0)


def slow_output(head: Any, features: Tensor, embeds: list[Tensor]) -> Tensor:
    """Output of the last token, which sees all tokens and the memory of these features."""
    rows = [
        projected(head.own, normed(head.own_norm, embed), place)
        for place, embed in enumerate(embeds)
    ]
    state = embeds[-1] + read(head.own, rows[-1][0], [(key, value) for _, key, value in rows])
    memory = [
        projected(head.cross, normed(head.memory_norm, slow_memory(head, row)), place)[1:]
        for place, row in enumerate(features)
    ]
    query, _, _ = projected(head.cross, normed(head.cross_norm, state), len(embeds) - 1)
    middle = state + read(head.cross, query, memory)
    return middle + mlp(head.mlp, normed(head.mlp_norm, middle))


@torch.no_grad()
def slow_state(head: Any, text: list[int], path: list[int]) -> Tensor:
    """Output after a text, its root last, and a drafted path."""
    model = tiny_models.backend("llama").model
    table = model.get_input_embeddings().weight
    out = model.base_model(torch.tensor([text[:-1]]), output_hidden_states=True)
    states = [*out.hidden_states[:-1], out.last_hidden_state]
    features = torch.cat([states[layer][0] for layer in FEATURES], -1)
    return slow_output(head, features, [table[token] for token in (*text, *path)])


@pytest.mark.parametrize(
    "policy", [Static(shape=[3, 2, 2]), Best(stride=5)], ids=lambda one: type(one).__name__
)
def test_outputs_are_those_of_the_slow_reference(policy: Any) -> None:
    head = make_head()
    recipe = Recipe(Moa(head=head), policy, Match(), Fixed(nodes=16, depth=3, width=4))
    text = [5, 6, 7, 5]
    for outcome in rounds_until(tiny_models.backend("llama"), recipe, text, 6, Sampling()):
        tree = outcome.grown
        assert len(tree) > 6
        for node in np.flatnonzero(tree.expanded).tolist():
            state = slow_state(head, text, tree.spell(node)[1:])
            assert tree.states[node].numpy() == pytest.approx(state.numpy(), rel=1e-3, abs=1e-3)
        text = text + outcome.tokens


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("policy", [Chain(), Beam(beam=3)], ids=lambda one: type(one).__name__)
def test_the_text_is_plain_decodings(policy: Any, sampling: str) -> None:
    check_text(Moa(head=make_head()), policy, SAMPLINGS[sampling])


LAWS: list[tuple[Draw, Any, Any, int]] = [
    (Draw.IID, Chain(), Speculative(), 1),
    (Draw.SWOR, Static(shape=[2, 1]), Rrs(), 1),
]


@pytest.mark.parametrize(("draws", "policy", "verifier", "rounds"), LAWS, ids=str)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any, rounds: int) -> None:
    drafter = Moa(head=make_head(3, 3), draws=draws)
    assert law_off(drafter, policy, verifier, rounds) <= 1e-12


def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_base, "propose", misstated)
    drafter = Moa(head=make_head(3, 3), draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3


def test_nothing_is_drafted_before_the_target_has_read_a_token() -> None:
    recipe = Recipe(Moa(head=make_head()), Static(shape=[3]), Match(), Fixed(nodes=3))
    target = tiny_models.backend("llama")
    sizes = [len(one.grown) for one in rounds_until(target, recipe, [5], 2, Sampling())[:2]]
    assert sizes == [1, 4]


def test_heads_survive_their_files(tmp_path: Path) -> None:
    check_files(Moa, make_head(), tmp_path)


def test_a_head_for_another_target_is_refused() -> None:
    with pytest.raises(SapwoodError, match="reads layer 5 and llama has 2"):
        bound(Moa(head=make_head(features=(0, 1, 5))))
    with pytest.raises(SapwoodError, match="50 tokens"):
        bound(Moa(head=make_head(vocab=50)))


# ---------------------------------------------------------------------------------------- training
def test_every_depth_sees_as_much_memory_as_a_draft_has() -> None:
    head = random_head(SMALL, teacher())
    batch = batch_of(SMALL, teacher(), [0, 3])
    embeds = [teacher().embedding[token] for token in batch.tokens[1, :8]]
    for depth, outputs in enumerate(depths_of(head, batch, 3)):
        wanted = slow_output(head, batch.features[1, : 7 - depth], embeds)
        torch.testing.assert_close(outputs[1, 7], wanted)


def test_the_loss_is_what_loops_over_places_give() -> None:
    head = random_head(SMALL, teacher())
    batch = batch_of(SMALL, teacher(), [3])
    words = head.vocabulary.tolist()
    rows = teacher().head[head.vocabulary]
    means = []
    for depth, outputs in enumerate(depths_of(head, batch, 3)):
        lost = []
        for place in range(int(batch.answers[0]), int(batch.lengths[0])):
            if int(batch.tokens[0, place]) not in words or place - 1 <= depth:
                continue
            probs = (rows @ batch.final[0, place - 1]).softmax(0)
            aim = probs * (1 - SMALL.hard)
            aim[probs.argmax()] += SMALL.hard
            logs = (rows @ normed(head.norm, outputs[0, place - 1])).log_softmax(0)
            lost.append(-(aim * logs).sum())
        means.append(torch.stack(lost).mean() * SMALL.decay**depth)
    wanted = torch.stack(means).sum() / sum(SMALL.decay**depth for depth in range(3))
    lesson = SMALL.loss(head, teacher(), batch)
    assert lesson.loss.item() == pytest.approx(wanted.item(), rel=1e-6)


def test_the_loss_falls(tmp_path: Path) -> None:
    check_learns(SMALL, tmp_path, least=0.05)


# ------------------------------------------------------------------------------------------- glide
GLIDE = GlideObjective(depth=3, vocabulary=48, inner=24, rate=0.01, matrix_rate=0.02)


def make_glide(vocab: int = 61, draft_vocab: int = 40) -> GlideHead:
    """A random layer that glimpses the tiny model's last one."""
    model: Any = tiny_models.backend("llama").model
    layer = model.base_model.layers[-1]
    made: GlideHead = randomised(
        GlideHead(MoaConfig(SHAPE, vocab, draft_vocab, (1,))), 0.15, vocab, draft_vocab
    )
    attention = layer.self_attn
    made.attach_last_layer(
        layer.input_layernorm.weight, attention.k_proj.weight, attention.v_proj.weight
    )
    return made


def test_glide_attends_to_the_targets_own_keys_and_values() -> None:
    head = make_glide()
    model: Any = tiny_models.backend("llama").model
    cache: Any = DynamicCache()
    with torch.no_grad():
        out = model.base_model(
            torch.tensor([[5, 6, 7, 9]]),
            past_key_values=cache,
            use_cache=True,
            output_hidden_states=True,
        )
        found = head.project_memory(out.hidden_states[1], torch.arange(4)[None])
    torch.testing.assert_close(found[0], cache.layers[-1].keys)
    torch.testing.assert_close(found[1], cache.layers[-1].values)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_text_of_glide_with_cape_is_plain_decodings(sampling: str) -> None:
    check_text(Glide(head=make_glide()), Cape(), SAMPLINGS[sampling])


def test_the_law_of_glide_is_the_targets() -> None:
    drafter = Glide(head=make_glide(3, 3), draws=Draw.SWOR)
    assert law_off(drafter, Cape(), Rrs(), 1) <= 1e-12


def test_a_mutant_of_glide_that_states_another_law_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_base, "propose", misstated)
    drafter = Glide(head=make_glide(3, 3), draws=Draw.SWOR)
    assert law_off(drafter, Cape(), Rrs(), 1) > 1e-3


def test_glide_survives_its_files(tmp_path: Path) -> None:
    check_files(Glide, make_glide(), tmp_path)


def test_glide_learns_and_leaves_the_targets_projections_alone(tmp_path: Path) -> None:
    head, notes = short_loop(GLIDE, corpus(), tmp_path).run()
    assert notes.curve[-1].loss < 0.95 * notes.curve[0].loss
    layer: Any = teacher(torch.float32).model.base_model.layers[-1]
    assert torch.equal(head.get_parameter("cross.k_proj.weight"), layer.self_attn.k_proj.weight)
    assert torch.equal(head.get_parameter("memory_norm.weight"), layer.input_layernorm.weight)


@pytest.mark.parametrize(
    ("family", "reason"), [("qwen2", "biases"), ("qwen3", "norms"), ("gpt2", "Llama's")]
)
def test_glide_refuses_other_layers(family: str, reason: str) -> None:
    other = Teacher(TorchBackend(tiny_models.make(family), family))
    with pytest.raises(SapwoodError, match=reason):
        last_layer(other)


def test_cape_adds_candidates_where_the_drafter_is_unsure() -> None:
    policy = Cape()
    policy.widths_ = policy.greedy
    assert [policy._width(prob) for prob in (0.9, 0.7, 0.5, 0.2)] == [2, 4, 6, 8]
