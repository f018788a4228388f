"""A deadline per token: rounds that would be late are not drafted, whatever the load."""

import pytest

from sapwood.controllers.smartspec import SmartSpec
from sapwood.controllers.specserve import PredictionError, SpecServe
from sapwood.core.protocols import EngineContext
from sapwood.core.types import BatchLoad
from sapwood.engine.cost_model import CostModel


def line(per_row: float = 0.001) -> CostModel:
    """A pass that costs 10 ms and a millisecond a row."""
    rows = [1, 512]
    return CostModel(rows, [0], [[0.01 + per_row * (count - 1) for count in rows]])


def bound(deadline: float, kind: type[SmartSpec] = SpecServe) -> SmartSpec:
    made = SpecServe(deadline=deadline) if kind is SpecServe else kind()
    made.bind(EngineContext(None, line(), None))  # type: ignore[arg-type]
    made.context_ = 0
    made.begun_ = False
    made.record.kept, made.record.step = 200.0, 0.001
    return made


def test_without_pressure_it_is_the_length_of_most_goodput() -> None:
    free, tight = bound(10.0), bound(10.0, SmartSpec)
    for made in (free, tight):
        made.join(BatchLoad(trees=1))
    assert free.budget() == tight.budget()
    assert free.budget().nodes > 4


@pytest.mark.parametrize("deadline", [0.02, 0.04, 0.08])
def test_as_requests_arrive_every_round_stays_within_the_deadline_while_plain_decoding_would(
    deadline: float,
) -> None:
    made = bound(deadline)
    assert isinstance(made, SpecServe)
    lengths = list[int]()
    for trees in (1, 2, 4, 8, 16, 32, 64, 128):
        made.join(BatchLoad(trees=trees))
        length = made.budget().depth
        lengths.append(length)
        plain, predicted = made.seconds()[[0, length]]
        if plain <= deadline:
            assert predicted <= deadline
        else:
            assert length == 0
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] == 0


def test_late_passes_make_it_careful_and_quick_ones_only_slowly_bold() -> None:
    late = PredictionError()
    late.add(2.0)
    assert late.ratio == pytest.approx(1.5)
    late.add(1.0)
    assert late.ratio == pytest.approx(1.49)
    late.add(100.0)
    assert late.ratio < 4.0
    made = bound(0.02)
    assert isinstance(made, SpecServe)
    made.join(BatchLoad(trees=1))
    before = made.budget().depth
    made.late.ratio = 1.5
    assert made.budget().depth < before


def test_a_probe_is_sent_only_where_it_meets_the_deadline() -> None:
    made = bound(0.0115)
    made.join(BatchLoad(trees=1))
    made.record.idle = 10**6
    assert made.budget().nodes == 0
    made = bound(1.0)
    made.join(BatchLoad(trees=1))
    made.record.kept, made.record.refused, made.record.idle = 0.0, 1000.0, 10**6
    assert made.budget().nodes == 1
