"""GGUF files, converted once to a folder of float32 weights that loads in seconds."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sapwood.backends.torch.quiet import quiet
from sapwood.errors import SapwoodError
from sapwood.gguf_header import read_header
from sapwood.paths import cache_folder

Progress = Callable[[str], None]
SAMPLES, SAMPLE = 16, 1 << 16  # blocks of the file, and bytes of each, that make its fingerprint
FORMAT = "1"  # of what a converted folder holds; a new one is a new folder


def converted(path: Path, progress: Progress) -> Path:
    """The folder with this file's weights and tokenizer, made now if it is not there yet."""
    folder = cache_folder() / "models" / f"{path.stem}-{fingerprint(path)}"
    if not whole(folder):
        check(path)
        progress(f"converting {path.name}, once")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with quiet():
                convert(path, folder, progress)
        except OSError as error:
            raise SapwoodError(
                f"cannot keep the converted model in {folder.parent} ({error}); set SAPWOOD_CACHE"
            ) from error
    return folder


def whole(folder: Path) -> bool:
    """True when a converted folder holds all it should."""
    named = all((folder / name).is_file() for name in ("config.json", "tokenizer.json"))
    return named and any(folder.glob("*.safetensors"))


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
    """Refuse a file that is no GGUF, or lies about itself; the library's reader is handed what is sound."""
    from gguf import GGUFReader

    read_header(path)
    try:
        GGUFReader(path)
    except Exception as error:
        raise SapwoodError(f"{path} is a damaged or truncated GGUF file; download it again") from error


def convert(path: Path, folder: Path, progress: Progress) -> None:
    """Write the converted model next to its place, then rename it, so that it is there whole or not at all."""
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(path, work, progress)
        if not whole(folder):
            shutil.rmtree(folder, ignore_errors=True)  # what somebody left of an earlier one
        work.rename(folder)
    except OSError:
        if not whole(folder):  # else another process was first, and its folder is as good
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write(path: Path, folder: Path, progress: Progress) -> None:
    """Dequantise weights and tokenizer into a folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, name = str(path.parent), path.name
    with counted(progress):
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
            tokenizer: Any = AutoTokenizer.from_pretrained(source, gguf_file=name)
        except Exception as error:  # whatever a strange file may lead to
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SapwoodError(f"{path} cannot be converted: {reason}; use a folder of safetensors") from error
    model.hf_quantizer = None  # the weights are plain numbers now; save_pretrained refuses quantised ones
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    progress("saving converted weights")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


@contextmanager
def counted(progress: Progress) -> Iterator[None]:
    """Report the conversion of tensors, which transformers shows as a bar that cannot be turned off."""
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
