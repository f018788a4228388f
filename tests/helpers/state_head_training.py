"""A teacher, its corpus, and objectives for early-exit, parallel, recurrent heads and draft models."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sapwood.heads.layers import rotate
from sapwood.train.batches import TrainBatch, gather
from sapwood.train.corpus import Corpus
from sapwood.train.draft_model import DraftModelObjective
from sapwood.train.early_exit import EarlyExitObjective
from sapwood.train.parallel import ParallelObjective
from sapwood.train.recurrent import RecurrentObjective
from tests.helpers.head_training import teacher

STEPS, VOCABULARY = 3, 48
HEADS: list[Any] = [
    EarlyExitObjective(vocabulary=VOCABULARY, inner=24),
    EarlyExitObjective(vocabulary=VOCABULARY, inner=24, attention=False),
    ParallelObjective(depth=STEPS, vocabulary=VOCABULARY, inner=24),
    ParallelObjective(depth=1, vocabulary=VOCABULARY),
    RecurrentObjective(unroll=STEPS, vocabulary=VOCABULARY, blocks=2),
]
STUDENT = DraftModelObjective(width=16, heads=2, inner=24)
each_head = pytest.mark.parametrize("objective", HEADS, ids=str)
each_course = pytest.mark.parametrize(
    "objective", [*HEADS, STUDENT, replace(STUDENT, tie=False)], ids=str
)


@cache
def corpus(texts: int = 48, words: int = 20) -> Corpus:
    """Random prompts and the tiny model's greedy answers, of several lengths."""
    rng = np.random.default_rng(0)
    guide = teacher(torch.float32)
    prompts = rng.integers(3, 9, texts)
    found = []
    for size in prompts.tolist():
        tokens = torch.from_numpy(rng.integers(3, 61, (1, size)))
        for _ in range(words - size):
            final = guide.read(tokens, ())[1][0, -1]
            tokens = torch.cat((tokens, (guide.head @ final).argmax().view(1, 1)), 1)
        found.append(tokens[0].numpy().astype(np.int32))
    starts = np.concatenate([[0], np.cumsum([len(text) for text in found])])
    return Corpus(np.concatenate(found), starts, prompts.astype(np.int32))


def batch_of(objective: Any, texts: list[int], longest: int = 99) -> TrainBatch:
    guide = teacher()
    tokens, lengths, answers = gather(corpus(), np.array(texts), longest)
    return TrainBatch(tokens, lengths, answers, *guide.read(tokens, objective.features(guide)))


def made(objective: Any, salt: int = 0) -> Any:
    """A head in float64 with no weight left where it began."""
    torch.manual_seed(salt)
    head = objective.build(teacher(), corpus().counts(teacher().vocab)).to(torch.float64)
    with torch.no_grad():
        for weight in head.parameters():
            weight += torch.randn_like(weight) * 0.1
    return head


def normed(norm: Any, x: Tensor) -> Tensor:
    found: Tensor = x / (x.pow(2).mean() + norm.eps).sqrt() * norm.weight
    return found


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def mlp(block: Any, x: Tensor) -> Tensor:
    found: Tensor = block.down_proj.weight @ (
        silu(block.gate_proj.weight @ x) * (block.up_proj.weight @ x)
    )
    return found


def projected(attention: Any, x: Tensor, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [heads, d] of one row."""
    rows = [getattr(attention, name).weight @ x for name in ("q_proj", "k_proj", "v_proj")]
    query, key, value = (row.view(-1, 1, attention.shape.head_width) for row in rows)
    place = torch.tensor([position])
    theta = attention.shape.theta
    return rotate(query, place, theta)[:, 0], rotate(key, place, theta)[:, 0], value[:, 0]


def read(attention: Any, query: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What one row takes from the keys and values it sees."""
    group = len(query) // len(seen[0][0])
    found = []
    for number, one in enumerate(query):
        products = torch.stack([one @ key[number // group] for key, _ in seen]) / math.sqrt(
            len(one)
        )
        found.append(
            products.softmax(0) @ torch.stack([value[number // group] for _, value in seen])
        )
    taken: Tensor = attention.o_proj.weight @ torch.cat(found)
    return taken
