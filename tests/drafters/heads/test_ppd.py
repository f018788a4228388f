"""Prompt tokens in the verifying pass: drafts by definition, law, allocation, training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.heads import head_base
from sapwood.drafters.heads.lookahead_base import LookaheadBase
from sapwood.drafters.heads.ppd import Ppd
from sapwood.drafters.propose import propose
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.heads.files import load, save
from sapwood.heads.mask_rows import MaskRowsConfig
from sapwood.heads.ppd import PpdHead
from sapwood.policies.chain import Chain
from sapwood.policies.prompt_tree import PromptTree
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.train import ranks
from sapwood.train.lookahead_rows import packed_texts
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.ppd import PpdObjective
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until
from tests.helpers.head_training import batch_of, corpus, teacher

ROWS = 3


def make_head(vocab: int = 61, rows: int = ROWS) -> PpdHead:
    torch.manual_seed(4)
    head = PpdHead(MaskRowsConfig(32, vocab, rows))
    torch.nn.init.normal_(head.embeds, std=0.5)
    return head


def tree_recipe(head: PpdHead, **options: Any) -> Recipe:
    return Recipe(
        Ppd(head=head, **options), PromptTree(nodes=8), Match(), Fixed(nodes=8, depth=3, width=3)
    )


def departure(head: PpdHead) -> float:
    """Largest difference of a drafted probability from passes over whole texts, some rounds long."""
    target = tiny_models.backend("llama")
    model = target.model
    text = make_text(8, 5)
    worst = 0.0
    for turn, outcome in enumerate(
        rounds_until(target, tree_recipe(head), text, 8, Sampling(max_tokens=20))
    ):
        tree = outcome.grown
        assert outcome.lookahead is not None
        assert outcome.rows == len(outcome.tree) + len(outcome.lookahead)
        assert bool(tree.height) is (turn > 0)  # the first pass has no drafts yet
        with torch.inference_mode():
            words = model.get_input_embeddings()(torch.tensor([text[:-1]]))
            out = model(inputs_embeds=torch.cat((words, head.embeds[None]), 1))
            probs = out.logits[0, len(text) - 1 :].softmax(-1).numpy()
        for node in range(len(tree)):
            if children := tree.children(node):
                best = np.sort(probs[int(tree.depths[node])])[::-1][: len(children)]
                worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        text = text + outcome.tokens
    return worst


def test_every_depth_is_the_output_of_its_prompt_token() -> None:
    assert departure(make_head()) < 1e-4


def test_rows_of_another_node_would_be_noticed() -> None:
    def takes_the_roots(self: LookaheadBase, outcome: Outcome) -> None:
        original(self, outcome)
        assert outcome.lookahead is not None
        self.rows_ = outcome.lookahead.behind(len(outcome.tree) - 1)

    original = LookaheadBase.observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LookaheadBase, "observe", takes_the_roots)
        assert departure(make_head()) > 1e-2


SAMPLED = Sampling(temperature=1.3, max_tokens=4)


def two_tokens() -> TorchBackend:
    model = tiny_models.make("llama", dtype=torch.float64, vocab_size=2)
    return TorchBackend(model, "two tokens")


def sampled_recipe(draws: Draw, policy: Any, verifier: Any) -> Recipe:
    drafter = Ppd(head=make_head(2, 2), draws=draws, prompts=4)
    return Recipe(drafter, policy, verifier, Fixed(nodes=2, depth=2, width=2))


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [(Draw.IID, Chain(), Speculative()), (Draw.TOPK, PromptTree(nodes=2), Match())],
    ids=str,
)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any) -> None:
    recipe = sampled_recipe(draws, policy, verifier)
    assert law_error(recipe, two_tokens(), SAMPLED, rounds=2, horizon=3, prompt=[1, 0]) <= 1e-12


def test_drafts_that_misstate_their_probs_would_be_noticed() -> None:
    def misstated(tree: Any, node: int, probs: Any, *rest: Any) -> None:
        propose(tree, node, probs, *rest)
        tree.proposals[node, 0] = np.roll(probs, 1)

    recipe = sampled_recipe(Draw.IID, Chain(), Speculative())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_base, "propose", misstated)
        assert law_error(recipe, two_tokens(), SAMPLED, rounds=2, horizon=3, prompt=[1, 0]) > 1e-3


def bound(**options: Any) -> Ppd:
    drafter = Engine(tiny_models.backend("llama"), tree_recipe(make_head(), **options)).recipe
    assert isinstance(drafter.drafter, Ppd)
    return drafter.drafter


def test_prompt_tokens_go_where_they_lengthen_the_next_tree() -> None:
    drafter = bound(prompts=5)
    tree = Tree(1)
    likely = tree.add(0, 2, 0.9)
    unlikely = tree.add(0, 3, 0.1)
    deep = tree.add(likely, 4, 0.9)
    drafter.chances = [[0.8, 0.05], [0.7, 0.1], [0.6, 0.1]]
    ends = drafter.last_accepted(tree)
    np.testing.assert_allclose(ends, [0.15, 0.8 * 0.3, 0.05, 0.8 * 0.7])
    counts = drafter._counts(tree)
    assert counts.sum() == 5
    assert counts[deep] == 3 >= counts[likely] >= counts[unlikely] == 0
    assert counts[0] >= 1
    gains = drafter.gains(3)
    np.testing.assert_allclose(gains[0], 0.85)  # both ranks of one level
    assert (np.diff(gains) <= 0).all()


def test_at_the_end_of_the_context_there_are_fewer_rows() -> None:
    target = tiny_models.backend("llama")
    text = make_text(target.info.context - 6, 2)
    found = list(Engine(target, tree_recipe(make_head())).rounds(text, Sampling(), KeyedRng(0)))
    assert sum(len(outcome.tokens) for outcome in found) >= 5
    assert found[-1].lookahead is not None
    assert len(found[-1].lookahead) < ROWS


def test_a_backend_without_such_rows_is_refused() -> None:
    class Bare(TorchBackend):
        def _describe(self, name: str) -> Any:
            found = super()._describe(name)
            return type(found)(found.name, found.model, found.vocab, found.context)

    with pytest.raises(SapwoodError, match="lookahead"):
        Engine(Bare(tiny_models.make("llama"), "bare"), tree_recipe(make_head()))


@torch.no_grad()
def slow_loss(objective: PpdObjective, head: PpdHead, batch: Any) -> float:
    """The loss of every row in a pass of its own."""
    guide = teacher()
    found = []
    for row in range(ROWS):
        losses = []
        for text in range(len(batch.tokens)):
            for anchor in packed_texts(batch, ROWS, objective.places).anchors.tolist():
                words = F.embedding(batch.tokens[text, : anchor + 1], guide.embedding)
                rows = torch.cat((words, head.embeds[: row + 1].double()))
                out = guide.model.base_model(inputs_embeds=rows[None]).last_hidden_state[0, -1]
                goal = guide.target_probs(batch.final[text, anchor + 1 + row][None])[0].float()
                losses.append(-(goal * (guide.head @ out).float().log_softmax(0)).sum())
        found.append(objective.decay**row * torch.stack(losses).mean())
    return float(torch.stack(found).sum())


def test_the_loss_is_that_of_every_row_alone() -> None:
    objective = PpdObjective(rows=ROWS, places=4)
    batch = batch_of(objective, teacher(), [0, 3])
    with torch.no_grad():
        lesson = objective.loss(make_head(), teacher(), batch)
    assert float(lesson.loss) == pytest.approx(slow_loss(objective, make_head(), batch), rel=1e-5)


def test_training_moves_the_rows_alone_and_lowers_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    guide = teacher(torch.float32)
    objective = PpdObjective(rows=ROWS, places=8, rate=0.02, matrix_rate=0.02)
    before = {name: weight.clone() for name, weight in guide.model.state_dict().items()}
    fresh = objective.build(guide, corpus().counts(guide.vocab))
    settings = LoopSettings(steps=30, tokens=512, log=10)
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
    table = ranks.measure(trained, guide, [batch], ranks=4)
    assert len(table) == ROWS
    assert all(0 <= chance <= 1 for level in table for chance in level)
    assert sum(map(sum, table)) > 0
