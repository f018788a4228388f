"""Training survives kills, stops, full disks, and keeps to its minutes."""

import json
import multiprocessing
import os
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from sapwood.backends.torch.load import load
from sapwood.cli.main import main
from sapwood.cli.progress import ProgressBars
from sapwood.heads import files
from sapwood.train import loop, registry
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings
from sapwood.train.teacher import Teacher
from tests.helpers.train_runs import (
    FEW_STEPS,
    FULL,
    HEAD,
    MEDUSA,
    TOKENS,
    Place,
    asked,
    hurry,
    same,
    sentence,
    stopped,
)

pytestmark = pytest.mark.usefixtures("quick_training")


def die(where: str, arguments: list[str], cache: str) -> None:
    """Run the command in a process that is killed on the way."""
    os.environ["SAPWOOD_CACHE"] = cache
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch, save=0.0)
        killing(where, patch)
        main(arguments)


def killing(where: str, patch: pytest.MonkeyPatch) -> None:
    """Kill this process between two steps, within a state's bytes, or while texts are made."""
    keep = loop.TrainingLoop._keep
    write = Path.write_bytes
    calls = count()

    def keep_some(self: loop.TrainingLoop) -> None:
        if self.notes.step == FEW_STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        keep(self)

    def write_half(self: Path, content: bytes) -> int:
        if next(calls) < 5:
            return write(self, content)
        write(self, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def tell(_: ProgressBars, pace: Any) -> None:
        if pace.done > TOKENS // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "steps":
        patch.setattr(loop.TrainingLoop, "_keep", keep_some)
    elif where == "state":
        patch.setattr(Path, "write_bytes", write_half)
    else:
        patch.setattr(ProgressBars, "data", tell)


@pytest.mark.parametrize("where", ["steps", "state", "texts"])
def test_a_killed_run_goes_on_to_the_same_end(
    where: str, short: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context(
        "forkserver"
    )  # which loads torch once for all that are killed
    context.set_forkserver_preload(["tests.helpers.train_runs"])
    data = tmp_path / "data" if where == "texts" else short.data
    out = tmp_path / "out"
    arguments = asked(short, "--steps", str(FEW_STEPS), "--out", str(out), data=data)
    process = context.Process(target=die, args=(where, arguments, os.environ["SAPWOOD_CACHE"]))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / HEAD).exists()
    assert (out / "state.safetensors").exists() == (where != "texts")
    assert main(arguments) == 0
    assert same(out, short.whole)
    capsys.readouterr()
    if where == "texts":
        for ours in short.data.iterdir():
            assert (data / ours.name).read_bytes() == ours.read_bytes()


@pytest.mark.parametrize(
    ("stage", "number"),
    [("steps", signal.SIGTERM), ("steps", signal.SIGINT), ("data", signal.SIGTERM)],
)
def test_a_run_that_is_asked_to_stop_keeps_its_state(
    stage: str,
    number: signal.Signals,
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data" if stage == "data" else short.data
    out = tmp_path / "out"
    arguments = asked(short, "--steps", str(FEW_STEPS), "--out", str(out), data=data)
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(ProgressBars, stage, lambda *_: os.kill(os.getpid(), number))
        said = sentence(capsys, arguments)
    assert said.endswith("; run the same command again to go on")
    assert (
        f"stopped after step 1 of {FEW_STEPS}" if stage == "steps" else "writing its texts"
    ) in said
    assert signal.getsignal(number) is before
    assert (out / "state.safetensors").exists() == (stage == "steps")
    assert main(arguments) == 0
    assert same(out, short.whole)


def test_a_run_planned_from_time_keeps_its_plan_after_a_stop(
    short: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at any step, before or after the plan is made, it ends with a plan and all its steps."""
    monkeypatch.setattr(loop, "EARLY", 1.0)  # not before PROBE steps
    monkeypatch.setattr(loop, "LATE", 100.0)  # and never shortened
    objective = registry.objective(MEDUSA)
    settings = LoopSettings(seconds=0.2, tokens=256)
    texts = Corpus.open(short.data)
    teacher = Teacher(load(str(short.model), device="cpu")[0])

    def run(state: Path, last: int | None = None) -> loop.RunState:
        ticks = count()
        made = loop.TrainingLoop(
            objective, teacher, texts, settings, state, now=lambda: next(ticks) * 1e-3
        )
        made.asked_to_stop = lambda: made.notes.step == last
        return made.run()[1]

    whole = run(tmp_path / "whole")
    for last in (5, loop.PROBE - 1, loop.PROBE, loop.PROBE + 7):
        state = tmp_path / str(last)
        with pytest.raises(loop.TrainingStopped):
            run(state, last)
        plan = loop.remembered(state).plan
        assert (plan is None) == (last < loop.PROBE)
        notes = run(state)
        assert notes.step == notes.plan == (plan or notes.plan)
        assert notes.plan == pytest.approx(whole.plan, rel=0.3)
        assert notes.curve[-1].step == notes.step


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("what", ["state", "shard", "head", "page", "picture"])
def test_a_full_disk_loses_nothing(
    what: str,
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hurry(monkeypatch, save=0.0)
    data = tmp_path / "data" if what == "shard" else short.data
    out = tmp_path / "out"
    full = {
        "state": out / "state.safetensors.new",
        "shard": data / "shard-00000.part",
        "head": out / f".{HEAD}.{os.getpid()}.new",
        "page": out / "training.md.new",
        "picture": out / "training.png.new",
    }[what]
    full.parent.mkdir()
    arguments = asked(short, "--steps", str(FEW_STEPS), "--out", str(out), data=data)
    if what == "state":  # a state was saved before
        stopped(short, out, monkeypatch, capsys)
    if what == "head":  # another head was trained before
        older: Any = files.load(short.whole)
        torch.nn.init.zeros_(older.fc.weight)
        files.save(older, out)
    kept = {path: path.read_bytes() for path in out.iterdir()} if out.exists() else {}
    assert bool(kept) == (what in ("state", "head"))
    full.symlink_to(FULL)
    said = sentence(capsys, arguments)
    assert "full" in said or "No space left" in said or "no room" in said
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert not full.is_symlink()
    assert (out / "state.safetensors").exists() == (what != "shard")
    assert main(arguments) == 0
    assert same(out, short.whole)
    assert not (out / "state.safetensors").exists()


def test_minutes_are_kept_roughly(short: Place, tmp_path: Path) -> None:
    begin = time.monotonic()
    arguments = [
        word
        for word in asked(short, data=tmp_path / "data")
        if word not in ("--tokens", str(TOKENS))
    ]
    assert main([*arguments, "--minutes", "0.1", "--out", str(tmp_path / "out")]) == 0
    assert time.monotonic() - begin < 18
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["steps"] > loop.PROBE // 3  # more on a machine that does nothing else
