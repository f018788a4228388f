"""Any Hugging Face causal language model, with no fork of its code.

The tree becomes a 4-D mask and positions (committed length + depth). Several sessions are packed
as rows of one sequence; the mask keeps them apart.
"""

import copy
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.backends.torch.mask import WHOLE, Block, build
from sapwood.backends.torch.network import Kept, Network, Rows
from sapwood.backends.torch.parts import halves, on_grid, without
from sapwood.backends.torch.stock_cache import PassCache
from sapwood.backends.torch.support import LEAK, layout_of, windows_of
from sapwood.errors import SapwoodError

BITS = 8  # of packed weights


class Stock:
    """The model's own forward pass under a tree mask."""

    def __init__(self, model: Any) -> None:
        self.model, self.device, self.dtype = model.eval(), model.device, model.dtype
        self.precision = str(model.dtype).removeprefix("torch.")
        self.windows = windows_of(model.config.get_text_config())
        self.layout = layout_of(model)
        self.cuts: dict[int, tuple[Any, Any]] = {}  # layer -> the model in two parts

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

    # ------------------------------------------------------------------------------------ in part
    @torch.inference_mode()
    def check_layer(self, layer: int) -> None:
        """Refuse a model whose two parts do not give what the whole gives, such as one that scales what comes in."""
        tokens = torch.arange(2, device=self.device)[None]
        lower, upper = self._halves(layer)
        states = lower.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        parts = upper.base_model(inputs_embeds=states, use_cache=False).last_hidden_state
        whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        if not (parts - whole).abs().max() <= LEAK * whole.std():
            raise SapwoodError(
                f"{type(self.model).__name__} does more than to run its layers one after the other; it cannot be cut"
            )

    def enter(self, rows: Rows, watched: Collection[int], layer: int) -> tuple[Tensor, Kept]:
        """Run the layers before this one."""
        lower, early = self._halves(layer)[0], [number for number in watched if number <= layer]
        out = self._forward(lower.base_model, rows, early)
        return out.last_hidden_state[0], kept(out, early)

    def resume(self, rows: Rows, watched: Collection[int], layer: int, states: Tensor) -> tuple[Tensor, Kept]:
        """Run the others and the output head."""
        upper, late = self._halves(layer)[1], [number - layer for number in watched if number > layer]
        out = self._forward(upper, rows, late, states)
        return out.logits[0], {number + layer: found for number, found in kept(out, late).items()}

    def _halves(self, layer: int) -> tuple[Any, Any]:
        """The model cut before this layer."""
        if layer not in self.cuts:
            self.cuts[layer] = halves(self.model, layer)
        return self.cuts[layer]

    def skipping(self, sublayers: Collection[int]) -> "Stock":
        """The same without these sublayers."""
        return self._with(without(self.model, sublayers))

    def rounded(self, bits: int) -> Network:
        """Packed weights for eight bits on a CPU, where that can be; else a copy on a coarser grid, no faster."""
        if bits == BITS and self.device.type == "cpu" and find_spec("numba") is not None:
            from sapwood.backends.torch.packed import pack

            if (packed := pack(self.model)) is not None:
                return packed
        return self._with(on_grid(self.model, bits))

    def _with(self, model: Any) -> "Stock":
        """The same network, keys and values by another model of this kind."""
        made = copy.copy(self)
        made.model, made.cuts = model, {}
        return made

    # ------------------------------------------------------------------------------------- a pass
    def _forward(self, module: Any, rows: Rows, watched: Collection[int], states: Tensor | None = None) -> Any:
        """Run rows from their tokens, or from states [rows, width] in their place."""
        inputs = torch.from_numpy(np.stack((rows.tokens, rows.positions))).to(self.device)  # one transfer
        return module(
            input_ids=inputs[:1] if states is None else None,
            inputs_embeds=None if states is None else states[None],
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
