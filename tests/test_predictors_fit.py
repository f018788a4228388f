"""Recording rounds, and fits on data where the right answer is known."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.arrays import FloatArray, IntArray
from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import CostCurve, flat
from sapwood.drafters.model import Model
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.estimators.raw import Raw
from sapwood.nets import begin, load, sigmoid
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.ltd import RAW, Ltd
from sapwood.policies.reach import value
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.sampling import Sampling
from sapwood.train import c2t, judge, ldlp, ltd, recording, rounds, small, specdecpp
from sapwood.train.replay import Prices, priced
from sapwood.train.rounds import UNKNOWN, Rounds
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.match import Match
from tests import tiny
from tests.mindful import LAYER, Mindful, Stateful, path_state, random_part

torch.set_num_threads(1)
PROMPTS = [[0, 1, 2], [1, 1, 0], [2, 0], [0, 0, 1, 2], [2, 2, 1]]
SHORT = Sampling(max_tokens=24)


def engine(recipe: Recipe | None = None) -> Engine:
    made = recipe or Recipe(Stateful(model=Toy("draft")), Static(shape=[2, 1, 1]), Match(), Fixed())
    return Engine(Mindful(), made, now=itertools.count().__next__)


def same(one: Rounds, other: Rounds, without: Sequence[str] = ("draft", "verify")) -> bool:
    names = [field.name for field in dataclasses.fields(Rounds) if field.name not in without]
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in names)


# --------------------------------------------------------------------------------------- recording
def test_a_recording_shows_what_happened(tmp_path: Path) -> None:
    found = rounds.record(engine(), PROMPTS, SHORT, tmp_path / "rounds.safetensors", layer=LAYER)
    row, trees = 0, list(found.trees())
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
    recipe = Recipe(Stateful(model=Toy("draft")), Best(estimator=Raw(), stride=9), Match(), Fixed(nodes=3, depth=3))
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
    trees, node, spans = list(found.trees()), found.owners, rounds.spans(found.nodes)
    assert len(states) == found.kept.sum() > 10
    for row, state in enumerate(states):
        tree = trees[owner[row]]
        assert np.allclose(state, path_state(tree.spell(int(node[row]))), atol=1e-2)
        label = found.labels[spans[owner[row]]][node[row] - 1]
        assert labels[row] == label


def test_an_interrupted_recording_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "SAVE", 2)
    whole = rounds.record(engine(), PROMPTS, SHORT, tmp_path / "whole.safetensors", layer=LAYER)
    path, plays = tmp_path / "part.safetensors", rounds.play

    def failing(*arguments: Any) -> Iterator[Any]:
        if arguments[1] == PROMPTS[3]:
            raise KeyboardInterrupt
        return plays(*arguments)

    monkeypatch.setattr(rounds, "play", failing)
    with pytest.raises(KeyboardInterrupt):
        rounds.record(engine(), PROMPTS, SHORT, path, layer=LAYER)
    kept, notes = recording.load(path, Rounds)
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
    assert set(found.prompt.tolist()) == {0}  # the prompt that was begun is finished, no other is begun
    with pytest.raises(SapwoodError, match="was recorded with another sampling; delete it or name another file"):
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
    backend = tiny.backend("llama")
    layer = rounds.final_layer(backend)
    recipe = Recipe(Model(model=backend), Chain(), Match(), Fixed(nodes=3, depth=3, width=1))
    prompt = [5, 9, 11, 3]
    found = rounds.record(Engine(backend, recipe), [prompt], SHORT, tmp_path / "rounds.safetensors", layer=layer)
    text = [*prompt]
    for outcome, _ in rounds.play(Engine(backend, recipe), prompt, SHORT, None):
        text += outcome.tokens
    with torch.no_grad():
        states = backend.model.base_model(input_ids=torch.tensor([text])).last_hidden_state[0].numpy()
    np.testing.assert_allclose(found.before, states[found.context - 1], rtol=1e-2, atol=1e-2)
    assert found.root.tolist() == [text[place] for place in found.context]


# ------------------------------------------------------------------------------- made-up recordings
def made(trees: Sequence[Tree], labels: Sequence[Sequence[int]], **columns: Any) -> Rounds:
    """A recording of these trees; ten rounds to a prompt."""
    count, nodes = len(trees), np.array([len(tree) - 1 for tree in trees])
    joined: IntArray = np.concatenate([np.asarray(each, np.int64) for each in labels])
    base: dict[str, Any] = {
        "prompt": np.arange(count) // 10,
        "context": np.full(count, 100),
        "accepted": np.array([sum(label == 1 for label in each) for each in labels]),
        "root": np.zeros(count, np.int64),
        "draft": 0.01 * nodes,
        "verify": np.full(count, 1.0),
        "nodes": nodes,
        "kept": np.zeros(count, np.int64),
        "before": np.empty((count, 0), np.float16),
        "tokens": np.concatenate([tree.tokens[1:] for tree in trees]),
        "parents": np.concatenate([tree.parents[1:] for tree in trees]),
        "probs": np.concatenate([tree.probs[1:] for tree in trees]),
        "labels": joined,
        "tried": np.ones(len(joined), bool),
        "owners": np.empty(0, np.int64),
        "states": np.empty((0, 0), np.float16),
    }
    return Rounds(**(base | columns))


def line(probs: Sequence[float]) -> Tree:
    tree = Tree(0)
    for node, prob in enumerate(probs):
        tree.add(node, node + 1, prob)
    return tree


def run_of(accepted: int, length: int) -> list[int]:
    return [int(place < accepted) for place in range(length)]


# --------------------------------------------------------------------------------------- specdec++
def states_with_a_rule(noise: np.random.Generator, count: int = 3000, width: int = 24) -> Rounds:
    """One drafted token per round; its log odds of acceptance are a line over the state."""
    states = noise.normal(size=(count, width))
    chance = sigmoid(1.0 + 3 * states[:, 0] - 2 * states[:, 1])
    labels = (noise.random(count) < chance).astype(int)
    return made(
        [line([0.5])] * count,
        [[label] for label in labels],
        kept=np.ones(count, np.int64),
        owners=np.ones(count, np.int64),
        states=states.astype(np.float16),
    )


def test_the_head_of_specdecpp_separates_and_is_calibrated() -> None:
    data = states_with_a_rule(np.random.default_rng(0))
    fit = specdecpp.fit(data, blocks=2)
    assert fit.report.after < 0.75 * fit.report.before
    assert fit.report.scores["ranking"] > 0.88  # the rule itself reaches 0.93
    assert fit.report.scores["calibration"] < 0.06
    head, states = fit.bundle.nets["head"], data.states.astype(np.float32)
    cautious = sigmoid(head(states)[:, 0]).mean()
    assert cautious < data.labels.mean() - 0.1  # refusals weigh six times
    again = specdecpp.fit(data, blocks=2)
    assert np.array_equal(again.bundle.nets["head"](states[:9]), head(states[:9]))


def test_a_head_needs_states() -> None:
    with pytest.raises(SapwoodError, match="no drafter states were recorded"):
        specdecpp.fit(made([line([0.5])] * 20, [[1]] * 20))


# --------------------------------------------------------------------------------------------- c2t
def overconfident(noise: np.random.Generator, count: int = 900) -> Rounds:
    """Trees of two children per node, whose draft says q where the truth is q squared."""
    trees, labels = [], []
    for _ in range(count):
        tree, hit = Tree(0), [True]
        for _ in range(3):
            for parent in [node for node in range(len(tree)) if tree.depths[node] == tree.height]:
                q = float(noise.uniform(0.3, 0.95))
                tree.extend(parent, [1, 2], [q, 0.9 * (1 - q)])
                first = noise.random() < q**2
                second = not first and noise.random() < (0.9 * (1 - q)) ** 2 / (1 - q**2)
                hit += [hit[parent] and first, hit[parent] and second]
        trees.append(tree)
        labels.append([int(one) for one in hit[1:]])
    return made(trees, labels)


@pytest.mark.parametrize("most", [100_000, 2000])
def test_the_classifier_is_calibrated_where_the_draft_is_not(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c2t, "MOST", most)  # with and without refused nodes that are left out
    data = overconfident(np.random.default_rng(1))
    fit = c2t.fit(data)
    scores = fit.report.scores
    assert fit.report.after < fit.report.before
    assert fit.report.after < scores["raw loss"]
    assert scores["calibration"] < 0.02
    assert scores["raw calibration"] > 0.05
    assert scores["ranking"] > scores["raw ranking"] - 0.01
    assert fit.bundle.facts["base"] == pytest.approx(data.labels.mean(), abs=0.02)


def test_unknown_nodes_are_not_learned_from() -> None:
    data = overconfident(np.random.default_rng(2), count=60)
    hidden = data.labels.copy()
    hidden[::3] = UNKNOWN
    inputs, labels, owner = c2t.rows(dataclasses.replace(data, labels=hidden))
    assert len(inputs) == len(labels) == len(owner) == int((hidden != UNKNOWN).sum())
    assert set(labels.tolist()) == {0, 1}


# -------------------------------------------------------------------------------------------- ldlp
def two_moods(noise: np.random.Generator, count: int = 800, cap: int = 10) -> tuple[Rounds, FloatArray]:
    """Rounds of which the target's state, and the token, tell whether none or most of ten are accepted."""
    good, token = noise.random(count) < 0.5, noise.integers(0, 2, count)
    long = np.where(token == 1, 9, 6)
    length = np.where(good, np.minimum(long + noise.integers(0, 2, count), cap), noise.integers(0, 2, count))
    before = noise.normal(size=(count, 12))
    before[:, 3] = np.where(good, 2.0, -2.0) + 0.3 * noise.normal(size=count)
    trees = [line([0.8] * cap)] * count
    data = made(
        trees,
        [run_of(int(one), cap) for one in length],
        before=before.astype(np.float16),
        root=token,
        draft=np.full(count, 10 * 0.1),
    )
    return data, np.eye(2, dtype=np.float32)


