"""`sapwood train`: what it leaves behind, what it survives, and what it refuses."""

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sapwood.backends.torch.load import load
from sapwood.cli.main import main
from sapwood.common import drafter_store
from sapwood.heads import files
from sapwood.heads.target_info import TargetInfo
from sapwood.llm import LLM
from sapwood.train import loop, registry
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings
from sapwood.train.teacher import Teacher
from tests.helpers.train_runs import (
    CONFIG,
    EAGLE3,
    HEAD,
    LETTERS,
    MEDUSA,
    STEPS,
    TOKENS,
    Place,
    asked,
    same,
    sentence,
)

pytestmark = pytest.mark.usefixtures("quick_training")


# ----------------------------------------------------------------------------------- what it leaves
def test_a_trained_head_is_found_and_keeps_the_text(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(place, "--steps", str(STEPS), "--json")) == 0
    [record] = json.loads(capsys.readouterr().out)["trained"]
    home = Path(record["out"])
    assert tmp_path / "cache" in home.parents
    assert sorted(path.name for path in home.iterdir()) == sorted(
        [CONFIG, HEAD, "target.json", "training.json", "training.md", "training.png"]
    )
    assert (home / "training.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert same(home, place.whole)
    llms = [LLM(str(place.model), recipe=recipe, device="cpu") for recipe in ("plain", "eagle3")]
    plain, ours = (llm.generate("tell me", max_tokens=60) for llm in llms)
    assert ours.tokens == plain.tokens
    assert LETTERS[:50] in plain.text
    assert ours.stats.passes < 0.7 * plain.stats.passes


def test_the_loss_falls_and_agreement_rises(place: Place) -> None:
    record = json.loads((place.whole / "training.json").read_text())
    first, *_, last = record["curve"]
    assert len(record["curve"]) == 20
    assert last["step"] == record["steps"] == STEPS
    assert last["loss"] < first["loss"] / 2
    assert max(first["agreement"]) < 0.1
    assert min(last["agreement"]) > 0.3
    page = (place.whole / "training.md").read_text()
    assert page.count("| steps |") == 1
    assert f"{last['loss']:.3f} at the end" in page
    assert record["facts"]["answer_tokens"] == Corpus.open(place.data).written >= TOKENS


def test_a_run_may_begin_from_an_earlier_head(place: Place, tmp_path: Path) -> None:
    began = f"eagle3(start='{place.whole}', unroll=3, rate=0.0001, matrix_rate=0.0001)"
    assert main(asked(place, "--steps", "5", "--out", str(tmp_path / "on"), teach=(began,))) == 0
    before, after = (
        json.loads((home / "training.json").read_text()) for home in (place.whole, tmp_path / "on")
    )
    assert after["curve"][0]["loss"] < 1.2 * before["curve"][-1]["loss"]
    assert after["facts"]["draft_vocabulary"] == before["facts"]["draft_vocabulary"] == 200
    one, other = (files.load(home).state_dict() for home in (place.whole, tmp_path / "on"))
    assert torch.equal(one["d2t"], other["d2t"])
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


def test_a_run_begins_from_no_head_that_does_not_fit(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(drafter_store.SHIPPED) / "smollm2"
    for start, said in (
        (tmp_path, "config.json"),
        (shipped / "medusa", "holds another kind of head; name the folder of a trained eagle3"),
        (shipped / "eagle3", "was made for another model; begin anew without it"),
    ):
        teach = (f"eagle3(start='{start}')",)
        assert said in sentence(
            capsys, asked(place, "--steps", "1", "--out", str(tmp_path / "out"), teach=teach)
        )


def test_several_at_once_are_as_each_would_be_alone(place: Place, tmp_path: Path) -> None:
    several = (EAGLE3, MEDUSA)
    assert (
        main(asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "both"), teach=several))
        == 0
    )
    assert (
        main(asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "alone"), teach=(MEDUSA,)))
        == 0
    )
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["eagle3", "medusa"]
    for ours, theirs in (("eagle3", place.whole), ("medusa", tmp_path / "alone")):
        mine = tmp_path / "both" / ours
        assert (mine / HEAD).read_bytes() == (theirs / HEAD).read_bytes()
        curves = [
            json.loads((home / "training.json").read_text())["curve"] for home in (mine, theirs)
        ]
        for key in ("step", "tokens", "loss", "agreement"):
            assert [point[key] for point in curves[0]] == [point[key] for point in curves[1]]


