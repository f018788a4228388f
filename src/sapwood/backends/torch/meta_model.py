"""Models of transformers whose parameters have no memory."""

from typing import Any

import torch


def fill_buffers(model: Any) -> None:
    """Give buffers that no file holds, such as rotary angles, memory and values."""
    for module in model.modules():
        empty = [name for name, found in module.named_buffers(recurse=False) if found.is_meta]
        for name in empty:
            setattr(module, name, torch.empty_like(getattr(module, name), device="cpu"))
        if empty:
            model._init_weights(module)
