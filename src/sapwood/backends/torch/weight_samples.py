"""Fingerprints of folders of safetensors."""

import re
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from sapwood.backends.torch.gguf_samples import sample
from sapwood.backends.torch.weights import FLOATS, TensorFiles, find_weights
from sapwood.common.fingerprint import COLUMNS, EMBEDDING, Fingerprint
from sapwood.core.array_types import FloatArray

# names in transformers -> names in GGUF files
LAYER = re.compile(
    r"(?:^|\.)layers\.(\d+)\.(self_attn\.[vo]_proj|mlp\.(?:gate|up|down)_proj)\.weight$"
)
PARTS = {
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TABLE = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in)\.weight$")


def fingerprint_of_folder(folder: Path) -> Fingerprint | None:
    """The fingerprint of the safetensors of a folder; None if they cannot be sampled."""
    files = find_weights(folder)
    if files is None:
        return None
    matrices = {
        name: entry.shape
        for name, entry in files.entries.items()
        if len(entry.shape) == 2 and entry.kind in FLOATS
    }
    names = {common_name(name): name for name in sorted(matrices)}
    try:
        return sample(names, matrices, lambda name, rows: read_rows(files, name, rows))
    except (OSError, ValueError, SafetensorError):
        return None


def common_name(name: str) -> str:
    """The name of a tensor of transformers in GGUF files; others stay as they are."""
    if TABLE.search(name):
        return EMBEDDING
    match = LAYER.search(name)
    return f"blk.{match[1]}.{PARTS[match[2]]}" if match else name


def read_rows(files: TensorFiles, name: str, rows: list[int]) -> FloatArray:
    """Some rows of a tensor, float32 [rows, COLUMNS or fewer]."""
    with safe_open(files.entries[name].file, "pt") as opened:
        part = opened.get_slice(name)
        found = torch.cat([part[row : row + 1, :COLUMNS].float() for row in rows])
    return np.asarray(found.numpy(), np.float32).copy()
