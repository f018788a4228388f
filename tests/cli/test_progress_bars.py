"""What long work says: lines in a log, bars on a terminal, one line about speculation, the tree of a round."""

import io
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sapwood.cli import main as cli
from sapwood.cli import progress, render
from sapwood.cli.main import fail, usage
from sapwood.cli.progress import ProgressBars
from sapwood.cli.render import StatusLine, brief, note, picture, watched, write
from sapwood.engine.outputs import Stats, Step, TokenText
from sapwood.train.corpus import DataProgress
from sapwood.train.loop import CurvePoint, RunState
from tests.helpers import byte_tokenizer
from tests.helpers.bench_records import outcome


def console(*, terminal: bool, width: int = 200) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> tuple[ProgressBars, list[float]]:
    """Bars that write into a log, and the clock they look at."""
    now = [1000.0]
    monkeypatch.setattr("sapwood.cli.progress.time.monotonic", lambda: now[0])
    bars = ProgressBars()
    bars.console = console(terminal=False)
    return bars, now


def run_state(step: int, plan: int | None) -> RunState:
    return RunState("r", plan, step, curve=[CurvePoint(step, 60.0, 6000, 1.25, [0.5, 0.25])])


# -------------------------------------------------------------------------------------------- logs
def test_a_log_is_told_now_and_then(log: tuple[ProgressBars, list[float]]) -> None:
    bars, now = log
    with bars:
        bars.steps(run_state(10, 40))
        now[0] += progress.EVERY_S - 1
        bars.steps(run_state(11, 40))
        now[0] += 1
        bars.steps(run_state(20, 40))
    assert shown(bars.console).splitlines() == [
        "sapwood: training: 10 of 40 steps, 6,000 tokens, 100 tokens/s, 3.0 min left, loss 1.250, "
        "agreement 0.50 0.25, 1.6 tokens per pass, about 1.0x expected",
        "sapwood: training: 20 of 40 steps, 6,000 tokens, 100 tokens/s, 1.0 min left, loss 1.250, "
        "agreement 0.50 0.25, 1.6 tokens per pass, about 1.0x expected",
    ]


def test_without_a_plan_nothing_is_left(log: tuple[ProgressBars, list[float]]) -> None:
    bars, _ = log
    bars.steps(run_state(10, None))
    assert shown(bars.console).startswith(
        "sapwood: training: 10 steps, 6,000 tokens, 100 tokens/s, loss 1.250"
    )


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            DataProgress(1500, 3000, 50.0, 30.0),
            "training data: 1,500 of 3,000 tokens, 50 tokens/s, 0.5 min left",
        ),
        (DataProgress(1500, None, 50.0, None), "training data: 1,500 tokens, 50 tokens/s"),
        (
            DataProgress(1500, None, 50.0, 0.0),
            "training data: 1,500 tokens, 50 tokens/s, finishing the last answers",
        ),
        (
            DataProgress(9, None, 0.0, 5.0, asked=70),
            "training data: 9 tokens, writing questions, 70 tokens",
        ),
    ],
)
def test_the_growth_of_a_corpus_is_told(
    told: DataProgress, line: str, log: tuple[ProgressBars, list[float]]
) -> None:
    bars, _ = log
    bars.data(told)
    assert shown(bars.console) == f"sapwood: {line}\n"


def test_a_remark_is_told_at_once(log: tuple[ProgressBars, list[float]]) -> None:
    bars, _ = log
    bars.say("[bold] begins")
    bars.data(DataProgress(9, None, 1.0, None, note="something odd"))
    assert shown(bars.console) == "sapwood: [bold] begins\nsapwood: something odd\n"


def test_a_terminal_has_one_bar_for_each_stage() -> None:
    bars = ProgressBars()
    bars.console = console(terminal=True)
    bars.data(DataProgress(5, 10, 1.0, 2.0))
    bars.data(DataProgress(7, 10, 1.0, 2.0))
    bars.steps(run_state(10, 40))
    found = [(task.description, task.completed, task.total) for task in bars.progress.tasks]
    assert found == [("training data", 7, 10), ("training", 10, 40)]
    assert bars.progress.tasks[1].fields["pace"].startswith("10 of 40 steps, 6,000 tokens")


