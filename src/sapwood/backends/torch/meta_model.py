"""Models of transformers whose parameters have no memory."""

from typing import Any

import torch

from sapwood.backends.torch.hf.support import attention_of, model_class


def empty_model(config: Any, name: str) -> Any:
    """The modules of a transformers configuration, without memory for weights."""
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    attention = attention_of(config, model_class(config, name))
    with torch.device("meta"):
        model = auto.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    fill_buffers(model)
    return model


def fill_buffers(model: Any) -> None:
    """Give buffers that no file holds, such as rotary angles, memory and values."""
    for module in model.modules():
        empty = [name for name, found in module.named_buffers(recurse=False) if found.is_meta]
        for name in empty:
            setattr(module, name, torch.empty_like(getattr(module, name), device="cpu"))
        if empty:
            model._init_weights(module)
