"""Reads Medusa heads in the format of FasterDecoding's trainer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sapwood.common.drafter_store import WEIGHTS
from sapwood.heads.folder import FLOATS, Tensors, dtype_name, read_config, read_tensors, refuse
from sapwood.heads.target_info import TargetInfo

THEIRS = "medusa_lm_head.safetensors"
NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")


def read_medusa(folder: Path, facts: TargetInfo) -> tuple[dict[str, Any], Tensors]:
    """Fields of MedusaConfig and the state dict, from a folder of that trainer."""
    record = read_config(folder)
    tensors = read_tensors(folder, WEIGHTS if (folder / WEIGHTS).is_file() else THEIRS)
    return rename_medusa(folder, record, tensors, facts)


def rename_medusa(
    folder: Path, record: Mapping[str, Any], tensors: Tensors, facts: TargetInfo
) -> tuple[dict[str, Any], Tensors]:
    """The same from config and tensors: `{head}.{layer}.linear.*` are blocks, then the output."""
    parsed = {name: parse_name(folder, name) for name in tensors}
    heads = 1 + max((head for head, _, _ in parsed.values()), default=-1)
    blocks = 1 + max((layer for _, layer, part in parsed.values() if part != "weight"), default=-1)
    own_head = any(part == "weight" for _, _, part in parsed.values())
    # early configs name fewer heads than their file holds; more heads are a fault
    for key, count, exact in (
        ("medusa_num_heads", heads, False),
        ("medusa_num_layers", blocks, True),
    ):
        given = record.get(key, count)
        if type(given) is not int or given > count or (exact and given != count):
            refuse(folder, f"says {key} {given!r} and holds {count}; download it again")
    for name, (_, layer, part) in parsed.items():
        if part == "weight" and layer != blocks:
            refuse(
                folder,
                f"holds a tensor {name!r} that is not after the last of {blocks} blocks; "
                "download it again",
            )
    renamed = {
        our_name(head, layer, part): tensors[name] for name, (head, layer, part) in parsed.items()
    }
    if heads > len(tensors):
        refuse(folder, f"names {heads} heads in {len(tensors)} tensors; download it again")
    check_shapes(folder, renamed, expected(heads, blocks, own_head, facts))
    config = {
        "width": facts.width,
        "vocab": facts.vocab,
        "heads": heads,
        "blocks": blocks,
        "own_head": own_head,
    }
    return config, renamed


def parse_name(folder: Path, name: str) -> tuple[int, int, str]:
    """Head, layer and part of a tensor."""
    found = NAME.fullmatch(name)
    if found is None:
        refuse(
            folder, f"holds a tensor {name!r} that a Medusa head does not have; download it again"
        )
    return int(found[1]), int(found[2]), found[3]


def our_name(head: int, layer: int, part: str) -> str:
    """The tensor's name in MedusaHeads."""
    return (
        f"heads.{head}.lm_head.weight"
        if part == "weight"
        else f"heads.{head}.blocks.{layer}.{part}"
    )


def expected(heads: int, blocks: int, own_head: bool, facts: TargetInfo) -> dict[str, list[int]]:
    """Shapes by name in MedusaHeads."""
    shapes: dict[str, list[int]] = {}
    for head in range(heads):
        for block in range(blocks):
            shapes[our_name(head, block, "linear.weight")] = [facts.width, facts.width]
            shapes[our_name(head, block, "linear.bias")] = [facts.width]
        if own_head:
            shapes[our_name(head, blocks, "weight")] = [facts.vocab, facts.width]
    return shapes


def check_shapes(folder: Path, tensors: Tensors, shapes: Mapping[str, list[int]]) -> None:
    """Refuse tensors that are missing or of the wrong shape or type."""
    if not shapes:
        refuse(folder, "holds no Medusa heads; download it again")
    for name, shape in shapes.items():
        if name not in tensors:
            refuse(folder, f"lacks the tensor for {name!r}; download it again")
        got = tensors[name]
        if list(got.shape) != shape:
            refuse(
                folder,
                f"holds a tensor for {name!r} of shape {list(got.shape)}, not {shape}; "
                "use its own target",
            )
        if got.dtype not in FLOATS:
            refuse(
                folder,
                f"holds a tensor for {name!r} of {dtype_name(got.dtype)}, not floats; "
                "download it again",
            )
