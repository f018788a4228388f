"""`ldlp` rounds what its network says to a depth between nothing and the most."""

import numpy as np
import pytest

from sapwood.common.numpy_mlp import NumpyMlp
from sapwood.controllers.ldlp import Ldlp
from sapwood.core.types import NO_NODES, Budget
from sapwood.errors import SapwoodError


def predictor(answer: float) -> Ldlp:
    """A controller whose network always gives the same answer."""
    controller = Ldlp(most=6, nodes=60, width=4)
    weights = [np.zeros((1, 3), np.float32)]
    biases = [np.full(1, answer, np.float32)]
    controller.net = NumpyMlp(weights, biases, np.zeros(3, np.float32), np.ones(3, np.float32))
    controller.table = np.zeros((5, 1))
    return controller


@pytest.mark.parametrize(
    ("answer", "depth"), [(-3, 0), (0.4, 0), (0.6, 1), (3.4, 3), (6.6, 6), (99, 6)]
)
def test_the_answer_is_rounded_and_bounded(answer: float, depth: int) -> None:
    controller = predictor(answer)
    controller.depth_ = controller.predict(np.zeros((1, 2)), 4)
    assert controller.depth_ == depth
    assert controller.budget() == (Budget(60, depth, 4) if depth else NO_NODES)


def test_a_network_for_another_width_is_refused() -> None:
    with pytest.raises(SapwoodError, match="trained on 3 inputs and gets 4"):
        predictor(1.0).predict(np.zeros((1, 3)), 4)
