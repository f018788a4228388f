"""Every head is taught what it should be: the loss, its slope, its places, and that it learns."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sapwood.errors import SapwoodError
from sapwood.train import eagle, eagle3, losses
from sapwood.train.batches import TrainBatch
from sapwood.train.eagle import EagleObjective
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.hydra import HydraObjective
from sapwood.train.labels import label
from sapwood.train.loop import TrainingStopped
from sapwood.train.losses import soft_cross
from sapwood.train.medusa import MedusaObjective
from sapwood.train.teacher import Teacher
from sapwood.train.unrolled import attend, dense
from tests.helpers.head_training import batch_of, corpus, random_head, short_loop, teacher
from tests.helpers.reference_heads import lesson_of, states_of

STEPS, VOCABULARY = 3, 48
OBJECTIVES: list[Any] = [
    Eagle3Objective(unroll=STEPS, vocabulary=VOCABULARY),
    EagleObjective(steps=STEPS, vocabulary=VOCABULARY, hard=0.2, word=0.7),
    MedusaObjective(heads=STEPS, blocks=2, vocabulary=VOCABULARY),
    HydraObjective(heads=STEPS, inner=24, vocabulary=VOCABULARY),
]
each_course = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.kind)


# -------------------------------------------------------------------------- against explicit loops
@each_course
def test_lessons_are_what_loops_over_texts_places_and_steps_give(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [0, 3], longest=17)
    lesson = objective.loss(head, guide, batch)
    loss, agreement = lesson_of(objective, head, guide, batch, STEPS)
    assert lesson.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert lesson.agreement.tolist() == pytest.approx(agreement)
    named = dict(head.named_parameters())
    slopes = torch.autograd.grad(lesson.loss, list(named.values()))
    wanted = torch.autograd.grad(loss, list(named.values()))
    for name, ours, theirs in zip(named, slopes, wanted, strict=True):
        assert float(theirs.abs().max()) > 0, name
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("objective", OBJECTIVES[:2], ids=lambda objective: objective.kind)
def test_unrolled_steps_are_those_of_single_rows(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [1, 2], longest=12)
    if objective.kind == "eagle3":
        outputs = [
            head.norm(states) for states in eagle3.unroll(head, guide.embedding, batch, STEPS)
        ]
    else:
        outputs = eagle.unroll(head, batch, STEPS)
    for row in (0, 1, 7):
        wanted = states_of(head, guide.embedding, batch, 1, row, STEPS)
        for step in range(STEPS):
            torch.testing.assert_close(outputs[step][1, row], wanted[step], rtol=1e-9, atol=1e-9)


def test_an_eagle_head_run_through_its_drafting_seam_is_the_same_head() -> None:
    objective = EagleObjective(vocabulary=VOCABULARY)
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [4], longest=12)
    rows = batch.tokens.shape[1] - 1
    states = head.begin(batch.final[:, :rows])
    query, key, value = head.midlayer.project(
        guide.embedding[batch.tokens[:, 1:]], states, torch.arange(rows)[None]
    )
    for last in (3, rows - 1):  # all rows up to one, and that row alone
        kept = key[:, :, : last + 1], value[:, :, : last + 1]
        read = head.midlayer.self_attn.attend(query[:, :, last : last + 1], *kept, None)
        ours = head.midlayer.finish(states[:, last : last + 1], read)[0, 0]
        torch.testing.assert_close(
            ours, eagle.unroll(head, batch, 1)[0][0, last], rtol=1e-9, atol=1e-9
        )


@each_course
def test_mixed_precision_gives_nearly_the_same_lesson(objective: Any) -> None:
    guide = teacher(torch.float32)
    head = random_head(objective, guide).float()
    batch = batch_of(objective, guide, [0, 3])
    exact = objective.loss(head, guide, batch).loss.item()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = objective.loss(head, guide, batch).loss
    mixed.backward()
    assert mixed.item() == pytest.approx(exact, rel=0.03)
    assert all(
        weight.grad is not None and weight.grad.isfinite().all() for weight in head.parameters()
    )


@pytest.mark.parametrize("make", [MedusaObjective, HydraObjective], ids=lambda make: make.kind)
def test_courses_need_at_least_one_head(make: Any) -> None:
    with pytest.raises(SapwoodError, match="heads=0 must be at least 1"):
        make(heads=0)
    with pytest.raises(SapwoodError, match="steps=0 must be at least 1"):
        EagleObjective(steps=0)


# ------------------------------------------------------------------------------------------ slopes
@pytest.mark.parametrize("frozen", [True, False])
def test_the_fused_loss_has_the_slope_of_the_plain_formula(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "PIECE", 5 * 11)  # five rows at a time
    torch.manual_seed(1)
    states = torch.randn(13, 8, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 8, dtype=torch.float64, requires_grad=not frozen)
    target_probs = torch.randn(13, 11, dtype=torch.float64).softmax(-1)
    weights = torch.rand(13, dtype=torch.float64)
    taught = [states] if frozen else [states, head]
    loss, right = soft_cross(states, head, target_probs, weights, target_probs.argmax(-1))
    logits = states @ head.t()
    plain = -(target_probs * logits.log_softmax(-1)).sum(-1) @ weights
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(
        right, weights @ (logits.argmax(-1) == target_probs.argmax(-1)).double()
    )
    ours, theirs = torch.autograd.grad(loss * 3, taught), torch.autograd.grad(plain * 3, taught)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_fused_attention_has_the_slope_of_one_softmax(steps: int) -> None:
    torch.manual_seed(2)

    def rows(heads: int) -> Tensor:
        return torch.randn(2, heads, 19, 8, dtype=torch.float64, requires_grad=True)

    query = rows(4)
    keys = [(rows(2), rows(2)) for _ in range(steps)]
    flat = [query, *(tensor for pair in keys for tensor in pair)]
    ours = attend(query, keys)
    theirs = dense(
        query, [(key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)) for key, value in keys]
    )
    torch.testing.assert_close(ours, theirs)
    slope = torch.randn_like(ours)
    for one, other in zip(
        torch.autograd.grad(ours, flat, slope),
        torch.autograd.grad(theirs, flat, slope),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


# ------------------------------------------------------------------------------------------ places
class Knower(nn.Module):
    """Stands in for one head of Medusa or Hydra: knows the final state at the place it speaks for."""

    def __init__(self, batch: TrainBatch, embedding: Tensor, ahead: int) -> None:
        super().__init__()
        self.batch = batch
        self.embedding = embedding
        self.ahead = ahead
        self.weight = nn.Parameter(torch.zeros((), dtype=batch.final.dtype))

    def forward(self, final: Tensor, embeds: Tensor | None = None) -> Tensor:
        rows = self.batch.tokens.shape[1]
        found = torch.cdist(final, self.batch.final.flatten(0, 1)).argmin(1)
        texts = found // rows
        places = found % rows
        if embeds is not None:
            for slot in range(embeds.shape[1]):
                torch.testing.assert_close(
                    embeds[:, slot], self.embedding[self.batch.tokens[texts, places + 1 + slot]]
                )
        return self.batch.final[texts, (places + self.ahead).clamp(max=rows - 1)] + self.weight


def agreement_of_knowing(objective: Any, late: int, patch: pytest.MonkeyPatch) -> list[float]:
    """Agreement of a head whose states are the target's own, `late` places off."""
    guide = teacher()
    head = objective.build(guide, corpus().counts(guide.vocab)).to(torch.float64)
    batch = batch_of(objective, guide, [5, 6])
    if objective.kind in ("medusa", "hydra"):
        head.heads = nn.ModuleList(
            Knower(batch, guide.embedding, 1 + step + late) for step in range(STEPS)
        )
    else:
        head.norm = nn.Identity()  # the states are normed already
        known = [batch.final.roll(-(1 + step + late), 1) for step in range(STEPS)]
        patch.setattr(
            {"eagle": eagle, "eagle3": eagle3}[objective.kind], "unroll", lambda *_: known
        )
    found: list[float] = objective.loss(head, guide, batch).agreement.tolist()
    return found


