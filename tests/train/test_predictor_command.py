"""Predictors from the command line: recorded, fitted, stopped, gone on with, refused in one sentence."""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.cli.main import main
from sapwood.common import drafter_store
from sapwood.common.numpy_mlp import MlpBundle, load, random_mlp
from sapwood.engine.loop import Engine
from sapwood.heads import files
from sapwood.heads.eagle3 import Eagle3Config
from sapwood.heads.layers import LayerShape
from sapwood.train import rounds
from sapwood.train.fit_mlp import forward
from sapwood.train.job import JobObserver, TrainJob
from sapwood.train.loop import TrainingStopped
from sapwood.train.predictor_table import PREDICTOR_KINDS
from sapwood.train.predictors import recordings, run
from sapwood.train.registry import PREDICTORS
from tests.helpers import byte_tokenizer, head_folders
from tests.helpers.byte_model import save_byte_model

CONFIG = Eagle3Config(
    LayerShape(32, 4, 2, 8, 48, 1e-5, 50_000.0), 32, byte_tokenizer.SIZE, 130, (0, 1, 2), 128
)
ASKED = ("hello", "what is it?", "a b c", "sing", "12 + 7", "once more")
RECIPES = {
    "ldlp": "eagle3 + chain + match + ldlp(nodes=8, width=1)"
}  # the others by the name of their kind
SMALL = "prompts=4, tokens=20"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a two-layer model and a tokenizer of bytes."""
    folder: Path = tmp_path_factory.mktemp("model")
    save_byte_model(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def cache(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a random EAGLE-3 head for the model and six prompts."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    files.save(head_folders.make(CONFIG), drafter_store.home("eagle3", model))
    lines = [json.dumps({"prompt": asked}) for asked in ASKED]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that are decoded."""
    found: list[list[int]] = []
    plays = rounds.play

    def play(engine: Engine, prompt: Sequence[int], *others: Any) -> Iterator[Any]:
        found.append(list(prompt))
        return plays(engine, prompt, *others)

    monkeypatch.setattr(rounds, "play", play)
    return found


def job(cache: Path, model: str, *kinds: str, **options: Any) -> TrainJob:
    return TrainJob(
        kinds, model, **{"prompts": cache / "prompts.jsonl", "device": "cpu", **options}
    )


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


# --------------------------------------------------------------------------------- the whole way
@pytest.mark.parametrize("kind", PREDICTOR_KINDS)
def test_every_predictor_is_fitted_and_found_by_its_recipe(
    kind: str, model: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spelling = f"{kind}(drafter=eagle3, {SMALL})"
    common = ["--model", model, "--device", "cpu", "--json"]
    found = record(
        capsys,
        "train",
        spelling,
        *common,
        "--prompts",
        str(cache / "prompts.jsonl"),
        "--minutes",
        "1",
    )
    [one] = found["trained"]
    home = Path(one["out"])
    assert home == drafter_store.home(kind, model)
    assert (one["kind"], one["prompts"], one["spelling"]) == (kind, 4, spelling)
    report = json.loads((home / "training.json").read_text())["report"]
    assert report["after"] == one["loss"]
    assert report["rows"] > 0 < report["held"]
    page = (home / "training.md").read_text()
    assert f"| loss of the best constant prediction | {report['before']:.4f} |" in page
    assert f"| recipe | {one['recipe']} |" in page
    assert load("", kind, model).facts["about"]["seed"] == 0
    assert not list(
        recordings(job(cache, model, kind)).iterdir()
    )  # a recording that was fitted on is let go
    asked = ["run", "hello", *common, "--max-tokens", "16", "--recipe"]
    spoken = record(capsys, *asked, RECIPES.get(kind, kind))
    if kind != "judge":
        assert spoken["text"] == record(capsys, *asked, "plain")["text"]


def test_without_a_file_the_model_asks_itself(
    model: str, cache: Path, capsys: pytest.CaptureFixture[str], played: list[list[int]]
) -> None:
    arguments = [
        "train",
        "c2t(prompts=3, tokens=4)",
        "--model",
        model,
        "--device",
        "cpu",
        "--tokens",
        "40",
    ]
    assert main(arguments) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"c2t for {model}: ")
    assert "rows of 3 prompts in 0." in line
    assert len(played) == 3
    opening = byte_tokenizer.tokenizer().encode("<bos><user>").ids
    assert all(prompt[: len(opening)] == opening for prompt in played)
    [corpus] = (cache / "corpora").iterdir()
    before = head_folders.content(corpus)
    assert main(arguments) == 0
    assert head_folders.content(corpus) == before  # large enough as it is
    assert played[3:] == played[:3]


