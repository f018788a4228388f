"""The target as a teacher, ranks of guesses, and how draft models and noise begin."""

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.torch.backend import TorchBackend
from sapwood.train import ranks
from sapwood.train.batches import TrainBatch
from sapwood.train.draft_model import compressed
from sapwood.train.eagle import distance, with_noise
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.early_exit import EarlyExitObjective
from sapwood.train.head_losses import MODEST, share_weights
from sapwood.train.hydra import HydraObjective
from sapwood.train.medusa import MedusaObjective
from sapwood.train.teacher import Teacher
from tests.helpers import tiny_models

torch.set_num_threads(1)
TOKENS = torch.tensor([[3, 7, 11, 20, 5, 9], [4, 8, 12, 30, 6, 2]])


@cache
def teacher(name: str = "llama") -> Teacher:
    return Teacher(TorchBackend(tiny_models.make(name), name))


def batch(layers: tuple[int, ...] = ()) -> TrainBatch:
    features, final = teacher().read(TOKENS, layers)
    return TrainBatch(TOKENS, torch.tensor([6, 5]), torch.tensor([2, 1]), features, final)


# ---------------------------------------------------------------------------------------- reading
def test_final_states_make_the_models_own_logits() -> None:
    made = teacher()
    _, final = made.read(TOKENS, ())
    with torch.no_grad():
        wanted = made.model(input_ids=TOKENS, use_cache=False).logits
    torch.testing.assert_close(final @ made.head.t(), wanted)
    torch.testing.assert_close(made.target_probs(final[0]), wanted[0].softmax(-1))


def test_a_law_over_some_tokens_is_the_law_given_that_it_is_one_of_them() -> None:
    made = teacher()
    _, final = made.read(TOKENS, ())
    some = torch.tensor([2, 5, 40])
    whole = made.target_probs(final[0])[:, some]
    torch.testing.assert_close(
        made.target_probs(final[0], some), whole / whole.sum(-1, keepdim=True)
    )


def test_features_are_the_inputs_of_layers_side_by_side() -> None:
    made = teacher()
    features, final = made.read(TOKENS, (0, 2))
    assert features.shape == (2, 6, 2 * made.width)
    torch.testing.assert_close(features[..., : made.width], made.embedding[TOKENS])
    alone, _ = made.read(TOKENS, (2,))
    torch.testing.assert_close(features[..., made.width :], alone)
    none, again = made.read(TOKENS, ())
    assert none.shape == (2, 6, 0)
    torch.testing.assert_close(again, final)


