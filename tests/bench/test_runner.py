"""Everything that is run: in turn, warmed up once, from the journal where it is there, without those that fail."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sapwood.bench.conversations import Conversation, ConversationTurn
from sapwood.bench.journal import Journal
from sapwood.bench.measure import BenchRun
from sapwood.bench.resources import ResourceUse
from sapwood.bench.runner import BenchRunner, BenchSetting, Contender, groups, turn_name
from sapwood.bench.suites import BenchPrompt
from sapwood.bench.sweep import SweepPoint
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from tests.helpers import byte_tokenizer

TEXT = byte_tokenizer.text()
INFO = BackendInfo("toy", "toy", TEXT.size, 300)
WARM = ConversationTurn(BenchPrompt("warm-up", "", "", "x"), 0, [1], "x")
Log = list[tuple[str, tuple[str, ...], int, float]]  # who, turns asked, most tokens, temperature


@dataclass
class Fake:
    """A contender that writes down what it is asked; it fails at a turn of the name `fails`."""

    name: str
    log: Log
    fails: str = ""
    greedy: bool = False  # takes no temperature
    born: int = 0  # how often it was made afresh
    memory: int | None = None

    def takes(self, point: SweepPoint) -> str | None:
        return "too hot" if self.greedy and point.temperature else None

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        names = tuple(turn.name for turn in asked)
        self.log.append((self.name, names, sampling.max_tokens, sampling.temperature))
        if self.fails in names:
            raise SapwoodError("out of luck")
        said = [TEXT.encode(f"{self.name}{turn.turn}", whole=False) for turn in asked]
        return [BenchRun(tokens=tokens, memory=self.memory) for tokens in said]

    def fresh(self) -> "Fake":
        return Fake(self.name, self.log, self.fails, self.greedy, self.born + 1, self.memory)


@dataclass
class Gauges:
    """Instruments that show the same every time."""

    joules: float | None = 6.0
    watched: int = 0

    @contextmanager
    def watch(self) -> Any:
        self.watched += 1
        use = ResourceUse()
        yield use
        use.memory = 500
        use.joules = self.joules


@dataclass
class Bench:
    """A runner of fakes."""

    log: Log = field(default_factory=list)
    ticks: list[int] = field(default_factory=list)
    dropped: list[tuple[str, str]] = field(default_factory=list)
    gauges: Gauges = field(default_factory=Gauges)

    def runner(self, *fakes: Fake, journal: Journal | None = None, most: int = 20) -> BenchRunner:
        made: dict[str, Contender] = {one.name: one for one in fakes}
        gauges: Any = self.gauges
        return BenchRunner(
            made,
            Sampling(max_tokens=most),
            journal or Journal(),
            gauges,
            self.ticks.append,
            lambda name, error: self.dropped.append((name, str(error))),
        )

    def fake(self, name: str, **options: Any) -> Fake:
        return Fake(name, self.log, **options)


def talks(*names: str, turns: int = 1) -> list[Conversation]:
    later = tuple(f"turn {number}" for number in range(2, turns + 1))
    return [Conversation(BenchPrompt(name, "c", "c", name, later), INFO, TEXT) for name in names]


# ------------------------------------------------------------------------------------------ order
def test_all_are_warmed_up_and_then_take_turns() -> None:
    bench = Bench()
    runner = bench.runner(*map(bench.fake, ("plain", "a", "b")))
    runner.run({SweepPoint(): talks("p", "q", "r", "s")}, WARM)
    assert bench.log[:3] == [(name, ("warm-up",), 16, 0.0) for name in ("plain", "a", "b")]
    order = [(who, names[0]) for who, names, _, _ in bench.log[3:]]
    assert order == [
        *(("plain", "p"), ("a", "p"), ("b", "p")),
        *(("a", "q"), ("b", "q"), ("plain", "q")),
        *(("b", "r"), ("plain", "r"), ("a", "r")),
        *(("plain", "s"), ("a", "s"), ("b", "s")),
    ]
    assert {most for _, _, most, _ in bench.log[3:]} == {20}
    assert bench.ticks == [15] * 15
    assert bench.gauges.watched == 15


def test_each_setting_ends_when_its_share_of_the_time_is_over() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a"))
    asked: list[float] = []

    def over(share: float) -> bool:
        asked.append(share)
        return len(asked) > 1

    runner.over = over
    points = [SweepPoint(), SweepPoint(temperature=1.0)]
    runner.run({point: talks("p", "q", "r") for point in points}, WARM)
    # the first prompt of a setting always runs
    assert [[turn.name for turn in stage.asked] for stage in runner.stages] == [["p", "q"], ["p"]]
    assert asked == [0.5, 0.5, 1.0]


def test_warm_ups_are_no_longer_than_runs() -> None:
    bench = Bench()
    bench.runner(bench.fake("plain"), most=3).run({SweepPoint(): talks("p")}, WARM)
    assert [most for _, _, most, _ in bench.log] == [3, 3]


def test_several_share_a_pass() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a"))
    runner.run({SweepPoint(batch=2): talks("p", "q", "r")}, WARM)
    asked = [names for who, names, _, _ in bench.log if who == "a"]
    assert asked == [("warm-up",), ("p", "q"), ("r",)]
    [stage] = runner.stages
    assert list(stage.runs["a"]) == ["p", "q", "r"]
    assert [run.joules for run in stage.runs["a"].values()] == [3.0, 3.0, 6.0]


def test_every_setting_begins_without_memories_and_with_its_own_temperature() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a"))
    points = [SweepPoint(), SweepPoint(0.5), SweepPoint(1.0)]
    runner.run({point: talks("p") for point in points}, WARM)
    found: Any = runner.contenders
    assert {name: one.born for name, one in found.items()} == {"plain": 2, "a": 2}
    assert [heat for _, names, _, heat in bench.log if names == ("p",)] == [0.0] * 2 + [0.5] * 2 + [
        1.0
    ] * 2
    assert sum(names == ("warm-up",) for _, names, _, _ in bench.log) == 2
    assert [stage.point for stage in runner.stages] == points


# ------------------------------------------------------------------------------------------ turns
def test_the_history_of_all_is_plain_decodings() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a"))
    [talk] = some = talks("p", turns=3)
    runner.run({SweepPoint(): some}, WARM)
    assert talk.answers == ["plain0", "plain1", "plain2"]
    [stage] = runner.stages
    assert [turn.name for turn in stage.asked] == ["p", "p#2", "p#3"]
    assert "plain0" in stage.asked[1].text
    assert "a0" not in stage.asked[1].text.replace("plain0", "")
    order = [who for who, names, _, _ in bench.log if names != ("warm-up",)]
    assert order == ["plain", "a", "a", "plain", "plain", "a"]  # it rotates with the turns too


def test_a_talk_that_is_full_leaves_the_others_of_its_group() -> None:
    bench = Bench()
    some = talks("p", "q", turns=2)
    some[0].info = BackendInfo("toy", "toy", TEXT.size, 8)
    runner = bench.runner(bench.fake("plain"))
    runner.run({SweepPoint(batch=2): some}, WARM)
    assert [names for _, names, _, _ in bench.log] == [("warm-up",), ("p", "q"), ("q#2",)]


def test_a_group_that_is_full_is_over() -> None:
    bench = Bench()
    some = talks("p", turns=3)
    some[0].info = BackendInfo("toy", "toy", TEXT.size, 8)
    runner = bench.runner(bench.fake("plain"))
    runner.run({SweepPoint(): some}, WARM)
    assert [turn.name for turn in runner.stages[0].asked] == ["p"]


# --------------------------------------------------------------------------------------- failures
def test_one_that_fails_is_left_out_from_then_on() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a", fails="q"), bench.fake("b"))
    runner.run({SweepPoint(): talks("p", "q", "r")}, WARM)
    assert bench.dropped == [("a", "out of luck")]
    assert list(runner.contenders) == ["plain", "b"]
    [stage] = runner.stages
    assert list(stage.runs["a"]) == ["p"]
    assert list(stage.runs["b"]) == ["p", "q", "r"]
    assert [turn.name for turn in stage.complete(["plain", "b"])] == ["p", "q", "r"]
    assert [turn.name for turn in stage.complete(["plain", "a"])] == ["p"]


def test_one_that_fails_while_it_is_warmed_up_is_never_asked() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("a", fails="warm-up"))
    runner.run({SweepPoint(): talks("p")}, WARM)
    assert bench.dropped == [("a", "out of luck")]
    assert "a" not in runner.stages[0].runs
    assert [who for who, _, _, _ in bench.log].count("a") == 1


def test_what_takes_no_temperature_stays_out_of_that_setting() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("peer", greedy=True))
    runner.run({SweepPoint(): talks("p"), SweepPoint(1.0): talks("p")}, WARM)
    assert [list(stage.runs) for stage in runner.stages] == [["plain", "peer"], ["plain"]]
    assert bench.ticks == [5] * 5  # two warm-ups, and three runs


def test_a_peers_own_memory_counts_before_ours() -> None:
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), bench.fake("peer", memory=9))
    bench.gauges.joules = None
    runner.run({SweepPoint(): talks("p")}, WARM)
    runs = {name: some["p"] for name, some in runner.stages[0].runs.items()}
    assert {name: run.memory for name, run in runs.items()} == {"plain": 500, "peer": 9}
    assert {run.joules for run in runs.values()} == {None}


# ---------------------------------------------------------------------------------------- journal
def test_what_is_written_down_is_not_run_again() -> None:
    journal = Journal()
    first = Bench()
    first.runner(first.fake("plain"), first.fake("a"), journal=journal).run(
        {SweepPoint(): talks("p", "q", turns=2)}, WARM
    )
    second = Bench()
    runner = second.runner(second.fake("plain"), second.fake("a"), journal=journal)
    runner.run({SweepPoint(): talks("p", "q", turns=2)}, WARM)
    assert second.log == []
    assert second.ticks == []
    assert runner.total == 0
    assert [turn.name for turn in runner.stages[0].asked] == ["p", "p#2", "q", "q#2"]
    assert len(runner.stages[0].runs["a"]) == 4


def test_what_is_missing_is_run_with_a_warm_up() -> None:
    journal = Journal()
    first = Bench()
    first.runner(first.fake("plain"), journal=journal).run({SweepPoint(): talks("p", "q")}, WARM)
    second = Bench()
    runner = second.runner(second.fake("plain"), second.fake("a"), journal=journal)
    runner.run({SweepPoint(): talks("p", "q")}, WARM)
    asked = [(who, names[0]) for who, names, _, _ in second.log]
    assert asked == [("plain", "warm-up"), ("a", "warm-up"), ("a", "p"), ("a", "q")]
    assert second.ticks == [4] * 4


def test_a_group_is_run_whole_where_one_of_it_is_missing() -> None:
    journal = Journal()
    journal.add((SweepPoint(batch=2), "p", "plain"), BenchRun(tokens=[65]))
    bench = Bench()
    runner = bench.runner(bench.fake("plain"), journal=journal)
    runner.run({SweepPoint(batch=2): talks("p", "q")}, WARM)
    assert [names for _, names, _, _ in bench.log] == [("warm-up",), ("p", "q")]
    assert runner.total == 2


def test_an_interrupted_run_keeps_what_it_has() -> None:
    bench = Bench()
    journal = Journal()
    runner = bench.runner(bench.fake("plain"), bench.fake("a"), journal=journal)

    def stop(runs: int) -> None:
        if len(bench.log) == 5:
            raise KeyboardInterrupt

    runner.tick = stop
    with pytest.raises(KeyboardInterrupt):
        runner.run({SweepPoint(): talks("p", "q")}, WARM)
    assert [key[1:] for key in journal.done] == [("p", "plain"), ("p", "a")]
    [stage] = runner.stages
    assert [turn.name for turn in stage.complete(["plain", "a"])] == ["p"]


# -------------------------------------------------------------------------------------- the parts
def test_groups_are_of_one_size_but_the_last() -> None:
    some = talks("a", "b", "c", "d", "e")
    assert [[talk.prompt.name for talk in group] for group in groups(some, 2)] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert [turn_name(some[0], turn) for turn in (0, 1)] == ["a", "a#2"]


def test_a_turn_is_complete_where_all_have_answered() -> None:
    asked = [ConversationTurn(BenchPrompt(name, "", "", ""), 0, [], "") for name in "xyz"]
    runs = {"a": {"x": BenchRun(), "z": BenchRun()}, "b": {"z": BenchRun(), "y": BenchRun()}}
    stage = BenchSetting(SweepPoint(), asked, runs)
    assert [turn.name for turn in stage.complete(["a", "b"])] == ["z"]
    assert [turn.name for turn in stage.complete(["a"])] == ["x", "z"]
    assert stage.complete(["a", "c"]) == []
    assert stage.complete([]) == asked