def test_little_time_is_enough_for_two_prompts(
    model: str, cache: Path, played: list[list[int]]
) -> None:
    [one] = run(job(cache, model, "c2t(tokens=6)", minutes=1e-6), JobObserver())
    assert one["prompts"] == len(played) == 2


def test_predictors_of_the_same_rounds_share_them(
    model: str, cache: Path, played: list[list[int]]
) -> None:
    found = run(
        job(cache, model, "c2t(tokens=6)", "ltd(tokens=6)", out=cache / "both"), JobObserver()
    )
    assert [one["out"] for one in found] == [str(cache / "both" / kind) for kind in ("c2t", "ltd")]
    assert len(played) == len(ASKED)
    assert found[0]["rows"] == found[1]["rows"]
    sizes = json.loads((cache / "both" / "ltd" / "config.json").read_text())["sizes"]
    assert sizes[-1] == 240  # trees are recorded as large as the recipe may check


def test_the_seed_chooses_and_orders_the_prompts(
    model: str, cache: Path, played: list[list[int]]
) -> None:
    for seed in (0, 0, 1):
        run(job(cache, model, "c2t(prompts=3, tokens=4)", seed=seed), JobObserver())
    assert played[:3] == played[3:6] != played[6:]


# ------------------------------------------------------------------------------------- stopping
@pytest.mark.parametrize("kind", ["c2t", "judge"])
def test_a_stopped_recording_goes_on(
    kind: str, model: str, cache: Path, played: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sapwood.train.judge.play", rounds.play)
    spelling = f"{kind}(prompts=5, tokens=16)"
    run(job(cache, model, spelling, out=cache / "whole"), JobObserver())
    order, played[:] = played[:], []
    for end in (2, 3):  # prompts when each sitting ends
        with pytest.raises(TrainingStopped, match="stopped while rounds were recorded"):
            run(
                job(cache, model, spelling, out=cache / "parts"),
                JobObserver(stop=partial(reached, played, end)),
            )
    assert played == order[:3]
    run(job(cache, model, spelling, out=cache / "parts"), JobObserver())
    assert played == order
    whole, parts = (load(str(cache / name), kind, model) for name in ("whole", "parts"))
    for name, net in whole.nets.items():
        assert np.array_equal(net(np.ones(net.width)), parts.nets[name](np.ones(net.width)))


def reached(played: list[list[int]], end: int) -> bool:
    return len(played) >= end


def test_a_signal_ends_the_command_with_one_sentence(
    model: str,
    cache: Path,
    played: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plays = rounds.play
    arguments = ["train", f"c2t({SMALL})", "--model", model, "--device", "cpu"]
    arguments += ["--prompts", str(cache / "prompts.jsonl")]

    def interrupted(*others: Any) -> Iterator[Any]:
        if len(played) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return plays(*others)

    monkeypatch.setattr(rounds, "play", interrupted)
    assert main(arguments) == 2
    assert (
        "stopped while rounds were recorded; run the same command again to go on"
        in capsys.readouterr().err
    )
    assert len(played) == 2  # the prompt in work is finished
    monkeypatch.setattr(rounds, "play", plays)
    assert main(arguments) == 0
    assert len(played) == 4


# --------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["c2t", "eagle3"],
            "c2t is fitted on rounds of a trained drafter; train eagle3 first, by itself",
        ),
        (["c3t"], "'c3t' cannot be trained; known: eagle3, "),
        (
            ["c2t(depth=3)"],
            "c2t has no option 'depth' in training; it has: drafter, prompts, tokens",
        ),
        (["c2t(prompts=1)"], "prompts=1 must be at least 2"),
        (["c2t(drafter=nobody)"], "unknown part 'nobody'"),
        (["c2t(drafter=beam)"], "names two parts of the family policy"),
        (
            ["ltd", "--steps", "5"],
            "--steps 5 is for drafters; ltd is fitted to its end, leave it out",
        ),
        (
            ["ltd", "ltd(tokens=8)"],
            "two of one kind would overwrite each other; train them apart, or give --out",
        ),
        (["ldlp"], "no trained eagle for "),
        ([f"specdec++(drafter=recycling, {SMALL})"], "no drafter states were recorded"),
        (
            ["c2t(tokens=125)"],
            "a fit needs at least 2 prompts of at most 3 tokens, and there are 0; give more with",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    arguments: list[str], message: str, model: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--model", model, "--device", "cpu", "--prompts", str(cache / "prompts.jsonl")]
    assert main(["train", *arguments, *common]) == 2
    [*_, line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_of_something_else_is_left_alone(
    model: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = drafter_store.home("eagle3", model)
    before = head_folders.content(head)
    common = [
        "--model",
        model,
        "--device",
        "cpu",
        "--prompts",
        str(cache / "prompts.jsonl"),
        "--out",
    ]
    assert main(["train", "c2t", *common, str(head)]) == 2
    assert (
        f"{head} already holds a config.json of something else; give another folder"
        in capsys.readouterr().err
    )
    assert head_folders.content(head) == before
    assert main(["train", "c2t", *common, str(cache / "prompts.jsonl" / "here")]) == 2
    assert (
        "prompts.jsonl is a file and holds no predictor; give a folder as --out"
        in capsys.readouterr().err
    )


def test_the_tables_agree() -> None:
    assert tuple(PREDICTOR_KINDS) == PREDICTORS


# ------------------------------------------------------------------------------- networks and files
def test_a_network_that_narrows_first_is_residual_after_that(tmp_path: Path) -> None:
    net = random_mlp([12, 5, 5, 2], 3, activation="silu", residual=True)
    net = replace(
        net,
        weights=[
            *net.weights[:-1],
            np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32),
        ],
    )
    inputs = np.random.default_rng(1).normal(size=(4, 12)).astype(np.float32)
    weights = [torch.from_numpy(value) for value in (*net.weights, *net.biases)]
    expected = forward(weights, torch.from_numpy(inputs), net).numpy()
    np.testing.assert_allclose(net(inputs), expected, rtol=1e-5, atol=1e-5)
    inner = inputs @ net.weights[0].T
    inner = inner / (1 + np.exp(-inner))
    after = inner @ net.weights[1].T
    by_hand = (inner + after / (1 + np.exp(-after))) @ net.weights[2].T
    np.testing.assert_allclose(net(inputs), by_hand, rtol=1e-4, atol=1e-5)
    MlpBundle("specdec++", {"head": net}).save(tmp_path)
    found = load(str(tmp_path), "specdec++", "any").nets["head"](inputs)
    np.testing.assert_allclose(found, by_hand, atol=2e-2)
    assert (
        tmp_path / drafter_store.WEIGHTS
    ).stat().st_mode & 0o044 == 0o044  # as readable as other files


@pytest.mark.parametrize("kind", PREDICTORS)
def test_what_is_shipped_can_be_read_and_names_no_place(kind: str) -> None:
    folder = drafter_store.SHIPPED / "smollm2" / kind
    assert load(str(folder), kind, "smollm2").facts["about"]["model"] == "smollm2"
    for path in folder.glob("training.*"):
        assert "/" not in path.read_text()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 800_000
