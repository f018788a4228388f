"""Settings of a benchmark: temperatures, contexts, batches, turns; and what each row says of its cost."""

import json
import mmap
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench import resources
from sapwood.bench.batched import decode_together
from sapwood.bench.conversations import Conversation, ConversationTurn, lengthened
from sapwood.bench.groups import RunGroup
from sapwood.bench.journal import Journal
from sapwood.bench.measure import BenchRun, decode
from sapwood.bench.prompts import RandomPrompt
from sapwood.bench.regret import with_regret
from sapwood.bench.resources import ResourceMeter
from sapwood.bench.rows import ReportRow
from sapwood.bench.runner import BenchRunner, RecipeContender
from sapwood.bench.suites import BenchPrompt, gather
from sapwood.bench.sweep import SweepPoint, read_points
from sapwood.cli import options
from sapwood.cli.main import main
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import resolve
from tests.helpers import byte_tokenizer

TOY: Any = ToyBackend(vocab=5, context=200)
PROMPTS = [[0, 1, 2, 0, 1, 2, 0, 1], [3, 3, 1], [4, 2, 4, 2, 4]]
SLOW = CostModel([1, 64], [0], [[1.0, 64.0]])  # every row costs the same


def engine(recipe: str, cost: CostModel | None = None) -> Engine:
    return Engine(TOY, resolve(recipe), cost or CostModel([1, 1024], [0], [[1.0, 1.0]]))


# -------------------------------------------------------------------------------------- settings
def test_all_combinations_are_run() -> None:
    assert read_points("", "", "") == [SweepPoint()]
    found = read_points("0,0.7", "16, 32", "1,4")
    assert len(found) == 8
    assert found[0] == SweepPoint(0.0, 16, 1)
    assert found[-1] == SweepPoint(0.7, 32, 4)
    assert read_points("0,0", "", "") == [SweepPoint()]
    assert SweepPoint().label == "greedy, one at a time"
    assert SweepPoint(0.7, 16, 4).label == "temperature 0.7, context 16, batch 4"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("warm", "", ""), "temperature=warm must be at least 0"),
        (("0,-1", "", ""), "temperature=-1 must"),
        (("nan", "", ""), "temperature=nan must"),
        (("", "1.5", ""), "context=1.5 must be a whole number of at least 2"),
        (("", "", "0"), "batch=0 must be a whole number from 1 to 1024"),
    ],
)
def test_what_is_no_setting_is_named(given: tuple[str, str, str], reason: str) -> None:
    with pytest.raises(SapwoodError, match=reason):
        read_points(*given)


# ----------------------------------------------------------------------------------------- batch
@pytest.mark.parametrize("recipe", ["plain", "pld", "recycling", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sharing_passes_changes_no_text(recipe: str, temperature: float) -> None:
    sampling = Sampling(max_tokens=20, temperature=temperature, seed=5)
    alone = [decode(engine(recipe), prompt, sampling).tokens for prompt in PROMPTS]
    assert [run.tokens for run in decode_together(engine(recipe), PROMPTS, sampling)] == alone


def test_a_shared_pass_is_paid_for_once() -> None:
    class Tick:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Tick()

    class Slow(ToyBackend):
        def score(self, work: Any, chunks: Any = ()) -> Any:
            clock.now += 12.0
            return super().score(work, chunks)

    target: Any = Slow(vocab=5, context=200)
    made = Engine(target, resolve("plain"), now=clock)
    before = clock.now
    runs = decode_together(made, PROMPTS, Sampling(max_tokens=6))
    assert sum(run.seconds + run.prefill for run in runs) == pytest.approx(clock.now - before)
    assert [run.verify for run in runs] == pytest.approx(
        [24.0] * 3
    )  # six passes of 12, a third each


def test_a_text_that_ends_early_leaves_the_others_alone() -> None:
    whole = [decode(engine("plain"), prompt, Sampling(max_tokens=20)).tokens for prompt in PROMPTS]
    sampling = Sampling(max_tokens=20, stop_ids=[whole[0][2]])
    alone = [decode(engine("plain"), prompt, sampling).tokens for prompt in PROMPTS]
    assert [run.tokens for run in decode_together(engine("plain"), PROMPTS, sampling)] == alone
    assert len({len(tokens) for tokens in alone}) > 1


# ---------------------------------------------------------------------------------------- turns
TEXT = byte_tokenizer.text()
INFO = BackendInfo("toy", "toy", TEXT.size, 400)


def test_each_answer_becomes_history() -> None:
    talk = Conversation(BenchPrompt("p", "c", "c", "one two", ("three",)), INFO, TEXT)
    first = talk.next_turn()
    talk.add_answer(TEXT.encode("four five", whole=False))
    second = talk.next_turn()
    assert (first.name, second.name, talk.turns) == ("p", "p#2", 2)
    said = [TEXT.show(one.tokens) for one in (first, second)]
    assert "one two" in said[0]
    assert said[1].index("one two") < said[1].index("four five") < said[1].index("three")


def test_a_full_context_ends_a_talk() -> None:
    small = BackendInfo("toy", "toy", TEXT.size, 30)
    talk = Conversation(BenchPrompt("p", "c", "c", "one", ("two",)), small, TEXT)
    assert talk.fits_context
    talk.add_answer(TEXT.encode("three " * 5, whole=False))
    assert not talk.fits_context


def test_turns_are_read_and_cut(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"turns": ["a", "b", "c"]}) + "\n" + json.dumps({"turns": ["a", 3]}))
    with pytest.raises(SapwoodError, match=r"line 2 of .* is not a prompt"):
        gather(str(path))
    path.write_text(json.dumps({"turns": ["a", "b", "c"]}))
    assert gather(str(path))[0].later == ("b", "c")
    assert gather(str(path), turns=2)[0].later == ("b",)
    with pytest.raises(SapwoodError, match="turns=0 must be at least 1"):
        gather(str(path), turns=0)


