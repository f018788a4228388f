"""Speculative streams: the nodes keep their bits, drafts by definition, law, training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.lookahead import LookaheadRows, RowGate
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.streams import Streams
from sapwood.drafters.propose import propose
from sapwood.errors import SapwoodError
from sapwood.heads.files import load, save
from sapwood.heads.streams import StreamsHead
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.train.lookahead_rows import packed_texts
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.streams import StreamsObjective
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until
from tests.helpers.head_training import batch_of, corpus, teacher
from tests.helpers.lookahead_heads import streams

ROWS = 3


def node_logits(head: StreamsHead) -> tuple[list[Any], list[Any]]:
    """Logits of the nodes and of their streams in one pass of a tiny model."""
    target = tiny_models.backend("llama")
    make = target.capabilities.lookahead
    assert make is not None
    tree = Tree(7)
    for parent, token in ((0, 11), (0, 12), (2, 13)):
        tree.add(parent, token, 0.5)
    rows = LookaheadRows(make(head.lookahead), 61, [ROWS] * len(tree))
    session = target.open(make_text(9, 1))
    [found] = target.score([TreeInput(session, tree, lookahead=rows)])
    assert found.lookahead is not None
    nodes = [found.logits(node) for node in range(len(tree))]
    return nodes, [found.lookahead.logits(row) for row in range(len(rows))]


def test_streams_leave_the_bits_of_tokens_alone() -> None:
    model = tiny_models.backend("llama").model
    nodes, ours = node_logits(streams(model, ROWS))
    others, theirs = node_logits(streams(model, ROWS, salt=9))
    for one, other in zip(nodes, others, strict=True):
        assert np.array_equal(one, other)
    assert max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True)) > 0.1


def stream_logits(model: Any, head: StreamsHead, text: list[int]) -> Tensor:
    """Logits of the streams of a text's last token, each behind the others, [rows, vocab].

    The layers below see the text alone; those above see the text and the streams.
    """
    lower, upper = model.base_model.layers
    out = model.base_model(torch.tensor([text]), output_hidden_states=True, use_cache=False)
    states = out.hidden_states[1]
    begun = head.start(states[:, -1:].to(head.embeds.dtype)) + head.embeds
    whole = torch.cat((states, begun.to(states.dtype)), 1)
    rows = torch.arange(len(text), whole.shape[1])
    hooks = head.adapter.install(model, RowGate(rows), 1)
    places = torch.arange(whole.shape[1])[None]
    rotary = model.base_model.rotary_emb(whole, places)
    hidden = torch.full((whole.shape[1],) * 2, torch.finfo(whole.dtype).min, dtype=whole.dtype)
    mask = torch.triu(hidden, 1)[None, None]
    found = upper(
        whole, attention_mask=mask, position_ids=places, position_embeddings=rotary, use_cache=False
    )
    for hook in hooks:
        hook.remove()
    del lower
    final = model.base_model.norm(found[0] if isinstance(found, tuple) else found)
    logits: Tensor = model.get_output_embeddings()(final)[0, len(text) :]
    return logits


def departure(head: StreamsHead) -> float:
    """Largest difference of a drafted probability from the definition, some rounds long."""
    target = tiny_models.backend("llama")
    recipe = Recipe(
        Streams(head=head), Static(shape=[2, 1, 2]), Match(), Fixed(nodes=12, depth=3, width=2)
    )
    text = make_text(8, 5)
    worst = 0.0
    for turn, outcome in enumerate(rounds_until(target, recipe, text, 6, Sampling(max_tokens=20))):
        tree = outcome.grown
        assert tree.height == (ROWS if turn else 0)
        with torch.inference_mode():
            probs = stream_logits(target.model, head, text[:-1]).softmax(-1).numpy()
        for node in range(len(tree)):
            if children := tree.children(node):
                best = np.sort(probs[int(tree.depths[node])])[::-1][: len(children)]
                worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


def test_every_depth_is_the_output_of_its_stream() -> None:
    assert departure(streams(tiny_models.backend("llama").model, ROWS)) < 1e-4


def test_streams_that_begin_from_another_token_would_be_noticed() -> None:
    def from_the_next(self: StreamsHead, states: Tensor, gate: RowGate) -> Tensor:
        return original(self, states.roll(-1, 1), gate)

    original = StreamsHead.begun
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamsHead, "begun", from_the_next)
        assert departure(streams(tiny_models.backend("llama").model, ROWS)) > 1e-3


SAMPLED = Sampling(temperature=1.3, max_tokens=4)


def sampled_recipe(target: TorchBackend, draws: Draw, policy: Any, verifier: Any) -> Recipe:
    drafter = Streams(head=streams(target.model, 2), draws=draws)
    return Recipe(drafter, policy, verifier, Fixed(nodes=2, depth=2, width=2))


def two_tokens() -> TorchBackend:
    model = tiny_models.make("llama", dtype=torch.float64, vocab_size=2)
    return TorchBackend(model, "two tokens")


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [(Draw.IID, Chain(), Speculative()), (Draw.TOPK, Static(shape=[2]), Match())],
    ids=str,
)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any) -> None:
    target = two_tokens()
    recipe = sampled_recipe(target, draws, policy, verifier)
    assert law_error(recipe, target, SAMPLED, rounds=2, horizon=3, prompt=[1, 0]) <= 1e-12


def test_drafts_that_misstate_their_probs_would_be_noticed() -> None:
    def misstated(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        tree.proposals[node, 0] = np.roll(probs, 1)

    target = two_tokens()
    recipe = sampled_recipe(target, Draw.IID, Chain(), Speculative())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_base, "propose", misstated)
        assert law_error(recipe, target, SAMPLED, rounds=2, horizon=3, prompt=[1, 0]) > 1e-3


@torch.no_grad()
def test_training_states_are_those_of_every_place_alone() -> None:
    guide = teacher()
    objective = StreamsObjective(rows=ROWS, layers=1, rank=2, places=3)
    head = streams(guide.model, ROWS).to(torch.float64)
    batch = batch_of(objective, guide, [0, 3])
    texts = packed_texts(batch, ROWS, 3)
    logits = objective.states(head, guide, batch, texts) @ guide.head.t()
    for text in range(2):
        for index, anchor in enumerate(texts.anchors.tolist()):
            seen = batch.tokens[text, : anchor + 1].tolist()
            torch.testing.assert_close(logits[text, index], stream_logits(guide.model, head, seen))


def test_training_lowers_the_loss_and_leaves_the_target_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    guide = teacher(torch.float32)
    objective = StreamsObjective(rows=ROWS, layers=1, rank=4, places=4, rate=0.01, matrix_rate=0.01)
    before = {name: weight.clone() for name, weight in guide.model.state_dict().items()}
    fresh = objective.build(guide, corpus().counts(guide.vocab))
    settings = LoopSettings(steps=20, tokens=512, log=10)
    trained: Any
    trained, _ = TrainingLoop(objective, guide, corpus(), settings, tmp_path / "state").run()
    batch = batch_of(objective, guide, list(range(12)))
    with torch.no_grad():
        losses = [objective.loss(head, guide, batch).loss for head in (fresh, trained)]
    assert losses[1] < losses[0]
    for name, weight in guide.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    save(trained, tmp_path / "saved")
    back: Any = load(tmp_path / "saved")
    assert torch.allclose(back.embeds, trained.embeds, atol=1e-2)


def test_no_streams_are_refused() -> None:
    with pytest.raises(SapwoodError, match="0 streams predict nothing"):
        streams(tiny_models.backend("llama").model, 0)