def test_every_kind_is_written_as_it_is_read(place: Place, tmp_path: Path) -> None:
    several = (
        EAGLE3,
        "eagle",
        MEDUSA,
        "hydra",
        "early-exit",
        "parallel",
        "recurrent",
        "clover(inner=24)",
        "amphista(inner=24)",
        "gumiho(inner=24, narrow=16)",
        "ctc(inner=24)",
        "hidden-transfer",
        "falcon",
        "moa(depth=2)",
        "glide(depth=2)",
        "cerberus(heads=2)",
        "owl(unroll=2)",
        "draft-model(width=24)",
    )
    assert main(asked(place, "--steps", "3", "--out", str(tmp_path / "all"), teach=several)) == 0
    facts = TargetInfo.of(json.loads((place.model / CONFIG).read_text()), str(place.model))
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == sorted(re.sub(r"\(.*", "", kind) for kind in several)
    for name in names:
        home = tmp_path / "all" / name
        again = tmp_path / "again" / name
        assert not (home / "state.safetensors").exists()
        if name == "draft-model":
            continue
        found = files.read(home)
        files.save(found.head, again, found.about, facts=facts)
        assert same(again, home), name


def test_a_draft_model_is_a_model(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "draft"
    assert (
        main(asked(place, "--steps", "2", "--out", str(out), teach=("draft-model(width=24)",))) == 0
    )
    auto: Any = AutoModelForCausalLM
    one = auto.from_pretrained(out, dtype=torch.float32).eval()
    one.save_pretrained(tmp_path / "again")
    two = auto.from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
    tokens = torch.tensor([[256, 258, 5, 6, 7]])
    with torch.inference_mode():
        logits = one(input_ids=tokens).logits
        assert logits.std() > 0.1
        assert torch.equal(logits, two(input_ids=tokens).logits)
    capsys.readouterr()
    recipe = f"draft-model(model='{out}') + chain + match + fixed(nodes=4, depth=4, width=1)"
    assert (
        main(
            [
                "run",
                "tell me",
                "--model",
                str(place.model),
                "--recipe",
                recipe,
                "--max-tokens",
                "20",
            ]
        )
        == 0
    )
    drafted = capsys.readouterr().out
    assert (
        main(
            [
                "run",
                "tell me",
                "--model",
                str(place.model),
                "--recipe",
                "plain",
                "--max-tokens",
                "20",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == drafted


# --------------------------------------------------------------------------------- what it survives


# ---------------------------------------------------------------------------------- what it refuses


# ------------------------------------------------------------------------------ what one sees of it
def test_a_log_tells_how_far_it_is(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sapwood.cli.progress.EVERY_S", 0.0)
    arguments = asked(
        place, "--steps", "20", "--out", str(tmp_path / "out"), data=tmp_path / "data"
    )
    capsys.readouterr()
    assert main(arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("sapwood: ") for line in lines), lines
    paced = r"[\d,]+ tokens/s, \d+\.\d min left"
    assert any(
        re.fullmatch(rf"sapwood: training data: [\d,]+ of {TOKENS:,} tokens, {paced}", line)
        for line in lines
    )
    steps = [line for line in lines if " of 20 steps, " in line]
    assert len(steps) == 20
    for number, line in enumerate(steps, 1):
        assert re.fullmatch(
            rf"sapwood: training: {number} of 20 steps, [\d,]+ tokens, {paced}, loss [\d.]+, "
            r"agreement( [\d.]+)+, [\d.]+ tokens per pass, about [\d.]+x expected",
            line,
        ), line


def test_slow_steps_are_told_between_points(place: Place, tmp_path: Path) -> None:
    texts = Corpus.open(place.data)
    teacher = Teacher(load(str(place.model), device="cpu")[0])
    ticks = count()
    told = list[tuple[int, int]]()
    settings = LoopSettings(steps=200, tokens=256, log=10, tell=3.0)

    def tell(notes: loop.RunState) -> None:
        told.append((notes.step, notes.curve[-1].step))

    made = loop.TrainingLoop(
        registry.objective(MEDUSA),
        teacher,
        texts,
        settings,
        tmp_path / "state",
        tell,
        now=lambda: next(ticks),
    )
    notes = made.run()[1]
    assert [point.step for point in notes.curve] == list(range(10, 201, 10))
    assert all(step == newest for step, newest in told)
    assert len(told) > 2 * len(notes.curve)


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    for option in (
        "minutes",
        "steps",
        "prompts",
        "tokens",
        "data",
        "out",
        "seed",
        "device",
        "dtype",
        "threads",
    ):
        assert f"--{option}" in said
    assert "eagle3" in said
