"""Drafts with the target in fewer bits (QSpec, arXiv 2410.11305).

QSpec drafts with 4-bit activations and weights and verifies with the same weights and 16-bit
activations, over one KV cache: verification overwrites the drafted keys with exact ones. Here an
int8 target keeps its weights too: layers whose activations have 15 bits are drafted with 8, over
the target's own keys and values. Below 8 bits weights are rounded as well, but stay in the int8
kernels, so this reproduces the method and saves no time. A float target on a CPU drafts in int8
weights with a KV cache of its own; elsewhere its weights are only rounded.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.core.part import between
from sapwood.core.protocols import Backend
from sapwood.drafters.self.self_base import SelfBase, made_cheaper


@dataclass
class QuantizedSelf(SelfBase):
    """The target itself in fewer bits, over its own KV cache if possible."""

    # of a weight and of a row's numbers, 2 to 8; weights never go below, rows stay at eight
    bits: int = 8

    paper: ClassVar[str] = "2410.11305"

    def __post_init__(self) -> None:
        between(2, 8, bits=self.bits)

    def variant(self, target: Backend) -> Backend:
        """The target in fewer bits."""
        return made_cheaper(target, bits=self.bits)
