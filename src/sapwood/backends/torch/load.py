"""From a model's name to a backend: built-in, Hub id, local folder or GGUF file."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from sapwood.backends.torch.architectures import describe, missing_part
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.config import read_config
from sapwood.backends.torch.gguf import Progress, converted, described
from sapwood.backends.torch.gguf_samples import fingerprint_of_gguf
from sapwood.backends.torch.hf.support import attention_of, check_tree, context_of, model_class
from sapwood.backends.torch.llama import plain
from sapwood.backends.torch.mtp_module import has_mtp
from sapwood.backends.torch.network import Network
from sapwood.backends.torch.quant_checkpoint import CheckpointFormat, dequantised_model
from sapwood.backends.torch.recurrent import RecurrentBackend
from sapwood.backends.torch.resolve_model import (
    AUTO,
    BUILT_IN,
    PACKED,
    PICKLES,
    QUANTISED,
    check,
    find_folder,
    find_gguf,
)
from sapwood.backends.torch.silence import quiet
from sapwood.backends.torch.weight_samples import fingerprint_of_folder
from sapwood.common.cache_dir import cache_folder
from sapwood.common.gguf_header import GgufHeader, read_header
from sapwood.errors import SapwoodError


def silent(message: str) -> None:
    """Discard progress messages."""


def load(
    model: str,
    *,
    device: str | None = None,  # None or "auto": cuda where there is one, else cpu
    # None or "auto": float16 on cuda, else int8 if possible, or float32, and files of 4 bits stay
    # as they are; int4 reads other GGUF files as they are too, and quantises folders
    dtype: str | None = None,
    threads: int | None = None,  # CPU threads; None leaves torch's choice
    progress: Progress = silent,
    stock: bool = False,  # run transformers code, to train with the weights
    lora: str | None = None,  # folder of an adapter to merge into the weights
) -> tuple[TorchBackend, Path]:
    """A backend for a model that scores trees, and the folder that holds its tokenizer."""
    options: dict[str, Any] = {"device": device, "dtype": dtype, "threads": threads, "lora": lora}
    found, folder = load_any(model, **options, progress=progress, stock=stock)
    if isinstance(found, RecurrentBackend):
        raise SapwoodError(f"model {model!r} keeps a running state: it decodes, and no more")
    return found, folder


def load_any(
    model: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    stock: bool = False,
    lora: str | None = None,
) -> tuple[TorchBackend | RecurrentBackend, Path]:
    """`load`, also for a model with a running state, which decodes plainly."""
    check(model, dtype, threads)
    if stock and dtype in QUANTISED:
        raise SapwoodError(
            f"dtype {dtype!r} has no weights to train with; use float32, or leave it out"
        )
    place = find_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    kind = find_dtype(dtype, place)
    as_it_is = None if stock or lora else from_gguf(model, place, dtype, progress)
    if as_it_is is not None:
        return as_it_is
    own = find_folder(model, progress)
    folder = own
    if lora:
        folder, model = with_adapter(own, model, lora, progress)
    progress(f"loading {model}")
    found = None if stock else directly(folder, model, place, dtype, progress)
    if found is None:
        with quiet():
            read = read_model(folder, model, place, kind)
            if read._is_stateful:
                return recurrent_backend(read, model, folder, dtype), own
            found = TorchBackend(read, model) if stock else build(read, model, dtype, progress)
            if found.network.precision in PACKED:
                prepare_kernels(found, progress)
            else:
                check_tree(found)
    why = "" if stock or dtype not in AUTO else why_slow(found)
    # a small adapter lies within the rounding that fingerprints allow for: its base's heads would
    # be taken for its own
    weights = None if lora else fingerprint_of_folder(folder)
    found.info = replace(found.info, weights=weights, why=why, note=shortened(found))
    if has_mtp(folder, found.layers):
        found.checkpoint = folder
        found.info = replace(found.info, provides=found.info.provides | {"mtp"})
    return found, own


def with_adapter(folder: Path, model: str, lora: str, progress: Progress) -> tuple[Path, str]:
    """The folder of a model merged with an adapter, and its name."""
    from sapwood.backends.torch.lora import adapted_name, merged_folder

    adapter = Path(lora).expanduser()
    return merged_folder(folder, adapter, progress), adapted_name(model, adapter)


def recurrent_backend(model: Any, name: str, folder: Path, dtype: str | None) -> RecurrentBackend:
    """A backend for a model with a running state, which decodes plainly."""
    if dtype in PACKED:
        raise SapwoodError(f"model {name!r} cannot be run in {dtype} here; use float32")
    found = RecurrentBackend(model, name)
    found.info = replace(found.info, weights=fingerprint_of_folder(folder))
    return found


def why_slow(backend: TorchBackend) -> str:
    """The reason why a model runs in float32 on a CPU; empty if it does not."""
    if backend.device.type != "cpu" or backend.network.precision in PACKED:
        return ""
    if not has_numba():
        return "numba is not installed"
    from sapwood.backends.torch.cpu_int8.cpu_target import why_none
    from sapwood.backends.torch.cpu_int8.linear import available

    if not available():
        return why_none()
    return missing_part(backend.model.config.get_text_config())


def shortened(backend: TorchBackend) -> str:
    """A note for a model whose context is longer here than its network allows; else empty."""
    limit = backend.info.context
    whole = context_of(backend.model.config.get_text_config())
    return f"contexts up to {limit} of its {whole} tokens" if limit < whole else ""


def from_gguf(
    model: str, device: torch.device, dtype: str | None, progress: Progress
) -> tuple[TorchBackend, Path] | None:
    """A backend for a GGUF file read layer by layer; None if it is none, or has to be converted."""
    path = find_gguf(model)
    if path is not None and device.type == "cuda" and dtype == "int4":
        from sapwood.backends.torch.quant_place import gguf_on_cuda

        return gguf_on_cuda(path, model, device, partial(read_converted, path, model), progress)
    if path is None or device.type != "cpu" or dtype not in (*AUTO, *PACKED) or not has_numba():
        return None
    from sapwood.backends.torch import gguf_load

    header = read_header(path)
    load_whole = partial(read_converted, path, model)
    found: TorchBackend | str | None = None
    # the built-in model's trees and shared passes are faster in int8
    four = dtype in AUTO and model != BUILT_IN and gguf_load.below_eight(header)
    if dtype == "int4" or four:
        found = as_it_is(path, header, model, load_whole, progress)
    rounded = "" if found is None or isinstance(found, str) else gguf_load.rounded_kinds(header)
    if found is None or (four and isinstance(found, str)):
        folder = described(path, progress)
        progress(f"loading {model}")
        found = gguf_load.open_gguf_in_int8(path, header, folder, model, load_whole, progress)
        rounded = gguf_load.converted_kinds(header)
    if isinstance(found, str):
        progress(f"{path.name} is converted to float32, as {found}")
        return None
    prepare_kernels(found, progress)
    note = ", ".join(filter(None, (rounded, shortened(found))))
    found.info = replace(found.info, weights=fingerprint_of_gguf(path, header), note=note)
    return found, described(path, progress)


def as_it_is(
    path: Path, header: GgufHeader, name: str, load: Callable[[], Any], progress: Progress
) -> TorchBackend | str:
    """A backend for a GGUF file in its own bits; or the reason why there is none."""
    from sapwood.backends.torch import gguf_load

    if reason := gguf_load.other_kinds(header) or gguf_load.uneven(header):
        return reason
    folder = described(path, progress)
    progress(f"loading {name}")
    config = read_config(folder)
    if config is None or not plain(config):
        return gguf_load.open_other_gguf(path, header, folder, name, load)
    reason = gguf_load.missing_reason(config, header)
    return reason or gguf_load.open_gguf(path, header, config, name, load)


def read_converted(path: Path, name: str) -> Any:
    """The transformers model of a GGUF file, in float32."""
    folder = converted(path, silent)
    return read_quietly(folder, name, torch.device("cpu"), torch.float32)


def directly(
    folder: Path, name: str, device: torch.device, dtype: str | None, progress: Progress
) -> TorchBackend | None:
    """A backend with quantised weights made while they are read; None if there is none."""
    if device.type == "cuda":
        from sapwood.backends.torch.quant_place import folder_on_cuda

        return folder_on_cuda(folder, name, device, dtype, progress, read_quietly)
    if device.type != "cpu" or dtype not in (*AUTO, *PACKED) or not has_numba():
        return None
    from sapwood.backends.torch.expert_load import open_experts
    from sapwood.backends.torch.fast_load import open_packed

    load_whole = partial(read_quietly, folder, name, device, torch.float32)
    found = open_packed(folder, name, load_whole, bits_of(dtype)) or open_experts(
        folder, name, load_whole, bits_of(dtype), progress
    )
    if found is not None:
        prepare_kernels(found, progress)
    return found


def bits_of(dtype: str | None) -> int:
    """Bits of the weights of packed layers."""
    return 4 if dtype == "int4" else 8


def prepare_kernels(backend: TorchBackend, progress: Progress) -> None:
    """Compile or load the kernels of a pass, so that the first prompt is not delayed."""
    from sapwood.backends.torch.cpu_int8 import int8_gemm
    from sapwood.backends.torch.cpu_int8.network import Int8Network

    network = backend.network
    if int8_gemm.available() and isinstance(network, Int8Network) and not network.compiled():
        progress("compiling for this processor, once, for half a minute")
    check_tree(backend)


def build(model: Any, name: str, dtype: str | None, progress: Progress) -> TorchBackend:
    """A backend for this model, with the fastest network for the dtype."""
    if model.device.type == "cuda":
        return on_cuda(model, name, progress)
    if model.device.type != "cpu" or dtype not in (*AUTO, *PACKED):
        return TorchBackend(model, name)
    network = packed(model, progress, bits_of(dtype))
    if network is None and dtype in PACKED:
        raise SapwoodError(
            f"model {name!r} cannot be run in {dtype} here; "
            "use float32, or an architecture with int8 layers and numba"
        )
    return TorchBackend(model, name, network)


def on_cuda(model: Any, name: str, progress: Progress) -> TorchBackend:
    """A Triton backend in half precision if the kernels run the model, else one by transformers."""
    half = model.dtype in (torch.float16, torch.bfloat16)
    recent = torch.cuda.get_device_capability(model.device) >= (8, 0)
    found = (
        describe(model)
        if half and recent and importlib.util.find_spec("triton") is not None
        else None
    )
    if found is None or found.cpu_only:
        return TorchBackend(model, name)
    from sapwood.backends.torch.cuda.backend import CudaBackend
    from sapwood.backends.torch.cuda.kernels.autotune import prepare

    progress("preparing the kernels")
    backend = CudaBackend(model, name, found=found)
    prepare(backend.fused)
    return backend


def packed(model: Any, progress: Progress, bits: int = 8) -> Network | None:
    """The model as a network with weights of 8 or 4 bits; None if that is not possible."""
    if not has_numba():
        return None
    from sapwood.backends.torch.cpu_int8 import pack

    progress("packing the weights")
    return pack(model, bits)


def has_numba() -> bool:
    """True if numba is installed."""
    return importlib.util.find_spec("numba") is not None


def find_device(name: str | None) -> torch.device:
    """The device of this name; refuses one that is not there."""
    if name in AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(str(name))
        torch.zeros(1, device=device).cpu()  # a round trip: some devices are only announced
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SapwoodError(f"device {name!r} cannot be used here; use cpu, cuda or auto") from error
    return device


def find_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype that weights are read in; on a CPU they may be quantised afterwards."""
    if name in PACKED and device.type not in ("cpu", "cuda"):
        raise SapwoodError(
            f"dtype {name!r} runs on cpu and cuda only; on {device} use float16 or float32"
        )
    if name == "fp8" and device.type != "cuda":
        raise SapwoodError(f"dtype 'fp8' runs on cuda only; on {device} use int8")
    if name in (*AUTO, *QUANTISED):
        return torch.float16 if device.type == "cuda" else torch.float32
    found: torch.dtype = getattr(torch, str(name))
    return found