@each_course
def test_labels_sit_at_the_place_a_row_speaks_for(
    objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert agreement_of_knowing(objective, 0, monkeypatch) == pytest.approx([1.0] * STEPS)
    for late in (-1, 1):
        assert max(agreement_of_knowing(objective, late, monkeypatch)) < 0.9


def test_the_first_choice_of_a_label_is_the_word_a_greedy_target_wrote() -> None:
    guide = teacher()
    objective = MedusaObjective()
    head = objective.build(guide, corpus().counts(guide.vocab))
    batch = batch_of(objective, guide, [7, 8])
    labels = label(head, guide, batch, hard=0.5)
    assert torch.equal(head.vocabulary[labels.best], batch.tokens[labels.texts, labels.places + 1])
    torch.testing.assert_close(labels.target_probs.sum(-1), torch.ones(len(labels.places)))


@each_course
def test_prompts_and_padding_are_no_labels(objective: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [0, 3, 9])
    asked: list[Tensor] = []

    def target_probs(final: Tensor, vocabulary: Tensor) -> Tensor:
        asked.append(final)
        return Teacher.target_probs(guide, final, vocabulary)

    monkeypatch.setattr(guide, "target_probs", target_probs)
    before = objective.loss(head, guide, batch)
    said = [
        batch.final[text, start - 1 : length - 1]
        for text, (start, length) in enumerate(
            zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
        )
    ]
    assert torch.equal(asked[0], torch.cat(said))
    for text, length in enumerate(batch.lengths.tolist()):
        batch.tokens[text, length:] = 7
        batch.final[text, length - 1 :] += 1.0
        batch.features[text, length - 1 :] += 1.0
    if objective.kind == "eagle3":  # the others read final states as well
        for text, start in enumerate(batch.answers.tolist()):
            batch.final[text, : start - 1] += 1.0
    after = objective.loss(head, guide, batch)
    assert torch.equal(before.loss, after.loss)
    assert torch.equal(before.agreement, after.agreement)


@each_course
def test_a_batch_without_answers_teaches_nothing(objective: Any) -> None:
    guide = teacher()
    head = random_head(objective, guide)
    batch = batch_of(objective, guide, [0, 3])
    batch.lengths.copy_(batch.answers)
    lesson = objective.loss(head, guide, batch)
    lesson.loss.backward()
    assert lesson.loss.item() == 0.0
    assert all(weight.grad is None or not weight.grad.any() for weight in head.parameters())


# ---------------------------------------------------------------------------------------- learning
@each_course
def test_training_lowers_the_loss_and_raises_the_agreement(objective: Any, tmp_path: Path) -> None:
    fast = replace(objective, rate=1e-2, matrix_rate=2e-2)
    head, notes = short_loop(fast, corpus(), tmp_path).run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < first.loss * 0.9
    assert all(late > early for early, late in zip(first.agreement, last.agreement, strict=True))
    borrowed = {"embedding", "output"} & set(head.state_dict())
    assert not borrowed


def test_a_run_with_noise_repeats_itself_after_a_stop(tmp_path: Path) -> None:
    objective = EagleObjective(noise=0.2, vocabulary=VOCABULARY)
    whole, _ = short_loop(objective, corpus(), tmp_path / "whole").run()
    calls = count()
    with pytest.raises(TrainingStopped):
        short_loop(objective, corpus(), tmp_path / "cut", lambda: next(calls) == 22).run()
    rest, _ = short_loop(objective, corpus(), tmp_path / "cut").run()
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, rest.state_dict()[name]), name
    quiet, _ = short_loop(EagleObjective(vocabulary=VOCABULARY), corpus(), tmp_path / "quiet").run()
    assert not torch.equal(quiet.fc.weight, whole.fc.weight)  # type: ignore[union-attr,arg-type]


