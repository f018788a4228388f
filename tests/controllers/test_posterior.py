"""The posterior controller: acceptance rates drawn from what was seen."""

import numpy as np
import pytest

from sapwood.controllers.posterior import Posterior
from sapwood.engine.cost_model import CostModel
from tests.helpers.controller_rounds import begin, coin_rounds, outcome


def test_posterior_draws_rates_that_narrow_around_the_truth() -> None:
    young = begin(Posterior(fade=1.0))
    old = begin(Posterior(fade=1.0))
    coin_rounds(old, 0.6, 4, 500)
    spreads = []
    for controller in (young, old):
        rates = []
        for _ in range(200):
            rates.append(controller.rate())
            controller.sampler_.commit([1])
        spreads.append(np.std(rates))
        assert np.mean(rates) == pytest.approx(0.7 if controller is young else 0.6, abs=0.04)
    assert spreads[0] > 0.1 > 0.03 > spreads[1]
    assert begin(Posterior()).rate() == begin(Posterior()).rate()  # noise of its place
    assert len({begin(Posterior(seed=seed)).rate() for seed in range(20)}) > 5


def test_posterior_comes_back_from_drafting_nothing_by_itself() -> None:
    controller = begin(
        Posterior(probe=10_000, fade=1.0), CostModel([1, 2, 1024], [0], [[1.0, 1.7, 1.7]])
    )
    for _ in range(3):
        controller.observe(outcome(0, 2))
    lengths = []
    for _ in range(60):
        lengths.append(controller.budget().depth)
        controller.sampler_.commit([1])
    assert 0 in lengths
    assert max(lengths) > 0
