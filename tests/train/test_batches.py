"""Which texts are read together, in which order, and which of their states are judged."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.train.batches import STEP, BatchOrder, TrainBatch, gather
from sapwood.train.corpus import Corpus

lengths = st.lists(st.integers(1, 500), min_size=1, max_size=40)


def corpus_of(texts: list[list[int]], answers: list[int]) -> Corpus:
    starts = np.cumsum([0, *map(len, texts)])
    tokens = np.array([token for text in texts for token in text], np.int32)
    return Corpus(tokens, starts, np.array(answers, np.int32))


# ------------------------------------------------------------------------------------------ order
@given(lengths, st.integers(1, 1000), st.integers(0, 3), st.integers(0, 3))
def test_an_epoch_reads_every_text_once(
    sizes: list[int], tokens: int, seed: int, number: int
) -> None:
    batches = BatchOrder(np.array(sizes), tokens, seed).epoch(number)
    read = [int(text) for batch in batches for text in batch]
    assert sorted(read) == list(range(len(sizes)))


@given(lengths, st.integers(1, 1000))
def test_a_batch_holds_texts_of_one_rounded_length_and_no_more_tokens_than_allowed(
    sizes: list[int], tokens: int
) -> None:
    for batch in BatchOrder(np.array(sizes), tokens, 0).epoch(0):
        rounded = {-(-sizes[text] // STEP) * STEP for text in batch.tolist()}
        assert len(rounded) == 1
        assert len(batch) == 1 or len(batch) * rounded.pop() <= tokens


def test_the_order_depends_on_the_seed_and_the_epoch_alone() -> None:
    sizes = np.arange(1, 200)

    def order(seed: int, number: int) -> list[list[int]]:
        return [batch.tolist() for batch in BatchOrder(sizes, 256, seed).epoch(number)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


@given(lengths, st.integers(64, 600), st.integers(0, 60))
def test_a_run_that_goes_on_reads_what_is_left(sizes: list[int], tokens: int, done: int) -> None:
    order = BatchOrder(np.array(sizes), tokens, 5)
    whole = [batch.tolist() for batch in islice(order.after(0), done + 20)]
    rest = [batch.tolist() for batch in islice(order.after(done), 20)]
    assert rest == whole[done:]


def test_epochs_follow_each_other_without_end() -> None:
    order = BatchOrder(np.array([10, 20, 30]), 64, 0)
    assert len(order.epoch(0)) == 3
    read = [int(batch[0]) for batch in islice(order.after(0), 9)]
    assert [sorted(read[at : at + 3]) for at in (0, 3, 6)] == [[0, 1, 2]] * 3


# --------------------------------------------------------------------------------------- gathering
def test_texts_are_padded_with_their_last_token() -> None:
    corpus = corpus_of([[1, 2, 3], [4, 5, 6, 7, 8]], [1, 2])
    tokens, sizes, answers = gather(corpus, np.array([1, 0]), 999)
    assert tokens.shape == (2, STEP)
    assert tokens[0].tolist() == [4, 5, 6, 7, 8] + [8] * (STEP - 5)
    assert tokens[1].tolist() == [1, 2, 3] + [3] * (STEP - 3)
    assert (sizes.tolist(), answers.tolist()) == ([5, 3], [2, 1])
    assert tokens.dtype == torch.int64


@pytest.mark.parametrize("longest", [3, 64, 65, 100])
def test_long_texts_are_cut_where_the_model_ends(longest: int) -> None:
    corpus = corpus_of([list(range(90)), [1, 2]], [5, 1])
    tokens, sizes, _ = gather(corpus, np.array([0, 1]), longest)
    assert sizes.tolist() == [min(90, longest), 2]
    assert tokens.shape[1] == min(longest, 128)
    assert tokens[0, : int(sizes[0])].tolist() == list(range(int(sizes[0])))


# ------------------------------------------------------------------------------------------ judged
def batch(tokens: list[list[int]], sizes: list[int], answers: list[int]) -> TrainBatch:
    shown = torch.tensor(tokens)
    nothing = torch.zeros(*shown.shape, 0)
    return TrainBatch(shown, torch.tensor(sizes), torch.tensor(answers), nothing, nothing)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 10)), min_size=1, max_size=4))
def test_a_state_is_judged_where_a_word_of_the_answer_follows(
    made: list[tuple[int, int]],
) -> None:
    found = batch([[0] * 8] * len(made), [a for a, _ in made], [b for _, b in made])
    texts, places = found.labelled_places()
    wanted = [
        (text, place)
        for text, (length, answer) in enumerate(made)
        for place in range(8)
        if place + 1 < length and place + 1 >= answer  # the word after it is one of the answer
    ]
    assert list(zip(texts.tolist(), places.tolist(), strict=True)) == wanted


def test_a_text_that_was_cut_before_its_answer_judges_nothing() -> None:
    texts, places = batch([[1, 2, 3]], [3], [7]).labelled_places()
    assert len(texts) == len(places) == 0
