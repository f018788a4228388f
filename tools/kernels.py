"""Compile the fused kernels for a GPU that is not there: errors come to light, and what programs need.

    python tools/kernels.py

Needs triton, which on Linux comes with torch for CUDA (`pip install triton`), and no GPU. Prints a line for each kernel
of a pass in the shape of SmolLM2-135M: warps, stages, bytes of shared memory, registers, and bytes of the stack, which
is where registers go that are not there.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

CAPABILITY = (9, 0)  # of the device that is imagined
SHARED = 227 << 10  # bytes that a program of it may have
ROWS = (1, 32, 64)  # of a pass
WIDTH, INNER, VOCAB, SLOTS = 576, 1536, 4096, 512
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


class Imagined:
    """A driver without a device: kernels are compiled, and not launched."""

    class utils:  # noqa: N801
        """What a driver knows of its device."""

        @staticmethod
        def load_binary(*_: Any) -> tuple[int, ...]:
            """A handle of nothing."""
            return 0, 0, 0, 0, 1024

        @staticmethod
        def get_device_properties(_: int) -> dict[str, int]:
            """Sizes."""
            return {"max_shared_mem": SHARED, "multiprocessor_count": 132, "max_num_regs": 65536, "warpSize": 32}

    def get_current_target(self) -> GPUTarget:
        """The device that is compiled for."""
        return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

    def get_current_device(self) -> int:
        """Its number."""
        return 0

    def get_current_stream(self, _: int) -> int:
        """No stream."""
        return 0


def imagine() -> list[Any]:
    """Have every launch compile only; the kernels that were compiled are added to the list."""
    found: list[Any] = []
    seen: set[int] = set()
    run = jit.JITFunction.run

    def compiled(self: Any, *asked: Any, **more: Any) -> Any:
        made = run(self, *asked, **{**more, "warmup": True})
        if made is not None and id(made) not in seen:
            seen.add(id(made))
            found.append(made)
        return made

    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda *_: CAPABILITY  # type: ignore[assignment, misc]
    driver.set_active(Imagined())
    jit.JITFunction.run = compiled
    return found


def a_pass(rows: int) -> None:
    """Launch the kernels of one layer, and of what stands before and behind all of them."""
    from sapwood.backends.torch.fused.attention import attend
    from sapwood.backends.torch.fused.graphs import cut_for
    from sapwood.backends.torch.fused.kernels import project
    from sapwood.backends.torch.fused.pointwise import best_tokens, enter
    from sapwood.backends.torch.fused.qkv import Heads, project_heads
    from sapwood.backends.torch.fused.stream import Margin, Scale, Stream

    def some(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float16)

    def stream() -> Stream:
        return Stream(some(rows, WIDTH), Scale.of(some(WIDTH) + 1, 1e-5), Margin.make(some(1), rows, WIDTH))

    heads, each, numbers = Heads(9, 3, 64), 64, torch.zeros(rows, dtype=torch.int64)
    x, middle, cut = stream(), stream(), cut_for(rows, 1, SLOTS, heads)
    queries, planes = some(rows, heads.queries, each), some(2, 1, SLOTS, heads.keys, each)
    angles, turns = torch.zeros(SLOTS, each), torch.zeros(rows, each)
    enter(x, some(VOCAB, WIDTH), numbers, angles, numbers, turns)
    project_heads(x, some(heads.all * each, WIDTH), queries, planes, heads=heads, angles=turns, slots=numbers)
    blocks = torch.zeros(5, -(-rows // cut.rows), dtype=torch.int64)
    attend(
        queries, planes, some(rows, heads.queries, each), heads=heads, blocks=blocks, words=numbers[:, None],
        positions=numbers, scale=0.1, cut=cut,
    )  # fmt: skip
    project(some(rows, WIDTH), some(WIDTH, WIDTH), middle, residual=x.x)
    project(middle, some(2 * INNER, WIDTH), some(rows, INNER), gate=True, ahead=some(1 << 20))
    project(some(rows, INNER), some(WIDTH, INNER), x, residual=middle.x)
    project(x, some(VOCAB, WIDTH), some(rows, VOCAB))
    best_tokens(some(rows, VOCAB), numbers)


def needs(kernel: Any) -> tuple[str, str]:
    """Registers of a thread, and bytes of its stack."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (re.search(rf"{name}:(\d+)", said) for name in ("REG", "STACK"))
    return registers.group(1) if registers else "?", stack.group(1) if stack else "?"


def main() -> None:
    """Compile, and print what was compiled."""
    found = imagine()
    for rows in ROWS:
        a_pass(rows)
    for kernel in found:
        facts, (registers, stack) = kernel.metadata, needs(kernel)
        line = f"{facts.name:12s} warps {facts.num_warps} stages {facts.num_stages} shared {facts.shared:6d}"
        sys.stdout.write(f"{line} registers {registers:>3s} stack {stack}\n")


if __name__ == "__main__":
    main()
