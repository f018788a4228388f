"""Folders made of GGUF files, once: configuration, tokenizer, and weights if needed."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapwood.backends.torch.silence import quiet
from sapwood.common.cache_dir import cache_folder
from sapwood.common.disk_errors import as_os_errors
from sapwood.common.gguf_header import read_header
from sapwood.errors import SapwoodError

Progress = Callable[[str], None]
Complete = Callable[[Path], bool]  # True if a folder has all that is wanted
Write = Callable[[Path, Path, Progress], None]  # file, folder
# blocks of the file, and bytes of each, that make its fingerprint
SAMPLES = 16
SAMPLE = 1 << 16
CONFIG = "config.json"
INT8_WEIGHTS = "weights.int8"  # of a CPU, made of a file's own
ADDS_BOS = "tokenizer.ggml.add_bos_token"
FORMAT = "1"  # of a converted folder; a new number makes a new folder


def converted(path: Path, progress: Progress) -> Path:
    """The folder with this file's weights and tokenizer, converted now if needed."""
    return prepared(path, progress, whole, write)


def described(path: Path, progress: Progress) -> Path:
    """The folder with this file's configuration and tokenizer; its weights may be missing."""
    return prepared(path, progress, has_description, write_description)


def prepared(path: Path, progress: Progress, complete: Complete, make: Write) -> Path:
    """The folder of a file, written now if it is not complete."""
    folder = place_of(path, complete)
    if complete(folder):
        with contextlib.suppress(OSError):
            os.utime(folder / CONFIG)  # `sapwood cache` tells the last use
    else:
        check(path)
        progress(f"{'converting' if complete is whole else 'reading'} {path.name}, once")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with quiet(), as_os_errors():
                convert(path, folder, progress, complete, make)
        except OSError as error:
            raise SapwoodError(
                f"cannot write to {folder.parent} ({error.strerror}); make room there, or set "
                "SAPWOOD_CACHE to another folder"
            ) from error
    return folder


def whole(folder: Path) -> bool:
    """True if a converted folder is complete."""
    return has_description(folder) and any(folder.glob("*.safetensors"))


def has_description(folder: Path) -> bool:
    """True if a folder has a configuration and a tokenizer."""
    return all((folder / name).is_file() for name in (CONFIG, "tokenizer.json"))


def place_of(path: Path, complete: Complete = whole) -> Path:
    """The folder of a file; one that was made for the same content of another name is used."""
    store = cache_folder() / "models"
    mark = fingerprint(path)
    folder = store / f"{path.stem}-{mark}"
    if complete(folder):
        return folder
    return next((other for other in sorted(store.glob(f"*-{mark}")) if complete(other)), folder)


def fingerprint(path: Path) -> str:
    """Twelve hex digits from the file's size and evenly spaced samples of its bytes."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{FORMAT} {size}".encode())
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(max(0, size - SAMPLE) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE))
    return digest.hexdigest()[:12]


def check(path: Path) -> None:
    """Refuse a file that is not a valid GGUF, before the library's reader gets it."""
    from gguf import GGUFReader

    read_header(path)
    try:
        GGUFReader(path)
    except Exception as error:
        raise SapwoodError(
            f"{path} is a damaged or truncated GGUF file; download it again"
        ) from error


def write(path: Path, folder: Path, progress: Progress) -> None:
    """Dequantise weights and tokenizer into a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with counted(progress), refused(path):
        model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
        tokenizer: Any = AutoTokenizer.from_pretrained(**place)
    model.hf_quantizer = None  # weights are float32 now; save_pretrained refuses quantised ones
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    progress("saving converted weights")
    save_tokenizer(tokenizer, path, folder)
    model.save_pretrained(folder)


def convert(
    path: Path,
    folder: Path,
    progress: Progress,
    complete: Complete = whole,
    make: Write = write,
) -> None:
    """Convert into a temporary folder, then rename it: the folder is complete or missing."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(path, work, progress)
        if not complete(folder):
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete earlier one
        work.rename(folder)
    except OSError:
        if not complete(folder):  # otherwise another process has converted it
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_description(path: Path, folder: Path, progress: Progress) -> None:
    """Write configuration and tokenizer into a folder."""
    from transformers import AutoConfig, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with refused(path):
        config: Any = AutoConfig.from_pretrained(**place)
        progress("reading its tokenizer")
        tokenizer: Any = AutoTokenizer.from_pretrained(**place)
    save_tokenizer(tokenizer, path, folder)
    config.save_pretrained(folder)


def save_tokenizer(tokenizer: Any, path: Path, folder: Path) -> None:
    """Save the tokenizer of a file, which may want a beginning-of-text token before texts."""
    tokenizer.save_pretrained(folder)
    if read_header(path).numbers.get(ADDS_BOS):  # transformers leaves it out
        place = folder / "tokenizer_config.json"
        record = json.loads(place.read_text(encoding="utf-8"))
        place.write_text(json.dumps({**record, "add_bos_token": True}), encoding="utf-8")


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Refuse a file that transformers cannot read; a malformed one may raise anything."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SapwoodError(
            f"{path} cannot be converted: {reason}; use a folder of safetensors"
        ) from error


@contextmanager
def counted(progress: Progress) -> Iterator[None]:
    """Report the conversion of tensors in place of transformers' progress bar."""
    from transformers import modeling_gguf_pytorch_utils

    module: Any = modeling_gguf_pytorch_utils

    def bar(items: list[Any], **_: Any) -> Iterator[Any]:
        for i, item in enumerate(items, 1):
            progress(f"converting tensor {i} of {len(items)}")
            yield item

    original, module.tqdm = module.tqdm, bar
    try:
        yield
    finally:
        module.tqdm = original
