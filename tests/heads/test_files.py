"""Files of trained heads: saved and loaded without a loss, refused when damaged, exported."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sapwood.cli.main import main
from sapwood.errors import SapwoodError
from sapwood.heads import eagle3_formats, files
from sapwood.heads.layers import LayerShape
from tests.helpers import tiny_models
from tests.helpers.head_folders import CONFIG, FACTS, FLOAT, alter, content, edit, make, same


# ------------------------------------------------------------------------------------ save and load
@dataclass(frozen=True)
class MadeUpConfig:
    shape: LayerShape
    steps: tuple[int, ...]
    scale: float = 1.0
    label: str | None = None
    gated: bool = False


class MadeUp(nn.Module):
    """A head of no kind that exists, with every type of field and of tensor."""

    kind: ClassVar[str] = "made-up"
    table: Tensor

    def __init__(self, config: MadeUpConfig) -> None:
        super().__init__()
        self.config = config
        self.first = nn.Linear(config.shape.width, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = nn.Parameter(torch.ones(3, 3).t())  # not contiguous
        self.register_buffer("table", torch.arange(len(config.steps), dtype=torch.int32))


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    monkeypatch.setitem(files.KINDS, "made-up", f"{__name__}:MadeUp")
    return MadeUp(MadeUpConfig(CONFIG.shape, (3, 1, 4), 0.25, "x"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_saved_is_loaded_and_saved_again_to_the_byte(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    head = make()
    about = {"steps": 7, "note": "é"}
    files.save(head, tmp_path / "a", about)
    saved = files.read(tmp_path / "a")
    assert same(head, saved.head)
    assert saved.head.config == CONFIG
    assert saved.about == about
    assert files.load(tmp_path / "a", dtype=dtype).get_parameter("fc.weight").dtype == dtype
    files.save(saved.head, tmp_path / "b", saved.about)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert sorted(content(tmp_path / "a")) == ["config.json", "model.safetensors"]


def test_any_head_of_a_known_kind_is_saved(made_up: MadeUp, tmp_path: Path) -> None:
    files.save(made_up, tmp_path / "a")
    loaded = files.load(tmp_path / "a")
    assert isinstance(loaded, MadeUp)
    assert loaded.config == made_up.config
    assert loaded.table.dtype == torch.int32
    files.save(loaded, tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_weights_are_stored_in_16_bits(tmp_path: Path) -> None:
    files.save(make(), tmp_path)
    types = {
        name: tensor.dtype for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    assert types.pop("d2t") == torch.int64
    assert types.pop("t2d") == torch.bool
    assert set(types.values()) == {torch.float16}


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    files.save(make(), tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    files.load(tmp_path)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("kind", files.KINDS)
def test_every_kind_names_its_class_and_config(kind: str) -> None:
    made: Any = files.class_of(kind)
    assert made.kind == kind
    assert is_dataclass(files.config_class(made))


def test_keys_are_sorted_whatever_order_they_came_in(tmp_path: Path) -> None:
    files.save(make(), tmp_path / "a", {"x": 1, "b": 2})
    files.save(make(), tmp_path / "b", {"b": 2, "x": 1})
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_new_head_takes_the_place_of_the_old_file_as_a_whole(tmp_path: Path) -> None:
    files.save(make(), tmp_path / "head")
    os.link(
        tmp_path / "head" / "model.safetensors", tmp_path / "reader"
    )  # as one who has the old file open
    before = (tmp_path / "reader").read_bytes()
    files.save(make(seed=1), tmp_path / "head")
    assert (tmp_path / "reader").read_bytes() == before
    assert same(files.load(tmp_path / "head"), make(seed=1))


def test_a_full_disk_keeps_the_earlier_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.save(make(), tmp_path)
    before = content(tmp_path)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        SapwoodError, match=r"No space left on device.*what was there before is kept"
    ):
        files.save(make(seed=1), tmp_path)
    assert content(tmp_path) == before


def test_a_model_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(SapwoodError, match="something else; use another folder"):
        files.save(make(), tmp_path)
    assert list(content(tmp_path)) == ["config.json"]


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    head = make()
    with pytest.raises(SapwoodError, match="plain values"):
        files.save(head, tmp_path, {"when": object()})
    with pytest.raises(SapwoodError, match="plain values"):
        files.save(head, tmp_path, {"loss": float("nan")})
    with pytest.raises(SapwoodError, match="no head of kind 'Linear'"):
        files.save(nn.Linear(2, 2), tmp_path)
    with torch.no_grad():
        head.fc.weight[0, 0] = 1e6  # more than 16 bits hold
    with pytest.raises(SapwoodError, match=r"'fc\.weight' holds values that are not finite"):
        files.save(head, tmp_path)
    assert not content(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SapwoodError, match="cannot be written"):
        files.save(make(), tmp_path / "file")


def test_a_kind_names_its_own_class(
    made_up: MadeUp, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(MadeUp, "kind", "eagle3")
    with pytest.raises(SapwoodError, match="MadeUp is not the head"):
        files.save(made_up, tmp_path)


def test_only_eagle3_has_dialects(made_up: MadeUp, tmp_path: Path) -> None:
    files.save(made_up, tmp_path)
    with pytest.raises(SapwoodError, match="only eagle3 heads have dialects"):
        eagle3_formats.read(tmp_path, FACTS)
    with pytest.raises(SapwoodError, match="dialect 'gguf' is not known"):
        eagle3_formats.write(make(), tmp_path, "gguf", "m")


DAMAGE: list[tuple[str, Callable[[Path], object]]] = [
    (r"lacks the tensor 'fc\.weight'", lambda f: alter(f, lambda t: t.pop("fc.weight"))),
    ("a tensor 'new' that such", lambda f: alter(f, lambda t: t.update(new=torch.ones(1)))),
    (
        r"'norm\.weight' of shape \[3\].*asks for \[32\]",
        lambda f: alter(f, lambda t: t.update({"norm.weight": torch.ones(3)})),
    ),
    ("'d2t' of int32 where int64", lambda f: alter(f, lambda t: t.update(d2t=t["d2t"].int()))),
    (
        f"'{FLOAT}' of float64 where",
        lambda f: alter(f, lambda t: t.update({FLOAT: t[FLOAT].double()})),
    ),
    (f"'{FLOAT}' of int64 where", lambda f: alter(f, lambda t: t.update({FLOAT: t[FLOAT].long()}))),
    (
        "kind 'eagle9'; the known kinds",
        lambda f: edit(f, lambda r: r["sapwood"].update(kind="eagle9")),
    ),
    ("not saved by sapwood", lambda f: edit(f, lambda r: r.pop("sapwood"))),
    ("has no 'config' in the block", lambda f: edit(f, lambda r: r["sapwood"].pop("config"))),
    ("has no 'about' in the block", lambda f: edit(f, lambda r: r["sapwood"].update(about=[]))),
    ("lacks the field 'vocab'", lambda f: edit(f, lambda r: r["sapwood"]["config"].pop("vocab"))),
    (
        "field 'extra' that is not known",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(extra=1)),
    ),
    (
        "vocab must be int, not '61'",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(vocab="61")),
    ),
    (
        "vocab must be int, not True",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(vocab=True)),
    ),
    (
        r"shape\.eps must be float",
        lambda f: edit(f, lambda r: r["sapwood"]["config"]["shape"].update(eps=None)),
    ),
    (
        r"features must be .*not \[2\]",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(features=[2])),
    ),
    (
        "shape must be an object",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(shape=3)),
    ),
    (
        r"asks for \[1000000000000\]",
        lambda f: edit(f, lambda r: r["sapwood"]["config"].update(vocab=10**12)),
    ),
    ("makes no head", lambda f: edit(f, lambda r: r["sapwood"]["config"].update(vocab=-5))),
    ("is not an object", lambda f: (f / "config.json").write_text("[1]")),
    ("is not JSON", lambda f: (f / "config.json").write_text("{")),
    ("is not JSON", lambda f: (f / "config.json").write_text('{"a": NaN}')),
    ("is not JSON", lambda f: (f / "config.json").write_bytes(b"\xff\xfe")),
    ("has no config.json", lambda f: (f / "config.json").unlink()),
    ("has no config.json", shutil.rmtree),
    ("has no model.safetensors", lambda f: (f / "model.safetensors").unlink()),
    ("truncated model.safetensors", lambda f: os.truncate(f / "model.safetensors", 5000)),
    ("truncated model.safetensors", lambda f: os.truncate(f / "model.safetensors", 0)),
    (
        r"only pytorch_model\.bin, a pickle.*convert it",
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
    ),
]


@pytest.mark.parametrize(("sentence", "damage"), DAMAGE, ids=[sentence for sentence, _ in DAMAGE])
def test_a_damaged_folder_is_one_sentence(
    sentence: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    folder = tmp_path / "head"
    files.save(make(), folder)
    damage(folder)
    with pytest.raises(SapwoodError, match=sentence) as caught:
        files.load(folder)
    assert str(folder) in str(caught.value)


# ------------------------------------------------------------------------------------------ export
@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target of the heads here."""
    folder: Path = tmp_path_factory.mktemp("model")
    tiny_models.make("llama", num_hidden_layers=8).save_pretrained(folder)
    return str(folder)


