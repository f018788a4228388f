"""Training of early-exit, parallel and recurrent heads against loops over words and steps."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.backends.torch.backend import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.early_exit import EarlyExitHead
from sapwood.heads.parallel import ParallelHead
from sapwood.heads.recurrent import RecurrentHead
from sapwood.train.batches import TrainBatch, gather
from sapwood.train.draft_model import DraftModelObjective
from sapwood.train.early_exit import EarlyExitObjective
from sapwood.train.loop import TrainingStopped
from sapwood.train.parallel import ParallelObjective, rows_of
from sapwood.train.recurrent import RecurrentObjective, unroll
from sapwood.train.teacher import Teacher
from tests.helpers import tiny_models
from tests.helpers.head_training import short_loop, teacher
from tests.helpers.state_head_training import (
    HEADS,
    STEPS,
    STUDENT,
    VOCABULARY,
    batch_of,
    corpus,
    each_course,
    each_head,
    made,
    mlp,
    normed,
    projected,
    read,
    silu,
)


def slow_exit(head: EarlyExitHead, batch: TrainBatch, text: int, row: int) -> list[Tensor]:
    states = [
        head.fc.weight @ normed(head.enter_norm, batch.features[text, place])
        for place in range(row + 1)
    ]
    state = states[-1]
    if head.config.attention:
        inputs = [normed(head.input_layernorm, state) for state in states]
        rows = [projected(head.self_attn, x, place) for place, x in enumerate(inputs)]
        state = state + read(head.self_attn, rows[-1][0], [(key, value) for _, key, value in rows])
    return [state + mlp(head.mlp, normed(head.post_attention_layernorm, state))]


def slow_parallel(head: ParallelHead, batch: TrainBatch, text: int, row: int) -> list[Tensor]:
    layer, embedding = head.midlayer, teacher().embedding
    pairs = []
    for place in range(row + 1):
        parts = zip(head.feature_norm, batch.features[text, place].view(3, -1), strict=True)
        feature = torch.cat([normed(norm, part) for norm, part in parts])
        pairs.append((head.fc.weight @ feature, embedding[batch.tokens[text, place + 1]]))
    pairs += [(head.masks[0, step], head.masks[1, step]) for step in range(head.config.depth - 1)]
    seen: list[tuple[Tensor, Tensor]] = []
    outputs = []
    for place, (state, embed) in enumerate(pairs):
        joined = torch.cat((normed(layer.input_layernorm, embed), normed(layer.hidden_norm, state)))
        query, key, value = projected(layer.self_attn, joined, place)
        seen.append((key, value))
        middle = state + read(layer.self_attn, query, seen)
        outputs.append(middle + mlp(layer.mlp, normed(layer.post_attention_layernorm, middle)))
    return outputs[row:]


def slow_recurrent(head: RecurrentHead, batch: TrainBatch, text: int, row: int) -> list[Tensor]:
    first = state = normed(head.begin_norm, batch.final[text, row])
    outputs = []
    for step in range(STEPS):
        if row + 1 + step >= batch.tokens.shape[1]:
            break
        token = teacher().embedding[batch.tokens[text, row + 1 + step]]
        joined = torch.cat((normed(head.state_norm, state), normed(head.token_norm, token)))
        keep = 1 / (1 + (-(head.gate.weight @ joined + head.gate.bias)).exp())
        state = keep * state + (1 - keep) * silu(head.update.weight @ joined + head.update.bias)
        found = head.fuse.weight @ torch.cat((normed(head.state_norm, state), first))
        for block in head.blocks:
            assert isinstance(block, torch.nn.Linear)
            found = found + silu(block.weight @ found + block.bias)
        outputs.append(found)
    return outputs


SLOW: dict[str, Callable[..., list[Tensor]]] = {
    "early-exit": slow_exit,
    "parallel": slow_parallel,
    "recurrent": slow_recurrent,
}


def slow_lesson(objective: Any, head: Any, batch: TrainBatch) -> tuple[Tensor, list[float]]:
    """Loss and agreement, word by word of the answers."""
    words = head.vocabulary.tolist()
    rows = teacher().head[head.vocabulary]
    lag = (
        0 if objective.kind == "early-exit" else 1
    )  # from the row to the first state it speaks for
    losses: dict[int, list[Tensor]] = {}
    right: dict[int, list[bool]] = {}
    for text, (start, length) in enumerate(
        zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
    ):
        for word in range(start, length):
            if int(batch.tokens[text, word]) not in words:
                continue
            probs = (rows @ batch.final[text, word - 1]).softmax(0)
            aim = probs * (1 - objective.hard)
            aim[probs.argmax()] += objective.hard
            for step in range(getattr(objective, "unroll", getattr(objective, "depth", 1))):
                row = word - 1 - lag - step
                if row < 0:
                    continue
                logits = rows @ normed(
                    head.norm, SLOW[objective.kind](head, batch, text, row)[step]
                )
                losses.setdefault(step, []).append(-(aim * logits.log_softmax(0)).sum())
                right.setdefault(step, []).append(bool(logits.argmax() == probs.argmax()))
    weights = [getattr(objective, "decay", 1.0) ** step for step in losses]
    means = [
        torch.stack(found).mean() * weight
        for found, weight in zip(losses.values(), weights, strict=True)
    ]
    return torch.stack(means).sum() / sum(weights), [
        sum(found) / len(found) for found in right.values()
    ]


@each_head
def test_lessons_are_what_loops_over_words_and_steps_give(objective: Any) -> None:
    head = made(objective)
    batch = batch_of(objective, [0, 3], longest=13)
    lesson = objective.loss(head, teacher(), batch)
    loss, agreement = slow_lesson(objective, head, batch)
    assert lesson.loss.item() == pytest.approx(
        loss.item(), rel=1e-6
    )  # laws are in single precision
    assert lesson.agreement.tolist() == pytest.approx(agreement)
    named = dict(head.named_parameters())
    ours = torch.autograd.grad(lesson.loss, list(named.values()), allow_unused=True)
    theirs = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, one, other in zip(named, ours, theirs, strict=True):
        if named[name].numel():  # a head of one law has no masks
            assert other.abs().max() > 0, name
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_every_row_of_a_batch_is_the_slow_one() -> None:
    objective = ParallelObjective(depth=STEPS, vocabulary=VOCABULARY, inner=24)
    parallel = made(objective)
    batch = batch_of(objective, [1, 2], longest=12)
    fast = rows_of(parallel, teacher().embedding, batch)
    recurrent = made(HEADS[-1])
    follow = unroll(recurrent, teacher().embedding, batch, STEPS)
    for text, row in ((0, 0), (1, 1), (1, 8)):
        slow = (
            slow_parallel(parallel, batch, text, row),
            slow_recurrent(recurrent, batch, text, row),
        )
        for step in range(STEPS):
            torch.testing.assert_close(fast[step][text, row], slow[0][step], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(follow[step][text, row], slow[1][step], rtol=1e-9, atol=1e-9)


@each_course
def test_half_precision_teaches_nearly_the_same(objective: Any) -> None:
    guide = Teacher(TorchBackend(tiny_models.make("llama", torch.float16), "half"))
    exact = teacher(torch.float32)
    tokens, lengths, answers = gather(corpus(), np.array([0, 3, 9]), 99)
    found = []
    for one, narrow in ((exact, False), (guide, True)):
        torch.manual_seed(0)
        head = objective.build(one, corpus().counts(61))
        batch = TrainBatch(tokens, lengths, answers, *one.read(tokens, objective.features(one)))
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = objective.loss(head, one, batch).loss
        slopes = torch.autograd.grad(
            loss, [weight for weight in head.parameters() if weight.numel()]
        )
        assert all(slope.isfinite().all() for slope in slopes)
        found.append(loss.item())
    assert found[1] == pytest.approx(found[0], rel=0.02)


@each_course
def test_prompts_and_padding_do_not_count(objective: Any) -> None:
    head = made(objective)
    batch = batch_of(objective, [0, 3, 9])
    before = objective.loss(head, teacher(), batch)
    for text, length in enumerate(batch.lengths.tolist()):
        batch.tokens[text, length:] = 7
        batch.final[text, length - 1 :] += 1.0
        batch.features[text, length - 1 :] += 1.0
    after = objective.loss(head, teacher(), batch)
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-12)
    batch.final[0, int(batch.lengths[0]) - 2] += 1.0  # this one says a word
    assert objective.loss(head, teacher(), batch).loss.item() != pytest.approx(
        before.loss.item(), rel=1e-6
    )


@each_course
def test_a_batch_without_answers_teaches_nothing(objective: Any) -> None:
    head = made(objective)
    batch = batch_of(objective, [0, 3])
    batch.lengths.copy_(batch.answers)
    lesson = objective.loss(head, teacher(), batch)
    assert lesson.loss.item() == 0.0
    assert not lesson.agreement.any()


@pytest.mark.parametrize(
    ("objective", "norms"),
    [
        (HEADS[0], lambda head: [head.enter_norm]),
        (HEADS[2], lambda head: list(head.feature_norm)),
        (HEADS[-1], lambda head: [head.begin_norm]),
    ],
    ids=["early-exit", "parallel", "recurrent"],
)
def test_numbers_that_are_much_larger_than_others_are_made_alike(
    objective: Any, norms: Any
) -> None:
    model = tiny_models.make("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 3] *= 1000.0
        model.model.norm.weight[5] = 50.0
    guide = Teacher(TorchBackend(model, "uneven"))
    found = norms(objective.build(guide, corpus().counts(61)))
    layers = objective.features(guide) or (guide.layers,)
    read, _ = guide.read(torch.from_numpy(corpus().sequence(0)[None].astype(np.int64)), layers)
    sizes = read[0, 1:].pow(2).mean(0).sqrt().view(len(layers), -1)
    assert float((sizes.max(1).values / sizes.median(1).values).min()) > 15
    for norm, states in zip(found, read[0, 1:].chunk(len(layers), -1), strict=True):
        largest = int(states.pow(2).mean(0).argmax())
        alike = norm(states).detach().pow(2).mean(0).sqrt()
        assert 1 / 3 < float(alike[largest] / alike.median()) < 3


@each_head
def test_saved_heads_come_back_without_the_targets_tables(objective: Any, tmp_path: Path) -> None:
    head = made(objective)
    files.save(head, tmp_path / "head")
    found: Any = files.load(tmp_path / "head", dtype=torch.float64)
    assert found.config == head.config
    assert not {"embedding", "output"} & set(head.state_dict())
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    found.attach(teacher().embedding, teacher().head)
    states = torch.randn(5, 32, dtype=torch.float64)
    torch.testing.assert_close(
        found.output_logits(found.norm(states)),
        head.output_logits(head.norm(states)),
        rtol=1e-2,
        atol=1e-2,
    )


@pytest.mark.parametrize(
    ("objective", "megabytes"),
    [
        (EarlyExitObjective(), 4),
        (ParallelObjective(), 8),
        (RecurrentObjective(), 5),
        (DraftModelObjective(), 10),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_heads_for_the_built_in_model_are_small(objective: Any, megabytes: int) -> None:
    head = objective.build(large(), np.ones(49_152, np.int64))
    stored = sum(
        t.numel() * (2 if t.is_floating_point() else 8) for t in head.state_dict().values()
    )
    assert stored <= megabytes * 1e6


@cache
def large() -> Teacher:
    """A teacher of the built-in model's sizes, but for the number of its layers."""
    sizes: dict[str, Any] = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    }
    return Teacher(
        TorchBackend(tiny_models.make("llama", vocab_size=49_152, num_hidden_layers=6, **sizes))
    )


