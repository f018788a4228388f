"""Where kernels of the CUDA path can be tested: on a CUDA device, or in Triton's interpreter."""

import os
from typing import Any

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def require() -> None:
    """Skip a test module where kernels cannot run."""
    if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no CUDA device, and TRITON_INTERPRET=1 is not set", allow_module_level=True)
    pytest.importorskip("triton", reason="triton is not installed")
    if not CUDA:
        _mend()


def _mend() -> None:
    """Let the interpreter count loops: new numpy makes no number of an array of one."""
    from triton.runtime import interpreter

    module: Any = interpreter
    if getattr(module, "mended", False):
        return
    patch = module._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    module._patch_lang_tensor, module.mended = patched, True
