"""EAGLE-3 heads in the formats of other tools: those of EAGLE and of speculators."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from sapwood.errors import SapwoodError
from sapwood.heads import files
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.eagle_keys import from_eagle, from_speculators, speculators_config
from sapwood.heads.files import BLOCK, EMBEDDING
from sapwood.heads.folder import Tensors, read_config, read_tensors, refuse
from sapwood.heads.folder import write as write_folder
from sapwood.heads.target_info import TargetInfo

OURS = "sapwood"
EAGLE = "eagle"
SPECULATORS = "speculators"
DIALECTS = (EAGLE, SPECULATORS)  # that can be written; ours is EAGLE's with a block of its own
ARCHITECTURES = {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"}
# the layer's name in EAGLE's dialect and in the other one
MIDDLE = "midlayer."
FIRST = "layers.0."
DERIVED = ".rotary_emb.inv_freq"  # some trainers store it, though the config determines it


# ---------------------------------------------------------------------------------------- writing
def write(
    head: Eagle3Head,
    folder: Path,
    dialect: str,
    verifier: str,  # the target's name, for engines that load it along with the head
    facts: TargetInfo | None = None,
    embedding: Tensor | None = None,  # [vocab, width]; None: the target's
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a head in one of the dialects."""
    if dialect not in DIALECTS:
        raise SapwoodError(f"dialect {dialect!r} is not known; use {' or '.join(DIALECTS)}")
    extra = {} if embedding is None else {EMBEDDING: embedding}
    if facts is not None:
        check_target(folder, head.config, facts, embedding)
    if dialect == EAGLE:
        if head.config.norm_before_residual:
            raise SapwoodError(
                f"EAGLE's dialect has no norm_before_residual; use {SPECULATORS!r} for this head"
            )
        files.save(head, folder, {**(about or {}), "target": verifier}, extra, facts)
        return
    tensors = {name.replace(MIDDLE, FIRST, 1): tensor for name, tensor in head.state_dict().items()}
    write_folder(folder, speculators_config(head.config, verifier, facts), {**tensors, **extra})


# ---------------------------------------------------------------------------------------- reading
def read(
    folder: Path,
    facts: TargetInfo,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Eagle3Head, Tensor | None]:
    """A head in any of the dialects, ours included, and its own embedding where it has one."""
    record = read_config(folder)
    dialect = recognise(folder, record)
    if dialect == OURS:
        head, embedding = read_ours(folder, device, dtype)
        check_target(folder, head.config, facts, embedding)
    else:
        tensors = read_tensors(folder)
        embedding = tensors.pop(EMBEDDING, None)
        config = (from_eagle if dialect == EAGLE else from_speculators)(folder, record, facts)
        check_target(folder, config, facts, embedding)
        head = cast(
            Eagle3Head,
            files.build(Eagle3Head, config, rename(folder, tensors, config), folder, device, dtype),
        )
    kept = None if embedding is None else embedding.to(device=device, dtype=dtype or torch.float32)
    return head, kept


def about(folder: Path) -> dict[str, Any]:
    """The facts saved with a head; empty for a head of another tool."""
    record = read_config(folder)
    return files.read_block(folder)["about"] if BLOCK in record else {}


def read_ours(
    folder: Path, device: torch.device | str | None, dtype: torch.dtype | None
) -> tuple[Eagle3Head, Tensor | None]:
    """A head that sapwood saved."""
    found = files.read(folder, device=device, dtype=dtype)
    if not isinstance(found.head, Eagle3Head):
        kind = files.read_block(folder)["kind"]
        refuse(
            folder,
            f"holds a head of kind {kind!r}, and only eagle3 heads have dialects; "
            "name another folder",
        )
    check_vocabulary(folder, found.head.d2t, found.head.t2d)
    return found.head, found.extra.get(EMBEDDING)


def recognise(folder: Path, record: Mapping[str, Any]) -> str:
    """The dialect of a config."""
    named = record.get("architectures")
    if BLOCK in record:
        return OURS
    if "speculators_model_type" in record or "speculators_config" in record:
        return SPECULATORS
    if "draft_vocab_size" in record or (
        isinstance(named, list) and ARCHITECTURES.intersection(map(str, named))
    ):
        return EAGLE
    return refuse(
        folder,
        "is in no dialect that is known (EAGLE's, speculators' or ours); "
        "name the folder of an EAGLE-3 head",
    )


def rename(folder: Path, tensors: Tensors, config: Eagle3Config) -> Tensors:
    """Tensors by sapwood's names, with the vocabulary maps checked or completed."""
    found = {
        MIDDLE + name.removeprefix(FIRST) if name.startswith(FIRST) else name: tensor
        for name, tensor in tensors.items()
        if not name.endswith(DERIVED)
    }
    if "d2t" not in found:
        if config.draft_vocab != config.vocab:
            refuse(
                folder,
                f"lacks the tensor 'd2t' for its {config.draft_vocab} draft tokens; "
                "download it again",
            )
        found["d2t"] = torch.zeros(config.vocab, dtype=torch.int64)
    for name in ("d2t", "t2d"):
        if name in found and found[name].is_floating_point():
            refuse(
                folder,
                f"holds a tensor {name!r} of floats where whole numbers belong; download it again",
            )
    found["d2t"] = found["d2t"].to(torch.int64)
    members = found.get("t2d")
    found["t2d"] = (
        torch.zeros(config.vocab, dtype=torch.bool) if members is None else members.to(torch.bool)
    )
    check_vocabulary(folder, found["d2t"], found["t2d"], fill=members is None)
    return found


def check_vocabulary(folder: Path, d2t: Tensor, t2d: Tensor, *, fill: bool = False) -> None:
    """Refuse vocabulary maps that contradict each other; `fill` makes t2d from d2t."""
    if d2t.dim() != 1 or t2d.dim() != 1:
        refuse(folder, "holds 'd2t' or 't2d' that are not lists of numbers; download it again")
    tokens = d2t + torch.arange(len(d2t), device=d2t.device)
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(t2d):
        refuse(
            folder,
            f"holds a 'd2t' that points outside of the {len(t2d)} tokens; "
            "it must hold offsets, not ids",
        )
    members = torch.zeros_like(t2d)
    members[tokens] = True
    if int(members.sum()) != len(tokens):
        refuse(folder, "holds a 'd2t' that names a token twice; download it again")
    if fill:
        t2d.copy_(members)
    if not torch.equal(members, t2d):
        refuse(folder, "holds a 't2d' that does not match its 'd2t'; download it again")


def check_target(
    folder: Path, config: Eagle3Config, facts: TargetInfo, embedding: Tensor | None
) -> None:
    """Refuse a head that was made for another target."""
    for name, own, given in (
        ("width", config.target_width, facts.width),
        ("vocabulary", config.vocab, facts.vocab),
    ):
        if own != given:
            reason = f"is for a target of {name} {own}, and this one has {given}"
            refuse(folder, f"{reason}; use the model it was trained for")
    for layer in config.features:
        if not 0 <= layer <= facts.layers:
            refuse(
                folder,
                f"reads layer {layer} of a target that has {facts.layers}; "
                "use the model it was trained for",
            )
    if embedding is None and config.shape.width != facts.width:
        refuse(
            folder,
            f"lacks the tensor {EMBEDDING!r}, which it needs since it is not as wide as its target",
        )
    if embedding is not None and list(embedding.shape) != [config.vocab, config.shape.width]:
        shapes = f"{list(embedding.shape)}, not {[config.vocab, config.shape.width]}"
        refuse(folder, f"holds a tensor {EMBEDDING!r} of shape {shapes}; download it again")
