"""Look-ahead rows in training: behind random places of a text, all in one packed pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sapwood.train.batches import TrainBatch
from sapwood.train.pard import PackedRows
from sapwood.train.teacher import Teacher


@dataclass(frozen=True, slots=True)
class PackedTexts:
    """Texts with look-ahead rows behind some of their places."""

    packed: PackedRows
    anchors: Tensor  # [places] position of the token before each group of rows
    rows: int  # of a group

    @property
    def text(self) -> int:
        """Tokens of a text, which come first."""
        return len(self.packed.places) - len(self.anchors) * self.rows

    def targets(self, states: Tensor) -> Tensor:
        """The values that the rows predict, of [batch, tokens, ...]: [batch, places, rows, ...]."""
        steps = torch.arange(1, self.rows + 1, device=self.anchors.device)
        return states[:, self.anchors[:, None] + steps]


def packed_texts(batch: TrainBatch, rows: int, places: int) -> PackedTexts:
    """Groups of rows behind at most so many places; drawn from the batch, as a resumed run repeats.

    Texts that end before the last row of a group are compared on their padding.
    """
    source = torch.Generator().manual_seed(int(batch.tokens.sum()))
    last = max(1, min(int(batch.lengths.max()), batch.tokens.shape[1]) - rows - 1)
    first = min(max(0, int(batch.answers.min()) - 1), last - 1)
    able = first + torch.randperm(last - first, generator=source)[:places]
    anchors = able.sort().values
    steps = torch.arange(1, rows + 1)
    text = torch.arange(batch.tokens.shape[1])
    where = torch.cat((text, (anchors[:, None] + steps).flatten()))
    which = torch.cat((torch.zeros_like(text), steps.repeat(len(anchors))))
    device = batch.tokens.device
    return PackedTexts(PackedRows(where.to(device), which.to(device)), anchors.to(device), rows)


def behind_text(text: Tensor, rows: Tensor) -> Tensor:
    """Texts [batch, tokens, width] with rows behind them.

    Autocast joins its own type and float32, no other: a target in float16 is joined in float32.
    """
    dtype = text.dtype
    if torch.is_autocast_enabled(text.device.type):
        dtype = torch.promote_types(dtype, torch.float32)
    return torch.cat((text.to(dtype), rows.to(dtype)), 1)


def run_packed(teacher: Teacher, tokens: Tensor, embeds: Tensor, texts: PackedTexts) -> Tensor:
    """Final states [batch, places, rows, width] of rows with these embeddings, [rows, width]."""
    words = F.embedding(tokens, teacher.embedding)
    ahead = embeds.repeat(len(texts.anchors), 1).expand(len(tokens), -1, -1)
    visible = texts.packed.visible()
    mask = torch.zeros(visible.shape, dtype=words.dtype, device=words.device)
    mask.masked_fill_(~visible, torch.finfo(words.dtype).min)
    out: Any = teacher.model.base_model(
        inputs_embeds=behind_text(words, ahead),
        position_ids=texts.packed.places[None],
        attention_mask=mask[None, None],
        use_cache=False,
    )
    states: Tensor = out.last_hidden_state[:, texts.text :]
    return states.reshape(len(tokens), len(texts.anchors), texts.rows, -1)
