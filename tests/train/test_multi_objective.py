"""Several heads on the same passes: each as it would be alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.train.batches import TrainBatch
from sapwood.train.loop import CurvePoint, RunState
from sapwood.train.multi_objective import MultiObjective, of_one
from tests.helpers.toy_training import VOCAB, WIDTH, ToyObjective, ToyTeacher, loop, weights

torch.set_num_threads(1)


def test_each_head_is_what_it_would_be_alone(tmp_path: Path) -> None:
    objectives = (ToyObjective(), ToyObjective(rate=0.1, matrix_rate=0.05))
    together, notes = loop(tmp_path / "both", MultiObjective(objectives)).run()
    heads: Any = together
    for index, objective in enumerate(objectives):
        alone, own = loop(tmp_path / f"state{index}", objective).run()
        assert weights(heads[index]) == weights(alone)
        part = of_one(notes, index)
        assert [point.loss for point in part.curve] == [point.loss for point in own.curve]
        assert [point.agreement for point in part.curve] == [point.agreement for point in own.curve]
        assert [point.step for point in part.curve] == [point.step for point in own.curve]


def test_heads_begin_with_the_same_seed_each() -> None:
    several = MultiObjective((ToyObjective(), ToyObjective(), ToyObjective()))
    teacher: Any = ToyTeacher()
    torch.manual_seed(7)
    heads = several.build(teacher, np.zeros(VOCAB, np.int64))
    assert weights(heads[0]) == weights(heads[1]) == weights(heads[2])
    torch.manual_seed(7)
    assert weights(heads[0]) == weights(ToyObjective().build(teacher, np.zeros(1, np.int64)))


def test_each_course_sees_its_own_features() -> None:
    objectives = (ToyObjective((1,)), ToyObjective(()), ToyObjective((2, 3)))
    several = MultiObjective(objectives)
    teacher: Any = ToyTeacher()
    assert several.features(teacher) == (1, 2, 3)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    features, final = teacher.read(tokens, several.features(teacher))
    batch = TrainBatch(tokens, torch.tensor([5]), torch.tensor([2]), features, final)
    heads = several.build(teacher, np.zeros(VOCAB, np.int64))
    lesson = several.loss(heads, teacher, batch)
    shown = [objective.seen[-1] for objective in objectives]
    assert [one.shape[-1] for one in shown] == [WIDTH, 0, 2 * WIDTH]
    torch.testing.assert_close(shown[0], 2 * final)
    torch.testing.assert_close(shown[2], torch.cat((3 * final, 4 * final), -1))
    assert float(lesson.loss.detach()) == pytest.approx(
        sum(float(part.loss.detach()) for part in lesson.parts)
    )
    assert lesson.agreement.tolist() == [
        share for part in lesson.parts for share in part.agreement.tolist()
    ]


def test_the_notes_of_one_are_taken_out_of_those_of_all() -> None:
    point = CurvePoint(4, 1.5, 99, 3.0, [0.1, 0.2], [(1.0, [0.1]), (2.0, [0.2])])
    notes = RunState("run", 10, 4, 1.5, 99, [point])
    found = of_one(notes, 1)
    assert found.curve == [CurvePoint(4, 1.5, 99, 2.0, [0.2])]
    assert (found.run, found.step, found.tokens) == ("run", 4, 99)
    assert notes.curve == [point]
