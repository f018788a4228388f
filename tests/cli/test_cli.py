"""The command line: records, exit codes, one-sentence errors, start-up."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sapwood.cli.main import main
from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import Step
from sapwood.llm import LLM
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a two-layer model and a tokenizer of bytes."""
    from tests.helpers import tiny_models

    folder: Path = tmp_path_factory.mktemp("model")
    save_byte_model(folder)
    tiny_models.make("llama", vocab_size=byte_tokenizer.SIZE + 7).save_pretrained(
        f"{folder}-7"
    )  # a draft of another vocabulary
    tiny_models.make("llama", vocab_size=byte_tokenizer.SIZE).save_pretrained(f"{folder}-draft")
    return str(folder)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    monkeypatch.setattr("sapwood.engine.cost_profiler.FULL_S", 0.0)


def record(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


# -------------------------------------------------------------------------------------------- run
def test_run_prints_the_text_and_one_line_about_speculation(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(
        capsys,
        "run",
        "hello",
        "--model",
        model,
        "--max-tokens",
        "12",
        "--recipe",
        "plain",
        "--json",
    )
    assert main(["run", "hello", "--model", model, "--max-tokens", "12", "--estimator", "raw"]) == 0
    out, err = capsys.readouterr()
    assert out == found["text"] + "\n"
    used, line = err.splitlines()
    assert "no trained head for this model" in used
    assert "12 tokens in" in line
    assert "tokens per pass" in line
    assert line.endswith("auto, estimator raw")


def test_the_record_of_run(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--temperature",
        "0.8",
        "--top-k",
        "40",
        "--stop",
        "zzz",
        "--stop",
        "yyy",
        "--seed",
        "4",
        "--raw",
        "--json",
    ]
    found = record(
        capsys, "run", "hello", "--model", model, "--max-tokens", "9", "--recipe", "auto", *options
    )
    assert set(found) >= {
        "text",
        "tokens",
        "recipe",
        "guarantee",
        "model",
        "device",
        "dtype",
        "stats",
    }
    assert len(found["tokens"]) == 9
    assert found["guarantee"] == "text"
    assert [text.partition(": ")[2] for text in found["substitutes"]] == [
        "recycling(prompt=0) drafts instead"
    ]
    assert found["stats"]["passes"] >= 1
    assert found["stats"]["speedup"] is None  # too short to measure, and no prediction is told


def test_a_dash_reads_standard_input(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model", model, "--max-tokens", "3", "--recipe", "pld", "--json")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("héllo".encode())))
    assert (
        record(capsys, "run", "-", *options)["tokens"]
        == record(capsys, "run", "héllo", *options)["tokens"]
    )
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert main(["run", "-"]) == 2
    assert "not UTF-8 at byte 1" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["run"], "Missing argument"),
        (["run", "hi", "--nothing"], "no such option --nothing"),
        (["run", "hi", "--max-tokens", "many"], "--max-tokens must be a whole number"),
        (["run", "hi", "--temperature", "warm"], "'warm'; see `sapwood run --help`"),
        (["run", "hi", "--max-tokens", "0"], "max_tokens=0"),
        (["run", "hi", "--temperature", "nan"], "temperature=nan"),
        (["run", "hi", "--stop", ""], "none of them empty"),
        (["run", ""], "prompt is empty"),
        (["run", "a\udcff"], "not valid Unicode"),
        (["run", "hi", "--recipe", "autoo"], "unknown recipe 'autoo'"),
        (["run", "hi", "--recipe", "ngram+best+match"], "spaces around the + between two parts"),
        (["run", "hi", "--drafter", "pld(x=1)"], "'pld' is a recipe, not a drafter"),
        (["run", "hi", "--max-tokens", "0"], "max_tokens=0 must be a whole number of at least 1"),
        (["run", "hi", "--top-k", "x"], "--top-k must be a whole number, not 'x'"),
        (["train", "--minutes", "x"], "--minutes must be a number, not 'x'"),
        (["run", "hi", "--recipe", "ngram + best"], "lacks a verifier"),
        (["run", "hi", "--drafter", "ngram(x=1)"], "no option 'x'"),
        (["run", "hi", "--verifier", "mss"], "cannot verify topk drafts"),
        (["run", "hi", "--drafter", "merge(drafters=[])"], "drafters=0"),
        (["run", "hi", "--model", "{model}", "--drafter", "draft-model"], "needs a model"),
        (
            ["run", "hi", "--model", "{model}", "--drafter", "draft-model(model='{model}-7')"],
            "share the target's",
        ),
        (["run", "hi", "--model", "~nobody/nothing/x"], "there is no folder ~nobody/nothing/x"),
        (["run", "hi", "--recipe", "pld", "--estimator", "raw"], "takes no estimator"),
        (["run", "hi", "--model", "no-such-model"], "'no-such-model' is not known"),
        (["run", "hi", "--model", "{model}", "--device", "tpu9"], "device 'tpu9'"),
        (["run", "hi", "--model", "{model}", "--dtype", "int3"], "dtype 'int3'"),
        (["run", "hi", "--model", "{model}", "--threads", "0"], "threads=0"),
        (
            ["run", "hi", "--model", "{model}", "--verifier", "greedy", "--temperature", "1"],
            "temperature 0 only",
        ),
        (["run", "long " * 40, "--model", "{model}", "--recipe", "plain"], "holds 128"),
        (["run", "hi", "--model", "{model}/bad.gguf"], "bad.gguf"),
        (["chat", "--top-p", "7"], "top_p=7"),
        (["profile", "--model", "no-such-model"], "'no-such-model' is not known"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(model) / "bad.gguf").write_bytes(b"GGUF and nothing more")
    assert main([word.replace("{model}", model) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["nosuch", "a/b/c", "missing.gguf"])
def test_a_misspelt_model_fails_before_torch_is_started(name: str) -> None:
    code = (
        f"import sys; from sapwood.cli.main import main; main(['run', 'hi', '--model', {name!r}])"
    )
    code += "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert "is not known" in done.stderr or f"there is no folder {name}" in done.stderr


def test_a_draft_model_needs_no_tokenizer(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--model", model, "--max-tokens", "6", "--recipe", "pld", "--json")
    plain = record(capsys, "run", "hello", *options)
    assert (
        record(
            capsys, "run", "hello", "--drafter", f"draft-model(model='{model}-draft')", *options
        )["text"]
        == (plain["text"])
    )


@pytest.mark.parametrize(
    ("redirect", "code", "sentence"),
    [
        ("methods >&-", 2, "standard output is closed"),
        ("methods >/dev/full", 2, "No space left on device"),
        ("methods --json >/dev/full", 2, "No space left on device"),
        ("run - <&-", 2, "standard input is closed"),
        ("methods --json | true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_streams_that_are_closed_or_full(redirect: str, code: int, sentence: str) -> None:
    command = f"{sys.executable} -m sapwood {redirect}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert sentence in done.stderr
    assert done.stderr.count("\n") == (1 if sentence else 0)


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "sapwood", "methods"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "drafter" in done.stdout


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> list[dict[str, Any]]:
        raise KeyboardInterrupt

    monkeypatch.setattr("sapwood.cli.methods.parts", interrupt)
    assert main(["methods"]) == 130


def test_an_interrupted_answer_ends_its_line(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = LLM.stream

    def cut(llm: LLM, *args: Any, **options: Any) -> Iterator[Step]:
        yield next(stream(llm, *args, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", cut)
    assert main(["run", "hello", "--model", model, "--max-tokens", "9", "--recipe", "plain"]) == 130
    assert capsys.readouterr().out.endswith("\n")


def test_a_full_disk_is_one_sentence_whichever_library_meets_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill() -> list[dict[str, Any]]:
        raise Exception("No space left on device (os error 28)")

    monkeypatch.setattr("sapwood.cli.methods.parts", fill)
    assert main(["methods"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "No space left on device" in said


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m sapwood methods --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"{", b"")


# --------------------------------------------------------------------------------- the other verbs
def test_the_record_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, "methods", "--json")
    for part in found["parts"]:
        assert set(part) >= {"family", "name", "paper", "summary", "needs"}
        declares = {"drafter": "draws", "policy": "prunes", "verifier": "accepts"}.get(
            part["family"]
        )
        assert declares is None or part[declares]
        assert part["family"] != "verifier" or part["guarantee"] in ("text", "law", "lossy")
    for recipe in found["recipes"]:
        wanted = {"name", "system", "paper", "recipe", "guarantee", "training"}
        assert set(recipe) >= wanted | {"fidelity", "note", "stand_ins"}
    assert {"auto", "plain"} <= {recipe["name"] for recipe in found["recipes"]}
    assert all(set(row) == {"name", "system", "paper", "why"} for row in found["without_recipe"])
    assert main(["methods"]) == 0
    printed = capsys.readouterr().out
    assert "shape[i] children" in printed
    assert "SPACE" in printed


def test_profile_stores_what_it_shows(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, "profile", "--model", model, "--json")
    assert found["contexts"] == [0, 112]
    assert len(found["seconds"][0]) == len(found["rows"])
    assert json.loads(Path(found["path"]).read_text())["rows"] == found["rows"]
    assert main(["profile", "--model", model, "--quick"]) == 0
    assert f"kept in {found['path']}" in capsys.readouterr().out
    assert main(["profile", "--model", model]) == 0
    assert f"kept in {found['path']}" in capsys.readouterr().out


def test_chat_remembers_until_it_is_reset(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = "\n".join(["hi", "", "/clera", "hi", "/clear", "hi", "x" * 200, "/exit", "hi"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    sizes: list[int] = []
    stream = LLM.stream_chat

    def watch(self: LLM, messages: list[dict[str, str]], **options: Any) -> Iterator[Step]:
        sizes.append(len(messages))
        return stream(self, messages, **options)

    monkeypatch.setattr(LLM, "stream_chat", watch)
    assert (
        main(
            [
                "chat",
                "--model",
                model,
                "--max-tokens",
                "4",
                "--recipe",
                "plain",
                "--system",
                "be brief",
            ]
        )
        == 0
    )
    err = capsys.readouterr().err
    assert sizes == [2, 4, 2, 4]
    assert "/clera is no command; did you mean /clear?" in err
    assert "holds 128" in err  # a turn that does not fit leaves the conversation as it was


# ------------------------------------------------------------------------------------------- start
def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, time; from sapwood.cli.main import main; main(['run', '--help']);"
        "print([m for m in ('torch', 'transformers', 'numpy', 'tokenizers') if m in sys.modules]);"
        "print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, heavy, seconds = done.stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 1.0  # of the processor: a busy machine makes no difference


def test_defaults_in_the_help_are_the_real_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    real = Sampling()
    assert f"Longest answer. [default: {real.max_tokens}]" in shown
    assert f"0 takes the best token. [default: {real.temperature:g}]" in shown
    assert f"Seed of the sampling. [default: {real.seed}]" in shown


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_no_sentence_of_the_help_is_cut(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for group in ([], ["trace"], ["deploy"]):
        assert main([*group, "--help"]) == 0
        usage, *lines = capsys.readouterr().out.splitlines()
        assert usage.endswith("...")  # of the arguments
        assert not [line for line in lines if line.endswith(("...", "…"))]
        assert max(map(len, lines)) <= columns


def test_no_arguments_is_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["sapwood"])
    assert main() == 0
    assert "Usage: sapwood" in capsys.readouterr().out
    for group in ("trace", "deploy"):
        assert main([group]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"Usage: sapwood {group}")
        assert not said.err


def test_a_line_that_is_no_text_does_not_end_a_chat(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["chat", "--model", model, "--max-tokens", "4", "--recipe", "plain"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\nhi\n"), "utf-8"))
    assert main(options) == 0
    out, err = capsys.readouterr()
    assert "not valid Unicode at character" in err
    assert out.count("\n") == 1  # the other turn was answered
    monkeypatch.setattr(sys, "stdin", None)
    assert main(options) == 0


def test_a_curve_that_cannot_be_kept_is_not_called_kept(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", "/dev/null")
    assert record(capsys, "profile", "--model", model, "--quick", "--json")["path"] is None
    assert main(["profile", "--model", model, "--quick"]) == 0
    assert "set SAPWOOD_CACHE" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"sapwood \d+\.\d+\.\d+\n", capsys.readouterr().out)
