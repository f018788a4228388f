"""RADAR: gradients through time are right, stops are compared with what followed, depth is learned."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.common.small_lstm import SmallLstm
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.estimators.raw import Raw
from sapwood.policies import radar as radar_module
from sapwood.policies.radar import Radar, RadarRecord, level_inputs, slopes
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match


def test_the_gradient_is_that_of_finite_differences() -> None:
    net = SmallLstm(3, 4, seed=1)
    net.weights[1] += np.random.default_rng(2).normal(size=5)
    rows = np.random.default_rng(3).normal(size=(5, 3))
    slope = [0.3, -1.0, 0.5, 2.0, -0.7]

    def aim() -> float:
        steps = list[object]()
        before = None
        total = 0.0
        for row, weight in zip(rows, slope, strict=True):
            before = net.step(row, before)
            steps.append(before)
            total += weight * before.logit
        return total

    before = None
    steps = []
    for row in rows:
        before = net.step(row, before)
        steps.append(before)
    grads = net.gradients(steps, slope)
    for weight, grad in zip(net.weights, grads, strict=True):
        flat, wanted = weight.reshape(-1), grad.reshape(-1)
        for index in range(0, len(flat), 7):
            kept = flat[index]
            flat[index] = kept + 1e-6
            high = aim()
            flat[index] = kept - 1e-6
            low = aim()
            flat[index] = kept
            assert wanted[index] == pytest.approx((high - low) / 2e-6, abs=1e-6)


def test_slopes_are_those_of_the_expected_reward() -> None:
    logits = np.array([0.4, -0.3])
    rewards = np.array([1.0, 0.5, 2.0])

    def value(odds: np.ndarray, start: int) -> float:
        chances = 1 / (1 + np.exp(-odds))
        found = rewards[-1]
        for index in range(len(odds) - 1, start - 1, -1):
            found = (1 - chances[index]) * rewards[index] + chances[index] * found
        return float(found)

    found = slopes(1 / (1 + np.exp(-logits)), rewards)
    for index in range(2):
        moved = logits.copy()
        moved[index] += 1e-6
        assert found[index] == pytest.approx(
            (value(moved, index) - value(logits, index)) / 1e-6, abs=1e-5
        )


def test_levels_are_priced_at_the_present_speed() -> None:
    record = RadarRecord(SmallLstm(2, 2))
    assert record.price(3) == 0.0
    record.add(tokens=4, levels=2, draft=2.0, rest=6.0)
    assert record.price(2) == pytest.approx(1.0 * 4 / 8.0)


def test_means_are_those_of_all_rounds() -> None:
    record = RadarRecord(SmallLstm(2, 2))
    record.add(tokens=4, levels=2, draft=2.0, rest=6.0)
    record.add(tokens=2, levels=1, draft=3.0, rest=2.0)
    assert (record.level, record.base, record.tokens) == pytest.approx((2.0, 4.0, 3.0))


@pytest.mark.parametrize("least", [1, 2, 4])
def test_a_network_that_stops_leaves_the_least_levels(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radar_module, "TRY", 0.0)
    drafter = DraftModel(model=ToyBackend("draft"))
    policy = Radar(beam=2, rate=0.0, least=least)
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=12, depth=6, width=2))
    engine = Engine(ToyBackend("a"), recipe)
    bound = engine.recipe.policy
    assert isinstance(bound, Radar)
    for bias, height in ((-1e3, least), (1e3, 6)):
        bound.record.net.weights[1][-1] = bias
        rounds = engine.rounds([0, 1, 2], Sampling(max_tokens=40), KeyedRng(0))
        heights = [outcome.grown.height for _, outcome in zip(range(4), rounds, strict=False)]
        assert heights == [height] * 4


def test_missing_nodes_are_faint() -> None:
    found = level_inputs(np.array([0.5, 1.0]), 5)
    assert found[:3] == pytest.approx([0.0, np.log(0.5) / 5, -2.0])
    assert found[-1] == 1.0


def heights(draft: str, seconds: float) -> float:
    """Mean height of trees after some text, where a level of drafting takes so long."""
    drafter = DraftModel(model=ToyBackend(draft))
    recipe = Recipe(drafter, Radar(beam=1, rate=0.05), Match(), Fixed(nodes=8, depth=8, width=1))
    engine = Engine(ToyBackend("a"), recipe)
    clock = [0.0]
    engine.now = lambda: clock[0]
    expand = DraftModel.expand

    def slow(self: DraftModel, *given: object) -> None:
        clock[0] += seconds
        expand(self, *given)  # type: ignore[arg-type]

    verify = Match.verify

    def slower(self: Match, *given: object) -> object:
        clock[0] += 1.0
        return verify(self, *given)  # type: ignore[arg-type]

    found = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DraftModel, "expand", slow)
        patch.setattr(Match, "verify", slower)
        for _, outcome in zip(
            range(250),
            engine.rounds([0, 1, 2], Sampling(max_tokens=4000), KeyedRng(0)),
            strict=False,
        ):
            found.append(outcome.grown.height)
    return float(np.mean(found[-60:]))


def test_trees_become_deep_where_depth_pays_and_flat_where_it_does_not() -> None:
    assert heights("a", 0.1) > heights("b", 0.5) + 1.0


def test_its_estimator_begins_with_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[object]()
    monkeypatch.setattr(Raw, "reset", lambda self, request: begun.append(request))
    drafter = DraftModel(model=ToyBackend("draft"))
    engine = Engine(ToyBackend("a"), Recipe(drafter, Radar(), Match(), Fixed(nodes=3)))
    next(engine.rounds([0, 1, 2], Sampling(), KeyedRng(0)))
    assert len(begun) == 1


def test_its_noise_belongs_to_the_place_in_the_text() -> None:
    drafter = DraftModel(model=ToyBackend("draft"))
    engine = Engine(ToyBackend("a"), Recipe(drafter, Radar(), Match(), Fixed(nodes=3, depth=2)))
    decoder = RequestDecoder(engine, [0, 1, 2], Sampling(max_tokens=20), KeyedRng(0))
    emitted = 0
    for _ in range(4):
        assert decoder.policy.context_ == 2 + emitted  # type: ignore[attr-defined]
        [scores] = engine.target.score([decoder.draft()])
        emitted += len(decoder.finish_round(scores).tokens)
    decoder.close()
