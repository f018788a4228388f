"""Early exits, parallel and recurrent heads and draft models: what they are taught, against explicit loops."""

import math
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
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from sapwood.backends.torch.load import load
from sapwood.backends.torch.model import TorchBackend
from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.early_exit import EarlyExit
from sapwood.heads.layers import rotate
from sapwood.heads.parallel import Parallel
from sapwood.heads.recurrent import Recurrent
from sapwood.train import draft_model
from sapwood.train.batches import Batch, gather
from sapwood.train.corpus import Corpus
from sapwood.train.draft_model import DraftModelCourse, Student, compressed
from sapwood.train.early_exit import EarlyExitCourse
from sapwood.train.loop import Loop, LoopSettings, Stopped
from sapwood.train.parallel import ParallelCourse, rows_of
from sapwood.train.recurrent import RecurrentCourse, unroll
from sapwood.train.target import Teacher
from tests import tiny

STEPS, VOCABULARY = 3, 48
HEADS: list[Any] = [
    EarlyExitCourse(vocabulary=VOCABULARY, inner=24),
    EarlyExitCourse(vocabulary=VOCABULARY, inner=24, attention=False),
    ParallelCourse(depth=STEPS, vocabulary=VOCABULARY, inner=24),
    ParallelCourse(depth=1, vocabulary=VOCABULARY),
    RecurrentCourse(unroll=STEPS, vocabulary=VOCABULARY, blocks=2),
]
STUDENT = DraftModelCourse(width=16, heads=2, inner=24)
each_head = pytest.mark.parametrize("course", HEADS, ids=str)
each_course = pytest.mark.parametrize("course", [*HEADS, STUDENT, replace(STUDENT, tie=False)], ids=str)


@cache
def teacher(dtype: torch.dtype = torch.float64) -> Teacher:
    return Teacher(TorchBackend(tiny.make("llama").to(dtype), "tiny"))


@cache
def corpus(texts: int = 48, words: int = 20) -> Corpus:
    """Random prompts and the tiny model's greedy answers, of several lengths."""
    rng, guide = np.random.default_rng(0), teacher(torch.float32)
    prompts = rng.integers(3, 9, texts)
    found = []
    for size in prompts.tolist():
        tokens = torch.from_numpy(rng.integers(3, 61, (1, size)))
        for _ in range(words - size):
            final = guide.read(tokens, ())[1][0, -1]
            tokens = torch.cat((tokens, (guide.head @ final).argmax().view(1, 1)), 1)
        found.append(tokens[0].numpy().astype(np.int32))
    starts = np.concatenate([[0], np.cumsum([len(text) for text in found])])
    return Corpus(np.concatenate(found), starts, prompts.astype(np.int32))


def batch_of(course: Any, texts: list[int], longest: int = 99) -> Batch:
    guide = teacher()
    tokens, lengths, answers = gather(corpus(), np.array(texts), longest)
    return Batch(tokens, lengths, answers, *guide.read(tokens, course.features(guide)))


def made(course: Any, salt: int = 0) -> Any:
    """A head in float64 with no weight left where it began."""
    torch.manual_seed(salt)
    head = course.build(teacher(), corpus().counts(teacher().vocab)).to(torch.float64)
    with torch.no_grad():
        for weight in head.parameters():
            weight += torch.randn_like(weight) * 0.1
    return head


# --------------------------------------------------------------------------- one row at a time
def normed(norm: Any, x: Tensor) -> Tensor:
    found: Tensor = x / (x.pow(2).mean() + norm.eps).sqrt() * norm.weight
    return found


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def mlp(block: Any, x: Tensor) -> Tensor:
    found: Tensor = block.down_proj.weight @ (silu(block.gate_proj.weight @ x) * (block.up_proj.weight @ x))
    return found