# ------------------------------------------------------------------------------------ best tokens
@pytest.mark.parametrize("count", [1, 4, 99])
def test_the_loss_on_the_best_tokens_is_the_formula(count: int) -> None:
    """HASS: - sum over the target's best tokens of p log q, and its slope."""
    objective = EagleObjective(vocabulary=48, inner=24)
    head = random_head(objective, teacher())
    batch = batch_of(objective, teacher(), [0, 3])
    labels = label(head, teacher(), batch, 0.0)
    torch.manual_seed(0)
    states = torch.randn(len(labels.places), 32, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(len(labels.places), dtype=torch.float64)
    found = eagle.top_loss(labels, states, head.output, weights, count)
    logs = (states @ head.output.t()).log_softmax(-1)
    wanted = torch.zeros((), dtype=torch.float64)
    for row, probs in enumerate(labels.target_probs):
        for token in probs.argsort(descending=True)[:count].tolist():
            wanted = wanted - weights[row] * probs[token] * logs[row, token]
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    ours, theirs = (torch.autograd.grad(one, states)[0] for one in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)


def test_the_loss_on_the_best_tokens_is_added_to_every_step() -> None:
    plain = EagleObjective(vocabulary=48, inner=24, steps=2)
    head = random_head(plain, teacher())
    batch = batch_of(plain, teacher(), [0, 3])
    labels = label(head, teacher(), batch, 0.0)
    more = []
    for step, states in enumerate(eagle.unroll(head, batch, 2)):
        rows, weights = labels.rows(step)
        chosen = states[labels.texts, rows]
        more.append(eagle.top_loss(labels, chosen, head.output, weights, 5).item())
    wanted = 0.5 * (more[0] + plain.decay * more[1]) / (1 + plain.decay)
    hass = replace(plain, top=5, top_weight=0.5)
    lessons = [one.loss(head, teacher(), batch).loss.item() for one in (hass, plain)]
    assert lessons[0] - lessons[1] == pytest.approx(wanted, rel=1e-6)
