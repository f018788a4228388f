"""Suggestions for misspelt names, and the messages that hold them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sapwood.backends.torch.resolve_model import check
from sapwood.common.suggest import closest, suggestion
from sapwood.engine.input_processor import check_options
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve


def test_the_closest_name() -> None:
    assert closest("eagel3", ["eagle", "eagle3", "medusa"]) == "eagle3"
    assert closest("EAGLE3", ["eagle", "eagle3"]) == "eagle3"
    assert closest("zzz", ["eagle", "eagle3"]) is None
    assert suggestion("zzz", ["eagle"], "use eagle") == "use eagle"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: resolve("eagel3"), "unknown recipe 'eagel3'; did you mean eagle3?"),
        (lambda: resolve("autoo"), "unknown recipe 'autoo'; did you mean auto?"),
        (lambda: resolve("auto", drafter="ngrm"), "unknown drafter 'ngrm'; did you mean ngram?"),
        (lambda: resolve("ngrm + best"), "unknown part 'ngrm'; did you mean ngram?"),
        (
            lambda: resolve("auto", drafter="ngram(longst=2)"),
            "ngram has no option 'longst'; did you mean longest?",
        ),
        (lambda: check_options({"temprature": 1}), "'temprature'; did you mean temperature?"),
        (lambda: check("smollm", None, None), "model 'smollm' is not known; did you mean smollm2?"),
    ],
)
def test_messages_name_what_was_meant(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(SapwoodError) as caught:
        call()
    assert sentence in str(caught.value)


def test_a_name_like_no_other_is_told_where_all_are_listed() -> None:
    sentence = r"; `sapwood methods` lists all \d+; or spell one as drafter \+ policy"
    with pytest.raises(SapwoodError, match=sentence):
        resolve("zzzzzz")


def test_a_missing_folder_is_told_from_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "tiny-llama").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("")
    for name, sentence in {
        "./models/tiny-lama": r"there is no folder ./models/tiny-lama; did you mean models/tiny-llama\?",
        "./tiny": r"there is no folder \./tiny; use 'smollm2', a Hub id",
        f"{tmp_path}/none/at/all": r"there is no folder .*all, nor the folder .*none/at; use",
        "~/no-such-model": "there is no folder ~/no-such-model; use",
        "models/tiny.gguf": r"there is no file models/tiny\.gguf; use",
        "./notes.txt": r"\./notes\.txt is a file, but no \.gguf file",
        "modells": r"model 'modells' is not known; did you mean models\?",
    }.items():
        with pytest.raises(SapwoodError, match=sentence):
            check(name, None, None)
    check("org/model", None, None)  # may be on the Hub