def read_model(
    folder: Path, name: str, device: torch.device, dtype: torch.dtype, ranks: int = 1
) -> Any:
    """The transformers model in this folder, on its device; with `ranks`, this process's share."""
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise SapwoodError(
            f"model {name!r} has no config.json in {folder}; use a folder saved by transformers"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        reason = f"has a configuration that transformers cannot read: {brief(error)}"
        raise SapwoodError(f"model {name!r} {reason}; {repair_advice(folder)}") from error
    layout = CheckpointFormat.read(folder)
    if layout is not None:
        if ranks > 1:
            raise SapwoodError(f"model {name!r} has quantised weights, which ranks cannot share")
        return dequantised_model(folder, name, layout, device, dtype)
    found = model_class(config, name)
    if not any(folder.glob("*.safetensors")):
        if any(path.suffix in PICKLES for path in folder.iterdir()):
            raise SapwoodError(
                f"model {name!r} has pickled weights, which can run code; "
                "convert them to safetensors"
            )
        raise SapwoodError(
            f"model {name!r} has no .safetensors weights in {folder}; convert or download them"
        )
    attention = attention_of(config, found)
    place: dict[str, Any] = {"device_map": None if device.type == "cpu" else {"": device}}
    if ranks > 1:
        from transformers.distributed.configuration_utils import DistributedConfig

        place = {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=ranks)}
    try:
        model, report = found.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            **place,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    except torch.OutOfMemoryError as error:
        raise SapwoodError(
            f"model {name!r} does not fit the memory of {device}; use a smaller one"
        ) from error
    except Exception as error:
        raise SapwoodError(
            f"model {name!r} has weights that cannot be read: {brief(error)}; "
            f"{repair_advice(folder)}"
        ) from error
    for fault, kind in (
        ("missing_keys", "lacks weights"),
        ("mismatched_keys", "has weights of the wrong shape"),
    ):
        if report[fault]:
            raise SapwoodError(
                f"model {name!r} {kind}: {sorted(map(str, report[fault]))[0]}; "
                f"{repair_advice(folder)}"
            )
    if dtype == torch.float32:  # dequantised weights come in bfloat16, and would be run in it
        for parameter in model.parameters():
            parameter.data = parameter.data.float()
    return model


def read_quietly(folder: Path, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """`read_model` with nothing on the terminal, in eval mode."""
    with quiet():
        return read_model(folder, name, device, dtype).eval()


def repair_advice(folder: Path) -> str:
    """Advice for a damaged folder."""
    return (
        f"delete {folder}, it is made again"
        if cache_folder() in folder.parents
        else "download it again"
    )


def brief(error: Exception) -> str:
    """The first two lines of an error message."""
    return " ".join(" ".join(str(error).strip().split("\n")[:2]).split()) or type(error).__name__
