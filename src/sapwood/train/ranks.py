"""How often the guess of each rank is right, by depth: what Medusa's sparse tree is made from."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sapwood.policies.sparse import RANKS
from sapwood.train import hydra, medusa
from sapwood.train.batches import Batch
from sapwood.train.checkpoint import write
from sapwood.train.labels import label
from sapwood.train.target import Teacher

ANSWERS: dict[str, Any] = {"medusa": medusa.answers, "hydra": hydra.answers}


@torch.inference_mode()
def measure(head: Any, teacher: Teacher, batches: Iterable[Batch], ranks: int = 10) -> list[list[float]]:
    """Share of the answers' words that are the guess of each rank, [heads][ranks]."""
    hits: Tensor | None = None
    words = 0
    for batch in batches:
        found, count = hits_of(head, teacher, batch, ranks)
        hits, words = found if hits is None else hits + found, words + count
    return [] if hits is None else (hits / max(words, 1)).tolist()


def hits_of(head: Any, teacher: Teacher, batch: Batch, ranks: int) -> tuple[Tensor, int]:
    """How many words are the guess of each rank [heads, ranks], and how many there are."""
    labels = label(head, teacher, batch, hard=0.0)
    wanted = batch.tokens[labels.texts, labels.places + 1]
    found = []
    for step, (states, weights) in enumerate(ANSWERS[head.kind](head, batch, labels)):
        output = head.rows(step) if head.kind == "medusa" else head.output
        guesses = head.vocabulary[(states.to(output.dtype) @ output.t()).topk(min(ranks, len(output)), -1).indices]
        found.append(((guesses == wanted[:, None]) & (weights > 0)[:, None]).sum(0))
    return torch.stack(found), len(wanted)


def save(folder: Path, table: list[list[float]]) -> None:
    """Put the table beside the head, where the policy `sparse` looks for it."""
    rounded = [[round(chance, 5) for chance in level] for level in table]
    write(folder / RANKS, lambda path: path.write_text(json.dumps(rounded), encoding="utf-8"))
