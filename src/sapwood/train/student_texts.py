"""Answers that a draft model writes itself while it is trained, alone or corrected by the target.

The prompts are those of a batch, and so are the lengths. With `top` the draft model proposes every
token and the target replaces those that are not among its own best so many (speculative knowledge
distillation, arXiv 2410.11325). There a block of proposals is checked in one pass of the target,
and what follows a replaced token is dropped; token by token gives the same texts.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from sapwood.core.part import at_least, between
from sapwood.train.batches import TrainBatch
from sapwood.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class TextSampling:
    """Temperatures and limits by which answers are drawn."""

    temperature: float = 1.0  # of the draft model
    top_p: float = 1.0  # of the draft model
    top: int = 0  # best tokens of the target that are kept; 0: all
    target_temperature: float = 1.0  # of replacements
    target_top_p: float = 1.0

    def __post_init__(self) -> None:
        at_least(0, top=self.top)
        between(0, 1, top_p=self.top_p, target_top_p=self.target_top_p)


@torch.no_grad()
def rewritten(student: Any, teacher: Teacher, batch: TrainBatch, how: TextSampling) -> TrainBatch:
    """The batch with answers of the draft model, and the target's final states there.

    Draws are seeded by the batch, so that a resumed run repeats them. A text ends behind its first
    token that ends an answer.
    """
    source = torch.Generator(batch.tokens.device).manual_seed(int(batch.tokens.sum()))
    tokens = batch.tokens.clone()
    models = [(student.model, student.output, DynamicCache())]
    if how.top:
        models.append((teacher.model.base_model, teacher.head, DynamicCache()))
    read = 0
    for place in range(max(1, int(batch.answers.min())), int(batch.lengths.max())):
        own = place >= batch.answers
        logits = [
            body(
                input_ids=tokens[:, read:place], past_key_values=cache, use_cache=True
            ).last_hidden_state[:, -1]
            @ head.t()
            for body, head, cache in models
        ]
        read = place
        found = draw(logits[0], how.temperature, how.top_p, source)
        if how.top:
            found = replaced(found, logits[1], how, source)
        tokens[:, place] = torch.where(own, found, tokens[:, place])
    lengths = cut(tokens, batch, ends_of(teacher))
    features, final = teacher.read(tokens, ())
    return dataclasses.replace(
        batch, tokens=tokens, lengths=lengths, features=features, final=final
    )


def replaced(found: Tensor, logits: Tensor, how: TextSampling, source: torch.Generator) -> Tensor:
    """These tokens [rows]; where one is not among the target's best, a draw of the target."""
    best = logits.topk(min(how.top, logits.shape[-1]), -1).indices
    kept = (best == found[:, None]).any(-1)
    return torch.where(kept, found, draw(logits, how.target_temperature, how.target_top_p, source))


def draw(logits: Tensor, temperature: float, top_p: float, source: torch.Generator) -> Tensor:
    """One token of each row, [rows]; temperature 0 takes the best."""
    if temperature == 0:
        return logits.argmax(-1)
    probs = (logits.float() / temperature).softmax(-1)
    if top_p < 1:
        ranked, order = probs.sort(-1, descending=True)
        ranked[ranked.cumsum(-1) - ranked >= top_p] = 0  # the first one always stays
        probs = torch.zeros_like(probs).scatter_(-1, order, ranked)
    return torch.multinomial(probs, 1, generator=source)[:, 0]


def ends_of(teacher: Teacher) -> list[int]:
    """Tokens that end an answer."""
    found = teacher.config.to_dict().get("eos_token_id")
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def cut(tokens: Tensor, batch: TrainBatch, ends: list[int]) -> Tensor:
    """Lengths [batch] of texts that stop behind the first token that ends an answer."""
    place = torch.arange(tokens.shape[1], device=tokens.device)
    ended = torch.isin(tokens, torch.tensor(ends, device=tokens.device, dtype=tokens.dtype))
    ended &= place >= batch.answers[:, None]
    last = torch.where(ended, place + 1, tokens.shape[1]).min(-1).values
    return torch.minimum(last, batch.lengths)
