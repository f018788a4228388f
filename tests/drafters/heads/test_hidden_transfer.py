"""Hidden transfer: drafts by definition, the target untouched, training, the exact law, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose import draft_model
from sapwood.drafters.heads.hidden_transfer import HiddenTransfer
from sapwood.errors import SapwoodError
from sapwood.heads.files import load, save
from sapwood.heads.hidden_transfer import (
    HiddenTransferConfig,
    HiddenTransferHead,
    TransferLayer,
    check_layers,
)
from sapwood.policies.beam import Beam
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train.hidden_transfer import HiddenTransferObjective, behind
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.verifiers.match import Match
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import make_text, rounds_until, tokens_of
from tests.helpers.head_checks import law_off, misstated
from tests.helpers.head_training import batch_of, corpus, teacher

ROWS = 3


def make_head(vocab: int = 61, rows: int = ROWS, layer: int = 1) -> HiddenTransferHead:
    torch.manual_seed(4)
    head = HiddenTransferHead(HiddenTransferConfig(32, vocab, layer, rows))
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return head


@torch.inference_mode()
def slow_probs(model: Any, head: HiddenTransferHead, text: list[int]) -> Tensor:
    """Probs of the last token and of each pseudo state [1 + rows, vocab], by a hook in one pass."""
    layer = model.base_model.layers[head.config.layer]

    def replace(_: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        states = given[0] if given else named.pop("hidden_states")
        made = [one(states[:, len(text) - 1]) for one in head.transfers]
        states = torch.cat((states[:, : len(text)], torch.stack(made, 1)), 1)
        return (states, *given[1:]), named

    hook = layer.register_forward_pre_hook(replace, with_kwargs=True)
    try:
        out = model(torch.tensor([[*text, *([0] * head.config.rows)]]))
    finally:
        hook.remove()
    probs: Tensor = out.logits[0, len(text) - 1 :].softmax(-1)
    return probs


def departure(head: HiddenTransferHead) -> float:
    """Largest difference of a drafted probability from passes over whole texts, some rounds long."""
    target = tiny_models.backend("llama")
    recipe = Recipe(
        HiddenTransfer(head=head),
        Static(shape=[2, 1, 2, 1, 1]),
        Match(),
        Fixed(nodes=30, depth=5, width=2),
    )
    text = make_text(8, 5)
    worst = 0.0
    for outcome in rounds_until(target, recipe, text, 8, Sampling()):
        probs = slow_probs(target.model, head, text).numpy()
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


@pytest.mark.parametrize("layer", [0, 1])
def test_every_depth_is_the_output_of_its_pseudo_state(layer: int) -> None:
    assert departure(make_head(layer=layer)) < 1e-4


def test_matrices_in_another_order_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TransferLayer.__init__

    def turned(self: TransferLayer, *given: Any) -> None:
        real(self, *given)
        self.transfers = self.transfers[::-1]

    monkeypatch.setattr(TransferLayer, "__init__", turned)
    assert departure(make_head()) > 1e-3


def test_training_runs_the_same_pass_as_drafting() -> None:
    guide = teacher(torch.float32)
    objective = HiddenTransferObjective(rows=ROWS)
    head = make_head(layer=objective.features(guide)[0])
    batch = batch_of(objective, guide, [0, 3])
    places = torch.tensor([[4, 9], [2, 7]])
    with torch.inference_mode():
        states = behind(head, guide, batch, places)
        for text, place in ((0, 9), (1, 2)):
            tokens = batch.tokens[text, : place + 1].tolist()
            wanted = slow_probs(guide.model, head, tokens)[1:]
            column = places[text].tolist().index(place)
            found = (states[text, column] @ guide.head.t()).softmax(-1)
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("policy", [Chain(), Beam(beam=3)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings(policy: Any, temperature: float) -> None:
    target = tiny_models.backend("llama")
    sampling = Sampling(max_tokens=64, temperature=temperature)
    drafter = HiddenTransfer(head=make_head())
    plain = Recipe(drafter, Chain(), Match(), Fixed(nodes=0))
    ours = Recipe(drafter, policy, Match(), Fixed(nodes=16, depth=4, width=3))
    made = [
        tokens_of(rounds_until(target, one, [5, 6, 7, 5, 6], 30, sampling))[:30]
        for one in (plain, ours)
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"),
    [(Draw.IID, Chain(), Speculative()), (Draw.TOPK, Static(shape=[2, 1]), Match())],
    ids=str,
)
def test_the_law_is_the_targets(draws: Draw, policy: Any, verifier: Any) -> None:
    drafter = HiddenTransfer(head=make_head(3, 2), draws=draws)
    assert law_off(drafter, policy, verifier, 1) <= 1e-12


def test_a_mutant_that_states_another_law_than_it_draws_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "propose", misstated)
    drafter = HiddenTransfer(head=make_head(3, 2), draws=Draw.IID)
    assert law_off(drafter, Chain(), Speculative(), 1) > 1e-3


def test_training_moves_the_matrices_alone_and_lowers_the_loss(tmp_path: Path) -> None:
    guide = teacher(torch.float32)
    objective = HiddenTransferObjective(rows=ROWS, rate=0.01, matrix_rate=0.02)
    before = {name: weight.clone() for name, weight in guide.model.state_dict().items()}
    settings = LoopSettings(steps=40, tokens=512, log=10)
    trained, notes = TrainingLoop(objective, guide, corpus(), settings, tmp_path / "state").run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < 0.95 * first.loss
    assert sum(last.agreement) > sum(first.agreement)
    for name, weight in guide.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    save(trained, tmp_path / "saved")
    found = load(tmp_path / "saved").state_dict()
    assert set(found) == set(trained.state_dict())
    for name, weight in trained.state_dict().items():
        assert torch.allclose(found[name], weight, atol=1e-2), name


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SapwoodError, match="0 pseudo states predict nothing"):
        make_head(rows=0)
    with pytest.raises(SapwoodError, match="layer 2 needs a model of more layers"):
        check_layers(tiny_models.backend("llama").model, 2)
    with pytest.raises(SapwoodError):
        HiddenTransferObjective(depth=1.5)
