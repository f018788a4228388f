"""Fingerprints of GGUF files, and the choice of tensors that all fingerprints sample."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.common.fingerprint import (
    EMBEDDING,
    ROWS,
    Fingerprint,
    TensorSample,
    sampled_layers,
    sampled_rows,
)
from sapwood.common.gguf_header import GgufHeader
from sapwood.core.array_types import FloatArray

PARTS = ("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")  # sampled of a layer
SAMPLED = re.compile(rf"blk\.(\d+)\.({'|'.join(PARTS)})")
OTHERS = 15  # tensors that are sampled of a model whose layers have other names

ReadRows = Callable[[str, list[int]], FloatArray]  # some rows of a tensor, [rows, columns]


def fingerprint_of_gguf(path: Path, header: GgufHeader) -> Fingerprint | None:
    """The fingerprint of a GGUF file with this header; None if it cannot be sampled."""
    try:
        from gguf import GGMLQuantizationType, dequantize
    except ImportError:
        return None

    matrices = {tensor.name: tensor for tensor in header.tensors if len(tensor.shape) == 2}
    names = {name.removesuffix(".weight"): name for name in sorted(matrices)}
    shapes = {name: tensor.shape[::-1] for name, tensor in matrices.items()}

    def read(name: str, rows: list[int]) -> FloatArray:
        tensor = matrices[name]
        length = tensor.size // tensor.shape[1]  # bytes of a row
        parts = []
        for row in rows:
            file.seek(header.data + tensor.offset + row * length)
            parts.append(np.frombuffer(file.read(length), np.uint8))
        found: Any = dequantize(np.stack(parts), GGMLQuantizationType(tensor.kind))
        return np.asarray(found, np.float32)

    try:
        with path.open("rb") as file:
            return sample(names, shapes, read)
    except (OSError, ValueError, KeyError, NotImplementedError):
        return None


def sample(
    names: Mapping[str, str],  # common name -> name in the file
    shapes: Mapping[str, tuple[int, ...]],
    read: ReadRows,
) -> Fingerprint | None:
    """Samples of the embedding and of some matrices of some layers."""
    if EMBEDDING not in names:
        return None
    found = {}
    for name in [EMBEDDING, *chosen(names)]:
        shape = shapes[names[name]]
        if shape[0] >= ROWS:
            found[name] = TensorSample.of(shape, read(names[name], sampled_rows(shape[0])))
    return Fingerprint(found)


def chosen(names: Iterable[str]) -> list[str]:
    """The sampled matrices of layers; where these have other names, some of all matrices."""
    layers = {name: int(match[1]) for name in names if (match := SAMPLED.fullmatch(name))}
    if layers:
        wanted = sampled_layers(max(layers.values()) + 1)
        return sorted(name for name, layer in layers.items() if layer in wanted)
    others = sorted(name for name in names if name != EMBEDDING)
    return others[:: max(1, -(-len(others) // OTHERS))]
