"""What can be trained by name, with which options, and where the results go."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.common.numpy_mlp import MlpBundle
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.spec_parser import read
from sapwood.train import job, predictors
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.fit_mlp import FitReport, FitResult
from sapwood.train.job import (
    JobObserver,
    TrainJob,
    asked,
    check_apart,
    data_of,
    homes_of,
    objectives_of,
)
from sapwood.train.loop import RunState, TrainingStopped
from sapwood.train.predictor_table import LEAST, PREDICTOR_KINDS, PredictorOptions
from sapwood.train.registry import OBJECTIVES, PREDICTORS, filled, objective, of_predictors
from tests.helpers.hidden_state_toy import random_net, random_part


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


# ------------------------------------------------------------------------------------------ names
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_every_drafter_has_a_course_of_its_name(kind: str) -> None:
    made = objective(kind)
    assert made.kind == kind
    assert 0 < made.rate <= made.matrix_rate < 1
    assert not of_predictors([kind])


def test_options_are_read_in_their_types() -> None:
    made = objective("eagle3(unroll=5, hard=0.1)")
    assert made == Eagle3Objective(unroll=5, hard=0.1)
    assert filled(
        PredictorOptions, read("c2t(drafter='recycling', prompts=9)")
    ) == PredictorOptions("recycling", 9)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("eagle9", "'eagle9' is no drafter that can be trained; known: eagle3, eagle, medusa"),
        ("c2t", "'c2t' is no drafter that can be trained"),
        ("eagle3(depth=5)", "eagle3 has no option 'depth' in training; it has: unroll, decay"),
        ("eagle3(unroll=two)", "unroll of eagle3"),
        ("eagle3(unroll=0)", "unroll=0 must be at least 1"),
        ("eagle3(hard=1.5)", "hard=1.5 must be from 0 to 1"),
        ("medusa(rate=2.0)", "rate=2.0 must be from 0 to 1"),
        ("hydra(matrix_rate=-1.0)", "matrix_rate=-1.0 must be from 0 to 1"),
    ],
)
def test_what_is_no_course_is_named(text: str, reason: str) -> None:
    with pytest.raises(SapwoodError) as caught:
        objective(text)
    assert reason in str(caught.value)


def test_drafters_and_predictors_are_trained_apart() -> None:
    assert of_predictors(["c2t", "judge"])
    assert not of_predictors(["eagle3", "medusa(heads=2)"])
    with pytest.raises(
        SapwoodError, match="c2t is fitted on rounds of a trained drafter; train eagle"
    ):
        of_predictors(["eagle3", "c2t"])
    with pytest.raises(
        SapwoodError, match=r"'nothing' cannot be trained; known: eagle3, .*, judge"
    ):
        of_predictors(["nothing"])


def test_every_predictor_names_a_recipe_to_record() -> None:
    assert set(PREDICTOR_KINDS) == set(PREDICTORS)
    for kind, study in PREDICTOR_KINDS.items():
        recipe = study.recipe(PredictorOptions(drafter="recycling"))
        assert str(recipe.drafter) == "recycling", kind
        assert str(study.recipe(PredictorOptions()).drafter) == study.drafter


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"prompts": 1}, f"prompts=1 must be at least {LEAST}"), ({"tokens": 0}, "tokens=0 must be")],
)
def test_too_little_to_record_is_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(SapwoodError, match=reason):
        PredictorOptions(**options)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- places
def test_one_drafter_goes_where_it_is_told_and_several_below(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert homes_of(TrainJob(("eagle3",), out=out), ["eagle3"]) == [out]
    assert homes_of(TrainJob((), out=out), ["eagle3", "medusa"]) == [out / "eagle3", out / "medusa"]
    assert homes_of(TrainJob((), out=out), ["eagle", "medusa", "eagle"]) == [
        out / "eagle-0",
        out / "medusa",
        out / "eagle-2",
    ]


def test_without_a_place_each_kind_has_its_own_in_the_cache(tmp_path: Path) -> None:
    homes = homes_of(TrainJob((), model="some/model"), ["eagle3", "medusa"])
    assert len(set(homes)) == 2
    assert all(tmp_path / "cache" in home.parents for home in homes)
    with pytest.raises(SapwoodError, match="two of one kind would overwrite each other"):
        check_apart(TrainJob(()), ["eagle3", "eagle3"])
    check_apart(TrainJob((), out=tmp_path), ["eagle3", "eagle3"])


def test_a_job_needs_a_kind() -> None:
    with pytest.raises(SapwoodError, match="name at least one kind to train, such as eagle3"):
        objectives_of(TrainJob(()))
    assert [one.kind for one in objectives_of(TrainJob(("eagle3", "medusa")))] == [
        "eagle3",
        "medusa",
    ]


def test_texts_lie_where_they_are_told_or_with_the_model(tmp_path: Path) -> None:
    assert data_of(TrainJob((), data=tmp_path)) == tmp_path
    own = data_of(TrainJob((), model="a/b"))
    assert own != data_of(TrainJob((), model="a/c"))
    assert own.parent == tmp_path / "cache" / "corpora"


# --------------------------------------------------------------------------------------- going on
def state_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: dict[str, Any]) -> Path:
    monkeypatch.setattr(job, "remembered", lambda _: RunState("run", asked=began))
    return tmp_path / "state"


@pytest.mark.parametrize(
    ("began", "tokens", "said"),
    [
        ({"prompts": None, "tokens": 5}, 9, "began with 5 as --tokens"),
        ({"prompts": None, "tokens": None}, 9, "began without --tokens"),
    ],
)
def test_other_texts_cannot_be_asked_for_later(
    began: dict[str, Any],
    tokens: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = state_of(tmp_path, monkeypatch, began)
    with pytest.raises(SapwoodError, match=f"{said}, and its texts stay as they are, so 9 cannot"):
        job.again(TrainJob((), tokens=tokens), state)


def test_other_prompts_are_known_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x"}')
    known = asked(TrainJob((), prompts=path))
    state = state_of(tmp_path, monkeypatch, known)
    moved = tmp_path / "moved.jsonl"
    moved.write_text('{"prompt": "x"}')
    with pytest.raises(SapwoodError, match=r"the texts that the run in .* began with are gone"):
        job.again(TrainJob((), prompts=moved, data=tmp_path / "none"), state)
    moved.write_text('{"prompt": "y"}')
    with pytest.raises(SapwoodError, match="began with other --prompts"):
        job.again(TrainJob((), prompts=moved, data=tmp_path / "none"), state)


def test_writing_texts_ends_when_asked_to() -> None:
    told: list[Any] = []
    tell = job.watched(JobObserver(data=told.append))
    tell("some progress")
    assert told == ["some progress"]
    with pytest.raises(TrainingStopped, match="stopped while the model was writing its texts"):
        job.watched(JobObserver(data=told.append, stop=lambda: True))("more")
    assert told == ["some progress", "more"]


# ------------------------------------------------------------------------------------- predictors
def test_steps_are_not_for_predictors() -> None:
    with pytest.raises(SapwoodError, match="--steps 5 is for drafters; c2t is fitted to its end"):
        predictors.check(TrainJob(("c2t",), steps=5), ["c2t"])


def test_folders_of_something_else_are_left_alone(tmp_path: Path) -> None:
    random_part("c2t", tmp_path / "old")
    predictors.check_homes([tmp_path / "old", tmp_path / "new"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"kind": "eagle3"}')
    with pytest.raises(SapwoodError, match=r"already holds a config\.json of something else"):
        predictors.check_homes([tmp_path / "other"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SapwoodError, match="is a file and holds no predictor"):
        predictors.check_homes([tmp_path / "file" / "inner"])


def test_prompts_are_chosen_by_the_seed_with_room_for_their_answers() -> None:
    backend: Any = type("B", (), {"info": BackendInfo("toy", "toy", 9, 50)})
    questions = [(at,) * (1 + at) for at in range(60)]
    options = PredictorOptions(prompts=6, tokens=40)
    found = predictors.choose(questions, options, backend, 0)
    assert len(found) == 6
    assert all(len(tokens) <= 10 for tokens in found)
    assert found == predictors.choose(questions, options, backend, 0)
    assert found != predictors.choose(questions, options, backend, 1)
    assert (
        len(predictors.choose(questions, PredictorOptions(prompts=40, tokens=40), backend, 0)) == 10
    )
    with pytest.raises(
        SapwoodError, match="at least 2 prompts of at most 10 tokens, and there is 1;"
    ):
        predictors.choose(questions[9:], options, backend, 0)


def test_a_fit_is_kept_with_a_page(tmp_path: Path) -> None:
    report = FitReport("c2t", 100, 20, 0.5, 0.25, {"ranking": 0.91234, "accepted": 0.5})
    fit = FitResult(MlpBundle("c2t", {"classifier": random_net([3, 4, 1], 0)}, {}), report)
    found = predictors.keep(tmp_path, fit, {"model": "tiny", "rows": np.int64(3).item()}, 90.0)
    assert (found["kind"], found["loss"], found["out"]) == ("c2t", 0.25, str(tmp_path))
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["report"]["scores"] == {"ranking": 0.91234, "accepted": 0.5}
    assert record["seconds"] == 90.0
    lines = (tmp_path / "training.md").read_text().splitlines()
    assert lines[0] == "# c2t for tiny"
    assert "| minutes | 1.5 |" in lines
    assert "| fitted on, tested on | 100, 20 |" in lines
    assert "| loss | 0.2500 |" in lines
    assert lines[-2:] == ["| ranking | 0.9123 |", "| accepted | 0.5 |"]