def test_export_there_and_back(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.save(make(), tmp_path / "a", {"steps": 3})
    there = [
        "export",
        str(tmp_path / "a"),
        "--dialect",
        "speculators",
        "--out",
        str(tmp_path / "b"),
        "--model",
        model,
    ]
    assert main(there) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.endswith("dialect speculators: checked")
    record = json.loads((tmp_path / "b" / "config.json").read_text())
    assert record["speculators_config"]["verifier"] == {
        "name_or_path": model,
        "architectures": ["LlamaForCausalLM"],
    }
    assert (
        main(
            [
                "export",
                str(tmp_path / "b"),
                "--out",
                str(tmp_path / "c"),
                "--model",
                model,
                "--json",
            ]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["dialect"] == "eagle"
    assert found["tensors"] == 15
    assert same(files.load(tmp_path / "a"), files.load(tmp_path / "c"))
    assert (
        main(["export", str(tmp_path / "a"), "--out", str(tmp_path / "d"), "--model", model]) == 0
    )
    assert files.read(tmp_path / "d").about == {"steps": 3, "target": model}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{head}", "--out", "{head}"], "is the head itself"),
        (["{head}", "--out", "{out}", "--dialect", "gguf"], "dialect 'gguf'"),
        (["{head}", "--out", "{out}", "--model", "no-such"], "'no-such' is not known"),
        (["{out}", "--out", "{head}"], "has no config.json"),
        (["{head}", "--out", "{model}"], "something else"),
        (["{other}", "--out", "{out}"], "target of vocabulary 62"),
        (["{head}"], "Missing option '--out'"),
    ],
)
def test_bad_exports_are_one_sentence(
    arguments: list[str],
    sentence: str,
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {
        "head": tmp_path / "head",
        "other": tmp_path / "other",
        "out": tmp_path / "out",
        "model": model,
    }
    files.save(make(), tmp_path / "head")
    files.save(make(replace(CONFIG, vocab=62)), tmp_path / "other")
    words = [word.format(**places) for word in arguments]
    assert main(["export", *words, *([] if "--model" in words else ["--model", model])]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
