"""Where kernels of the CUDA path can be tested: on a CUDA device, or in Triton's interpreter."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

CUDA = torch.cuda.is_available()
MISSING = "needs a CUDA device, or `pip install triton` and the environment of `make kernels`"
DEVICE = "cuda" if CUDA else "cpu"


def require() -> None:
    """Skip a test, or a module of tests, where kernels cannot run."""
    if not CUDA and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(MISSING, allow_module_level=True)
    pytest.importorskip("triton", reason=MISSING)
    if not CUDA:
        _mend()


def chosen(names: Sequence[str], marked: Sequence[str]) -> list[Any]:
    """Parameters of a test, some of them marked for the interpreter."""
    return [
        pytest.param(name, marks=pytest.mark.interpreter) if name in marked else name
        for name in names
    ]


def few_programs(patch: pytest.MonkeyPatch) -> None:
    """Wide tiles and short texts in the interpreter, whose time goes by the number of programs."""
    if CUDA:
        return
    from sapwood.backends.torch.cuda import pass_inputs
    from sapwood.backends.torch.cuda.kernels import tile_configs

    def wide(m: int, *_: Any) -> tile_configs.TileConfig:
        return tile_configs.TileConfig(tile_configs.row_tile(m), 256, 256)

    patch.setattr(pass_inputs, "SHORT", 64)
    patch.setattr(tile_configs, "first_guess", wide)


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

    module._patch_lang_tensor = patched
    module.mended = True
