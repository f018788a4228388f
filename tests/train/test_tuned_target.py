"""Targets that are tuned with something: written as other models, whose text their recipes keep."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.backends.torch.load import load
from sapwood.common import drafter_store
from sapwood.recipes import resolve
from sapwood.recipes.available import can_run
from sapwood.train.cllm import CllmObjective, trajectory
from sapwood.train.job import keep
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.medusa2 import Medusa2Objective
from sapwood.train.tuned_target import MODEL, TunedTarget
from tests.helpers.engine_rounds import same_on_24_prompts
from tests.helpers.head_training import batch_of, corpus, random_head, teacher

OBJECTIVES: dict[str, Any] = {
    "medusa2": Medusa2Objective(heads=3, rank=2, vocabulary=48),
    "cllm": CllmObjective(block=5, rank=2),
}
each = pytest.mark.parametrize("kind", OBJECTIVES)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def trained(kind: str, folder: Path, steps: int = 12) -> tuple[TunedTarget, Any]:
    settings = LoopSettings(steps=steps, tokens=512, log=3)
    guide = teacher(torch.float32)
    return TrainingLoop(OBJECTIVES[kind], guide, corpus(), settings, folder / "state").run()  # type: ignore[return-value]


@each
def test_training_begins_with_the_target_itself_and_lowers_the_loss(
    kind: str, tmp_path: Path
) -> None:
    guide = teacher(torch.float32)
    objective = OBJECTIVES[kind]
    fresh = objective.build(guide, corpus().counts(guide.vocab))
    tokens = batch_of(objective, guide, [0, 1]).tokens
    before = {name: weight.clone() for name, weight in guide.model.state_dict().items()}
    assert torch.equal(fresh(tokens), guide.read(tokens, ())[1])
    batch = batch_of(objective, guide, [0, 1, 2, 3])
    tuned, _ = trained(kind, tmp_path, 40)
    with torch.no_grad():
        losses = [float(objective.loss(one, guide, batch).loss) for one in (fresh, tuned)]
    assert losses[1] < losses[0]
    assert not torch.allclose(tuned(tokens), guide.read(tokens, ())[1])
    for name, weight in guide.model.state_dict().items():  # the target stays as it was
        assert torch.equal(weight, before[name]), name


@each
def test_the_tuned_model_is_another_whose_text_its_recipe_keeps(kind: str, tmp_path: Path) -> None:
    tuned, notes = trained(kind, tmp_path)
    guide = teacher(torch.float32)
    home = tmp_path / "home"
    job: Any = type("Job", (), {"kinds": (kind,), "seed": 0, "model": "tiny"})
    record = keep(
        job,
        0,
        home,
        tuned,
        notes,
        {"kind": kind, "model": "tiny", "spelling": kind},
        guide,
        tmp_path,
    )
    assert record["out"] == str(home / MODEL)
    assert not (
        home / drafter_store.WEIGHTS
    ).exists()  # nothing that a recipe could take for a drafter
    target, _ = load(str(home / MODEL), device="cpu", dtype="float32")
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.inference_mode():
        theirs = target.model.base_model(tokens).last_hidden_state
    assert torch.allclose(theirs, tuned(tokens), atol=1e-4)
    assert can_run(kind, target.info)
    same_on_24_prompts(target, resolve(kind))
    if kind == "medusa2":
        assert not can_run(kind, guide.backend.info)


def test_the_trajectory_ends_in_the_targets_greedy_text() -> None:
    guide = teacher(torch.float32)
    batch = batch_of(OBJECTIVES["cllm"], guide, [0, 3, 5])
    prompt, guess, fixed = trajectory(guide, batch, 5)
    text = prompt
    for place in range(5):
        best = (guide.read(text, ())[1][:, -1] @ guide.head.t()).argmax(-1)
        assert best.tolist() == fixed[:, place].tolist()
        text = torch.cat((text, best[:, None]), 1)
    assert guess.shape == fixed.shape
    again = trajectory(guide, batch, 5)
    assert all(
        torch.equal(one, two) for one, two in zip(again, (prompt, guess, fixed), strict=True)
    )


def test_gradients_are_those_of_the_loss() -> None:
    objective = OBJECTIVES["medusa2"]
    guide = teacher()
    tuned = random_head(objective, guide).to(torch.float64)
    batch = batch_of(objective, guide, [1, 4])
    weight = tuned.up[3]
    objective.loss(tuned, guide, batch).loss.backward()
    slope = float(weight.grad[1, 1])
    values = []
    with torch.no_grad():
        for change in (1e-5, -2e-5):
            weight[1, 1] += change
            values.append(float(objective.loss(tuned, guide, batch).loss))
    assert slope == pytest.approx((values[0] - values[1]) / 2e-5, rel=2e-2)
