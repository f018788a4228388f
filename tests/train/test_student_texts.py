"""Draft models that are trained on their own text: what is drawn, replaced, cut and learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.common.drafter_store import home
from sapwood.errors import SapwoodError
from sapwood.train import student_texts
from sapwood.train.batches import TrainBatch
from sapwood.train.distillspec import DistillSpecObjective
from sapwood.train.draft_model import DraftModelObjective
from sapwood.train.fastdraft import FastDraftObjective
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.skd import SkdObjective
from sapwood.train.student_texts import TextSampling, draw, rewritten
from tests.helpers.head_training import teacher
from tests.helpers.state_head_training import STUDENT, batch_of, corpus, made

torch.set_num_threads(1)
SIZES: dict[str, Any] = {"width": 16, "heads": 2, "inner": 24}
FAST: dict[str, Any] = {**SIZES, "rate": 0.02, "matrix_rate": 0.02}
GREEDY = TextSampling(temperature=0.0, target_temperature=0.0)


def student_logits(student: Any, tokens: Tensor) -> Tensor:
    found: Tensor = student(tokens) @ student.output.t()
    return found


def own_places(batch: TrainBatch) -> list[tuple[int, int]]:
    """Texts and places of tokens of the answers."""
    return [
        (text, place)
        for text, (start, stop) in enumerate(
            zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
        )
        for place in range(start, stop)
    ]


# ------------------------------------------------------------------------------------------ texts
def test_answers_are_the_students_own_and_prompts_stay() -> None:
    student = made(STUDENT)
    batch = batch_of(STUDENT, [0, 3, 4])
    found = rewritten(student, teacher(), batch, GREEDY)
    with torch.no_grad():
        wanted = student_logits(student, found.tokens).argmax(-1)
    for text, place in own_places(found):
        assert found.tokens[text, place] == wanted[text, place - 1]
    for text, start in enumerate(batch.answers.tolist()):
        assert found.tokens[text, :start].tolist() == batch.tokens[text, :start].tolist()
    torch.testing.assert_close(found.final, teacher().read(found.tokens, ())[1])


@pytest.mark.parametrize("top", [1, 4, 61])
def test_the_target_replaces_tokens_outside_its_best(top: int) -> None:
    student = made(STUDENT)
    batch = batch_of(STUDENT, [0, 3, 4])
    found = rewritten(student, teacher(), batch, replace(GREEDY, top=top))
    with torch.no_grad():
        proposed = student_logits(student, found.tokens).argmax(-1)
        scores = found.final @ teacher().head.t()
    counts = {True: 0, False: 0}
    for text, place in own_places(found):
        token = int(proposed[text, place - 1])
        best = scores[text, place - 1].topk(top).indices.tolist()
        counts[token in best] += 1
        wanted = token if token in best else best[0]
        assert int(found.tokens[text, place]) == wanted
    if top == 1:  # supervised: the target's own greedy text
        assert all(
            found.tokens[text, place] == scores[text, place - 1].argmax()
            for text, place in own_places(found)
        )
    elif top == 61:  # on-policy
        assert counts[False] == 0
    else:
        assert min(counts.values()) > 0


def test_a_text_ends_behind_its_first_end(monkeypatch: pytest.MonkeyPatch) -> None:
    student = made(STUDENT)
    batch = batch_of(STUDENT, [0, 3, 4])
    whole = rewritten(student, teacher(), batch, GREEDY)
    first = int(batch.answers[0])
    end = int(whole.tokens[0, first + 2])
    monkeypatch.setattr(student_texts, "ends_of", lambda _: [end])
    found = rewritten(student, teacher(), batch, GREEDY)
    said = whole.tokens[0, first:].tolist()
    assert int(found.lengths[0]) == first + said.index(end) + 1
    assert (found.lengths <= batch.lengths).all()


def test_draws_follow_temperature_and_nucleus() -> None:
    source = torch.Generator().manual_seed(0)
    probs = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = probs.log().expand(20_000, 3)
    for temperature, top_p, kept in [(1.0, 1.0, 3), (0.5, 1.0, 3), (1.0, 0.6, 2), (1.0, 0.5, 1)]:
        wanted = probs ** (1 / temperature)
        wanted = wanted / wanted.sum()
        wanted[kept:] = 0
        wanted = wanted / wanted.sum()
        drawn = draw(logits, temperature, top_p, source)
        share = torch.bincount(drawn, minlength=3).double() / len(drawn)
        assert (share - wanted).abs().max() < 0.015  # four deviations of 20,000 draws
    assert draw(logits[:4], 0.0, 1.0, source).tolist() == [0] * 4


# ----------------------------------------------------------------------------------------- lessons
def test_the_model_learns_the_targets_probs_on_its_own_text() -> None:
    objective = replace(STUDENT, on_policy=1.0, hard=0.0, temperature=0.0, divergence="jsd")
    student = made(objective)
    batch = batch_of(objective, [0, 3, 4])
    own = rewritten(student, teacher(), batch, GREEDY)
    lesson = objective.loss(student, teacher(), batch)
    logits = student_logits(student, own.tokens)
    rows = []
    for text, place in own_places(own):
        p = (teacher().head @ own.final[text, place - 1]).softmax(0)
        q = logits[text, place - 1].softmax(0)
        m = (p + q) / 2
        rows.append(((p * (p / m).log() + q * (q / m).log()) / 2).sum())
    assert lesson.loss.item() == pytest.approx(torch.stack(rows).mean().item(), rel=1e-6)
    supervised = replace(objective, on_policy=0.0).loss(student, teacher(), batch)
    assert supervised.loss.item() != pytest.approx(lesson.loss.item(), rel=1e-3)


def test_a_share_of_the_batches_is_the_models_own() -> None:
    objective = replace(STUDENT, on_policy=0.4, temperature=0.0)
    student = made(objective)
    batches = [batch_of(objective, [number]) for number in range(20)]
    changed = [
        not torch.equal(objective.texts(student, teacher(), batch).tokens, batch.tokens)
        for batch in batches
    ]
    assert 2 <= sum(changed) <= 14  # 8 of 20, within three deviations
    again = [objective.texts(student, teacher(), batch).tokens for batch in batches[:4]]
    for batch, tokens in zip(batches, again, strict=False):
        assert torch.equal(objective.texts(student, teacher(), batch).tokens, tokens)


@pytest.mark.parametrize("whole", [True, False])
def test_labels_may_be_tokens_of_answers_or_of_whole_texts(whole: bool) -> None:
    objective = FastDraftObjective(**SIZES, whole=whole)
    student = made(objective)
    batch = batch_of(objective, [0, 3, 4])
    lesson = objective.loss(student, teacher(), batch)
    logits = student_logits(student, batch.tokens)
    lost = [
        F.cross_entropy(logits[text, place - 1], batch.tokens[text, place])
        for text, (start, stop) in enumerate(
            zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
        )
        for place in range(1 if whole else start, stop)
    ]
    assert lesson.loss.item() == pytest.approx(torch.stack(lost).mean().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"divergence": "kl"}, "is no divergence"),
        ({"labels": "words"}, "neither 'probs' nor 'tokens'"),
        ({"labels": "tokens", "on_policy": 0.5}, "its own text"),
        ({"on_policy": 1.5}, "on_policy"),
        ({"top": -1}, "top"),
        ({"top_p": 2.0}, "top_p"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SapwoodError, match=reason):
        DraftModelObjective(**options)


# ------------------------------------------------------------------------------------------- runs
@pytest.mark.parametrize(
    "objective",
    [
        DistillSpecObjective(**FAST),
        DistillSpecObjective(**FAST, divergence="rkl", on_policy=0.5),
        DistillSpecObjective(**FAST, divergence="tvd"),
        SkdObjective(**FAST),
        FastDraftObjective(**FAST),
    ],
    ids=lambda one: f"{one.kind}-{one.divergence}-{one.on_policy}",
)
def test_acceptance_rises(
    objective: DraftModelObjective, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    texts = corpus(8, 14)
    settings = LoopSettings(steps=16, tokens=1024)
    loop = TrainingLoop(objective, teacher(torch.float32), texts, settings, tmp_path / "state")
    torch.manual_seed(0)
    fresh = objective.build(loop.teacher, texts.counts(61))
    student, _ = loop.run()
    before, after = (accepted(loop, one) for one in (fresh, student))
    assert after > before + 0.05


def accepted(loop: Any, student: Any) -> float:
    """Chance that a draw of the student is accepted after the target's text: sum of min(p, q)."""
    found = []
    with torch.no_grad():
        for batch in loop.some(2):
            texts, places = batch.labelled_places()
            p = loop.teacher.target_probs(batch.final[texts, places])
            q = student_logits(student, batch.tokens)[texts, places].softmax(-1)
            found.append(torch.minimum(p, q).sum(-1))
    return float(torch.cat(found).mean())


def test_tuning_goes_on_from_the_targets_draft_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    first = made(STUDENT, salt=3)
    first.save(home("draft-model", teacher().backend.info.model))
    other = DistillSpecObjective(width=8, heads=1)  # sizes are those of the model it goes on from
    for objective in (other, SkdObjective()):
        student = objective.build(teacher(), corpus().counts(61))
        assert student.kind == objective.kind
        for name, weight in student.state_dict().items():
            torch.testing.assert_close(weight, first.state_dict()[name].half().float())
    named = tmp_path / "other"
    made(STUDENT, salt=5).save(named)
    student = replace(other, start=str(named)).build(teacher(), corpus().counts(61))
    assert not torch.equal(student.model.norm.weight, first.model.norm.weight.half().float())
