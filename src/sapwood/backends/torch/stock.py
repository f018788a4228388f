"""Any Hugging Face causal language model, with no fork of its code.

The tree becomes a 4-D mask and positions (committed length + depth). Several sessions are packed
as rows of one sequence; the mask keeps them apart.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.backends.torch.cache import PassCache
from sapwood.backends.torch.mask import WHOLE, Block, build
from sapwood.backends.torch.network import Kept, Rows
from sapwood.backends.torch.support import layout_of, windows_of


class Stock:
    """The model's own forward pass under a tree mask."""

    def __init__(self, model: Any) -> None:
        self.model, self.device, self.dtype = model.eval(), model.device, model.dtype
        self.precision = str(model.dtype).removeprefix("torch.")
        self.windows = windows_of(model.config.get_text_config())
        self.layout = layout_of(model)

    def read(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        out = self._forward(self.model.base_model, rows, watched)
        return out.last_hidden_state[0], kept(out, watched)

    def speak(self, states: Tensor) -> Tensor:
        """Logits by the output head alone; what some models do to them afterwards keeps their order."""
        logits: Tensor = self.model.get_output_embeddings()(states)
        return logits

    def score(self, rows: Rows, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the whole model."""
        out = self._forward(self.model, rows, watched)
        return out.logits[0], kept(out, watched)

    def adopt(self, net: nn.Module) -> Any:
        """The head itself: it was read in the model's number format."""
        return net

    def _forward(self, module: Any, rows: Rows, watched: Collection[int]) -> Any:
        inputs = torch.from_numpy(np.stack((rows.tokens, rows.positions))).to(self.device)  # one transfer
        return module(
            input_ids=inputs[:1],
            position_ids=inputs[1:],
            attention_mask=self._mask(rows.blocks),
            past_key_values=PassCache(self.layout, rows.spans),
            use_cache=True,
            output_hidden_states=bool(watched),
        )

    def _mask(self, blocks: Sequence[Block]) -> Tensor | dict[str, Tensor | None] | None:
        built: dict[int, Tensor | None] = {}  # effective window -> mask
        masks: dict[str, Tensor | None] = {}
        for kind, window in self.windows.items():
            effective = window if any(block.windowed(window) for block in blocks) else WHOLE
            if effective not in built:
                built[effective] = build(blocks, effective, self.dtype, self.device)
            masks[kind] = built[effective]
        return masks if len(masks) > 1 else next(iter(masks.values()))


def kept(out: Any, watched: Collection[int]) -> Kept:
    """The inputs of watched layers, [rows, width] each."""
    return {layer: out.hidden_states[layer][0] for layer in sorted(watched)}
