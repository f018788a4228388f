"""Training refuses bad prompts, values, kinds, places and damaged states in one sentence."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood.cli.main import main
from sapwood.cli.progress import ProgressBars
from tests.helpers.train_runs import (
    EAGLE3,
    FEW_STEPS,
    MEDUSA,
    TOKENS,
    Place,
    asked,
    listing,
    same,
    sentence,
    stopped,
)

pytestmark = pytest.mark.usefixtures("quick_training")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no file"),
        (b"", "holds no prompts"),
        (b"\n  \n", "holds no prompts"),
        (b'{"prompt": "a"}\n\n{"prompt": \n', "line 3 of .* is not JSON"),
        (b'{"prompt": "a"}\n{"prompt": 7}\n', "line 2 of .* without text"),
        (b'{"prompt": "a"}\n{"messages": "b"}\n', "line 2 of .* wrong kind"),
        (b'{"prompt": "a"}\n["b"]\n', "line 2 of .* no JSON object"),
        (b'{"prompt": "a"}\n{"messages": [{"role": "user"}]}\n', "line 2 of .* without text"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "not UTF-8"),
    ],
)
def test_bad_prompts(
    content: bytes | None,
    said: str,
    place: Place,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = tmp_path / "bad.jsonl"
    out = tmp_path / "out"
    data = tmp_path / "data"
    if content is not None:
        prompts.write_bytes(content)
    bad = [*asked(place, "--out", str(out), data=data), "--prompts", str(prompts)]
    assert re.search(said, sentence(capsys, bad))
    assert not out.exists()
    assert not data.exists()  # so that the mended file begins a corpus


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--minutes", "0"], "--minutes 0"),
        (["--minutes", "-3"], "--minutes -3"),
        (["--minutes", "nan"], "--minutes nan"),
        (["--minutes", "inf"], "--minutes inf"),
        (["--minutes", "soon"], "'soon'"),
        (["--steps", "0"], "--steps 0"),
        (["--tokens", "0"], "--tokens 0"),
        (["--device", "nonsense"], "nonsense"),
        (["--dtype", "float9"], "float9"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--nothing"], "--nothing"),
    ],
)
def test_bad_values(
    given: list[str], said: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in sentence(
        capsys, asked(place, "--steps", "1", "--out", str(tmp_path / "out"), *given)
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("several", "said"),
    [
        (("eagle9",), "'eagle9' cannot be trained; known: eagle3"),
        (("eagle3(wings=2)",), "no option 'wings'"),
        (("eagle3(unroll=much)",), "unroll of eagle3"),
        (("eagle3(unroll=2.5)",), "unroll of eagle3"),
        (("eagle3(",), "eagle3("),
        (("medusa(heads=0)",), "heads=0"),
        (("eagle3(rate=-1)",), "rate=-1.0 must be from 0 to 1"),
        (("recurrent(matrix_rate=1e9)",), "matrix_rate=1000000000.0 must be from 0 to 1"),
        (("eagle3", "eagle3(unroll=2)"), "two of one kind"),
    ],
)
def test_bad_kinds(
    several: tuple[str, ...], said: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in sentence(capsys, asked(place, "--steps", "1", teach=several))


def test_places_that_hold_something_else(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = listing(place.model)
    fresh = tmp_path / "data"
    (tmp_path / "file").write_text("mine")
    for out, said in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "below", "is a file"),
        (place.model, "already holds a config.json of something else"),
        (Path("/proc/none"), "folder /proc/none cannot be made"),
    ):
        assert said in sentence(capsys, asked(place, "--steps", "1", "--out", str(out), data=fresh))
        assert not fresh.exists()  # refused before anything slow
    assert listing(place.model) == models
    assert (tmp_path / "file").read_text() == "mine"


def test_states_of_another_run(
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = stopped(short, tmp_path / "out", monkeypatch, capsys)
    kept = state.read_bytes()
    for kind, seed in ((MEDUSA, "0"), (EAGLE3.replace("unroll=3", "unroll=2"), "0"), (EAGLE3, "1")):
        given = asked(
            short,
            "--steps",
            str(FEW_STEPS),
            "--out",
            str(tmp_path / "out"),
            "--seed",
            seed,
            teach=(kind,),
        )
        said = sentence(capsys, given)
        assert "holds another run (Eagle3Objective(" in said
        assert state.read_bytes() == kept
    said = sentence(capsys, asked(short, "--steps", "1", "--out", str(tmp_path / "out")))
    assert "has 2 steps behind it, more than the 1 asked for" in said
    assert main(asked(short, "--steps", str(FEW_STEPS), "--out", str(tmp_path / "out"))) == 0
    assert same(tmp_path / "out", short.whole)


def test_a_run_that_goes_on_is_not_asked_for_other_texts(
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    other = tmp_path / "other.jsonl"
    moved = tmp_path / "moved.jsonl"
    other.write_text('{"prompt": "something else"}\n')
    moved.write_bytes(short.prompts.read_bytes())
    state = stopped(short, out, monkeypatch, capsys)
    kept = state.read_bytes()
    same_command = asked(short, "--steps", str(FEW_STEPS), "--out", str(out))
    for given, said in (
        (
            ["--prompts", str(other)],
            f"began with other --prompts, and its texts stay as they are, so {other} cannot",
        ),
        (
            ["--tokens", "999"],
            f"began with {TOKENS} as --tokens, and its texts stay as they are, so 999 cannot",
        ),
    ):
        found = sentence(capsys, [*same_command, *given])
        assert f"{state} {said}" in found
        assert found.endswith(f"leave {given[0]} out to go on, or give another --out and --data")
        assert state.read_bytes() == kept
    assert (
        main([*same_command, "--prompts", str(moved)]) == 0
    )  # the same lines elsewhere are the same prompts
    assert same(out, short.whole)


def test_a_run_that_began_without_prompts_is_not_given_any(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--steps", "6", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    bare = [
        "train",
        EAGLE3,
        "--model",
        str(place.model),
        "--device",
        "cpu",
        "--threads",
        "1",
        *given,
    ]
    with monkeypatch.context() as patch:
        patch.setattr(ProgressBars, "steps", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        sentence(capsys, [*bare, "--tokens", "1"])
    assert "began without --prompts, " in sentence(capsys, [*bare, "--prompts", str(place.prompts)])
    assert main(bare) == 0


@pytest.mark.parametrize("gone", ["folder", "shards"])
def test_texts_that_were_deleted(
    gone: str,
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = stopped(short, tmp_path / "out", monkeypatch, capsys)
    data = tmp_path / "data"
    if gone == "shards":
        data.mkdir()
        (data / "corpus.json").write_bytes((short.data / "corpus.json").read_bytes())
    kept = state.read_bytes()
    command = asked(short, "--steps", str(FEW_STEPS), "--out", str(tmp_path / "out"), data=data)
    said = sentence(capsys, command)
    assert (
        f"the texts that the run in {state} began with are gone from {data}; bring them back"
        in said
    )
    assert state.read_bytes() == kept
    assert data.exists() == (gone == "shards")  # no other texts are made in their place
    assert main([*command, "--data", str(short.data)]) == 0
    assert same(tmp_path / "out", short.whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:5],
        lambda _: b"",
        lambda whole: whole.replace(b"curve", b"curse"),
        lambda whole: whole.replace(b"notes", b"nodes"),
    ],
)
def test_states_that_are_damaged(
    damage: Callable[[bytes], bytes],
    short: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = stopped(short, tmp_path / "out", monkeypatch, capsys)
    state.write_bytes(damaged := damage(state.read_bytes()))
    said = sentence(capsys, asked(short, "--steps", str(FEW_STEPS), "--out", str(tmp_path / "out")))
    assert said.endswith("delete it to begin anew")
    assert str(state) in said
    assert state.read_bytes() == damaged


def test_a_model_without_a_chat_template(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in place.model.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    given = [
        *asked(place, "--steps", "1", "--out", str(tmp_path / "out"), data=tmp_path / "data"),
        "--model",
        str(bare),
    ]
    assert "no chat template" in sentence(capsys, given)
    assert not (tmp_path / "out").exists()
