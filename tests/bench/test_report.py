"""Runs, ratios, ties, and the record of a benchmark."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.bench import measure as measuring
from sapwood.bench.measure import BenchRun, decode, measure, rotated
from sapwood.bench.recipe_set import (
    PLAIN,
    RecipeSet,
    assemble,
    read_recipes,
    split,
    with_node_budget,
)
from sapwood.bench.report import ReportRow, RunGroup, report
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.ties import explain, first_difference
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import RECIPES, resolve

TARGET: Any = ToyBackend(vocab=5, context=200)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
SAMPLED = Sampling(temperature=1.0, seed=3, max_tokens=24)
LAW = "recycling(draws=iid) + chain + speculative + fixed(nodes=2, depth=2, width=1)"
DESIGN = """recipe category prompts tokens seconds tokens_per_second tokens_per_pass passes nodes_per_pass waste
    speedup speedup_low speedup_high identical guarantee"""
EXTRAS = """spelling prefill_seconds draft_share verify_share other_share calibration reliability ece departure
    divergences skipped temperature context batch turns tokens_per_second_low tokens_per_second_high tokens_per_pass_low
    tokens_per_pass_high wasted_seconds regret best_fixed oracle_regret peak_memory joules energy_note peer weights
    agreement agreement_share"""


def engine(recipe: str) -> Engine:
    return Engine(TARGET, resolve(recipe))


def run(tokens: list[int], seconds: float, **more: Any) -> BenchRun:
    return BenchRun(tokens=tokens, passes=len(tokens), verify=seconds, **more)


def rows(
    runs: dict[str, list[BenchRun]], categories: list[str], **options: Any
) -> dict[tuple[str, str], ReportRow]:
    """Rows of hand-made runs by recipe and category."""
    lineup = RecipeSet({name: engine(name) for name in runs})
    prompts = [
        BenchPrompt(f"p{place}", category, category, "x")
        for place, category in enumerate(categories)
    ]
    made = report(TARGET, lineup, prompts, [PROMPT] * len(prompts), runs, Sampling(**options))
    return {(row.recipe, row.category): row for row in made}


# ---------------------------------------------------------------------------------------- runs
def test_a_run_adds_up_its_rounds() -> None:
    clock = itertools.count()
    counted = replace(engine("recycling"), now=lambda: float(next(clock)))
    done = decode(counted, PROMPT, Sampling(max_tokens=30))
    assert len(done.tokens) == 30
    assert done.tokens == decode(engine(PLAIN), PROMPT, Sampling(max_tokens=30)).tokens
    assert done.passes + done.accepted == 30
    assert done.nodes >= done.accepted
    assert (done.draft, done.verify, done.other) == (2 * done.passes, done.passes, done.passes - 1)
    assert done.seconds == done.draft + done.verify + done.other


def test_a_run_ends_with_the_text() -> None:
    whole = decode(engine("recycling"), PROMPT, Sampling(max_tokens=40)).tokens
    end = whole[12]
    short = decode(engine("recycling"), PROMPT, Sampling(max_tokens=40, stop_ids=[end])).tokens
    assert short == whole[: whole.index(end) + 1]


def test_a_run_ends_with_the_context() -> None:
    target: Any = ToyBackend(vocab=5, context=20)
    small = Engine(target, resolve("recycling"))
    assert len(decode(small, PROMPT, Sampling(max_tokens=400)).tokens) == 12


def test_only_policies_that_estimate_expect_something() -> None:
    assert decode(engine("recycling-best"), PROMPT, Sampling(max_tokens=9)).expected > 0
    assert np.isnan(decode(engine("pld"), PROMPT * 3, Sampling(max_tokens=30)).expected)


def test_recipes_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fake(engine: Any, prompt: list[int], sampling: Sampling) -> BenchRun:
        seen.append((engine, prompt))
        return BenchRun()

    monkeypatch.setattr(measuring, "decode", fake)
    engines: Any = {"a": 1, "b": 2, "c": 3}
    runs = measure(engines, [[1], [2], [3], [4]], Sampling(), [0])
    assert [(who, prompt) for who, prompt in seen[:3]] == [(1, [0]), (2, [0]), (3, [0])]
    assert [who for who, _ in seen[3:]] == [1, 2, 3, 2, 3, 1, 3, 1, 2, 1, 2, 3]
    assert [prompt[0] for _, prompt in seen[3:]] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert {name: len(each) for name, each in runs.items()} == {"a": 4, "b": 4, "c": 4}
    assert rotated(["a", "b"], 3) == ["b", "a"]


def test_a_recipe_remembers_from_prompt_to_prompt() -> None:
    twice = measure(
        {"suffix": engine("suffix")}, [PROMPT, PROMPT], Sampling(max_tokens=24), [0, 1]
    )["suffix"]
    assert twice[0].tokens == twice[1].tokens
    assert twice[1].accepted > twice[0].accepted


# -------------------------------------------------------------------------------------- ratios
def test_speedup_is_a_ratio_of_sums_over_the_same_prompts() -> None:
    found = rows(
        {
            PLAIN: [run([1] * 10, 10.0), run([1] * 30, 60.0)],
            "pld": [run([1] * 10, 5.0), run([1] * 30, 15.0)],
        },
        ["one", "two"],
    )
    assert found["pld", "one"].speedup == pytest.approx(2.0)
    assert found["pld", "two"].speedup == pytest.approx(4.0)
    assert found["pld", "all"].speedup == pytest.approx(70 / 20)
    assert (
        found[PLAIN, "all"].speedup
        == found[PLAIN, "all"].speedup_low
        == found[PLAIN, "all"].speedup_high
        == 1.0
    )
    assert found["pld", "all"].tokens_per_second == pytest.approx(2.0)


def test_speedup_counts_seconds_per_token_where_lengths_differ() -> None:
    found = rows(
        {PLAIN: [run([1] * 10, 10.0)], LAW: [run([2] * 20, 10.0)]}, ["one"], temperature=1.0
    )
    assert found[LAW, "all"].speedup == pytest.approx(2.0)
    assert found[LAW, "all"].identical is None
    assert found[LAW, "all"].divergences == []


def test_the_interval_is_the_same_every_time_and_holds_the_speedup() -> None:
    noise = np.random.default_rng(1)
    plain = [run([1] * 20, float(seconds)) for seconds in noise.uniform(2, 3, 30)]
    fast = [run([1] * 20, float(seconds)) for seconds in noise.uniform(1, 2, 30)]
    group = RunGroup(fast, plain)
    low, high = group.interval
    assert group.interval == (low, high)
    assert low < group.speedup < high
    assert high - low < 0.5


def test_a_single_prompt_has_no_spread() -> None:
    group = RunGroup([run([1], 2.0)], [run([1], 3.0)])
    assert group.interval == (1.5, 1.5)


def test_shares_waste_and_calibration() -> None:
    done = BenchRun(
        [1] * 8,
        passes=4,
        nodes=16,
        accepted=4,
        expected=8.0,
        prefill=9.0,
        draft=1.0,
        verify=2.0,
        other=1.0,
    )
    row = rows({PLAIN: [run([1] * 8, 8.0)], "suffix": [done]}, ["one"])["suffix", "one"]
    assert (row.draft_share, row.verify_share, row.other_share) == (0.25, 0.5, 0.25)
    assert (row.tokens_per_pass, row.nodes_per_pass, row.waste, row.calibration) == (
        2.0,
        4.0,
        0.75,
        0.5,
    )
    assert (row.seconds, row.prefill_seconds, row.speedup) == (4.0, 9.0, 2.0)


# ---------------------------------------------------------------------------------------- ties
def test_identical_counts_equal_outputs() -> None:
    said = decode(engine(PLAIN), PROMPT, Sampling(max_tokens=6)).tokens
    other = [*said[:4], (said[4] + 1) % 5, said[5]]
    runs = {PLAIN: [run(said, 1.0)] * 3, "pld": [run(said, 1.0), run(other, 1.0), run(said, 1.0)]}
    found = rows(runs, ["one", "one", "two"])
    assert [found["pld", category].identical for category in ("one", "two", "all")] == [1, 1, 2]
    [parted] = found["pld", "all"].divergences
    assert (parted.prompt, parted.position, parted.plain_token, parted.recipe_token) == (
        "p1",
        4,
        said[4],
        other[4],
    )
    assert parted.gap == pytest.approx(parted.plain_logit - parted.recipe_logit)  # type: ignore[operator]
    assert parted.gap is not None
    assert parted.gap > 0
    assert not parted.tie


def test_the_gap_of_sampled_text_counts_the_noise() -> None:
    said = decode(engine(PLAIN), PROMPT, SAMPLED).tokens
    for place, token in itertools.product(range(len(said)), range(5)):
        if token != said[place]:
            found = explain(TARGET, "p", PROMPT, said, [*said[:place], token], SAMPLED)
            assert found is not None
            assert found.gap is not None
            assert found.gap > 0  # plain decoding took the other one


def test_equal_logits_are_a_tie() -> None:
    class Level(ToyBackend):
        def _score(self, work: TreeInput) -> ToyOutput:
            return ToyOutput(np.zeros((len(work.tree), self.vocab)))

    target: Any = Level()
    found = explain(target, "p", [0], [1, 1], [1, 2], Sampling())
    assert found is not None
    assert (found.position, found.gap, found.tie) == (1, 0.0, True)


def test_an_output_that_ends_early_is_no_tie() -> None:
    found = explain(TARGET, "p", [0], [1, 2, 3], [1, 2], Sampling())
    assert found is not None
    assert (found.position, found.plain_token, found.recipe_token, found.gap, found.tie) == (
        2,
        3,
        None,
        None,
        False,
    )
    assert first_difference([1, 2], [1, 2]) is None


# -------------------------------------------------------------------------------------- lineup
def test_recipes_are_split_outside_brackets() -> None:
    spelled = "ngram + chain + match + fixed(nodes=4, depth=4, width=1)"
    assert split(f"plain, {spelled};auto,") == ["plain", spelled, "auto"]
    assert list(read_recipes(f"pld,{spelled}")) == [PLAIN, "pld", spelled]


def test_all_is_every_named_recipe_and_forgives() -> None:
    asked = read_recipes("all,pld")
    assert set(asked) == set(RECIPES)
    assert next(iter(asked)) == PLAIN
    assert [name for name, required in asked.items() if required] == [PLAIN, "pld"]


def test_lossless_leaves_out_recipes_that_change_the_distribution() -> None:
    asked = read_recipes("lossless")
    left_out = {name for name in RECIPES if resolve(name).guarantee is Guarantee.LOSSY}
    assert "medusa-typical" in left_out
    assert set(asked) == set(RECIPES) - left_out
    assert next(iter(asked)) == PLAIN


def test_one_node_budget_for_all() -> None:
    even: Any = with_node_budget("auto", 24)
    assert even.controller == Fixed(nodes=24, depth=16, width=6)
    assert even.drafter == resolve("auto").drafter
    assert with_node_budget(PLAIN, 24) == PLAIN
    assert with_node_budget("auto", None) == "auto"


class Broken:
    """An LLM under which only plain decoding can be built."""

    target = TARGET

    def with_recipe(self, name: Any) -> Any:
        if name != PLAIN:
            raise SapwoodError("it needs hidden states")
        return type("Built", (), {"engine": engine(name)})


def test_a_recipe_that_cannot_run() -> None:
    with pytest.raises(
        SapwoodError, match="recipe 'pld' cannot run on toy-target: it needs hidden states"
    ):
        assemble(Broken(), {"pld": True})  # type: ignore[arg-type]
    lineup = assemble(Broken(), {PLAIN: True, "pld": False})  # type: ignore[arg-type]
    assert lineup.skipped == {"pld": "it needs hidden states"}
    [*_, row] = report(
        TARGET,
        lineup,
        [BenchPrompt("p", "c", "c", "x")],
        [PROMPT],
        {PLAIN: [run([1], 1.0)]},
        Sampling(),
    )
    assert (row.recipe, row.category, row.prompts, row.speedup, row.skipped) == (
        "pld",
        "all",
        0,
        None,
        "it needs hidden states",
    )


# ------------------------------------------------------------------------------------- command
@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let the command line open a toy."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(TARGET, "plain"))


@pytest.mark.usefixtures("toy")
def test_the_record_has_the_keys_of_the_design(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    options = ["--suite", "random", "--limit", "2", "--max-tokens", "8", "--json", str(path)]
    assert main(["bench", "--recipes", f"recycling;{LAW}", *options]) == 0
    record = json.loads(path.read_text())
    assert list(record) == [
        "machine",
        "model",
        "suite",
        "command",
        "commit",
        "rows",
        "substitutes",
        "cost",
        "samples",
    ]
    assert {"cpu", "cores", "threads", "torch", "platform", "python"} <= set(record["machine"])
    assert {"name", "dtype", "device"} <= set(record["model"])
    assert all(list(row) == f"{DESIGN} {EXTRAS}".split() for row in record["rows"])
    assert [(row["recipe"], row["category"]) for row in record["rows"]] == [
        (recipe, category) for recipe in (PLAIN, "recycling", LAW) for category in ("random", "all")
    ]
    for row in record["rows"]:
        assert row["draft_share"] + row["verify_share"] + row["other_share"] == pytest.approx(1)
        assert row["identical"] == row["prompts"] == 2
    assert list(tmp_path.glob("*.tmp")) == []
    assert "recycling" in capsys.readouterr().out


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--recipes", "plian"], "unknown recipe 'plian'"),
        (["--recipes", " , "], "names none; known: auto"),
        (["--suite", "nowhere"], "suite 'nowhere' is no file"),
        (["--json", "/nowhere/at/all.json"], "cannot be written to /nowhere/at/all.json"),
        (["--temperature", "-1"], "temperature=-1"),
        (["--max-tokens", "0"], "max_tokens=0"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


@pytest.mark.usefixtures("toy")
def test_a_full_disk_does_not_take_the_table_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, record: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sapwood.bench.benchmark.write", refuse)
    options = [
        "--suite",
        "random",
        "--limit",
        "1",
        "--max-tokens",
        "4",
        "--json",
        str(tmp_path / "bench.json"),
    ]
    assert main(["bench", "--recipes", "pld", *options]) == 2
    out, err = capsys.readouterr()
    assert "pld" in out
    assert "No space left on device" in err.splitlines()[-1]