# -------------------------------------------------------------------------------------- context
def test_prompts_are_filled_up() -> None:
    prompt = BenchPrompt("p", "c", "c", "one two three")
    for length in (40, 150, 300):
        tokens = lengthened(prompt, length, INFO, TEXT).tokens(INFO, TEXT)
        assert length - 12 <= len(tokens) <= length
        assert "one two three" in TEXT.show(tokens)
    assert lengthened(prompt, None, INFO, TEXT) == prompt
    assert (
        len(
            lengthened(BenchPrompt("r", "c", "c", RandomPrompt(1, 64)), 128, TOY.info, None).tokens(
                TOY.info, None
            )
        )
        == 128
    )
    with pytest.raises(SapwoodError, match=r"prompt p has .* tokens, more than context 2"):
        lengthened(prompt, 2, INFO, TEXT)


# ---------------------------------------------------------------------------------------- costs
def test_wasted_seconds_are_those_of_refused_nodes() -> None:
    clock = iter(range(10**6))
    made = Engine(TOY, resolve("recycling"), SLOW, now=lambda: float(next(clock)))
    run = decode(made, PROMPTS[0], Sampling(max_tokens=20))
    flat = Engine(TOY, resolve("recycling"), now=lambda: float(next(clock)))
    assert decode(flat, PROMPTS[0], Sampling(max_tokens=20)).thrown == 0
    shares, said = 0.0, 0
    for outcome in Engine(TOY, resolve("recycling"), SLOW).rounds(
        PROMPTS[0], Sampling(max_tokens=20), KeyedRng(0)
    ):
        kept = min(outcome.verdict.accepted, 20 - said)
        shares += (len(outcome.tree) - 1 - kept) / len(outcome.tree)
        said += len(outcome.tokens)
        if said >= 20:
            break
    assert shares > 0.5
    assert run.thrown == pytest.approx(shares)  # a pass takes one second of this clock


def test_regret_is_against_the_best_fixed_recipe() -> None:
    recipes = {name: resolve(name) for name in ("plain", "pld", "auto")}
    rows = [
        ReportRow(name, "all", 2, speedup=speedup, temperature=heat)
        for name, speedup, heat in (
            ("plain", 1.0, 0.0),
            ("pld", 1.5, 0.0),
            ("auto", 1.25, 0.0),
            ("auto", 2.0, 1.0),
        )
    ]
    plain, pld, auto, hot = with_regret(rows, recipes)
    assert (pld.regret, pld.best_fixed) == (0.0, "pld")
    assert auto.regret == pytest.approx(0.2)
    assert plain.regret == pytest.approx(0.5)
    assert hot.regret is None  # nothing fixed ran at that temperature


