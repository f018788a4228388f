"""Mask tokens with gated adapters: the nodes keep their bits, drafts by definition, law, training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.lookahead import LookaheadRows, RowGate
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.gated_masks import GatedMasks
from sapwood.drafters.propose import propose
from sapwood.errors import SapwoodError
from sapwood.heads import gated_lora
from sapwood.heads.files import load, save
from sapwood.heads.gated_masks import GatedMasksHead
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.train.gated_masks import GatedMasksObjective
from sapwood.train.lookahead_rows import packed_texts
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until
from tests.helpers.head_training import batch_of, corpus, teacher
from tests.helpers.lookahead_heads import gated_masks

ROWS = 3


def node_logits(head: GatedMasksHead) -> tuple[list[Any], list[Any]]:
    """Logits of the nodes and of the mask rows in one pass of a tiny model."""
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


def without_adapters() -> GatedMasksHead:
    head = gated_masks(tiny_models.backend("llama").model, ROWS)
    with torch.no_grad():
        for weight in head.adapter.up:
            weight.zero_()
    return head


def test_adapters_leave_the_bits_of_ordinary_rows_alone() -> None:
    nodes, masks = node_logits(gated_masks(tiny_models.backend("llama").model, ROWS))
    plain, bare = node_logits(without_adapters())
    for with_adapters, without in zip(nodes, plain, strict=True):
        assert np.array_equal(with_adapters, without)
    assert max(float(np.abs(a - b).max()) for a, b in zip(masks, bare, strict=True)) > 0.1


def test_adapters_without_a_gate_would_be_noticed() -> None:
    def everywhere(gate: RowGate, down: Tensor, up: Tensor) -> Any:
        return lambda _, inputs, out: out + (inputs[0] @ down.t()) @ up.t()

    plain, _ = node_logits(without_adapters())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gated_lora, "added", everywhere)
        nodes, _ = node_logits(gated_masks(tiny_models.backend("llama").model, ROWS))
    assert not np.array_equal(nodes[0], plain[0])


def mask_states(model: Any, head: GatedMasksHead, text: list[int]) -> Tensor:
    """Final states of the mask rows behind a text, [rows, width], in a pass of their own."""
    words = F.embedding(torch.tensor([text]), model.get_input_embeddings().weight)
    gate = RowGate(torch.arange(len(text), len(text) + head.config.rows))
    with head.adapter.installed(model, gate):
        rows = torch.cat((words, head.embeds.to(words.dtype)[None]), 1)
        states: Tensor = model.base_model(inputs_embeds=rows).last_hidden_state
    return states[0, len(text) :]


def departure(head: GatedMasksHead) -> float:
    """Largest difference of a drafted probability from passes over whole texts, some rounds long."""
    target = tiny_models.backend("llama")
    recipe = Recipe(
        GatedMasks(head=head), Static(shape=[2, 1, 2]), Match(), Fixed(nodes=12, depth=3, width=2)
    )
    text = make_text(8, 5)
    worst = 0.0
    for turn, outcome in enumerate(rounds_until(target, recipe, text, 6, Sampling(max_tokens=20))):
        tree = outcome.grown
        assert tree.height == (ROWS if turn else 0)
        assert outcome.lookahead is not None
        assert len(outcome.lookahead) == ROWS * len(outcome.tree)  # masks behind every candidate
        head.attach(
            target.model.get_input_embeddings().weight, target.model.get_output_embeddings().weight
        )
        with torch.inference_mode():
            states = mask_states(target.model, head, text[:-1])
            for node in range(len(tree)):
                if children := tree.children(node):
                    token = torch.tensor(int(tree.tokens[node]))
                    state = head.sampled(states[int(tree.depths[node])], token)
                    probs = head.output_logits(state).softmax(-1).numpy()
                    best = np.sort(probs)[::-1][: len(children)]
                    worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


def test_every_draft_is_the_samplers_behind_its_mask() -> None:
    assert departure(gated_masks(tiny_models.backend("llama").model, ROWS)) < 1e-4


def test_a_sampler_that_reads_another_token_would_be_noticed() -> None:
    def forgets(self: GatedMasksHead, states: Tensor, tokens: Tensor) -> Tensor:
        return original(self, states, tokens * 0 if tokens.dim() else tokens)

    original = GatedMasksHead.sampled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GatedMasksHead, "sampled", forgets)
        assert departure(gated_masks(tiny_models.backend("llama").model, ROWS)) > 1e-3


SAMPLED = Sampling(temperature=1.3, max_tokens=4)


def sampled_recipe(target: TorchBackend, draws: Draw, policy: Any, verifier: Any) -> Recipe:
    drafter = GatedMasks(head=gated_masks(target.model, 2), draws=draws)
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
    objective = GatedMasksObjective(rows=ROWS, rank=2, places=3)
    head = gated_masks(guide.model, ROWS).to(torch.float64)
    batch = batch_of(objective, guide, [0, 3])
    texts = packed_texts(batch, ROWS, 3)
    states = objective.states(head, guide, batch, texts)
    for text in range(2):
        for index, anchor in enumerate(texts.anchors.tolist()):
            alone = mask_states(guide.model, head, batch.tokens[text, : anchor + 1].tolist())
            torch.testing.assert_close(states[text, index], alone)


def test_training_lowers_the_loss_and_leaves_the_target_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    guide = teacher(torch.float32)
    objective = GatedMasksObjective(rows=ROWS, rank=4, places=4, rate=0.01, matrix_rate=0.01)
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
    assert torch.allclose(back.adapter.up[0], trained.adapter.up[0], atol=1e-2)


def test_no_masks_are_refused() -> None:
    with pytest.raises(SapwoodError, match="0 mask tokens predict nothing"):
        gated_masks(tiny_models.backend("llama").model, 0)
