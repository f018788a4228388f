"""A benchmark's own words: what marks its runs, where they go, what is kept, and the oracle's conditions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench import benchmark
from sapwood.bench.benchmark import SAMPLES, Benchmark, check_place, samples, write, write_text
from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.journal import Journal
from sapwood.bench.measure import BenchRun
from sapwood.bench.peer_runner import PeerContender, PeerSet
from sapwood.bench.prompts import RandomPrompt
from sapwood.bench.recipe_set import RecipeSet, assemble
from sapwood.bench.resources import ResourceMeter
from sapwood.bench.runner import BenchRunner, BenchSetting, RecipeContender
from sapwood.bench.samples import TreeSample
from sapwood.bench.suites import BenchPrompt, digest
from sapwood.bench.sweep import SweepPoint
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve
from tests.helpers import byte_tokenizer
from tests.helpers.bench_records import row, run

INFO = BackendInfo("toy", "toy", 5, 100)
PROMPTS = [
    BenchPrompt("p", "c", "c", RandomPrompt(1, 8)),
    BenchPrompt("q", "c", "c", "x", ("more",)),
]
TOY: Any = ToyBackend(vocab=5, context=100)


def plan(**more: Any) -> Benchmark:
    usual: dict[str, Any] = {
        "recipes": {"plain": True, "pld": True},
        "suite": "mine",
        "prompts": PROMPTS,
        "sampling": Sampling(max_tokens=7, seed=3),
    }
    return Benchmark(**{**usual, **more})


@pytest.fixture
def llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    return LLM(TOY, "plain")


# ------------------------------------------------------------------------------------------- marks
def test_a_benchmark_describes_itself() -> None:
    found = plan(points=[SweepPoint(0.5), SweepPoint(1.0, 64, 2)], peers=["hf"], nodes=9).describe()
    assert found == {
        "name": "mine",
        "prompts": 2,
        "digest": digest(PROMPTS),
        "max_tokens": 7,
        "temperature": 0.5,
        "seed": 3,
        "ignore_eos": False,
        "nodes": 9,
        "turns": 3,
        "points": [
            {"temperature": 0.5, "context": None, "batch": 1},
            {"temperature": 1.0, "context": 64, "batch": 2},
        ],
        "peers": ["hf"],
    }
    json.dumps(found)


@pytest.mark.parametrize(
    "other",
    [
        {"suite": "other"},
        {"prompts": PROMPTS[:1]},
        {"sampling": Sampling(max_tokens=8, seed=3)},
        {"sampling": Sampling(max_tokens=7, seed=4)},
        {"ignore_eos": True},
        {"nodes": 4},
    ],
    ids=str,
)
def test_runs_that_cannot_stand_side_by_side_have_another_mark(other: dict[str, Any]) -> None:
    assert plan(**other).mark(INFO) != plan().mark(INFO)


def test_settings_peers_and_recipes_may_be_added_later() -> None:
    same = plan(points=[SweepPoint(1.0, 64, 2)], peers=["hf"], recipes={"plain": True})
    assert same.mark(INFO) == plan().mark(INFO)


@pytest.mark.parametrize("key", ["model", "name", "dtype", "device", "threads"])
def test_another_model_or_machine_has_another_mark(key: str) -> None:
    changed: dict[str, Any] = {key: 7 if key == "threads" else "other"}
    assert plan().mark(replace(INFO, **changed)) != plan().mark(INFO)


def test_runs_are_written_where_they_are_asked_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    given, beside = tmp_path / "runs.jsonl", tmp_path / "my.record.json"
    assert plan().journal_path(INFO, given, beside) == given
    assert plan().journal_path(INFO, None, beside) == tmp_path / "my.record.runs.jsonl"
    own = plan().journal_path(INFO, None, None)
    assert own == tmp_path / "bench" / f"{plan().mark(INFO)}.runs.jsonl"
    assert own.parent.is_dir()


# ------------------------------------------------------------------------------------------- files
def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    check_place(tmp_path / "new.json")
    for path in (tmp_path, tmp_path / "none" / "x.json"):
        with pytest.raises(
            SapwoodError, match=f"the record cannot be written to {path}; name a file"
        ):
            check_place(path)


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write(path, {"a": [1, None]})
    assert json.loads(path.read_text()) == {"a": [1, None]}
    with pytest.raises(ValueError, match="Out of range float"):
        write(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": [1, None]}
    write_text(path, "ä")
    assert path.read_bytes() == b"\xc3\xa4"
    assert [one.name for one in tmp_path.iterdir()] == ["r.json"]


# ---------------------------------------------------------------------------------------- contest
def test_the_ends_of_the_text_are_the_models_unless_they_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    target: Any = ToyBackend(vocab=byte_tokenizer.SIZE, context=100)
    spoken = LLM(target, "plain", text=byte_tokenizer.text())
    for ignore, ends in ((False, (byte_tokenizer.EOS,)), (True, ())):
        made = plan(ignore_eos=ignore).make_runner(
            spoken, RecipeSet(), PeerSet(), Journal(), lambda _: None
        )
        assert tuple(made.sampling.stop_ids) == ends
        assert made.sampling.max_tokens == 7


def test_one_that_fails_is_dropped_where_it_came_from(llm: LLM) -> None:
    lineup = assemble(llm, {"plain": True, "pld": True})
    peer: Any = None
    peers = PeerSet(ready={"hf": PeerContender(peer)})
    made = plan().make_runner(llm, lineup, peers, Journal(), lambda _: None)
    assert list(made.contenders) == ["plain", "pld", "hf"]
    made.drop("hf", SapwoodError("it died"))
    made.drop("pld", SapwoodError("so did it"))
    assert peers.skipped == {"hf": "failed while decoding: it died"}
    assert lineup.skipped == {"pld": "failed while decoding: so did it"}
    with pytest.raises(SapwoodError, match="plain decoding failed: no"):
        made.drop("plain", SapwoodError("no"))


def test_a_recipe_that_was_asked_for_by_itself_must_not_fail() -> None:
    made = plan(recipes={"plain": True, "pld": False, "suffix": True})
    made.check(RecipeSet(skipped={"pld": "failed while decoding: x"}))
    with pytest.raises(SapwoodError, match="recipe 'suffix' failed while decoding: x"):
        made.check(RecipeSet(skipped={"suffix": "failed while decoding: x"}))


# -------------------------------------------------------------------------------------------- rows
def runner(llm: LLM, *names: str) -> BenchRunner:
    engines: dict[str, Any] = {name: RecipeContender(Engine(TOY, resolve(name))) for name in names}
    return BenchRunner(engines, Sampling(max_tokens=7), Journal(), ResourceMeter())


def turn(name: str, number: int = 0) -> ConversationTurn:
    return ConversationTurn(BenchPrompt(name, "c", "c", "x"), number, [0, 1], "")


def test_rows_are_over_the_turns_that_all_have_answered(llm: LLM) -> None:
    made = runner(llm, "plain", "pld")
    said = [1, 2, 3]
    answered = {"p": run(said, 3.0), "p#2": run(said, 3.0), "q": run(said, 3.0)}
    some = {key: run(said, 1.0) for key in ("p", "p#2")}
    asked = [turn("p"), turn("p", 1), turn("q")]
    made.stages.append(BenchSetting(SweepPoint(), asked, {"plain": answered, "pld": some}))
    made.stages.append(BenchSetting(SweepPoint(1.0), [turn("p")], {}))
    lineup = RecipeSet({name: Engine(TOY, resolve(name)) for name in ("plain", "pld")})
    rows = {(one.recipe, one.category): one for one in plan().rows(llm, lineup, PeerSet(), made)}
    assert set(rows) == {("plain", "c"), ("plain", "all"), ("pld", "c"), ("pld", "all")}
    whole = rows["pld", "all"]
    assert (whole.prompts, whole.turns, whole.speedup) == (1, 2, 3.0)
    assert whole.identical == 1


def test_peers_have_their_rows_or_their_reasons(llm: LLM) -> None:
    made = runner(llm, "plain")
    peer: Any = None
    made.contenders["hf"] = PeerContender(peer)
    told = {"p": run([1, 2], 1.0, timed=1)}
    for point in (SweepPoint(), SweepPoint(1.0)):
        runs = {"plain": {"p": run([1, 2], 4.0)}, "hf": told}
        made.stages.append(BenchSetting(point, [turn("p")], runs))
    peers = PeerSet(
        ready={"hf": PeerContender(peer)}, weights={"hf": "w"}, skipped={"vllm": "gone"}
    )
    lineup = RecipeSet({"plain": Engine(TOY, resolve("plain"))})
    rows = plan(peers=["hf", "vllm"]).rows(llm, lineup, peers, made)
    found = {(one.recipe, one.temperature): one for one in rows if one.category == "all"}
    assert found["hf", 0.0].speedup == pytest.approx(2.0)
    assert found["hf", 1.0].skipped == "peers decode greedily here; no row at temperature 1"
    assert found["vllm", 0.0].skipped == found["vllm", 1.0].skipped == "gone"


# ----------------------------------------------------------------------------------------- samples
def test_the_most_telling_trees_of_each_recipe_are_drawn(llm: LLM) -> None:
    made = runner(llm, "plain", "pld")
    peer: Any = None
    made.contenders["hf"] = PeerContender(peer)
    assert samples(made, llm) == []
    sizes = {"p": 2, "q": 4, "r": 3, "s": 1}
    runs = {
        name: BenchRun(
            sample=TreeSample([0] * 5, [-1, 0, 1, 2, 3], [1.0] * 5, list(range(size)), 3)
        )
        for name, size in sizes.items()
    }
    runs["t"] = BenchRun()
    made.stages.append(BenchSetting(SweepPoint(), [], {"pld": runs, "hf": runs}))
    found = samples(made, llm)
    assert [(one["recipe"], one["prompt"]) for one in found] == [("pld", "q"), ("pld", "r")]
    assert len(found) == SAMPLES
    assert (found[0]["nodes"], found[0]["accepted"]) == (4, 3)
    assert found[0]["svg"].startswith("<svg ")


# ------------------------------------------------------------------------------------------ oracle
@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({"oracle": True}, True),
        ({"oracle": True, "points": [SweepPoint(context=64)]}, True),
        ({"oracle": False}, False),
        ({"oracle": True, "points": [SweepPoint(0.5)]}, False),
        ({"oracle": True, "points": [SweepPoint(batch=2)]}, False),
        ({"oracle": True, "points": [SweepPoint(), SweepPoint(0.5)]}, False),
        ({"oracle": True, "ignore_eos": True}, False),
    ],
    ids=str,
)
def test_the_oracle_is_asked_for_one_greedy_setting(
    more: dict[str, Any], asked: bool, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def with_oracle(rows: Any, llm: Any, recipes: Any, turns: Any, *_: Any) -> Any:
        seen.append((list(recipes), [one.name for one in turns]))
        return ["marked"]

    monkeypatch.setattr("sapwood.bench.oracle_gap.with_oracle", with_oracle)
    made = runner(llm, "plain", "pld")
    answered = {"p": run(2, 1.0)}
    made.stages.append(
        BenchSetting(SweepPoint(), [turn("p"), turn("q")], {"plain": answered, "pld": answered})
    )
    lineup = RecipeSet({name: Engine(TOY, resolve(name)) for name in ("plain", "pld")})
    rows = [row("plain")]
    found: Any = plan(**more).with_regrets(rows, llm, lineup, made, lambda _: None)
    assert found == (["marked"] if asked else rows)
    assert seen == ([(["pld"], ["p"])] if asked else [])


def test_the_warm_up_is_in_no_suite(llm: LLM) -> None:
    made = runner(llm, "plain")
    seen: list[ConversationTurn] = []

    def hold(talks: Any, warm_up: ConversationTurn) -> None:
        seen.append(warm_up)
        assert [talk.prompt.name for talk in talks[SweepPoint()]] == ["p"]

    made.run = hold  # type: ignore[method-assign]
    plan(prompts=PROMPTS[:1]).run(made, llm)
    [warm] = seen
    assert warm.tokens == benchmark.NOISE.tokens(5)
    assert warm.tokens != PROMPTS[0].tokens(llm.target.info, None)
    with pytest.raises(SapwoodError, match="prompt q"):
        plan().run(made, llm)  # words cannot be read without a tokenizer: said before any run
