"""Converted GGUF files in the cache: one copy of a content, whatever its name."""

import json
import shutil
from pathlib import Path

import pytest

from sapwood.backends.torch import gguf
from sapwood.backends.torch.gguf import converted, fingerprint, place_of
from sapwood.common.gguf_header import GgufHeader


def test_a_copy_under_another_name_is_not_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    first = tmp_path / "first.gguf"
    first.write_bytes(b"GGUF" + bytes(range(200)))
    folder = tmp_path / "cache" / "models" / f"first-{fingerprint(first)}"
    assert place_of(first) == folder
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    second = tmp_path / "second.gguf"
    shutil.copy(first, second)
    assert converted(second, lambda message: None) == folder
    second.write_bytes(b"GGUF" + bytes(200))
    assert place_of(second) != folder


class SavedTokenizer:
    """A tokenizer that leaves out whether texts begin with a token of their own."""

    def save_pretrained(self, folder: Path) -> None:
        """Write its configuration."""
        (folder / "tokenizer_config.json").write_text('{"bos_token": "<bos>"}')


@pytest.mark.parametrize(("asked", "added"), [(1, True), (0, None), (None, None)])
def test_a_file_s_wish_for_a_first_token_is_kept(
    asked: int | None, added: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {} if asked is None else {gguf.ADDS_BOS: asked}
    monkeypatch.setattr(gguf, "read_header", lambda _: GgufHeader(numbers))
    gguf.save_tokenizer(SavedTokenizer(), tmp_path / "model.gguf", tmp_path)
    record = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert record == {"bos_token": "<bos>"} | ({"add_bos_token": added} if added else {})
