"""Speculative streams (arXiv 2402.11131): rows that begin in an upper layer from a token's state.

Stream i of a token begins before layer `first` as a linear map of the token's state there, plus an
embedding of its own, and goes through the layers from there on. It sees the text, the token and the
streams before it, and predicts the token i places after the next. Adapters act on streams alone, so
the tokens keep their bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sapwood.core.lookahead import LookaheadModel, RowGate
from sapwood.errors import SapwoodError
from sapwood.heads.gated_lora import GatedLora, shared_copy
from sapwood.heads.mask_rows import MaskEmbedding
from sapwood.heads.tied_base import TiedBase


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """Sizes of streams and of the target they were made for."""

    width: int  # of the target
    vocab: int  # of the target
    rows: int  # streams of a token, >= 1
    rank: int  # of the adapters
    first: int  # layer in which streams begin
    inputs: tuple[int, ...]  # of the target's linear layers from there on, in order
    outputs: tuple[int, ...]


class StreamsHead(TiedBase):
    """Where streams begin, and their adapters."""

    kind: ClassVar[str] = "streams"

    def __init__(self, config: StreamsConfig) -> None:
        super().__init__(config.width, config.vocab, 0)
        if config.rows < 1:
            raise SapwoodError(f"{config.rows} streams predict nothing; use at least 1")
        self.config = config
        self.embeds = nn.Parameter(torch.zeros(config.rows, config.width))
        self.start = nn.Linear(config.width, config.width)
        nn.init.eye_(self.start.weight)
        nn.init.zeros_(self.start.bias)
        self.adapter = GatedLora(config.inputs, config.outputs, config.rank)

    def install(self, model: Any, gate: RowGate) -> list[Any]:
        """Hooks by which the gate's rows are streams; each can be removed."""
        layer = model.base_model.layers[self.config.first]
        begin = layer.register_forward_pre_hook(self._begun(gate), with_kwargs=True)
        return [begin, *self.adapter.install(model, gate, self.config.first)]

    @contextmanager
    def installed(self, model: Any, gate: RowGate) -> Iterator[None]:
        """The streams in the model for the passes inside."""
        hooks = self.install(model, gate)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begun(self, gate: RowGate) -> Any:
        """A hook of the first layer that gives streams their states."""

        def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if gate.rows is None:
                return None
            states: Tensor = inputs[0] if inputs else named["hidden_states"]
            found = states.index_copy(1, gate.rows, self.begun(states, gate).to(states.dtype))
            if inputs:
                return (found, *inputs[1:]), named
            return inputs, {**named, "hidden_states": found}

        return hook

    def begun(self, states: Tensor, gate: RowGate) -> Tensor:
        """States with which the gate's rows begin, [batch, rows, width]."""
        owners = states.index_select(1, gate.anchors).to(self.embeds.dtype)
        found: Tensor = self.start(owners) + self.embeds[places_of(gate.anchors)]
        return found

    def lookahead(self, model: Any) -> LookaheadModel:
        """The target with streams; below their first layer their rows are discarded."""
        made = shared_copy(model)
        gate = RowGate()
        self.install(made, gate)
        made.set_input_embeddings(MaskEmbedding(made.get_input_embeddings(), self))
        return LookaheadModel(made, gate)


def places_of(anchors: Tensor) -> Tensor:
    """Place of each row among those of its anchor, which lie side by side, [rows]."""
    rows = torch.arange(len(anchors), device=anchors.device)
    begins = torch.ones_like(anchors, dtype=torch.bool)
    begins[1:] = anchors[1:] != anchors[:-1]
    return rows - torch.where(begins, rows, 0).cummax(0).values
