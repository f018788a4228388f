"""A draft model learns mask tokens: subtasks by definition, rows dropped as PARD drops them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sapwood.backends.torch.load import load
from sapwood.errors import SapwoodError
from sapwood.train.batches import TrainBatch
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.pard import PackedRows, PardObjective, kept_places
from tests.helpers.head_training import batch_of, corpus, teacher
from tests.helpers.state_head_training import STUDENT, made

TOKENS = 4


@pytest.fixture
def objective(tmp_path: Path) -> PardObjective:
    """The objective, behind a draft model in a folder."""
    made(STUDENT, salt=3).save(tmp_path / "first")
    return PardObjective(start=str(tmp_path / "first"), tokens=TOKENS, rate=0.02, matrix_rate=0.02)


@torch.no_grad()
def slow_loss(objective: Any, student: Any, batch: TrainBatch) -> tuple[float, list[float]]:
    """Loss and agreement, each row in a pass of its own: the text, then its masks."""
    rows = objective.rows(batch)
    losses: list[Any] = []
    right: list[list[bool]] = [[] for _ in range(TOKENS)]
    labelled = set(zip(*(found.tolist() for found in batch.labelled_places()), strict=True))
    for place, masks in zip(rows.places.tolist(), rows.subtasks.tolist(), strict=True):
        for text in range(len(batch.tokens)):
            if (text, place) not in labelled:
                continue
            seen = batch.tokens[text, : place + 1 - masks].tolist() + [student.mask] * masks
            state = student(torch.tensor([seen]))[0, -1]
            logits = student.output @ state
            probs = teacher().target_probs(batch.final[text, place][None])[0]
            aim = probs * (1 - objective.hard) + objective.hard * F.one_hot(
                probs.argmax(), len(probs)
            )
            losses.append(-(aim * logits.log_softmax(0)).sum())
            right[masks].append(bool(logits.argmax() == probs.argmax()))
    return float(torch.stack(losses).mean()), [float(np.mean(hits)) for hits in right]


def student_of(objective: Any) -> Any:
    student = objective.build(teacher(), corpus().counts(teacher().vocab)).to(torch.float64)
    with torch.no_grad():
        for weight in student.parameters():
            weight += torch.randn_like(weight) * 0.1
    return student


def test_the_loss_is_that_of_every_kept_row_alone(objective: PardObjective) -> None:
    student = student_of(objective)
    batch = batch_of(objective, teacher(), [0, 3])
    with torch.no_grad():
        lesson = objective.loss(student, teacher(), batch)
    loss, agreement = slow_loss(objective, student, batch)
    assert float(lesson.loss) == pytest.approx(loss, rel=1e-6)
    assert lesson.agreement.tolist() == pytest.approx(agreement)


def test_rows_that_see_other_masks_would_be_noticed(objective: PardObjective) -> None:
    def leaks(self: PackedRows) -> Any:
        behind = self.places[:, None] - self.places[None]
        deeper = self.subtasks[:, None] - self.subtasks[None]
        return (behind >= 0) & (deeper >= 0)

    student = student_of(objective)
    batch = batch_of(objective, teacher(), [0, 3])
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedRows, "visible", leaks)
        wrong = float(objective.loss(student, teacher(), batch).loss)
    assert wrong != pytest.approx(slow_loss(objective, student, batch)[0], rel=1e-4)


def test_rows_are_dropped_only_behind_dropped_rows() -> None:
    source = torch.Generator().manual_seed(0)
    found = kept_places(10, 110, 7, 0.7, 0.2, source)
    for subtask, places in enumerate(found, 1):
        assert len(places) <= round(100 * max(0.7**subtask, 0.2))
        assert len(set(places.tolist())) == len(places)
        assert places.min() >= 10 + subtask - 1
        assert places.max() < 110
        if subtask > 1:
            assert set((places - 1).tolist()) <= set(found[subtask - 2].tolist())
    assert [len(places) for places in found[:3]] == [70, 49, 34]


def test_training_lowers_the_loss_and_the_model_is_saved_whole(
    objective: PardObjective, tmp_path: Path
) -> None:
    guide = teacher(torch.float32)
    fresh = objective.build(guide, corpus().counts(guide.vocab))
    settings = LoopSettings(steps=30, tokens=512, log=10)
    trained, _ = TrainingLoop(objective, guide, corpus(), settings, tmp_path / "state").run()
    batch = batch_of(objective, guide, [0, 1, 2])
    with torch.no_grad():
        losses = [objective.loss(one, guide, batch).loss for one in (fresh, trained)]  # type: ignore[arg-type]
    assert losses[1] < losses[0]
    assert trained.kind == "pard"
    trained.save(tmp_path / "saved")  # type: ignore[operator]
    backend, _ = load(str(tmp_path / "saved"), device="cpu", dtype="float32")
    counts = corpus().counts(guide.vocab)
    assert backend.capabilities.model.config.pard_token == trained.mask
    assert counts[trained.mask] == counts[3:].min()  # type: ignore[index]


def test_wrong_options_and_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SapwoodError, match="tokens=1"):
        PardObjective(tokens=1)
    with pytest.raises(SapwoodError, match="sapwood train draft-model"):
        PardObjective().build(teacher(), corpus().counts(teacher().vocab))
