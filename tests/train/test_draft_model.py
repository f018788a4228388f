"""Draft models are distilled over the whole vocabulary, saved, loaded, and compressed from the target."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load
from sapwood.common.drafter_store import home
from sapwood.errors import SapwoodError
from sapwood.train import draft_model
from sapwood.train.batches import TrainBatch
from sapwood.train.draft_model import (
    BoostedDraftModelObjective,
    DraftModelObjective,
    Student,
    compressed,
)
from sapwood.train.teacher import Teacher
from tests.helpers import tiny_models
from tests.helpers.head_training import teacher
from tests.helpers.state_head_training import STUDENT, batch_of, corpus, made


def whole(student: Student) -> Any:
    """The same weights in the class that other engines load."""
    maker: Any = LlamaForCausalLM
    model = maker(student.config).to(torch.float64)
    missing, strange = model.load_state_dict(student.state_dict(), strict=False)
    assert not strange
    assert missing == (["lm_head.weight"] if student.config.tie_word_embeddings else [])
    model.tie_weights()
    return model.eval()


def slow_distilled(
    objective: DraftModelObjective, model: Any, batch: TrainBatch, first: Any = None
) -> tuple[Tensor, float]:
    """Loss and agreement over the whole vocabulary, one text at a time and without padding."""
    losses = []
    right = []
    weights = []
    for text, (start, length) in enumerate(
        zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
    ):
        tokens = batch.tokens[text : text + 1, :length]
        logits = model(tokens).logits[0]
        others = None if first is None else first(tokens).logits[0]
        for word in range(start, length):
            probs = (teacher().head @ batch.final[text, word - 1]).softmax(0)
            aim = probs * (1 - objective.hard) + objective.hard * F.one_hot(
                probs.argmax(), len(probs)
            )
            missed = others is not None and bool(others[word - 1].argmax() != probs.argmax())
            weights.append(objective.boost if missed else 1.0)
            losses.append(-(aim * logits[word - 1].log_softmax(0)).sum() * weights[-1])
            right.append(weights[-1] * bool(logits[word - 1].argmax() == probs.argmax()))
    return torch.stack(losses).sum() / sum(weights), sum(right) / sum(weights)


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("piece", [61 * 4, 1 << 20], ids=["pieces", "whole"])
def test_a_draft_model_is_distilled_over_the_whole_vocabulary(
    tie: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "PIECE", piece)
    objective = replace(STUDENT, tie=tie)
    student = made(objective)
    batch = batch_of(objective, [0, 3, 4])
    lesson = objective.loss(student, teacher(), batch)
    model = whole(student)
    loss, agreement = slow_distilled(objective, model, batch)
    assert lesson.loss.item() == pytest.approx(loss.item(), rel=1e-6)
    assert lesson.agreement.tolist() == pytest.approx([agreement])
    theirs = dict(model.named_parameters())
    ours = dict(student.named_parameters())
    slopes = torch.autograd.grad(lesson.loss, [ours[name] for name in theirs])
    for slope, wanted in zip(slopes, torch.autograd.grad(loss, list(theirs.values())), strict=True):
        torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-6)


def test_a_second_model_learns_what_the_first_misses(tmp_path: Path) -> None:
    first = made(STUDENT, salt=3)
    first.save(tmp_path / "first")
    objective = replace(STUDENT, first=str(tmp_path / "first"), boost=5.0)
    student = made(objective)
    batch = batch_of(objective, [0, 3, 4])
    assert set(student.state_dict()) == set(made(STUDENT).state_dict())
    loss, agreement = slow_distilled(objective, whole(student), batch, student.first[0])
    even, _ = slow_distilled(objective, whole(student), batch)
    lesson = objective.loss(student, teacher(), batch)
    assert lesson.loss.item() == pytest.approx(loss.item(), rel=1e-6) != even.item()
    assert lesson.agreement.tolist() == pytest.approx([agreement])
    stored = student.first[0].state_dict()["model.norm.weight"]
    torch.testing.assert_close(stored, first.model.norm.weight.detach().half().double())


def test_a_boosted_model_learns_from_the_draft_model_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    sizes = {
        field.name: getattr(STUDENT, field.name)
        for field in fields(STUDENT)
        if field.name != "first"
    }
    objective = BoostedDraftModelObjective(**sizes)
    with pytest.raises(SapwoodError, match="sapwood train draft-model"):
        made(objective)
    first = made(STUDENT, salt=3)
    first.save(home("draft-model", teacher().backend.info.model))
    student = made(objective)
    assert student.kind == "boosted-draft-model"
    stored = student.first[0].state_dict()["model.norm.weight"]
    torch.testing.assert_close(stored, first.model.norm.weight.detach().half().double())
    named = replace(STUDENT, first=str(home("draft-model", teacher().backend.info.model)))
    batch = batch_of(objective, [0, 3])
    ours, wanted = (one.loss(made(one), teacher(), batch) for one in (objective, named))
    assert ours.loss.item() == wanted.loss.item()


def test_a_saved_draft_model_loads_as_any_model_does(tmp_path: Path) -> None:
    source = tmp_path / "target"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "model.safetensors").write_text("not this one")
    student = made(STUDENT)
    student.save(tmp_path / "draft", source, {"texts": 7})
    assert (tmp_path / "draft" / "tokenizer.json").read_text() == "{}"
    backend, _ = load(str(tmp_path / "draft"), device="cpu", dtype="float32")
    assert backend.info.vocab == 61
    assert backend.info.context == teacher().backend.info.context
    tokens = torch.from_numpy(corpus().sequence(0)[None].astype(np.int64))
    with torch.inference_mode():
        ours = backend.model(tokens).logits
        wanted = whole(student)(tokens).logits
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-2, atol=1e-2)
    assert (
        Path(tmp_path / "draft" / "model.safetensors").stat().st_size
        < 2 * student_size(student) + 4000
    )
    student.save(tmp_path / "draft", source)  # again: the old one is replaced


def student_size(student: Student) -> int:
    return sum(weight.numel() for weight in student.parameters())


def test_the_first_words_lie_where_the_targets_do() -> None:
    torch.manual_seed(0)
    low = torch.randn(30, 4) @ torch.randn(4, 12)
    few = compressed(low, 4)
    torch.testing.assert_close(few @ few.t(), (low @ low.t()).double(), rtol=1e-4, atol=1e-4)
    best = torch.linalg.svd(low.double() @ low.double().t())[1][:2].sum()
    assert compressed(low, 2).pow(2).sum().item() == pytest.approx(best.item(), rel=1e-6)
    student = STUDENT.build(teacher(), corpus().counts(61))
    torch.testing.assert_close(
        student.output.double(), compressed(teacher().head, 16), rtol=1e-5, atol=1e-5
    )


def test_a_first_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = Teacher(TorchBackend(tiny_models.make("llama", vocab_size=50), "fifty"))
    STUDENT.build(other, np.ones(50, np.int64)).save(tmp_path / "first")
    with pytest.raises(SapwoodError, match="has 50 tokens and the target 61"):
        replace(STUDENT, first=str(tmp_path / "first")).build(teacher(), corpus().counts(61))