def test_a_learned_length_beats_every_constant_one() -> None:
    data, table = two_moods(np.random.default_rng(3))
    fit = ldlp.fit(data, table, layer=7)
    scores = fit.report.scores
    assert fit.report.after < 0.5 * fit.report.before
    assert scores["tokens per second"] > 1.08 * scores["best constant"]
    assert scores["tokens per second"] <= scores["perfect"]
    assert fit.bundle.facts["layer"] == 7
    assert 0.1 <= scores["quantile"] <= 0.95
    net = fit.bundle.nets["length"]
    state = np.zeros(12, np.float32)
    said = [
        [round(float(net(np.concatenate((state + mood * np.eye(12)[3], table[token])))[0])) for token in (0, 1)]
        for mood in (-2, 2)
    ]
    assert max(said[0]) <= 2  # none or one is accepted
    assert said[1][0] in (6, 7, 8)  # six or seven
    assert said[1][1] >= 9  # nine or ten, and ten was the end of the draft


def test_the_quantile_comes_from_the_prices() -> None:
    data, table = two_moods(np.random.default_rng(4), count=200)
    steep = CostCurve([1, 11], [0], [[1.0, 3.0]])  # 0.2 s more per row
    rate = (data.accepted + 1).sum() / (data.draft + data.verify).sum()
    found = ldlp.fit(data, table, layer=7, cost=steep, plan=small.Plan(epochs=1)).report.scores["quantile"]
    assert found == pytest.approx(max(1 - rate * (0.1 + 0.2), 0.1), abs=1e-6)
    given = ldlp.fit(data, table, layer=7, quantile=0.5, plan=small.Plan(epochs=1))
    assert given.bundle.facts["quantile"] == 0.5