def projected(attention: Any, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [heads, d] of one row."""
    rows = [getattr(attention, name).weight @ x for name in ("q_proj", "k_proj", "v_proj")]
    query, key, value = (row.view(-1, 1, attention.shape.head_width) for row in rows)
    place, theta = torch.tensor([position]), attention.shape.theta
    return rotate(query, place, theta)[:, 0], rotate(key, place, theta)[:, 0], value[:, 0]


def read(attention: Any, query: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What one row takes from the keys and values it sees."""
    group, found = len(query) // len(seen[0][0]), []
    for number, one in enumerate(query):
        products = torch.stack([one @ key[number // group] for key, _ in seen]) / math.sqrt(len(one))
        found.append(products.softmax(0) @ torch.stack([value[number // group] for _, value in seen]))
    taken: Tensor = attention.o_proj.weight @ torch.cat(found)
    return taken


def slow_exit(head: EarlyExit, batch: Batch, text: int, row: int) -> list[Tensor]:
    states = [head.fc.weight @ normed(head.enter_norm, batch.features[text, place]) for place in range(row + 1)]
    state = states[-1]
    if head.config.attention:
        inputs = [normed(head.input_layernorm, state) for state in states]
        rows = [projected(head.self_attn, x, place) for place, x in enumerate(inputs)]
        state = state + read(head.self_attn, rows[-1][0], [(key, value) for _, key, value in rows])
    return [state + mlp(head.mlp, normed(head.post_attention_layernorm, state))]


def slow_parallel(head: Parallel, batch: Batch, text: int, row: int) -> list[Tensor]:
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


def slow_recurrent(head: Recurrent, batch: Batch, text: int, row: int) -> list[Tensor]:
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


def slow_lesson(course: Any, head: Any, batch: Batch) -> tuple[Tensor, list[float]]:
    """Loss and agreement, word by word of the answers."""
    words, rows = head.vocabulary.tolist(), teacher().head[head.vocabulary]
    lag = 0 if course.kind == "early-exit" else 1  # from the row to the first state it speaks for
    losses: dict[int, list[Tensor]] = {}
    right: dict[int, list[bool]] = {}
    for text, (start, length) in enumerate(zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)):
        for word in range(start, length):
            if int(batch.tokens[text, word]) not in words:
                continue
            law = (rows @ batch.final[text, word - 1]).softmax(0)
            aim = law * (1 - course.hard)
            aim[law.argmax()] += course.hard
            for step in range(getattr(course, "unroll", getattr(course, "depth", 1))):
                row = word - 1 - lag - step
                if row < 0:
                    continue
                logits = rows @ normed(head.norm, SLOW[course.kind](head, batch, text, row)[step])
                losses.setdefault(step, []).append(-(aim * logits.log_softmax(0)).sum())
                right.setdefault(step, []).append(bool(logits.argmax() == law.argmax()))
    weights = [getattr(course, "decay", 1.0) ** step for step in losses]
    means = [torch.stack(found).mean() * weight for found, weight in zip(losses.values(), weights, strict=True)]
    return torch.stack(means).sum() / sum(weights), [sum(found) / len(found) for found in right.values()]


@each_head
def test_lessons_are_what_loops_over_words_and_steps_give(course: Any) -> None:
    head, batch = made(course), batch_of(course, [0, 3], longest=13)
    lesson = course.lesson(head, teacher(), batch)
    loss, agreement = slow_lesson(course, head, batch)
    assert lesson.loss.item() == pytest.approx(loss.item(), rel=1e-6)  # laws are in single precision
    assert lesson.agreement.tolist() == pytest.approx(agreement)
    named = dict(head.named_parameters())
    ours = torch.autograd.grad(lesson.loss, list(named.values()), allow_unused=True)
    theirs = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, one, other in zip(named, ours, theirs, strict=True):
        if named[name].numel():  # a head of one law has no masks
            assert other.abs().max() > 0, name
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_every_row_of_a_batch_is_the_slow_one() -> None:
    course = ParallelCourse(depth=STEPS, vocabulary=VOCABULARY, inner=24)
    parallel, batch = made(course), batch_of(course, [1, 2], longest=12)
    fast = rows_of(parallel, teacher().embedding, batch)
    recurrent = made(HEADS[-1])
    follow = unroll(recurrent, teacher().embedding, batch, STEPS)
    for text, row in ((0, 0), (1, 1), (1, 8)):
        slow = slow_parallel(parallel, batch, text, row), slow_recurrent(recurrent, batch, text, row)
        for step in range(STEPS):
            torch.testing.assert_close(fast[step][text, row], slow[0][step], rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(follow[step][text, row], slow[1][step], rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------ draft models
def whole(student: Student) -> Any:
    """The same weights in the class that other engines load."""
    maker: Any = LlamaForCausalLM
    model = maker(student.config).to(torch.float64)
    missing, strange = model.load_state_dict(student.state_dict(), strict=False)
    assert not strange
    assert missing == (["lm_head.weight"] if student.config.tie_word_embeddings else [])
    model.tie_weights()
    return model.eval()


def slow_distilled(course: DraftModelCourse, model: Any, batch: Batch, first: Any = None) -> tuple[Tensor, float]:
    """Loss and agreement over the whole vocabulary, one text at a time and without padding."""
    losses, right, weights = [], [], []
    for text, (start, length) in enumerate(zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)):
        tokens = batch.tokens[text : text + 1, :length]
        logits = model(tokens).logits[0]
        others = None if first is None else first(tokens).logits[0]
        for word in range(start, length):
            law = (teacher().head @ batch.final[text, word - 1]).softmax(0)
            aim = law * (1 - course.hard) + course.hard * F.one_hot(law.argmax(), len(law))
            missed = others is not None and bool(others[word - 1].argmax() != law.argmax())
            weights.append(course.boost if missed else 1.0)
            losses.append(-(aim * logits[word - 1].log_softmax(0)).sum() * weights[-1])
            right.append(weights[-1] * bool(logits[word - 1].argmax() == law.argmax()))
    return torch.stack(losses).sum() / sum(weights), sum(right) / sum(weights)


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("piece", [61 * 4, 1 << 20], ids=["pieces", "whole"])
def test_a_draft_model_is_distilled_over_the_whole_vocabulary(
    tie: bool, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_model, "PIECE", piece)
    course = replace(STUDENT, tie=tie)
    student, batch = made(course), batch_of(course, [0, 3, 4])
    lesson = course.lesson(student, teacher(), batch)
    model = whole(student)
    loss, agreement = slow_distilled(course, model, batch)
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
    course = replace(STUDENT, first=str(tmp_path / "first"), boost=5.0)
    student, batch = made(course), batch_of(course, [0, 3, 4])
    assert set(student.state_dict()) == set(made(STUDENT).state_dict())
    loss, agreement = slow_distilled(course, whole(student), batch, student.first[0])
    even, _ = slow_distilled(course, whole(student), batch)
    lesson = course.lesson(student, teacher(), batch)
    assert lesson.loss.item() == pytest.approx(loss.item(), rel=1e-6) != even.item()
    assert lesson.agreement.tolist() == pytest.approx([agreement])
    stored = student.first[0].state_dict()["model.norm.weight"]
    torch.testing.assert_close(stored, first.model.norm.weight.detach().half().double())


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
    assert Path(tmp_path / "draft" / "model.safetensors").stat().st_size < 2 * student_size(student) + 4000
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
    torch.testing.assert_close(student.output.double(), compressed(teacher().head, 16), rtol=1e-5, atol=1e-5)


@each_course
def test_half_precision_teaches_nearly_the_same(course: Any) -> None:
    guide = Teacher(TorchBackend(tiny.make("llama", torch.float16), "half"))
    exact = teacher(torch.float32)
    tokens, lengths, answers = gather(corpus(), np.array([0, 3, 9]), 99)
    found = []
    for one, narrow in ((exact, False), (guide, True)):
        torch.manual_seed(0)
        head = course.build(one, corpus().counts(61))
        batch = Batch(tokens, lengths, answers, *one.read(tokens, course.features(one)))
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = course.lesson(head, one, batch).loss
        slopes = torch.autograd.grad(loss, [weight for weight in head.parameters() if weight.numel()])
        assert all(slope.isfinite().all() for slope in slopes)
        found.append(loss.item())
    assert found[1] == pytest.approx(found[0], rel=0.02)


# ------------------------------------------------------------------------------------------ shapes
@each_course
def test_prompts_and_padding_do_not_count(course: Any) -> None:
    head, batch = made(course), batch_of(course, [0, 3, 9])
    before = course.lesson(head, teacher(), batch)
    for text, length in enumerate(batch.lengths.tolist()):
        batch.tokens[text, length:] = 7
        batch.final[text, length - 1 :] += 1.0
        batch.features[text, length - 1 :] += 1.0
    after = course.lesson(head, teacher(), batch)
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-12)
    batch.final[0, int(batch.lengths[0]) - 2] += 1.0  # this one says a word
    assert course.lesson(head, teacher(), batch).loss.item() != pytest.approx(before.loss.item(), rel=1e-6)


@each_course
def test_a_batch_without_answers_teaches_nothing(course: Any) -> None:
    head, batch = made(course), batch_of(course, [0, 3])
    batch.lengths.copy_(batch.answers)
    lesson = course.lesson(head, teacher(), batch)
    assert lesson.loss.item() == 0.0
    assert not lesson.agreement.any()


@pytest.mark.parametrize(
    ("course", "norms"),
    [
        (HEADS[0], lambda head: [head.enter_norm]),
        (HEADS[2], lambda head: list(head.feature_norm)),
        (HEADS[-1], lambda head: [head.begin_norm]),
    ],
    ids=["early-exit", "parallel", "recurrent"],
)
def test_numbers_that_are_much_larger_than_others_are_made_alike(course: Any, norms: Any) -> None:
    model = tiny.make("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 3] *= 1000.0
        model.model.norm.weight[5] = 50.0
    guide = Teacher(TorchBackend(model, "uneven"))
    found = norms(course.build(guide, corpus().counts(61)))
    layers = course.features(guide) or (guide.layers,)
    read, _ = guide.read(torch.from_numpy(corpus().sequence(0)[None].astype(np.int64)), layers)
    sizes = read[0, 1:].pow(2).mean(0).sqrt().view(len(layers), -1)
    assert float((sizes.max(1).values / sizes.median(1).values).min()) > 15
    for norm, states in zip(found, read[0, 1:].chunk(len(layers), -1), strict=True):
        largest = int(states.pow(2).mean(0).argmax())
        alike = norm(states).detach().pow(2).mean(0).sqrt()
        assert 1 / 3 < float(alike[largest] / alike.median()) < 3


@each_head
def test_saved_heads_come_back_without_the_targets_tables(course: Any, tmp_path: Path) -> None:
    head = made(course)
    files.save(head, tmp_path / "head")
    found: Any = files.load(tmp_path / "head", dtype=torch.float64)
    assert found.config == head.config
    assert not {"embedding", "output"} & set(head.state_dict())
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    found.attach(teacher().embedding, teacher().head)
    states = torch.randn(5, 32, dtype=torch.float64)
    torch.testing.assert_close(found.speak(found.norm(states)), head.speak(head.norm(states)), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("course", "megabytes"),
    [(EarlyExitCourse(), 4), (ParallelCourse(), 8), (RecurrentCourse(), 5), (DraftModelCourse(), 10)],
    ids=lambda value: getattr(value, "kind", None),
)
def test_heads_for_the_built_in_model_are_small(course: Any, megabytes: int) -> None:
    head = course.build(large(), np.ones(49_152, np.int64))
    stored = sum(t.numel() * (2 if t.is_floating_point() else 8) for t in head.state_dict().values())
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
    return Teacher(TorchBackend(tiny.make("llama", vocab_size=49_152, num_hidden_layers=6, **sizes)))


# ---------------------------------------------------------------------------------------- learning
def loop(course: Any, folder: Path, stop: Any = lambda: False) -> Loop:
    settings = LoopSettings(steps=40, tokens=1024, log=10)
    return Loop(course, teacher(torch.float32), corpus(), settings, folder / "state", asked_to_stop=stop)


@each_course
def test_training_lowers_the_loss_and_raises_the_agreement(course: Any, tmp_path: Path) -> None:
    fast = replace(course, rate=1e-2, matrix_rate=2e-2)
    _, notes = loop(fast, tmp_path).run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < first.loss * 0.96
    assert all(late > early for early, late in zip(first.agreement, last.agreement, strict=True))


@pytest.mark.parametrize("course", [HEADS[0], STUDENT], ids=str)
def test_a_run_that_was_stopped_ends_with_the_same_weights(course: Any, tmp_path: Path) -> None:
    one, _ = loop(course, tmp_path / "one").run()
    calls = count()
    with pytest.raises(Stopped):
        loop(course, tmp_path / "two", lambda: next(calls) == 22).run()
    two, _ = loop(course, tmp_path / "two").run()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, two.state_dict()[name]), name


# ------------------------------------------------------------------------------------------ misfits
@pytest.mark.parametrize(
    ("course", "words"),
    [
        (EarlyExitCourse(layer=2), "after 2 layers needs a model of more layers than that; this has 2"),
        (DraftModelCourse(width=64), "of width 64 with 3 heads cannot begin from a target of width 32"),
        (DraftModelCourse(width=18, heads=2), "of width 18 with 2 heads"),
        (replace(STUDENT, first="nowhere"), "'nowhere' has no config.json"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_in_one_sentence(course: Any, words: str) -> None:
    with pytest.raises(SapwoodError, match=words):
        course.build(teacher(), corpus().counts(61))


def test_a_course_that_teaches_nothing_is_refused_at_once() -> None:
    with pytest.raises(SapwoodError, match="depth=0 must be at least 1"):
        ParallelCourse(depth=0)


def test_a_model_without_plain_layers_has_no_exits() -> None:
    with pytest.raises(SapwoodError, match="GPT2LMHeadModel is not built as layers and a norm"):
        EarlyExitCourse().build(Teacher(tiny.backend("gpt2")), np.ones(61, np.int64))


def test_a_first_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = Teacher(TorchBackend(tiny.make("llama", vocab_size=50), "fifty"))
    STUDENT.build(other, np.ones(50, np.int64)).save(tmp_path / "first")
    with pytest.raises(SapwoodError, match="has 50 tokens and the target 61"):
        replace(STUDENT, first=str(tmp_path / "first")).build(teacher(), corpus().counts(61))
