"""Look-ahead rows behind the text: drafts by definition, the target untouched, training, law."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose import draft_model
from sapwood.drafters.heads.mask_rows import MaskedChain, MaskRows
from sapwood.errors import SapwoodError
from sapwood.heads.files import load, save
from sapwood.heads.mask_rows import MaskRowsConfig, MaskRowsHead
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.mask_rows import MaskRowsObjective
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until
from tests.helpers.head_checks import law_off, misstated
from tests.helpers.head_training import batch_of, corpus, teacher

ROWS = 3


def make_head(vocab: int = 61, rows: int = ROWS) -> MaskRowsHead:
    torch.manual_seed(4)
    head = MaskRowsHead(MaskRowsConfig(32, vocab, rows))
    torch.nn.init.normal_(head.embeds, std=0.5)
    return head


def departure(head: MaskRowsHead) -> float:
    """Largest difference of a drafted probability from passes over whole texts, some rounds long."""
    target = tiny_models.backend("llama")
    model = target.model
    recipe = Recipe(
        MaskRows(head=head),
        Static(shape=[2, 1, 2, 1, 1]),
        Match(),
        Fixed(nodes=30, depth=5, width=2),
    )
    text = make_text(8, 5)
    worst = 0.0
    for outcome in rounds_until(target, recipe, text, 8, Sampling()):
        with torch.inference_mode():
            words = model.get_input_embeddings()(torch.tensor([text]))
            out = model(inputs_embeds=torch.cat((words, head.embeds[None]), 1))
            probs = out.logits[0, len(text) - 1 :].softmax(-1).numpy()
        tree = outcome.grown
        assert tree.height == ROWS + 1
        for node in np.flatnonzero(tree.expanded).tolist():
            children = tree.children(node)
            depth = int(tree.depths[node])
            assert bool(children) is (depth <= ROWS)
            if children:
                best = np.sort(probs[depth])[::-1][: len(children)]
                worst = max(worst, float(np.abs(tree.probs[children] - best).max()))
        assert outcome.verdict.accepted >= 1  # the first token is the target's own
        text = text + outcome.tokens
    return worst


def test_every_depth_is_the_output_of_its_row_and_the_first_token_is_right() -> None:
    assert departure(make_head()) < 1e-4


def test_rows_that_stay_in_the_cache_would_be_noticed() -> None:
    def keeps_all(self: MaskedChain, outcome: Any) -> None:
        assert self.scratch_ is not None
        self.session_.commit(range(len(self.scratch_)))
        self.unread_ = list(outcome.tokens)
        self.scratch_ = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaskedChain, "observe", keeps_all)
        with pytest.raises(AssertionError):
            assert departure(make_head()) < 1e-4


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [(Draw.IID, Chain(), Speculative()), (Draw.TOPK, Static(shape=[2, 1]), Match())],
    ids=str,
)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any) -> None:
    drafter = MaskRows(head=make_head(3, 2), draws=draws)
    assert law_off(drafter, policy, verifier, 1) <= 1e-12


def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "propose", misstated)
    drafter = MaskRows(head=make_head(3, 2), draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3


def test_training_moves_the_rows_alone_and_lowers_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)  # the rows begin at random
    guide = teacher(torch.float32)
    objective = MaskRowsObjective(rows=ROWS, rate=0.02, matrix_rate=0.02)
    before = {name: weight.clone() for name, weight in guide.model.state_dict().items()}
    fresh = objective.build(guide, corpus().counts(guide.vocab))
    settings = LoopSettings(steps=40, tokens=512, log=10)
    trained, _ = TrainingLoop(objective, guide, corpus(), settings, tmp_path / "state").run()
    losses = []
    with torch.no_grad():
        for head in (fresh, trained):
            batches = [batch_of(objective, guide, [n, n + 1, n + 2]) for n in range(0, 30, 3)]
            losses.append(
                np.mean([float(objective.loss(head, guide, one).loss) for one in batches])  # type: ignore[arg-type]
            )
    assert losses[1] < losses[0]
    for name, weight in guide.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    save(trained, tmp_path / "saved")
    assert torch.allclose(load(tmp_path / "saved").embeds, trained.embeds, atol=1e-2)  # type: ignore[arg-type]


def test_no_rows_are_refused() -> None:
    with pytest.raises(SapwoodError, match="0 look-ahead rows predict nothing"):
        make_head(rows=0)
