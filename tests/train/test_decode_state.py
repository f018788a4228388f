"""Rows of a batch that are decoded side by side: where each stands, and how its next token is drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.core.rng import uniforms
from sapwood.train.decode_state import DecodeState, TextToContinue, pick

CPU = torch.device("cpu")
VOCAB = 7


def state(*asks: TextToContinue, rows: int | None = None, new: int = 5) -> DecodeState:
    made = DecodeState(rows or len(asks), new, CPU)
    made.fill(asks)
    return made


def ends(*tokens: int) -> torch.Tensor:
    found = torch.zeros(VOCAB, dtype=torch.bool)
    found[list(tokens)] = True
    return found


# ------------------------------------------------------------------------------------------- filling
def test_rows_begin_at_the_last_token_of_their_text() -> None:
    made = state(TextToContinue([4, 5, 6], 3), TextToContinue([1], 2, 0.5, 9), rows=4)
    assert made.rows == 4
    assert made.token.tolist() == [6, 1, 0, 0]
    assert made.place.tolist() == [2, 0, 0, 0]
    assert made.limit.tolist() == [3, 2, 0, 0]
    assert made.temperature.tolist() == [0.0, 0.5, 0.0, 0.0]
    assert made.done.tolist() == [False, False, True, True]  # spare rows have nothing to say


def test_noise_is_that_of_the_key_and_only_where_it_is_warm() -> None:
    made = state(TextToContinue([1], 5, 0.0, 3), TextToContinue([1], 5, 1.0, 3))
    assert made.noise[0].tolist() == [1.0] * 6
    assert made.noise[1].tolist() == uniforms(3, 6).astype(np.float32).tolist()


def test_filling_again_forgets_what_was_there() -> None:
    made = state(TextToContinue([1], 2))
    made.accept(torch.tensor([3]), ends(3))
    assert made.look()[2] == [1]
    made.fill([TextToContinue([2, 2], 4)])
    assert made.look() == ([0], [1], [0])


# ----------------------------------------------------------------------------------------- accepting
def test_tokens_are_added_up_to_an_end_or_the_limit() -> None:
    made = state(TextToContinue([0], 2), TextToContinue([0], 5), TextToContinue([0], 5))
    for step in ([1, 1, 1], [2, 2, 6], [3, 3, 3], [4, 6, 4]):
        made.accept(torch.tensor(step), ends(6))
    count, place, done = made.look()
    assert count == [2, 4, 2]
    assert place == [2, 4, 2]
    assert done == [1, 1, 1]
    said = [row[:size] for row, size in zip(made.out.tolist(), count, strict=True)]
    assert said == [[1, 2], [1, 2, 3, 6], [1, 6]]


def test_finished_rows_write_into_the_last_column_alone() -> None:
    made = state(TextToContinue([0], 1), new=3)
    made.accept(torch.tensor([5]), ends())
    before = made.out[0, :3].tolist()
    for token in (1, 2, 3):
        made.accept(torch.tensor([token]), ends())
        assert made.out[0, :3].tolist() == before
    assert made.out[0, 3] == 3


@given(
    st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=6, max_size=6), min_size=1, max_size=4)
)
def test_every_row_says_what_it_would_say_alone(rows: list[list[int]]) -> None:
    limits = [1 + at % 5 for at in range(len(rows))]
    made = state(*(TextToContinue([0], limit) for limit in limits))
    for step in zip(*rows, strict=True):
        made.accept(torch.tensor(step), ends(2))
    count, _, done = made.look()
    for at, (tokens, limit) in enumerate(zip(rows, limits, strict=True)):
        alone = tokens[:limit]
        alone = alone[: alone.index(2) + 1] if 2 in alone else alone
        assert made.out[at, : count[at]].tolist() == alone
        assert done[at] == 1


# --------------------------------------------------------------------------------------- going on
def test_a_smaller_state_goes_on_with_some_rows() -> None:
    large = state(*(TextToContinue([at], 5, 1.0, at) for at in range(4)))
    large.accept(torch.tensor([1, 2, 3, 4]), ends())
    small = DecodeState(3, 5, CPU)
    small.take(large, [3, 1])
    assert small.token.tolist()[:2] == [4, 2]
    assert small.made.tolist()[:2] == [1, 1]
    assert small.noise[0].tolist() == large.noise[3].tolist()
    assert small.out[1].tolist() == large.out[1].tolist()
    assert small.done.tolist() == [False, False, True]
    small.accept(torch.tensor([5, 6, 0]), ends())
    assert small.out[0, :2].tolist() == [4, 5]
    assert large.out[3, :2].tolist() == [4, 0]  # the larger one is not touched


# ---------------------------------------------------------------------------------------- drawing
def test_cold_rows_take_the_best_token() -> None:
    made = state(TextToContinue([0], 5), TextToContinue([0], 5, 1.0, 4))
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 0.0, 50.0]])
    assert made.draw(logits, sampled=False).tolist() == [1, 2]
    assert made.draw(logits, sampled=True).tolist() == [1, 2]


def test_each_place_has_its_own_noise() -> None:
    made = state(TextToContinue([0], 40, 1.0, 8), new=40)
    logits = torch.zeros(1, VOCAB)
    drawn = []
    for _ in range(40):
        token = made.draw(logits, sampled=True)
        drawn.append(int(token))
        made.accept(token, ends())
    wanted = [int(noise * VOCAB) for noise in uniforms(8, 40)]
    assert drawn == wanted
    assert len(set(drawn)) == VOCAB


@given(
    st.lists(st.floats(-4, 4), min_size=2, max_size=6),
    st.floats(0.001, 1.0),
    st.floats(0.2, 3.0),
)
def test_noise_falls_on_the_token_whose_part_of_the_line_it_is(
    logits: list[float], noise: float, temperature: float
) -> None:
    row = np.array(logits, np.float64) / temperature
    probs = np.exp(row - row.max())
    probs /= probs.sum()
    bounds = np.cumsum(probs)
    found = int(
        pick(torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([[noise]]))[0]
    )
    low = bounds[found - 1] if found else 0.0
    assert low - 1e-4 <= noise <= bounds[found] + 1e-4


def test_a_token_of_no_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]])
    for noise in (1e-12, 0.5, 1.0):
        assert int(pick(logits, torch.tensor([1.0]), torch.tensor([[noise]]))[0]) == 1


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_and_flattens(temperature: float) -> None:
    count = 2000
    logits = torch.tensor([[0.0, 1.0]]).expand(count, 2)
    noise = torch.from_numpy(uniforms(1, count).astype(np.float32))[:, None]
    share = float(pick(logits, torch.full((count,), temperature), noise).float().mean())
    assert share == pytest.approx(1 / (1 + np.exp(-1 / temperature)), abs=0.03)
