"""LoRA adapters in PEFT's format, merged into a copy of the base model's weights, once.

The merged folder is like any model's: every network runs it, and its KV cache is its own. Products
are added in float32, and merged matrices are stored so; the others keep their dtype.
"""

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sapwood.backends.torch.gguf import CONFIG, fingerprint
from sapwood.backends.torch.weights import ADAPTER, INDEX, TensorFiles, contents, find_weights
from sapwood.common.cache_dir import cache_folder
from sapwood.common.disk_errors import as_os_errors
from sapwood.errors import SapwoodError

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
FORMAT = "1"  # of a merged folder; a new number makes a new folder
SHARD = 2 << 30  # bytes of tensors in one file of a merged folder
FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
# members of the configuration that ask for more than a product of two matrices
BEYOND = (
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
)
# initialisations that change the base weights too, so that the adapter alone is not enough
CHANGED_BASE = ("corda", "loftq", "lora_ga", "olora", "pissa")


@dataclass(frozen=True)
class LoraFactors:
    """An adapter: two factors of what is added to each of its matrices."""

    scale: float
    transposed: bool  # weights are [inputs, outputs], as in GPT-2
    pairs: Mapping[str, tuple[str, str]]  # matrix of the base -> names of A and B
    files: TensorFiles
    digest: str

    def shapes(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of A, [rank, inputs], and B, [outputs, rank]."""
        first, second = self.pairs[name]
        return self.files.entries[first].shape, self.files.entries[second].shape

    def added(self, name: str) -> Tensor:
        """The scaled product of the two factors, float32 and shaped as the matrix."""
        first, second = self.pairs[name]
        read = self.files.read([first, second])
        product = read[second] @ read[first] * self.scale
        return product.T if self.transposed else product


def read_adapter(folder: Path) -> LoraFactors:
    """The adapter in a folder; refuses one that is more than a product of two matrices."""
    try:
        text = (folder / ADAPTER).read_text(encoding="utf-8")
        config = json.loads(text)
    except (OSError, ValueError) as error:
        raise SapwoodError(
            f"there is no adapter in {folder}: {ADAPTER} is missing or damaged; "
            "name a folder that PEFT has saved"
        ) from error
    if not isinstance(config, dict):
        raise SapwoodError(f"{folder / ADAPTER} is no JSON object; name a folder saved by PEFT")
    rank, scale = check_config(config, folder)
    file = folder / WEIGHTS
    if not file.is_file() and (folder / PICKLED).is_file():
        raise SapwoodError(
            f"the adapter in {folder} is a pickle, which can run code; convert it to safetensors"
        )
    try:
        files = TensorFiles(contents(file))
        digest = hashlib.sha256(text.encode() + fingerprint(file).encode()).hexdigest()
    except (OSError, SafetensorError) as error:
        raise SapwoodError(
            f"{file} is missing or damaged; name a folder that PEFT has saved"
        ) from error
    pairs = pairs_of(files, rank, folder)
    return LoraFactors(scale, bool(config.get("fan_in_fan_out")), pairs, files, digest[:12])


def check_config(config: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    """Rank and scale of an adapter; refuses kinds that cannot be merged here."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise SapwoodError(f"the adapter in {folder} is of type {kind}; only LORA is supported")
    if config.get("bias", "none") != "none":
        raise SapwoodError(f"the adapter in {folder} trains biases, which is not supported")
    beyond = [name for name in BEYOND if config.get(name)]
    if beyond:
        raise SapwoodError(f"the adapter in {folder} uses {beyond[0]}, which is not supported")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGED_BASE):
        raise SapwoodError(
            f"the adapter in {folder} was begun with {start}, which changes the base weights too; "
            "save it converted to plain LoRA"
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float):
        raise SapwoodError(
            f"the adapter in {folder} has rank {rank!r} and lora_alpha {alpha!r}; "
            "both must be numbers, and the rank at least 1"
        )
    assert isinstance(alpha, int | float)
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def pairs_of(files: TensorFiles, rank: int, folder: Path) -> dict[str, tuple[str, str]]:
    """The factors of each matrix; refuses other tensors, lonely factors and other ranks."""
    found: dict[str, dict[str, str]] = {}
    for name in sorted(files.entries):
        match = FACTOR.fullmatch(name)
        if match is None:
            raise SapwoodError(
                f"the adapter in {folder} has the tensor {name}, which is no factor of a linear "
                "layer; only those are supported"
            )
        found.setdefault(match[1], {})[match[2]] = name
    if not found:
        raise SapwoodError(f"the adapter in {folder} has no tensors; name one that was trained")
    for target, factors in found.items():
        if set(factors) != {"A", "B"}:
            raise SapwoodError(f"the adapter in {folder} has one factor of {target}, not both")
        shapes = [files.entries[factors[letter]].shape for letter in "AB"]
        matrices = [len(shape) for shape in shapes] == [2, 2]
        if not matrices or (shapes[0][0], shapes[1][1]) != (rank, rank):
            raise SapwoodError(
                f"the adapter in {folder} has factors of shape {shapes[0]} and {shapes[1]} "
                f"for {target}, which are not of rank {rank}"
            )
    return {f"{target}.weight": (pair["A"], pair["B"]) for target, pair in found.items()}