@each_course
def test_training_lowers_the_loss_and_raises_the_agreement(objective: Any, tmp_path: Path) -> None:
    fast = replace(objective, rate=1e-2, matrix_rate=2e-2)
    _, notes = short_loop(fast, corpus(), tmp_path).run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < first.loss * 0.96
    assert all(late > early for early, late in zip(first.agreement, last.agreement, strict=True))


@pytest.mark.parametrize("objective", [HEADS[0], STUDENT], ids=str)
def test_a_run_that_was_stopped_ends_with_the_same_weights(objective: Any, tmp_path: Path) -> None:
    one, _ = short_loop(objective, corpus(), tmp_path / "one").run()
    calls = count()
    with pytest.raises(TrainingStopped):
        short_loop(objective, corpus(), tmp_path / "two", lambda: next(calls) == 22).run()
    two, _ = short_loop(objective, corpus(), tmp_path / "two").run()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (
            EarlyExitObjective(layer=2),
            "after 2 layers needs a model of more layers than that; this has 2",
        ),
        (
            DraftModelObjective(width=64),
            "of width 64 with 3 heads cannot begin from a target of width 32",
        ),
        (DraftModelObjective(width=18, heads=2), "of width 18 with 2 heads"),
        (replace(STUDENT, first="nowhere"), "'nowhere' has no config.json"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_in_one_sentence(objective: Any, words: str) -> None:
    with pytest.raises(SapwoodError, match=words):
        objective.build(teacher(), corpus().counts(61))


def test_a_course_that_teaches_nothing_is_refused_at_once() -> None:
    with pytest.raises(SapwoodError, match="depth=0 must be at least 1"):
        ParallelObjective(depth=0)


def test_a_model_without_plain_layers_has_no_exits() -> None:
    with pytest.raises(SapwoodError, match="GPT2LMHeadModel is not built as layers and a norm"):
        EarlyExitObjective().build(Teacher(tiny_models.backend("gpt2")), np.ones(61, np.int64))
