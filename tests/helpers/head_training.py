"""A tiny teacher, a corpus of its own answers, batches of it and heads to train on them."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.train.batches import TrainBatch, gather
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.teacher import Teacher
from tests.helpers import tiny_models


@cache
def teacher(dtype: torch.dtype = torch.float64) -> Teacher:
    return Teacher(TorchBackend(tiny_models.make("llama").to(dtype), "tiny"))


@cache
def corpus(texts: int = 48, words: int = 24) -> Corpus:
    """Random prompts of three to eight tokens, and the tiny model's greedy answers."""
    rng = np.random.default_rng(0)
    found = []
    prompts = rng.integers(3, 9, texts)
    for size in prompts:
        tokens = torch.from_numpy(rng.integers(3, 61, (1, size)))
        for _ in range(words - int(size) // 2):
            final = teacher(torch.float32).read(tokens, ())[1][0, -1]
            tokens = torch.cat(
                (tokens, (teacher(torch.float32).head @ final).argmax().view(1, 1)), 1
            )
        found.append(tokens[0].numpy().astype(np.int32))
    starts = np.concatenate([[0], np.cumsum([len(text) for text in found])])
    return Corpus(np.concatenate(found), starts, prompts.astype(np.int32))


def batch_of(objective: Any, guide: Teacher, texts: list[int], longest: int = 99) -> TrainBatch:
    tokens, lengths, answers = gather(corpus(), np.array(texts), longest)
    return TrainBatch(tokens, lengths, answers, *guide.read(tokens, objective.features(guide)))


def random_head(objective: Any, guide: Teacher, salt: int = 0) -> Any:
    """A head in float64 with no weight left at its gentle beginning."""
    torch.manual_seed(salt)
    head = objective.build(guide, corpus().counts(guide.vocab)).to(torch.float64)
    with torch.no_grad():
        for weight in head.parameters():
            weight += torch.randn_like(weight) * 0.1
    return head


def short_loop(
    objective: Any, texts: Corpus, folder: Path, stop: Any = lambda: False
) -> TrainingLoop:
    """A training of forty steps."""
    settings = LoopSettings(steps=40, tokens=1024, log=10)
    return TrainingLoop(
        objective, teacher(torch.float32), texts, settings, folder / "state", asked_to_stop=stop
    )