def test_a_round_accepted_to_its_end_holds_no_longer_prediction_against_it() -> None:
    noise = np.random.default_rng(5)
    cap = noise.choice([2, 8], 600)  # how far was drafted says nothing about how far it would have gone
    data = made(
        [line([0.8] * depth) for depth in cap],
        [run_of(min(6, depth), depth) for depth in cap],
        before=noise.normal(size=(600, 4)).astype(np.float16),
        draft=0.01 * cap,
    )
    fit = ldlp.fit(data, np.zeros((1, 2), np.float32), layer=7, quantile=0.3)
    said = fit.bundle.nets["length"](np.zeros(6))[0]
    assert said == pytest.approx(6, abs=0.5)  # the plain 0.3-quantile of what was seen is 2


def test_lengths_need_states() -> None:
    with pytest.raises(SapwoodError, match="no target states were recorded"):
        ldlp.fit(made([line([0.5])] * 20, [[1]] * 20), np.zeros((1, 2), np.float32), layer=1)


# --------------------------------------------------------------------------------------------- ltd
def bushy(noise: np.random.Generator, sure: bool) -> tuple[Tree, list[int]]:
    """A tree of two children per kept node, and which of them the target says."""
    tree, hit, q = Tree(0), [True], 0.9 if sure else 0.35
    front = [ROOT]
    for _ in range(6):
        grown = []
        for parent in front:
            grown += tree.extend(parent, [1, 2], [q, 0.3 * (1 - q)])
            first = noise.random() < q
            hit += [hit[parent] and first, hit[parent] and not first and noise.random() < 0.3]
        front = sorted(grown, key=lambda node: -value(tree, RAW)[node])[:2]
    return tree, [int(one) for one in hit[1:]]


def changing(noise: np.random.Generator, count: int = 400) -> Rounds:
    made_up = [bushy(noise, bool(noise.random() < 0.5)) for _ in range(count)]
    return made([tree for tree, _ in made_up], [labels for _, labels in made_up], draft=np.full(count, 6 * 0.15))


