"""Limits of the CUDA device that tiles keep to; importable without Triton."""

from functools import cache
from typing import Any

import torch

LARGEST = 227 << 10  # bytes of shared memory of a program on an H100, an H200 or a B200


@cache
def shared_limit() -> int:
    """Bytes of shared memory that a program may have on the current device."""
    if not torch.cuda.is_available():
        return LARGEST
    properties: Any = torch.cuda.get_device_properties()  # the field is missing from its type
    return int(properties.shared_memory_per_block_optin)


@cache
def is_hopper() -> bool:
    """True on a Hopper, for which tiles were measured; true where there is no device."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)


@cache
def is_timed() -> bool:
    """True on an H200, on which the known tiles were timed; true where there is no device."""
    return not torch.cuda.is_available() or "H200" in torch.cuda.get_device_name()