# ------------------------------------------------------------------------------------------ status
def test_a_wait_is_told_once_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    class Timer:
        def __init__(self, seconds: float, call: Any, arguments: Any = ()) -> None:
            self.cancelled = False
            self.call = call
            self.arguments = arguments
            timers.append(self)

        def start(self) -> None:
            pass

        def cancel(self) -> None:
            self.cancelled = True

    monkeypatch.setattr(threading, "Timer", Timer)
    made = StatusLine(console(terminal=False))
    made.update("loading 1 of 9")
    made.update("loading 2 of 9")  # the same but for its numbers
    made.update("measuring")
    assert [timer.cancelled for timer in timers] == [True, True, False]
    assert [timer.arguments for timer in timers[1:]] == [["loading 1 of 9"], ["measuring"]]
    timers[-1].call(*timers[-1].arguments)
    assert shown(made.console) == "sapwood: measuring\n"


def test_quick_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with render.progress() as tell:
        tell("something that is over at once")
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------------------- words
STATS = Stats(4, 10, 2.5, 9, 6, 1 / 3, 0.5, 0.25, 1.0, 0.25, 2.0, 5.0, None)


def test_one_line_of_what_speculation_did() -> None:
    said = note(STATS, "auto")
    assert said.startswith("10 tokens in 4 passes · 2.50 tokens per pass · ")
    assert "prompt 0.50 s, draft 0.25 s, verify 1.00 s, other 0.25 s" in said
    assert said.endswith(" · auto")
    assert "plain decoding" not in said
    assert brief(STATS) == "2.50 tokens per pass"
    known = replace(STATS, speedup=1.75)
    assert " · 1.75x plain decoding · 5.0 tokens/s · " in note(known, "auto")
    assert brief(known) == "2.50 tokens per pass, 1.75x plain decoding"


def step(*pieces: tuple[str, bool]) -> Step:
    made = tuple(TokenText(at, text, drafted) for at, (text, drafted) in enumerate(pieces))
    return Step(made, outcome([0, 1, 0], (0, 1)))


def test_text_comes_as_it_is_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write(console(terminal=False), step(("a[b]", True), ("\n", False)))
    assert capsys.readouterr().out == "a[b]\n"


def test_accepted_guesses_are_coloured_on_a_terminal() -> None:
    made = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    write(made, step(("plain", False), ("guess", True)))
    assert shown(made) == "plain\x1b[32mguess\x1b[0m"


def test_the_tree_of_a_round_shows_path_refusals_and_the_targets_own_token() -> None:
    made = console(terminal=False)
    made.print(picture(step(("x", True)), None))
    assert [line.strip("│├└─ ") for line in shown(made).splitlines()] == [
        "10",
        "11 0.50",
        "12 0.50",
        "99",
        "13 0.50",
    ]
    spelled = console(terminal=False)
    spelled.print(picture(step(("x", True)), byte_tokenizer.text()))
    assert "'" in shown(spelled)


def test_a_watched_text_is_left_whole() -> None:
    made = console(terminal=True)
    steps = [step(("one ", False)), step(("two", True))]
    assert list(watched(iter(steps), None, made)) == steps
    assert shown(made).rstrip().endswith("one two")


# ------------------------------------------------------------------------------------------ errors
def test_a_failure_is_one_line_and_code_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("one\n  two   three") == 2
    assert capsys.readouterr().err == "sapwood: one two three\n"


def test_wrong_usage_names_the_value_that_the_parser_leaves_out() -> None:
    class Wrong(Exception):
        ctx: Any = SimpleNamespace(command_path="sapwood bench")
        param_hint = ""

        def format_message(self) -> str:
            return "Input should be a number."

    error = Wrong()
    assert usage(error) == "Input should be a number; see `sapwood bench --help`"
    cause: Any = Exception()
    cause.errors = lambda: [{"input": "six"}]
    error.__cause__ = cause
    assert usage(error) == "Input should be a number, not 'six'; see `sapwood bench --help`"
    cause.errors = lambda: [{"input": "six", "type": "float_parsing"}]
    error.param_hint = "--minutes"
    assert usage(error) == "--minutes must be a number, not 'six'; see `sapwood bench --help`"
    error.ctx = None
    assert usage(error).endswith("see `sapwood --help`")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left"), 2, "the system refused to read or write"),
        (MemoryError(), 2, "the memory is full; use a smaller model"),
        (type("OutOfMemoryError", (RuntimeError,), {})(), 2, "the memory is full"),
    ],
    ids=str,
)
def test_what_ends_a_command_decides_its_code(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "app", broken)
    assert cli.main(["methods"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == (1 if said else 0)


def test_an_error_of_ours_that_nobody_foresaw_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["methods"])


def test_a_closed_standard_output_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert cli.main(["methods"]) == 2
    assert "standard output is closed" in capsys.readouterr().err