ROWS = CostCurve([1, 64], [0], [[1.0, 1.0 + 63 * 0.08]])  # seconds


def test_learned_depth_and_size_beat_every_constant_pair(tmp_path: Path) -> None:
    fit = ltd.fit(changing(np.random.default_rng(6)), cost=ROWS)
    scores = fit.report.scores
    assert scores["tokens per second"] > 1.05 * scores["best constant"]
    assert fit.report.after == pytest.approx(1 / scores["tokens per second"])
    again = ltd.fit(changing(np.random.default_rng(6)), cost=ROWS)
    assert again.report == fit.report
    fit.save(tmp_path, recipe="the one it was recorded with")
    facts = load(str(tmp_path), "ltd", "any").facts
    assert facts["report"] == fit.report.to_json()
    assert facts["recipe"] == "the one it was recorded with"


def test_a_replayed_cut_is_the_tree_that_would_have_been_checked() -> None:
    noise = np.random.default_rng(7)
    data = changing(noise, count=20)
    sizes, prices = [1, 3, 5, 9], Prices(0.15, ROWS)
    found, use = ltd.replay(data, prices, sizes)
    assert use.tolist() == list(range(20))
    for row, (tree, part) in enumerate(zip(data.trees(), rounds.spans(data.nodes), strict=True)):
        hit = np.append(True, data.labels[part] == 1)
        value(tree, RAW)
        for depth, (column, size) in itertools.product(range(1, 7), enumerate(sizes)):
            shallow = tree.keep([node for node in range(len(tree)) if tree.depths[node] <= depth])
            kept = shallow.best(size)
            assert shallow.kept is not None
            assert kept.kept is not None
            accepted = int(hit[shallow.kept[kept.kept]].sum()) - 1
            assert found.tokens[row, depth - 1, column] == accepted + 1
            cost = depth * 0.15 + ROWS.seconds(len(kept), 100)
            assert found.seconds[row, depth - 1, column] == pytest.approx(cost)


def test_the_policy_decides_as_it_did_in_the_replay(tmp_path: Path) -> None:
    budget, sampling = Fixed(nodes=99, depth=4, width=2), Sampling(max_tokens=60)
    recipe = Recipe(Model(model=Toy("draft")), Beam(beam=99), Match(), budget)
    data = rounds.record(engine(recipe), PROMPTS, sampling, tmp_path / "rounds.safetensors")
    answers = set()
    for seed in range(6):  # policies need not be good to be compared
        folder = random_part("ltd", tmp_path / str(seed), seed)
        answers |= compared(
            data, folder, Recipe(recipe.drafter, Ltd(beam=99, weights=folder), Match(), budget), sampling
        )
    assert len(answers) > 3


def compared(data: Rounds, folder: str, live: Recipe, sampling: Sampling) -> set[tuple[int, int]]:
    """Compare depths and sizes of live rounds with the replay of the same places; the answers that came up."""
    bundle = load(folder, "ltd", "any")
    sizes = bundle.facts["sizes"]
    found, use = ltd.replay(data, priced(data, ROWS), sizes)
    depth = ltd.choose_depth(bundle.nets["depth"], found)
    size = np.array(sizes)[ltd.picked(ltd.choose_size(bundle.nets["size"], found), depth)]
    places = {(int(data.prompt[number]), int(data.context[number])): row for row, number in enumerate(use)}
    answers = set()
    for number, prompt in enumerate(PROMPTS):
        for outcome, _ in rounds.play(engine(live), prompt, sampling, None):
            row = places.get((number, outcome.context))
            if row is not None and outcome.context < len(prompt) + 50:  # before the end limits the depth
                assert outcome.grown.height == depth[row]
                assert len(outcome.tree) - 1 == min(size[row], len(outcome.grown) - 1)
                answers.add((int(depth[row]), int(size[row])))
    return answers


def test_nothing_drafted_is_nothing_to_learn() -> None:
    empty = made([Tree(0)] * 20, [[]] * 20)
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        ltd.fit(empty)
    with pytest.raises(SapwoodError, match="no drafted nodes were recorded"):
        c2t.fit(empty)