def test_turns_of_a_conversation_are_drawn_together() -> None:
    plain = [BenchRun(tokens=[1] * 10, verify=10.0) for _ in range(4)]
    fast = [BenchRun(tokens=[1] * 10, verify=seconds) for seconds in (5.0, 2.5, 5.0, 2.5)]
    apart = RunGroup(fast, plain)
    together = RunGroup(fast, plain, ["a", "a", "b", "b"])
    assert together.speedup == apart.speedup
    assert together.interval == (together.speedup, together.speedup)  # both conversations are alike
    assert apart.interval[0] < apart.speedup < apart.interval[1]
    assert (apart.prompts, together.prompts) == (4, 2)


# --------------------------------------------------------------------------------------- gauges
def rapl(folder: Path, **micros: int) -> None:
    for name, value in micros.items():
        zone = folder / f"intel-rapl:{name.removeprefix('p')}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "energy_uj").write_text(f"{value}\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")


def test_energy_is_the_sum_of_packages_and_survives_a_full_counter(tmp_path: Path) -> None:
    rapl(tmp_path, p0=1_000_000, p1=9_000_000)
    rapl(tmp_path, **{"p0:0": 5_000_000})  # a part of package 0, which counts it already
    watch = ResourceMeter(powercap=tmp_path)
    assert watch.note is None
    with watch.watch() as reading:
        rapl(tmp_path, p0=3_000_000, p1=500_000)
    assert reading.joules == pytest.approx(2.0 + 1.5)


def test_a_machine_that_tells_no_energy_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = ResourceMeter(powercap=tmp_path / "nowhere")
    assert silent.note is not None
    assert "no RAPL counter" in silent.note
    with silent.watch() as reading:
        pass
    assert reading.joules is None
    monkeypatch.setattr(resources, "NVML", "libnothing.so.0")
    assert (
        ResourceMeter("cuda:0").note == "libnothing.so.0 is missing, which reports the GPU's energy"
    )


def test_the_peak_is_that_of_the_run() -> None:
    watch = ResourceMeter()
    with watch.watch() as small:
        pass
    with watch.watch() as large:
        # far more than the rest of a long test run may free meanwhile; mapped by itself, because
        # memory that is freed to the allocator may stay resident
        block = mmap.mmap(-1, 256 << 20)
        block[::4096] = b"x" * len(block[::4096])
    if small.memory is None or large.memory is None:
        pytest.skip("the system does not let a process forget its peak")
    assert large.memory - small.memory > 200 << 20
    block.close()
    with watch.watch() as after:
        pass
    assert after.memory is not None
    assert after.memory < large.memory


# -------------------------------------------------------------------------------------- command
def test_what_one_setting_taught_is_forgotten_before_the_next() -> None:
    contest = BenchRunner(
        {"suffix": RecipeContender(engine("suffix"))},
        Sampling(max_tokens=24),
        Journal(),
        ResourceMeter(),
    )
    contest.contenders = {"plain": RecipeContender(engine("plain")), **contest.contenders}
    warm_up = ConversationTurn(
        BenchPrompt("w", "", "", RandomPrompt(9, 16)), 0, RandomPrompt(9, 16).tokens(5), ""
    )
    points = [SweepPoint(batch=1), SweepPoint(batch=2)]
    contest.run(
        {
            point: [Conversation(prompt, TOY.info, None) for prompt in gather("random", limit=2)]
            for point in points
        },
        warm_up,
    )
    first, second = (
        [stage.runs["suffix"][item.name] for item in stage.asked] for stage in contest.stages
    )
    assert [run.tokens for run in first] == [run.tokens for run in second]
    assert second[0].accepted == first[0].accepted  # it would have known the text by heart
    with_memory = decode(
        contest.contenders["suffix"].engine,  # type: ignore[attr-defined]
        contest.stages[0].asked[0].tokens,
        contest.sampling,
    )
    assert with_memory.accepted > first[0].accepted


def test_the_command_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(options.ModelChoice, "open", lambda self, progress: LLM(TOY, "plain"))
    path = tmp_path / "sweep.json"
    given = ["--suite", "random", "--limit", "3", "--max-tokens", "6", "--json", str(path)]
    swept = ["--temperature", "0,1", "--context", "40,80", "--batch", "1,2"]
    assert main(["bench", "--recipes", "pld", *given, *swept]) == 0
    rows = [row for row in json.loads(path.read_text())["rows"] if row["category"] == "all"]
    settings = {(row["temperature"], row["context"], row["batch"]) for row in rows}
    assert len(settings) == 8
    assert len(rows) == 16
    for row in rows:
        assert row["identical"] == row["prompts"] == 3
        assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
        assert row["regret"] is not None
    assert "temperature 1, context 80, batch 2" in " ".join(capsys.readouterr().out.split())
