"""Labels of heads that look ahead: which row speaks for which place, and how steps are weighed."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sapwood.train.batches import TrainBatch
from sapwood.train.labels import TargetLabels, decayed_loss, label
from sapwood.train.objective import LossResult


def labels(places: list[int], known: list[bool] | None = None) -> TargetLabels:
    count = len(places)
    probs = torch.full((count, 3), 1 / 3)
    return TargetLabels(
        torch.zeros(count, dtype=torch.long),
        torch.tensor(places),
        probs,
        torch.zeros(count, dtype=torch.long),
        torch.tensor(known if known is not None else [True] * count),
    )


# ------------------------------------------------------------------------------------------- rows
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(-1, 5))
def test_the_row_of_a_step_lies_so_far_before_its_place(places: list[int], step: int) -> None:
    rows, weights = labels(places).rows(step)
    assert rows.tolist() == [max(place - 1 - step, 0) for place in places]
    counted = [place - 1 - step >= 0 for place in places]
    share = 1 / max(1, sum(counted))
    assert weights.tolist() == pytest.approx([share if one else 0.0 for one in counted])


def test_words_that_cannot_be_proposed_do_not_count() -> None:
    _, weights = labels([3, 4, 5], [True, False, True]).rows(0)
    assert weights.tolist() == [0.5, 0.0, 0.5]
    _, weights = labels([3, 4], [False, False]).rows(0)
    assert weights.tolist() == [0.0, 0.0]


def test_an_early_exit_speaks_for_the_place_it_stands_at() -> None:
    rows, weights = labels([0, 1, 2]).rows(-1)
    assert rows.tolist() == [0, 1, 2]
    assert weights.sum() == pytest.approx(1)


# ------------------------------------------------------------------------------------- of a batch
def teacher(head: torch.Tensor) -> Any:
    def target_probs(final: torch.Tensor, vocabulary: torch.Tensor) -> torch.Tensor:
        return (final @ head[vocabulary].t()).softmax(-1)

    return SimpleNamespace(target_probs=target_probs)


def test_labels_are_the_targets_probabilities_over_the_draft_vocabulary() -> None:
    torch.manual_seed(0)
    output = torch.randn(6, 4)
    final = torch.randn(2, 5, 4)
    tokens = torch.tensor([[0, 1, 2, 3, 3], [5, 4, 3, 2, 1]])
    batch = TrainBatch(tokens, torch.tensor([4, 5]), torch.tensor([1, 3]), final, final)
    vocabulary = torch.tensor([1, 3, 5])
    known = torch.zeros(6, dtype=torch.bool)
    known[vocabulary] = True
    drafter: Any = SimpleNamespace(vocabulary=vocabulary, t2d=known)
    found = label(drafter, teacher(output), batch, 0.25)
    where = list(zip(found.texts.tolist(), found.places.tolist(), strict=True))
    assert where == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 3)]
    for at, (text, place) in enumerate(where):
        probs = torch.softmax(output[vocabulary] @ final[text, place], 0)
        best = int(probs.argmax())
        wanted = 0.75 * probs + 0.25 * torch.eye(3)[best]
        torch.testing.assert_close(found.target_probs[at], wanted)
        assert int(found.best[at]) == best
        assert bool(found.known[at]) == (int(tokens[text, place + 1]) in (1, 3, 5))


def test_judging_is_the_loss_of_these_rows() -> None:
    made = labels([1, 2])
    states = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    loss, right = made.loss(states, torch.zeros(3, 2), torch.tensor([0.5, 0.5]))
    assert float(loss) == pytest.approx(float(torch.log(torch.tensor(3.0))))
    assert float(right) == 1.0  # the first of equals


# ---------------------------------------------------------------------------------------- weights
@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5), st.floats(0.1, 1.0))
def test_steps_are_weighed_by_their_depth(values: list[float], decay: float) -> None:
    parts = [torch.tensor(value, dtype=torch.float64) for value in values]
    agreement = [torch.tensor(at / 10) for at in range(len(values))]
    found = decayed_loss(parts, agreement, decay)
    assert isinstance(found, LossResult)
    weights = [decay**step for step in range(len(values))]
    wanted = sum(one * weight for one, weight in zip(values, weights, strict=True)) / sum(weights)
    assert float(found.loss) == pytest.approx(wanted)
    assert found.agreement.tolist() == pytest.approx([at / 10 for at in range(len(values))])


def test_equal_losses_weigh_what_each_does() -> None:
    parts = [torch.tensor(2.0)] * 4
    assert float(decayed_loss(parts, parts, 0.3).loss) == pytest.approx(2.0)
    first = decayed_loss([torch.tensor(1.0), torch.tensor(9.0)], parts[:2], 0.0)
    assert float(first.loss) == 1.0