# ------------------------------------------------------------------------------------------- judge
def test_the_judge_learns_what_is_harmless() -> None:
    noise = np.random.default_rng(8)
    states = noise.normal(size=(2000, 20)) * np.geomspace(0.1, 10, 20)
    chance = sigmoid(3 * states[:, 4] / states[:, 4].std() - 1)
    cases = judge.Cases(np.arange(2000) // 20, states, noise.random(2000) < chance)
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
def test_a_mismatch_is_harmless_when_the_text_is_found_again(words: list[int], harmless: bool) -> None:
    rule = judge.Rule(run=4, shift=3)
    assert judge.harmless(judge.Mismatch(2, 99, 0.5), words, OWN, rule) is harmless


def test_unlikely_and_strict_tokens_are_never_harmless() -> None:
    words, case = [11, 12, 13, 14, 15, 16, 17], judge.Mismatch(2, 99, 0.5)
    assert not judge.harmless(judge.Mismatch(2, 99, 0.01), words, OWN, judge.Rule(run=4, fair=0.02))
    assert not judge.harmless(case, words, OWN, judge.Rule(run=4, strict={99}))  # drafted
    assert not judge.harmless(case, words, OWN, judge.Rule(run=4, strict={10}))  # said
    assert judge.harmless(case, words, OWN, judge.Rule(run=4, strict={11}))


def test_mining_asks_the_target_at_every_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "TOGETHER", 3)
    rule = judge.Rule(run=1, shift=0, fair=0.2)
    sampling, laws = Sampling(max_tokens=30), Mindful()
    cases = judge.mine(engine(), PROMPTS, sampling, layer=LAYER, rule=rule)
    expected = []
    for number, prompt in enumerate(PROMPTS):
        found = []
        text = text_of(prompt, 40)
        for outcome, _ in rounds.play(engine(), prompt, sampling, None):
            tree, end = outcome.tree, outcome.verdict.path[-1]
            place, children = outcome.context + outcome.verdict.accepted + 1, tree.children(end)
            emitted = sum(len(one.tokens) for one, _ in rounds.play(engine(), prompt, sampling, None))
            if not children or place + rule.window + 1 > len(prompt) + emitted:
                continue
            token = int(tree.tokens[max(children, key=lambda node: tree.probs[node])])
            chance = np.exp(laws.scores([tuple(text[:place])]).rows[0][token])
            state = laws.scores([(*text[:place], token)]).rows[0]
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
    plain = Recipe(Model(model=Toy("draft")), Chain(), Match(), Fixed(nodes=0))
    with pytest.raises(SapwoodError, match="no mismatch was found"):
        judge.mine(engine(plain), PROMPTS, SHORT, layer=LAYER)


# ------------------------------------------------------------------------------------------ shared
def test_scores_are_what_they_say() -> None:
    chance, label = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 1, 0, 1])
    assert small.ranking(chance, label) == pytest.approx((1 + 1 + 1 + 0.5) / 4)
    assert small.ranking(chance, np.ones(4)) == 0.5
    assert small.log_loss(np.array([0.5, 0.5]), np.array([0, 1])) == pytest.approx(np.log(2))
    assert small.calibration(np.array([0.2] * 10), np.array([1, 1, 0, 0, 0, 0, 0, 0, 0, 0]), bins=1) == pytest.approx(0)
    assert small.calibration(np.array([0.9] * 10), np.array([0] * 10), bins=2) == pytest.approx(0.9)


def test_whole_prompts_are_held_out() -> None:
    prompt = np.repeat(np.arange(10), 7)
    held = rounds.held_out(prompt, 0.2, 3)
    assert len(set(prompt[held].tolist())) == 2
    assert set(prompt[held].tolist()).isdisjoint(prompt[~held].tolist())
    with pytest.raises(SapwoodError, match="at least two prompts"):
        rounds.held_out(np.zeros(9, np.int64), 0.2, 0)


def test_held_out_rows_are_never_looked_at() -> None:
    noise = np.random.default_rng(9)
    inputs, ours = noise.normal(size=(200, 5)), np.arange(200) < 150
    target = torch.from_numpy(inputs[:, 0].astype(np.float32))

    def loss(outputs: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        assert (index < 150).all()
        return ((outputs[:, 0] - target[index]) ** 2).mean()

    net = small.minimise(begin([5, 16, 1], 0), inputs, loss, ours, small.Plan(rate=1e-2), 0)
    assert np.mean((net(inputs[~ours])[:, 0] - inputs[~ours][:, 0]) ** 2) < 0.1
    with pytest.raises(SapwoodError, match="at least two rows"):
        small.minimise(begin([5, 1], 0), inputs, loss, np.arange(200) < 1, small.Plan(), 0)


def test_prices_come_from_the_rounds() -> None:
    data = changing(np.random.default_rng(10), count=20)
    assert data.level_seconds() == pytest.approx(0.15)
    assert priced(data, None).seconds(2, 30, 5) == pytest.approx(2 * 0.15 + 1.0)
    assert Prices(0.1, flat(2.0)).token(3.0, 5, 0) == pytest.approx(0.3)
