"""Acceptance of each rank of drafted tokens by depth, from which Medusa's sparse tree is made."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.common.rank_table import RANKS
from sapwood.train import cerberus, hydra, medusa, ppd
from sapwood.train.batches import TrainBatch
from sapwood.train.checkpoint import write
from sapwood.train.labels import label
from sapwood.train.teacher import Teacher

ANSWERS: dict[str, Any] = {
    "medusa": medusa.answers,
    "hydra": hydra.answers,
    "cerberus": cerberus.answers,
}
COUNTED: dict[str, Any] = {"ppd": ppd.rank_hits}
KINDS = (*ANSWERS, *COUNTED)


@torch.inference_mode()
def measure(
    head: Any, teacher: Teacher, batches: Iterable[TrainBatch], ranks: int = 10
) -> list[list[float]]:
    """Share of the answers' tokens that are the draft of each rank, [heads][ranks]."""
    hits: Tensor | None = None
    total = 0
    for batch in batches:
        found, count = hits_of(head, teacher, batch, ranks)
        hits = found if hits is None else hits + found
        total = total + count
    return [] if hits is None else (hits / max(total, 1)).tolist()


def hits_of(head: Any, teacher: Teacher, batch: TrainBatch, ranks: int) -> tuple[Tensor, int]:
    """Number of tokens that are the draft of each rank [heads, ranks], and of all tokens."""
    if head.kind in COUNTED:
        counted: tuple[Tensor, int] = COUNTED[head.kind](head, teacher, batch, ranks)
        return counted
    labels = label(head, teacher, batch, hard=0.0)
    wanted = batch.tokens[labels.texts, labels.places + 1]
    found = []
    for step, (states, weights) in enumerate(ANSWERS[head.kind](head, batch, labels)):
        output = head.rows(step) if head.kind == "medusa" else head.output
        best = (states.to(output.dtype) @ output.t()).topk(min(ranks, len(output)), -1).indices
        drafts = head.vocabulary[best]
        found.append(((drafts == wanted[:, None]) & (weights > 0)[:, None]).sum(0))
    return torch.stack(found), len(wanted)


def save(folder: Path, table: list[list[float]]) -> None:
    """Write the table beside the head, where the policy `rank-paths` looks for it."""
    rounded = [[round(chance, 5) for chance in level] for level in table]
    write(folder / RANKS, lambda path: path.write_text(json.dumps(rounded), encoding="utf-8"))