# ------------------------------------------------------------------------------- merging
def merged_folder(base: Path, adapter: Path, progress: Callable[[str], None]) -> Path:
    """The folder of a model with an adapter merged into it, written now if it is not there."""
    factors = read_adapter(adapter)
    weights = find_weights(base)
    if weights is None:
        raise SapwoodError(
            f"the weights in {base} are no plain safetensors, which an adapter needs; "
            "save the model again with transformers"
        )
    check_fit(factors, weights, base, adapter)
    folder = place_of(base, weights, factors)
    if (folder / CONFIG).is_file():
        with suppress(OSError):
            os.utime(folder / CONFIG)  # `sapwood cache` tells the last use
        return folder
    progress(f"merging {adapter.name} into the weights, once")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with as_os_errors():
            write_whole(folder, lambda work: write(base, weights, factors, work))
    except OSError as error:
        raise SapwoodError(
            f"cannot write to {folder.parent} ({error.strerror}); make room there, or set "
            "SAPWOOD_CACHE to another folder"
        ) from error
    return folder


def check_fit(factors: LoraFactors, weights: TensorFiles, base: Path, adapter: Path) -> None:
    """Refuse an adapter of a model with other matrices."""
    config = json.loads((base / CONFIG).read_text(encoding="utf-8"))
    tied = config.get("tie_word_embeddings", False)
    for name in factors.pairs:
        entry = weights.entries.get(name)
        if entry is None or (tied and name == "lm_head.weight"):
            raise SapwoodError(
                f"the adapter in {adapter} changes {name.removesuffix('.weight')}, "
                "which is no linear layer of its own in this model; use the model it was made for"
            )
        (_, inputs), (outputs, _) = factors.shapes(name)
        wanted = (inputs, outputs) if factors.transposed else (outputs, inputs)
        if entry.shape != wanted:
            raise SapwoodError(
                f"the adapter in {adapter} is for a {name.removesuffix('.weight')} of shape "
                f"{wanted}, and this model's is {entry.shape}; use the model it was made for"
            )


def place_of(base: Path, weights: TensorFiles, factors: LoraFactors) -> Path:
    """The folder of a base model with an adapter, by their contents."""
    marks = [fingerprint(file) for file in weights.files]
    described = (base / CONFIG).read_bytes()
    digest = hashlib.sha256(f"{FORMAT} {factors.digest} {marks}".encode() + described)
    return cache_folder() / "adapters" / f"{base.name}-{digest.hexdigest()[:12]}"


def write_whole(folder: Path, make: Callable[[Path], None]) -> None:
    """Write a folder under another name, then rename it: it is complete or missing."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(work)
        work.rename(folder)
    except OSError:
        if not (folder / CONFIG).is_file():  # otherwise another process has written it
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write(base: Path, weights: TensorFiles, factors: LoraFactors, folder: Path) -> None:
    """Write configuration and merged weights, a few GiB at a time."""
    names = sorted(weights.entries)
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        size += 4 * math.prod(weights.entries[name].shape)
        if size > SHARD and shards[-1]:
            shards.append([])
            size = 4 * math.prod(weights.entries[name].shape)
        shards[-1].append(name)
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: merged(name, weights, factors) for name in shard}
        save_file(tensors, folder / file, {"format": "pt"})
        where |= dict.fromkeys(shard, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for name in (CONFIG, "generation_config.json"):
        if (base / name).is_file():
            shutil.copyfile(base / name, folder / name)


def merged(name: str, weights: TensorFiles, factors: LoraFactors) -> Tensor:
    """A tensor of the base, with what the adapter adds to it."""
    if name not in factors.pairs:
        return weights.view(name).clone()
    with torch.inference_mode():
        return (weights.copy(name) + factors.added(name)).contiguous()


def adapted_name(model: str, adapter: Path) -> str:
    """The name of a model with an adapter, under which no head of the model itself is found."""
    return f"{model}+{adapter.resolve().name}-{read_adapter(adapter).digest}"
