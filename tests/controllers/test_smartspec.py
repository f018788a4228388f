"""SmartSpec: the optimal length, goodput as its formula, batches and prices."""

from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.banditspec import BanditSpec
from sapwood.controllers.posterior import Posterior
from sapwood.controllers.smartspec import SmartSpec
from sapwood.core.types import Draw, StageTimes
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.speculative import Speculative
from tests.helpers.controller_rounds import begin, coin_rounds, outcome

STEEP = CostModel([1, 2, 1024], [0], [[1.0, 100.0, 100.0]])  # a second row costs a hundred passes
#  smartspec, posterior draft seconds of a token over those of a pass -> best length at acceptance .5, .6, .7, .8, .9
OPTIMA = {
    0.02: (4, 6, 8, 11, 19),
    0.05: (3, 4, 6, 8, 13),
    0.1: (2, 3, 4, 6, 10),
    0.2: (1, 2, 3, 4, 7),
    0.5: (0, 1, 1, 2, 3),
}


@pytest.mark.parametrize("step", OPTIMA)
def test_smartspec_has_the_optimal_length(step: float) -> None:
    controller = begin(SmartSpec(most=24, bonus=1.0))
    controller.record.step = step
    found = [int(np.argmax(controller.goodput(rate))) for rate in (0.5, 0.6, 0.7, 0.8, 0.9)]
    assert found == list(OPTIMA[step])


def test_goodput_is_the_formula() -> None:
    cost = CostModel([1, 4, 16], [0], [[1.0, 1.5, 4.0]])
    controller = begin(SmartSpec(most=5, batch=3), cost)
    controller.record.step = 0.2
    for length, found in enumerate(controller.goodput(0.6)):
        rows = 3 * (length + 1)
        seconds = length * 0.2 + (cost.seconds(rows, 2) if rows <= 16 else 4.0 * rows / 16)
        assert found == pytest.approx(
            (1.1 if not length else 1.0) * 3 * (1 - 0.6 ** (length + 1)) / 0.4 / seconds
        )
    assert controller.goodput(1.0)[5] == pytest.approx(3 * 6 / (5 * 0.2 + 4.0 * 18 / 16))


def test_the_rate_counts_tokens_that_were_put_to_the_question() -> None:
    controller = begin(SmartSpec(fade=1.0))
    published = coin_rounds(controller, 0.8, 5, 3000)
    assert published == pytest.approx(0.538, abs=0.02)  # accepted / drafted is no acceptance rate
    assert controller.rate() == pytest.approx(0.8, abs=0.01)


def test_large_batches_draft_less_and_then_nothing() -> None:
    cost = CostModel([1, 16, 64], [0], [[1.0, 1.1, 3.0]])  # rows are free up to 16
    lengths = [begin(SmartSpec(batch=batch), cost).budget().depth for batch in (1, 4, 8, 64)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[1] > 0
    assert lengths[-1] == 0


def test_smartspec_looks_beyond_a_stair() -> None:
    cost = CostModel([1, 2, 9, 1024], [0], [[1.0, 1.9, 1.9, 9.0]])
    assert begin(SmartSpec(), cost).budget().depth == 8  # one more token alone would not pay


def test_smartspec_tries_again_when_it_has_stopped() -> None:
    controller = begin(SmartSpec(probe=4), STEEP)
    pattern = []
    for _ in range(15):
        depth = controller.budget().depth
        pattern.append(depth)
        controller.observe(outcome(0, depth, StageTimes(0.0, STEEP.seconds(depth + 1, 0), 0.0)))
    assert pattern == ([0] * 4 + [1]) * 3


def test_a_pass_of_the_first_round_and_mishaps_do_not_set_the_price_of_drafting() -> None:
    controller = begin(SmartSpec())
    controller.observe(outcome(2, 4, StageTimes(50.0, 1.0, 0.0)))  # read the prompt
    assert controller.record.step == 0
    for _ in range(5):
        controller.observe(outcome(2, 4, StageTimes(0.4, 1.0, 0.0)))
    assert controller.record.step == pytest.approx(0.1)
    controller.observe(outcome(2, 4, StageTimes(40.0, 1.0, 0.0)))
    assert controller.record.step < 0.2


@pytest.mark.parametrize(
    "controller", [SmartSpec(most=2), Posterior(most=2), BanditSpec()], ids=str
)
def test_lengths_that_adapt_keep_the_law(controller: Any) -> None:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft"), draws=Draw.IID), Chain(), Speculative(), controller
    )
    assert law_error(recipe, rounds=2, horizon=2) <= 1e-12
