"""Trained heads by explicit loops: one text, one row, one key at a time."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.heads.layers import rotate
from sapwood.train.batches import TrainBatch


def states_of(
    head: Any, embedding: Tensor, batch: TrainBatch, text: int, row: int, steps: int
) -> list[Tensor]:
    """What the head's output rows read at each step of one row of one text, [width] each."""
    if head.kind == "medusa":
        return [blocks_of(one.blocks, batch.final[text, row]) for one in head.heads]
    if head.kind == "hydra":
        return [
            hydra_of(head.heads[step], embedding, batch, text, row, 1 + step)
            for step in range(steps)
        ]
    states = layer_of(head, embedding, batch, text, row, steps)
    return [head.norm(state) for state in states] if head.kind == "eagle3" else states


def blocks_of(blocks: Any, x: Tensor) -> Tensor:
    for block in blocks:
        z = block.linear.weight @ x + block.linear.bias
        x = x + z * z.sigmoid()
    return x


def hydra_of(
    one: Any, embedding: Tensor, batch: TrainBatch, text: int, row: int, count: int
) -> Tensor:
    final = batch.final[text, row]
    parts = [final, *(embedding[batch.tokens[text, row + 1 + ahead]] for ahead in range(count))]
    level = torch.cat(
        [part / (part.pow(2).mean() + torch.finfo(part.dtype).eps).sqrt() for part in parts]
    )
    z = one.enter.weight @ level + one.enter.bias
    out: Tensor = final + one.leave.weight @ blocks_of(one.blocks, z * z.sigmoid()) + one.leave.bias
    return out


def layer_of(
    head: Any, embedding: Tensor, batch: TrainBatch, text: int, row: int, steps: int
) -> list[Tensor]:
    """Outputs of the decoder layer: the keys of all rows up to this one, then its own of later steps."""
    layer = head.midlayer
    features = batch.features if head.kind == "eagle3" else batch.final
    tokens = batch.tokens[text]
    seen = [
        project(head, embedding[tokens[t + 1]], head.begin(features[text, t]), t)
        for t in range(row + 1)
    ]
    state = head.begin(features[text, row])
    outputs = []
    for step in range(steps):
        if step:
            seen.append(project(head, embedding[tokens[row + 1 + step]], state, row + step))
        stream, query, _, _ = seen[-1]
        read = layer.self_attn.o_proj.weight @ read_keys(query, seen)
        middle = stream + read
        state = middle + layer.mlp(layer.post_attention_layernorm(middle))
        outputs.append(state)
    return outputs


def project(
    head: Any, embed: Tensor, state: Tensor, position: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The residual stream [width], and query, key and value [heads, d] of one row."""
    layer, shape = head.midlayer, head.config.shape
    if head.kind == "eagle3":
        stream = state
        x = torch.cat((layer.input_layernorm(embed), layer.hidden_norm(state)))
    else:
        stream = x = layer.fc.weight @ torch.cat((embed, state)) + layer.fc.bias
    place = torch.tensor([position])
    made = []
    for matrix, turned in (("q_proj", True), ("k_proj", True), ("v_proj", False)):
        rows = (getattr(layer.self_attn, matrix).weight @ x).view(-1, 1, shape.head_width)
        made.append((rotate(rows, place, shape.theta) if turned else rows)[:, 0])
    return stream, made[0], made[1], made[2]


def read_keys(query: Tensor, seen: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Tensor:
    """What one row reads, all heads side by side."""
    group = len(query) // len(seen[0][2])
    found = []
    for number, one in enumerate(query):
        products = torch.stack([one @ key[number // group] for _, _, key, _ in seen]) / math.sqrt(
            len(one)
        )
        values = torch.stack([value[number // group] for _, _, _, value in seen])
        found.append(products.softmax(0) @ values)
    return torch.cat(found)


def lesson_of(
    objective: Any, head: Any, teacher: Any, batch: TrainBatch, steps: int
) -> tuple[Tensor, list[float]]:
    """Loss and agreement of a objective on a batch, place by place."""
    output = head.lm_head.weight if head.kind == "eagle3" else teacher.head[head.vocabulary]
    words = head.vocabulary.tolist()
    losses: list[list[Tensor]] = [[] for _ in range(steps)]
    right: list[list[bool]] = [[] for _ in range(steps)]
    for text, (start, length) in enumerate(
        zip(batch.answers.tolist(), batch.lengths.tolist(), strict=True)
    ):
        for place in range(start, length):  # of a word of the answer; the state before it says it
            if int(batch.tokens[text, place]) not in words:
                continue
            probs = (teacher.head[head.vocabulary] @ batch.final[text, place - 1]).softmax(0)
            best = int(probs.argmax())
            aim = probs * (1 - objective.hard) + objective.hard * F.one_hot(
                torch.tensor(best), len(probs)
            )
            for step in range(steps):
                row = place - 2 - step
                if row < 0:
                    continue
                state = states_of(head, teacher.embedding, batch, text, row, step + 1)[step]
                logits = output @ state
                loss = -(aim * logits.log_softmax(0)).sum()
                if head.kind == "eagle":
                    gap = (state - batch.final[text, place - 1]).abs()
                    huber = torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean()
                    loss = objective.word * loss + objective.state * huber
                losses[step].append(loss)
                right[step].append(int(logits.argmax()) == best)
    weights = [objective.decay**step for step in range(steps)]
    means = [
        torch.stack(found).mean() * weight for found, weight in zip(losses, weights, strict=True)
    ]
    return torch.stack(means).sum() / sum(weights), [sum(found) / len(found) for found in right]
