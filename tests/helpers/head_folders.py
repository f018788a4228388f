"""Small EAGLE-3 heads in folders, and ways to damage them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sapwood.heads import files
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from sapwood.heads.target_info import TargetInfo

FACTS = TargetInfo(32, 8, 61, ("LlamaForCausalLM",), {"bos_token_id": 1, "eos_token_id": 2})
CONFIG = Eagle3Config(LayerShape(32, 4, 2, 8, 48, 1e-5, 50_000.0), 32, 61, 20, (2, 4, 5), 128)
FLOAT = "midlayer.mlp.up_proj.weight"


def make(config: Eagle3Config = CONFIG, seed: int = 0) -> Eagle3Head:
    torch.manual_seed(seed)
    head = Eagle3Head(config)
    head.use_vocabulary(
        torch.arange(config.vocab)[:: config.vocab // config.draft_vocab][: config.draft_vocab]
    )
    return head


def same(left: nn.Module, right: nn.Module) -> bool:
    """Equal in 16 bits, name by name."""
    ours, theirs = left.state_dict(), right.state_dict()
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[key].half(), theirs[key].half()) for key in ours
    )


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change config.json."""
    record = json.loads((folder / "config.json").read_text())
    change(record)
    (folder / "config.json").write_text(json.dumps(record))


def alter(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors."""
    tensors = {
        name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()
    }
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def narrow(tensors: dict[str, Tensor], name: str, width: int) -> None:
    """Keep only the first columns of a tensor."""
    tensors[name] = tensors[name][:, :width].clone()


def foreign(folder: Path, config: Eagle3Config = CONFIG) -> Eagle3Head:
    """A folder in EAGLE's dialect as another tool writes it, without our block."""
    head = make(config)
    files.save(head, folder)
    edit(folder, lambda record: record.pop("sapwood"))
    return head
