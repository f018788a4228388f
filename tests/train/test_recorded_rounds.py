"""A recording shows what happened, follows the target, and goes on after an interruption."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.estimators.raw import Raw
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.train import recording, rounds, specdecpp
from sapwood.train.rounds import UNKNOWN, RecordedRounds
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.hidden_state_toy import LAYER, Mindful, Stateful, path_state

torch.set_num_threads(1)


PROMPTS = [[0, 1, 2], [1, 1, 0], [2, 0], [0, 0, 1, 2], [2, 2, 1]]
SHORT = Sampling(max_tokens=24)


def engine(recipe: Recipe | None = None) -> Engine:
    made = recipe or Recipe(
        Stateful(model=ToyBackend("draft")), Static(shape=[2, 1, 1]), Match(), Fixed()
    )
    return Engine(Mindful(), made, now=itertools.count().__next__)


def same(
    one: RecordedRounds, other: RecordedRounds, without: Sequence[str] = ("draft", "verify")
) -> bool:
    names = [
        field.name for field in dataclasses.fields(RecordedRounds) if field.name not in without
    ]
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in names
    )


def test_a_recording_shows_what_happened(tmp_path: Path) -> None:
    found = rounds.record(engine(), PROMPTS, SHORT, tmp_path / "rounds.safetensors", layer=LAYER)
    row = 0
    trees = list(found.trees())
    for number, prompt in enumerate(PROMPTS):
        text = list(prompt)
        for outcome, _ in rounds.play(engine(), prompt, SHORT, LAYER):
            tree = trees[row]
            assert found.prompt[row] == number
            assert found.context[row] == outcome.context == len(text) - 1
            assert found.accepted[row] == outcome.verdict.accepted
            for column in ("tokens", "parents", "probs"):
                assert np.array_equal(getattr(tree, column), getattr(outcome.grown, column))
            state = Mindful().scores([tuple(text[:-1])]).rows[0]
            assert np.allclose(found.before[row], state, atol=1e-2, equal_nan=True)
            text += outcome.tokens
            row += 1
        assert len(text) - len(prompt) >= SHORT.max_tokens
    assert row == len(found)
    assert found.draft.min() > 0


def test_labels_follow_the_targets_own_text(tmp_path: Path) -> None:
    recipe = Recipe(
        Stateful(model=ToyBackend("draft")),
        Best(estimator=Raw(), stride=9),
        Match(),
        Fixed(nodes=3, depth=3),
    )
    found = rounds.record(engine(recipe), PROMPTS, SHORT, tmp_path / "rounds.safetensors")
    seen = set()
    texts = {number: text_of(prompt, 60) for number, prompt in enumerate(PROMPTS)}
    for row, (tree, part) in enumerate(zip(found.trees(), rounds.spans(found.nodes), strict=True)):
        text = texts[int(found.prompt[row])][found.context[row] :]
        for node, label in enumerate(found.labels[part].tolist(), 1):
            path = tree.spell(node)
            seen.add(label)
            if label == UNKNOWN:
                assert path[:-1] == text[: len(path) - 1]  # only below what the target did say
            else:
                assert label == (path == text[: len(path)])
    assert seen == {0, 1, UNKNOWN}


def text_of(prompt: Sequence[int], tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(np.argmax(Mindful().scores([tuple(text)]).rows[0])))
    return text


def test_states_belong_to_their_nodes(tmp_path: Path) -> None:
    found = rounds.record(engine(), PROMPTS, SHORT, tmp_path / "rounds.safetensors")
    states, labels, owner = specdecpp.rows(found)
    trees = list(found.trees())
    node = found.owners
    spans = rounds.spans(found.nodes)
    assert len(states) == found.kept.sum() > 10
    for row, state in enumerate(states):
        tree = trees[owner[row]]
        assert np.allclose(state, path_state(tree.spell(int(node[row]))), atol=1e-2)
        label = found.labels[spans[owner[row]]][node[row] - 1]
        assert labels[row] == label


def test_an_interrupted_recording_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SAVE", 2)
    whole = rounds.record(engine(), PROMPTS, SHORT, tmp_path / "whole.safetensors", layer=LAYER)
    path = tmp_path / "part.safetensors"
    plays = rounds.play

    def failing(*arguments: Any) -> Iterator[Any]:
        if arguments[1] == PROMPTS[3]:
            raise KeyboardInterrupt
        return plays(*arguments)

    monkeypatch.setattr(rounds, "play", failing)
    with pytest.raises(KeyboardInterrupt):
        rounds.record(engine(), PROMPTS, SHORT, path, layer=LAYER)
    kept, notes = recording.load(path, RecordedRounds)
    assert notes["done"] == 2
    assert set(kept.prompt.tolist()) == {0, 1}
    monkeypatch.setattr(rounds, "play", plays)
    assert same(rounds.record(engine(), PROMPTS, SHORT, path, layer=LAYER), whole)
    told: list[str] = []
    again = rounds.record(engine(), PROMPTS, SHORT, path, layer=LAYER, progress=told.append)
    assert not told  # nothing is decoded twice
    assert same(again, whole)


def test_a_recording_is_bounded_and_of_one_thing(tmp_path: Path) -> None:
    path = tmp_path / "rounds.safetensors"
    found = rounds.record(engine(), PROMPTS, SHORT, path, most=3)
    assert set(found.prompt.tolist()) == {
        0
    }  # the prompt that was begun is finished, no other is begun
    with pytest.raises(
        SapwoodError, match="was recorded with another sampling; delete it or name another file"
    ):
        rounds.record(engine(), PROMPTS, Sampling(max_tokens=9), path)
    with pytest.raises(SapwoodError, match="was recorded with another prompts"):
        rounds.record(engine(), PROMPTS[:2], SHORT, path)
    path.write_text("nonsense")
    with pytest.raises(SapwoodError, match="is no recording of rounds; delete it to record anew"):
        rounds.record(engine(), PROMPTS, SHORT, path)
    with pytest.raises(SapwoodError, match="give at least one prompt"):
        rounds.record(engine(), [], SHORT, tmp_path / "none.safetensors")


def test_stop_tokens_end_a_recorded_text(tmp_path: Path) -> None:
    sampling = Sampling(max_tokens=24, stop_ids=[2])
    for outcome, last in pairs(rounds.play(engine(), PROMPTS[0], sampling, None)):
        assert (2 in outcome.tokens) <= last


def pairs(found: Iterator[tuple[Any, FloatArray]]) -> Iterator[tuple[Any, bool]]:
    """Outcomes, each with whether it is the last."""
    outcomes = [outcome for outcome, _ in found]
    yield from ((outcome, outcome is outcomes[-1]) for outcome in outcomes)


def test_recorded_target_states_are_the_models_own(tmp_path: Path) -> None:
    backend = tiny_models.backend("llama")
    layer = rounds.final_layer(backend)
    recipe = Recipe(DraftModel(model=backend), Chain(), Match(), Fixed(nodes=3, depth=3, width=1))
    prompt = [5, 9, 11, 3]
    found = rounds.record(
        Engine(backend, recipe), [prompt], SHORT, tmp_path / "rounds.safetensors", layer=layer
    )
    text = [*prompt]
    for outcome, _ in rounds.play(Engine(backend, recipe), prompt, SHORT, None):
        text += outcome.tokens
    with torch.no_grad():
        states = (
            backend.model.base_model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy()
        )
    np.testing.assert_allclose(found.before, states[found.context - 1], rtol=1e-2, atol=1e-2)
    assert found.root.tolist() == [text[place] for place in found.context]