def test_a_teacher_is_frozen() -> None:
    made = teacher()
    assert not any(weight.requires_grad for weight in made.model.parameters())
    features, final = made.read(TOKENS, (1,))
    assert not features.requires_grad
    assert not final.requires_grad


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_the_shape_of_a_layer_is_the_targets_own(name: str) -> None:
    made = teacher(name)
    config = made.config
    shape = made.shape(99)
    assert (shape.width, shape.heads, shape.inner) == (made.width, config.num_attention_heads, 99)
    assert shape.heads % shape.kv_heads == 0
    assert shape.head_width == (getattr(config, "head_dim", None) or made.width // shape.heads)
    assert (made.norm is None) == (name == "gpt2")


def test_eagle3_reads_a_low_a_middle_and_a_high_layer() -> None:
    for layers, wanted in ((30, (2, 15, 27)), (6, (2, 3, 3)), (2, (1, 1, 1)), (1, (0, 0, 0))):
        target: Any = SimpleNamespace(layers=layers)
        assert Eagle3Objective().features(target) == wanted
    deep: Any = SimpleNamespace(layers=30)
    assert EarlyExitObjective().features(deep) == (6,)
    assert EarlyExitObjective(layer=4).features(deep) == (4,)
    shallow: Any = SimpleNamespace(layers=3)
    assert EarlyExitObjective().features(shallow) == (1,)


# ------------------------------------------------------------------------------------------- ranks
@pytest.mark.parametrize(
    "course",
    [MedusaObjective(heads=2, vocabulary=40), HydraObjective(heads=2, inner=8, vocabulary=40)],
    ids=lambda course: course.kind,
)
def test_ranks_are_counted_word_by_word(course: Any) -> None:
    made = teacher()
    counts = np.arange(made.vocab)[::-1].copy()
    torch.manual_seed(1)
    head: Any = course.build(made, counts)
    with torch.no_grad():
        for weight in head.parameters():
            weight += 0.3 * torch.randn_like(weight)
    found = ranks.measure(head, made, [batch(), batch()], ranks=5)
    words = hits = 0
    wanted = np.zeros((2, 5))
    rows = batch()
    for text, (answer, length) in enumerate(((2, 6), (1, 5))):
        for place in range(max(answer - 1, 0), length - 1):
            word = int(TOKENS[text, place + 1])
            words += 1
            for step in range(2):
                row = place - 1 - step
                if row < 0 or not bool(head.t2d[word]):
                    continue
                hits += 1
                final = rows.final[text, row][None]
                with torch.no_grad():
                    if course.kind == "medusa":
                        logits = head.heads[step](final) @ head.rows(step).t()
                    else:
                        ahead = TOKENS[text, row + 1 : row + 2 + step][None]
                        logits = head.states(final, ahead) @ head.output.t()
                best = head.vocabulary[logits[0].argsort(descending=True)[:5]].tolist()
                if word in best:
                    wanted[step, best.index(word)] += 1
    assert hits
    np.testing.assert_allclose(found, wanted / words, rtol=1e-6)


def test_without_batches_there_are_no_ranks() -> None:
    assert ranks.measure(SimpleNamespace(kind="medusa"), teacher(), []) == []


def test_ranks_are_kept_in_five_digits(tmp_path: Path) -> None:
    ranks.save(tmp_path, [[0.123456789, 0.5], [0.25, 0.0]])
    [path] = tmp_path.iterdir()
    assert json.loads(path.read_text()) == [[0.12346, 0.5], [0.25, 0.0]]


# --------------------------------------------------------------------------------------- beginnings
@pytest.mark.parametrize("width", [1, 3, 6])
def test_compressed_rows_keep_the_most_that_so_few_numbers_can(width: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(40, 6, dtype=torch.float64) * torch.tensor([9.0, 5, 3, 2, 1, 0.5])
    found = compressed(rows, width)
    assert found.shape == (40, width)
    kept = torch.linalg.svdvals(rows)[:width]
    torch.testing.assert_close(torch.linalg.svdvals(found), kept)
    if width == 6:  # nothing is lost: all products of rows are the same
        torch.testing.assert_close(found @ found.t(), rows @ rows.t())
    assert torch.all(found.pow(2).sum(0).diff() <= 1e-9)  # the strongest direction first


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5))
def test_the_distance_of_states_is_hubers(values: list[float]) -> None:
    states = torch.tensor([values], dtype=torch.float64)
    wanted = np.mean([x * x / 2 if abs(x) < 1 else abs(x) - 0.5 for x in values])
    assert float(distance(states, torch.zeros_like(states))[0]) == pytest.approx(wanted, abs=1e-9)
    assert float(distance(states, states)[0]) == 0.0


def test_noise_depends_on_the_batch_alone_and_on_the_length_of_its_rows() -> None:
    made = batch()
    assert with_noise(made, 0.0) is made.final
    first, second = with_noise(made, 0.5), with_noise(made, 0.5)
    assert torch.equal(first, second)
    moved = first - made.final
    widest = 0.5 * 512 / 6 / 2  # texts of 512 rows get 0.5 from edge to edge
    assert float(moved.abs().max()) <= widest
    assert float(moved.abs().max()) > 0.8 * widest
    assert abs(float(moved.mean())) < 0.2 * widest
    other = TrainBatch(TOKENS + 1, made.lengths, made.answers, made.features, made.final)
    assert not torch.equal(with_noise(other, 0.5), first)


def test_a_fresh_head_speaks_through_the_target_with_modest_confidence() -> None:
    made = teacher()
    course = EarlyExitObjective(vocabulary=20, inner=8)
    counts = np.zeros(made.vocab, np.int64)
    counts[[9, 4, 30]] = 5
    head: Any = course.build(made, counts)
    assert {4, 9, 30} <= set(head.vocabulary.tolist())
    assert len(head.vocabulary) == 20
    torch.testing.assert_close(head.output, made.head[head.vocabulary])
    assert made.norm is not None
    torch.testing.assert_close(head.norm.weight.detach(), MODEST * made.norm)
    with torch.no_grad():
        head.norm.weight.zero_()
    share_weights(head, made, counts)
    torch.testing.assert_close(head.norm.weight.detach(), MODEST * made.norm)
