"""The enumeration of outputs: one round in two stages, and noise that is used twice."""

from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.rng import NoiseKey, Rng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Verdict
from sapwood.engine.loop import Engine
from sapwood.testing import Enumerator, law_error, outcomes
from sapwood.testing.exact import output_law, ticks
from sapwood.verifiers.mss import Mss
from tests.helpers.legal_recipes import combine

SAMPLED = Sampling(temperature=1.0, max_tokens=4)
PROMPT = (0, 1, 2)


@pytest.mark.parametrize(
    ("draws", "verifier"), [(Draw.IID, "mss"), (Draw.SWOR, "rrs"), (Draw.TOPK, "match")]
)
def test_a_round_in_two_stages_has_the_outputs_of_whole_replays(draws: Draw, verifier: str) -> None:
    recipe = combine(draws, "static", verifier)
    target = ToyBackend("a")

    def replay(rng: Rng) -> tuple[int, ...]:
        rounds = Engine(target, recipe, now=ticks()).rounds(PROMPT, SAMPLED, rng)
        return tuple(next(rounds).tokens)

    wanted: dict[tuple[int, ...], float] = {}
    for weight, text in outcomes(replay):
        wanted[text] = wanted.get(text, 0.0) + weight
    assert output_law(target, recipe, PROMPT, SAMPLED, 1) == pytest.approx(wanted, abs=1e-15)


def test_noise_of_the_draft_is_refused_in_the_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted: list[NoiseKey] = []
    pick = Enumerator.pick

    def recorded(self: Any, probs: Any, place: NoiseKey) -> int:
        drafted.append(place)
        return int(pick(self, probs, place))

    def verify(self: Mss, tree: Any, probs: Any, position: int, rng: Rng) -> Verdict:
        return Verdict((0,), rng.pick(probs.probs(0), drafted[0]))

    monkeypatch.setattr(Enumerator, "pick", recorded)
    monkeypatch.setattr(Mss, "verify", verify)
    with pytest.raises(AssertionError, match="used twice"):
        law_error(combine(Draw.IID, "static", "mss"), ToyBackend("a"))
