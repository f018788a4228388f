"""Choice of the keys that a draft sees, by the attention of the target's last queries.

TriForce (arXiv 2404.11912) compares the newest query with the mean key of every chunk and keeps the
best chunks; SnapKV (arXiv 2404.14469) sums the attention of the last queries on every key, smooths
it over neighbours and keeps the best keys. Both choose for each layer and each key head by itself.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sapwood.backends.torch.kv_slots import KvSlots, RowSpan

NAME = "sapwood-recording"
OBSERVED = 32  # last queries of a prompt that are kept, SnapKV's observation window
MOST = 256  # rows of a pass of which all queries are kept
SMOOTH = 7  # neighbouring keys whose attention is pooled


class ActiveRecording(threading.local):
    """The recording of a thread: several may run passes of one model."""

    found: dict[int, Tensor] | None = None


_ACTIVE = ActiveRecording()
_LOCK = threading.Lock()
# id of a configuration -> the same, the name of its own attention, recordings under way
_USUAL: dict[int, tuple[Any, str, int]] = {}


@dataclass(frozen=True)
class RecordedQueries:
    """Queries of the last pass over a session, after rotary embedding."""

    places: Sequence[int]  # positions of the rows
    layers: dict[int, Tensor]  # layer -> [heads, rows, width]

    def at(self, places: Sequence[int]) -> "RecordedQueries | None":
        """The queries of these positions, as far as they were kept."""
        rows = [self.places.index(place) for place in places if place in self.places]
        if not rows:
            return None
        kept = {layer: queries[:, rows] for layer, queries in self.layers.items()}
        return RecordedQueries([self.places[row] for row in rows], kept)


def can_record(model: Any) -> bool:
    """True when the model's attention can be called with its queries recorded."""
    return config_of(model)._attn_implementation in ALL_ATTENTION_FUNCTIONS


def config_of(model: Any) -> Any:
    """The configuration from which the layers read the name of their attention."""
    return model.config.get_text_config()


@contextmanager
def recording(model: Any) -> Iterator[dict[int, Tensor]]:
    """Record the queries of each layer, [heads, rows, width], during one pass of this thread."""
    AttentionInterface.register(NAME, recorded_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    config = config_of(model)
    found: dict[int, Tensor] = {}
    switch(config, 1)
    _ACTIVE.found = found
    try:
        yield found
    finally:
        _ACTIVE.found = None
        switch(config, -1)


def switch(config: Any, change: int) -> None:
    """Count a recording in or out: the layers call `recorded_attention` while there is any."""
    with _LOCK:
        usual, count = _USUAL.get(id(config), (config, "", 0))[1:]
        if not count:
            usual = config._attn_implementation
        count += change
        _USUAL[id(config)] = (config, usual, count)
        config._attn_implementation = NAME if count else usual


def recorded_attention(module: Any, query: Tensor, *rest: Any, **options: Any) -> Any:
    """The model's own attention; the queries are kept if this thread records."""
    if _ACTIVE.found is not None:
        _ACTIVE.found[module.layer_idx] = query[0]
    _, usual, _ = _USUAL[id(module.config)]
    return ALL_ATTENTION_FUNCTIONS[usual](module, query, *rest, **options)


def keep_queries(found: dict[int, Tensor], spans: Sequence[RowSpan]) -> None:
    """Store the recorded queries with the sessions of a pass."""
    end = 0
    for span in spans:
        end += span.rows
        count = span.rows if span.rows <= MOST else OBSERVED
        places = range(span.start + span.rows - count, span.start + span.rows)
        layers = {layer: queries[:, end - count : end] for layer, queries in found.items()}
        span.slots.queries = RecordedQueries(places, layers)


# ----------------------------------------------------------------------------------- choice
def best_chunks(queries: Tensor, keys: Tensor, count: int, chunk: int) -> Tensor:
    """Places of the best chunks for each key head, [key heads, count], ascending (TriForce)."""
    means = avg_pool1d(keys.float().transpose(1, 2), chunk).transpose(1, 2)
    scores = attention(queries[:, -1:], means)[:, 0]  # [key heads, chunks]
    chosen = scores.topk(count // chunk, -1).indices.sort(-1).values
    places = chosen[..., None] * chunk + torch.arange(chunk, device=keys.device)
    return places.flatten(1)


def best_keys(queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """Places of the best keys for each key head, [key heads, count], ascending (SnapKV)."""
    scores = attention(queries[:, -OBSERVED:], keys.float()).sum(1)  # [key heads, keys]
    pooled = max_pool1d(scores, SMOOTH, stride=1, padding=SMOOTH // 2)
    return pooled.topk(count, -1).indices.sort(-1).values


def attention(queries: Tensor, keys: Tensor) -> Tensor:
    """Attention of queries [heads, rows, width] on keys [key heads, keys, width].

    Summed over the query heads that share a key head: [key heads, rows, keys].
    """
    heads, rows, width = queries.shape
    grouped = queries.float().reshape(len(keys), heads // len(keys), rows, width)
    products = grouped @ keys[:, None].transpose(-1, -2) / width**0.5
    summed: Tensor = products.softmax(-1).sum(1)
    return summed


@torch.inference_mode()
def copy_chosen(
    source: KvSlots, target: KvSlots, span: range, place: int, count: int, chunk: int
) -> None:
    """Copy `count` keys and values of `span`, chosen by layer and head, to `place` and after.

    Without recorded queries, and in layers that have none, the newest ones are copied.
    """
    where = source.where(span)
    recorded = source.queries
    layout = source.layout
    for layer, (buffer, index) in layout.keys.items():
        keys = source.buffers[buffer][index][:, where]  # [key heads, span, width]
        chosen = torch.arange(len(span) - count, len(span), device=keys.device)
        chosen = chosen.expand(len(keys), count)
        if recorded is not None and layer in recorded.layers:
            queries = recorded.layers[layer]
            chosen = (
                best_keys(queries, keys, count)
                if chunk == 1
                else best_chunks(queries, keys, count, chunk)
            )
        for plane in (layout.keys[layer], layout.values[layer]):
            rows = source.buffers[plane[0]][plane[1]][:, where]
            picked = chosen[..., None].expand(-1, -1, rows.shape[-1])
            target.buffers[plane[0]][plane[1]][:, place : place + count] = rows.gather(1, picked)
