"""Processors without our int8 kernels (ARM, Apple silicon): the reference path in float32."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="the int8 path needs numba: pip install numba")

from tests.helpers.byte_model import save_byte_model

# as on ARM: none of x86's features, no FBGEMM in torch
CODE = """
import platform, sys
platform.machine = lambda: "aarch64"
import llvmlite.binding, torch

class Features(dict):
    def flatten(self):
        return ""

llvmlite.binding.get_host_cpu_features = Features
type(torch.backends.quantized).supported_engines = ["qnnpack", "none"]
from sapwood import LLM
llm = LLM(sys.argv[1], "pld", device="cpu")
info = llm.target.info
print(info.dtype, info.why, len(llm.generate("hello", max_tokens=6).tokens), sep="; ")
from sapwood.backends.torch.cpu_int8 import intrinsics
print(intrinsics.X86)
"""


def test_the_reference_path_runs_without_x86(tmp_path: Path) -> None:
    save_byte_model(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "float32; this processor (aarch64) has no int8 kernels, which are for x86; 6\nFalse\n"
    )
