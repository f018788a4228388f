"""Replays: the recorded recipe comes out as it was, another as it really runs, and the oracle above them all."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.cli.main import main
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import collect
from sapwood.errors import SapwoodError
from sapwood.estimators.raw import Raw
from sapwood.llm import LLM
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.trace.oracle import SIZES, oracle
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.recorded_backend import RecordedBackend
from sapwood.trace.replay import TracePlayer, differences
from sapwood.trace.rounds import Trace
from sapwood.trace.search import grid, search
from sapwood.verifiers.match import Match
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model
from tests.helpers.trace_records import PROMPTS, record, trace_target

STEEP = CostModel([1, 64], [0], [[0.01, 0.64]])  # every row costs as much as a pass of its own
OTHERS = ("plain", "pld", "suffix", "anpd", "recycling")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)


@pytest.mark.parametrize(
    ("recipe", "heat"),
    [
        ("auto", 0.0),
        ("auto", 0.8),
        ("suffix", 0.8),
        ("recycling", 0.0),
        ("n-grammys", 0.0),
        ("plain", 0.0),
    ],
)
def test_the_recorded_recipe_replays_exactly(recipe: str, heat: float, tmp_path: Path) -> None:
    """Without a model, and by the recorded seconds: a controller that lives by the clock asks for the same trees."""
    _, outs, trace = record(tmp_path / "t.jsonl", recipe, max_tokens=20, temperature=heat, seed=2)
    run = TracePlayer(trace).replay_recorded()
    assert differences(trace, run) == []
    for place, rounds in enumerate(run.outcomes):
        said = [token for one in rounds for token in one.tokens]
        assert said[: run.kept[place]] == outs[place].tokens
    assert run.passes == sum(out.stats.passes for out in outs)
    assert run.seconds("verify") == pytest.approx(sum(out.stats.verify_s for out in outs))
    assert run.seconds("draft") == pytest.approx(sum(out.stats.draft_s for out in outs))


def test_a_difference_is_noticed(tmp_path: Path) -> None:
    _, _, trace = record(tmp_path / "t.jsonl", "recycling", max_tokens=16)
    other = TracePlayer(trace).play("suffix")
    assert differences(trace, other)
    assert differences(trace, TracePlayer(trace).replay_recorded()) == []


def real(recipe: str, **options: Any) -> tuple[int, int]:
    """Passes and checked nodes of a real run on the same prompts."""
    llm = LLM(trace_target(), recipe, text=byte_tokenizer.text())
    stats = [llm.generate(prompt, **options).stats for prompt in PROMPTS]
    return sum(one.passes for one in stats), sum(one.drafted for one in stats)


@pytest.mark.parametrize("recorded", ["plain", "recycling", "suffix"])
def test_another_recipe_runs_as_it_would_really_run(recorded: str, tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", recorded, max_tokens=20)
    player = TracePlayer(trace, llm)
    for name in OTHERS:
        run = player.play(name)
        assert not run.near
        assert (run.passes, run.nodes) == real(name, max_tokens=20), name


def test_without_the_model_lookups_are_exact_and_what_learns_from_refused_nodes_is_near(
    tmp_path: Path,
) -> None:
    _, _, trace = record(tmp_path / "t.jsonl", "pld", max_tokens=20)
    player = TracePlayer(trace)
    for name in ("suffix", "anpd", "llma"):
        run = player.play(name)
        assert (run.passes, run.nodes, run.near) == (*real(name, max_tokens=20), False), name
    assert player.play("recycling").near


def test_other_parts_and_budgets(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", "recycling", max_tokens=20)
    player = TracePlayer(trace, llm)
    for spelling in (
        "recycling + beam(beam=3) + match + fixed(nodes=6, depth=3, width=3)",
        "recycling + best(estimator=binned) + match + fixed(nodes=8, depth=4, width=3)",
        "recycling + chain + match + heuristic",
    ):
        run = player.play(spelling)
        assert (run.passes, run.nodes) == real(spelling, max_tokens=20), spelling


# -------------------------------------------------------------------------------------------
# seconds
def test_seconds_follow_the_curve(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", "recycling", max_tokens=16)
    run = TracePlayer(trace, llm, STEEP).play("recycling")
    rows = sum(len(one.tree) for rounds in run.outcomes for one in rounds)
    assert run.seconds("verify") == pytest.approx(0.01 * rows)
    plain = TracePlayer(trace, llm, STEEP).play("plain")
    assert plain.seconds("verify") == pytest.approx(0.01 * plain.tokens)
    assert run.row(plain)["speedup"] < 1  # no tree pays where every node costs a pass


def test_a_priced_recipe_draws_in_where_rows_are_dear(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", "recycling", max_tokens=20)
    spelling = "recycling + best + match + goodput(probe=1000)"
    cheap = CostModel([1, 64], [0], [[0.01, 0.0101]])
    wide, narrow = (TracePlayer(trace, llm, curve).play(spelling) for curve in (cheap, STEEP))
    assert wide.nodes > 4 * narrow.nodes


# --------------------------------------------------------------------------------------------
# oracle
def test_no_tree_of_its_size_beats_the_oracle(tmp_path: Path) -> None:
    drafter = DraftModel(model=ToyBackend("draft", vocab=12))
    llm = LLM(ToyBackend(vocab=12), "plain")
    with opened(tmp_path / "t.jsonl", llm, "plain", "toy", {"max_tokens": 60}) as book:
        collect(traced(llm, [1, 2, 3], book, "toy", max_tokens=60))
    trace = read(tmp_path / "t.jsonl")
    player = TracePlayer(trace, llm)
    best = oracle(player, replace(resolve("pld"), drafter=drafter), 8)
    rates = [run.tokens / run.passes for run in best]
    assert rates == sorted(rates)
    assert rates[-1] > rates[0] > 1
    for nodes, run in zip(SIZES, best, strict=True):
        assert run.row()["waste"] == 0
        for policy in (Best(estimator=Raw()), Chain(), Beam()):
            made = Recipe(drafter, policy, Match(), Fixed(nodes=nodes, depth=nodes, width=8))
            ours = player.play(str(policy), made)
            assert ours.tokens / ours.passes <= run.tokens / run.passes, (nodes, policy)


def test_the_search_names_the_fastest(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", "recycling", max_tokens=16)
    player = TracePlayer(trace, llm, STEEP)
    names = grid(["ngram", "jacobi"])
    ticks: list[int] = []
    found = search(player, names, ticks.append)
    assert len(ticks) == len(names)
    assert {*found.skipped} == {name for name in names if name.startswith("jacobi")}
    assert "rejected nodes" in next(iter(found.skipped.values()))
    paces = [run.seconds() / run.tokens for run in found.runs]
    assert paces == sorted(paces)


# ----------------------------------------------------------------------------------- what cannot be
def traced_toy(path: Path) -> Trace:
    llm = LLM(ToyBackend(vocab=12), "pld")
    with opened(path, llm, "pld", "toy", {"max_tokens": 12}) as book:
        collect(traced(llm, [1, 2, 3, 1, 2], book, "toy", max_tokens=12))
    return read(path)


def test_a_toy_is_recorded_and_replayed_without_any_words(tmp_path: Path) -> None:
    trace = traced_toy(tmp_path / "t.jsonl")
    assert differences(trace, TracePlayer(trace).replay_recorded()) == []
    assert trace.words == {}
    assert trace.spell(3) == "<3>"


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("lookahead", "outputs at rejected nodes"),
        ("jacobi", "run it with `sapwood bench`"),
        ("bild", "is lossy"),
        ("eagle3", "with the model loaded"),
        ("draft-model", "with the model loaded"),
    ],
)
def test_what_cannot_be_replayed_says_why(recipe: str, sentence: str, tmp_path: Path) -> None:
    trace = traced_toy(tmp_path / "t.jsonl")
    with pytest.raises(SapwoodError, match=sentence):
        TracePlayer(trace).play(recipe)


def test_a_sampled_text_is_not_another_recipes_own(tmp_path: Path) -> None:
    llm, _, trace = record(tmp_path / "t.jsonl", "pld", max_tokens=8, temperature=0.7)
    with pytest.raises(SapwoodError, match="keeps the distribution, not the text"):
        TracePlayer(trace, llm).play("speculative")
    assert TracePlayer(trace, llm).play("suffix").tokens == 24  # keeps the text


def test_a_law_that_was_not_recorded_wide_enough_says_so(tmp_path: Path) -> None:
    trace = traced_toy(tmp_path / "t.jsonl")
    with pytest.raises(SapwoodError, match="record it again with --top 12"):
        TracePlayer(trace).play(
            "recycling(count=12) + best(estimator=raw) + match + fixed(nodes=4, depth=2, width=2)"
        )


def test_the_texts_are_a_backend_that_leaves_the_text_to_nobody(tmp_path: Path) -> None:
    trace = traced_toy(tmp_path / "t.jsonl")
    texts = RecordedBackend(trace)
    session = texts.open(trace.asked[0].tokens[:-1])
    with pytest.raises(SapwoodError, match="no trace holds"):
        session.fork()
    with pytest.raises(SapwoodError, match="is not in the trace"):
        texts.open([5, 5, 5])
    rounds = Engine(texts, resolve("plain")).rounds(
        trace.asked[0].tokens, Sampling(max_tokens=12), KeyedRng(0)
    )
    assert [next(rounds).tokens[0] for _ in range(12)] == trace.answer(0)[:12]


# -------------------------------------------------------------------------------------- the command
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    save_byte_model(folder)
    return str(folder)


def test_the_command_prints_rows_and_a_best_recipe(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "t.jsonl")
    options = [
        "--suite",
        "chat",
        "--limit",
        "2",
        "--max-tokens",
        "8",
        "--model",
        model,
        "--recipe",
        "recycling",
    ]
    assert main(["trace", "record", path, *options]) == 0
    capsys.readouterr()
    more = ["--recipes", "pld,bild", "--nodes", "2,8", "--policy", "beam", "--curve", "linear"]
    assert main(["replay", path, *more, "--search", "--drafters", "ngram", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["exact"]
    rows = {row["recipe"]: row for row in found["rows"]}
    assert set(rows) == {
        "recycling (recorded)",
        "plain",
        "pld",
        "bild",
        "recycling, policy beam",
        "recycling, 2 nodes",
        "recycling, 8 nodes",
    }
    assert "lossy" in rows["bild"]["skipped"]
    assert rows["plain"]["speedup"] == 1
    assert rows["plain"]["tokens_per_pass"] == 1
    assert rows["recycling, 2 nodes"]["nodes_per_pass"] <= 2
    assert [row["recipe"] for row in found["oracle"]] == [
        f"oracle, {nodes} nodes" for nodes in SIZES
    ]
    best = found["search"][0]
    assert found["best"] == best["recipe"]
    assert (
        best["nodes_per_pass"] < 0.5
    )  # every row costs a pass: nothing pays, and who sends nothing is plain
    assert main(["replay", path, "--no-oracle", "--no-model"]) == 0
    assert "replays exactly" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "many"], "whole numbers"),
        (["--nodes", "5000"], "nodes=5000"),
        (["--curve", "none.json"], "is no cost curve"),
        (["--recipes", "nothing"], "unknown recipe 'nothing'"),
        (["--policy", "nothing"], "unknown policy 'nothing'"),
    ],
)
def test_bad_wishes_are_refused(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    traced_toy(tmp_path / "t.jsonl")
    assert main(["replay", str(tmp_path / "t.jsonl"), "--no-model", *arguments]) == 2
    assert sentence in capsys.readouterr().err
