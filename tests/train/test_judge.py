"""The judge learns which mismatches are harmless, from mined continuations."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import sigmoid
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train import judge, rounds
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import LAYER, Mindful, Stateful

torch.set_num_threads(1)


PROMPTS = [[0, 1, 2], [1, 1, 0], [2, 0], [0, 0, 1, 2], [2, 2, 1]]
SHORT = Sampling(max_tokens=24)


def engine(recipe: Recipe | None = None) -> Engine:
    made = recipe or Recipe(
        Stateful(model=ToyBackend("draft")), Static(shape=[2, 1, 1]), Match(), Fixed()
    )
    return Engine(Mindful(), made, now=itertools.count().__next__)


def text_of(prompt: Sequence[int], tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(np.argmax(Mindful().scores([tuple(text)]).rows[0])))
    return text


def test_the_judge_learns_what_is_harmless() -> None:
    noise = np.random.default_rng(8)
    states = noise.normal(size=(2000, 20)) * np.geomspace(0.1, 10, 20)
    chance = sigmoid(3 * states[:, 4] / states[:, 4].std() - 1)
    cases = judge.TestedMismatches(np.arange(2000) // 20, states, noise.random(2000) < chance)
    fit = judge.fit(cases, layer=5)
    assert fit.report.after < 0.8 * fit.report.before
    assert fit.report.scores["ranking"] > 0.85
    assert fit.report.scores["calibration"] < 0.06
    assert fit.report.scores["right at 0.9"] > 0.85
    assert fit.report.scores["excused at 0.9"] < fit.report.scores["excused at 0.5"]
    assert fit.bundle.facts["layer"] == 5


OWN = [7, 7, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]  # the target says 10 at position 2


@pytest.mark.parametrize(
    ("words", "harmless"),
    [
        ([11, 12, 13, 14, 15, 16, 17], True),  # another word, and on
        ([10, 11, 12, 13, 14, 15, 16], True),  # a word more
        ([12, 13, 14, 15, 16, 17, 18], True),  # a word less
        ([99, 98, 12, 13, 14, 15, 16], True),  # back after two words
        ([99, 98, 97, 96, 12, 13, 14], False),  # too late
        ([11, 12, 13, 99, 15, 16, 17], False),  # too short
    ],
)
def test_a_mismatch_is_harmless_when_the_text_is_found_again(
    words: list[int], harmless: bool
) -> None:
    rule = judge.HarmlessRule(run=4, shift=3)
    assert judge.harmless(judge.Mismatch(2, 99, 0.5), words, OWN, rule) is harmless


def test_unlikely_and_strict_tokens_are_never_harmless() -> None:
    words = [11, 12, 13, 14, 15, 16, 17]
    case = judge.Mismatch(2, 99, 0.5)
    assert not judge.harmless(
        judge.Mismatch(2, 99, 0.01), words, OWN, judge.HarmlessRule(run=4, fair=0.02)
    )
    assert not judge.harmless(case, words, OWN, judge.HarmlessRule(run=4, strict={99}))  # drafted
    assert not judge.harmless(case, words, OWN, judge.HarmlessRule(run=4, strict={10}))  # said
    assert judge.harmless(case, words, OWN, judge.HarmlessRule(run=4, strict={11}))


def test_mining_asks_the_target_at_every_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "TOGETHER", 3)
    rule = judge.HarmlessRule(run=1, shift=0, fair=0.2)
    sampling = Sampling(max_tokens=30)
    target_probs = Mindful()
    cases = judge.mine(engine(), PROMPTS, sampling, layer=LAYER, rule=rule)
    expected = []
    for number, prompt in enumerate(PROMPTS):
        found = []
        text = text_of(prompt, 40)
        for outcome, _ in rounds.play(engine(), prompt, sampling, None):
            tree = outcome.tree
            end = outcome.verdict.path[-1]
            place = outcome.context + outcome.verdict.accepted + 1
            children = tree.children(end)
            emitted = sum(
                len(one.tokens) for one, _ in rounds.play(engine(), prompt, sampling, None)
            )
            if not children or place + rule.window + 1 > len(prompt) + emitted:
                continue
            token = int(tree.tokens[max(children, key=lambda node: tree.probs[node])])
            chance = np.exp(target_probs.scores([tuple(text[:place])]).rows[0][token])
            state = target_probs.scores([(*text[:place], token)]).rows[0]
            label = chance >= 0.2 and int(np.argmax(state)) in text[place : place + 2]
            found.append((state, bool(label), number))
        expected += found[::-1]
    assert cases.harmless.tolist() == [label for _, label, _ in expected]
    assert cases.prompt.tolist() == [number for _, _, number in expected]
    assert np.allclose(cases.states, [state for state, _, _ in expected])
    assert 0 < cases.harmless.sum() < len(cases.harmless)


def test_mining_wants_greedy_text_and_mismatches() -> None:
    with pytest.raises(SapwoodError, match="at temperature 0, not 1"):
        judge.mine(engine(), PROMPTS, Sampling(temperature=1.0), layer=LAYER)
    plain = Recipe(DraftModel(model=ToyBackend("draft")), Chain(), Match(), Fixed(nodes=0))
    with pytest.raises(SapwoodError, match="no mismatch was found"):
        judge.mine(engine(plain), PROMPTS, SHORT, layer=LAYER)
