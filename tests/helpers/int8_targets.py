"""Tiny models in int8, and cache blocks handed out in any order."""

from typing import Any

import numpy as np

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.cpu_int8 import pack
from sapwood.backends.torch.cpu_int8.network import Int8Network
from sapwood.backends.torch.load import build
from tests.helpers import tiny_models

LLAMA_LIKE = ["llama", "mistral", "qwen2", "qwen2-mixed", "qwen3"]
# other architectures that Llama's compiled pass runs, and those of the extended pass
RELATED = ["phi3", "phi3-partial", "smollm3", "granite"]
EXTENDED = ["llama-biased", "olmo2", "olmo3", "gemma2-eager", "gemma3", "gemma3-caps"]
EXPERTS = ["mixtral", "qwen3-moe", "olmoe", "gpt-oss-eager"]
# of them those that have all kernels of the CUDA network: chosen for Triton's interpreter
EVERY_KERNEL = (
    "phi3-partial", "smollm3", "llama-biased", "olmo3", "gemma2-eager", "gemma3-caps", "mixtral",
    "olmoe",
)  # fmt: skip
CPU_ONLY = ("granite", "gpt-oss-eager")  # which the CUDA network does not run
# no norm before the MLP, or several MLPs
NOT_SMOOTHED = ["olmo2", "olmo3", *EXPERTS]
PACKABLE = [*LLAMA_LIKE, *RELATED, *EXTENDED, *EXPERTS]
TEXT = list(range(3, 20))


def int8_backend(name: str) -> TorchBackend:
    """A tiny model in packed form."""
    return build(tiny_models.make(name), name, "int8", lambda _: None)


def shuffle_blocks(backend: TorchBackend, seed: int) -> None:
    """Let blocks be taken in any order, so that a text lies in many short stretches."""
    blocks = backend.pool.memory
    rng = np.random.default_rng(seed)

    def anywhere(after: int, wanted: int) -> int:
        return int(rng.choice(np.flatnonzero(blocks._free)))

    blocks._next = anywhere  # type: ignore[method-assign]


def int8_network(name: str, **extra: Any) -> Int8Network:
    """A tiny model in packed form."""
    found = pack(tiny_models.make(name, **extra))
    assert found is not None
    return found
