"""Network that runs any Hugging Face causal language model with its own code.

The tree becomes a 4-D mask and positions (committed length + depth). Several sessions are
concatenated as rows of one sequence; the mask separates them.
"""

import copy
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sapwood.backends.torch.hf.key_choice import can_record, keep_queries, recording
from sapwood.backends.torch.hf.pass_cache import PassCache
from sapwood.backends.torch.hf.submodel import halves, middle, on_grid, without
from sapwood.backends.torch.hf.support import LEAK, context_of, layout_of, windows_of
from sapwood.backends.torch.hf.tree_mask import build
from sapwood.backends.torch.network import WHOLE, Kept, MaskBlock, Network, PassInput
from sapwood.core.array_types import IntArray
from sapwood.core.lookahead import LookaheadModel, RowGate
from sapwood.errors import SapwoodError

BITS = 8  # of the int8 network


class HfNetwork:
    """The model's own forward pass under a tree mask."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.device = model.device
        self.dtype = model.dtype
        self.precision = str(model.dtype).removeprefix("torch.")
        self.windows = windows_of(model.config.get_text_config())
        self.layout = layout_of(model)
        self.gate = RowGate()  # of look-ahead rows
        self.records = False  # queries of every pass are kept with its sessions
        self.cuts: dict[int, tuple[Any, Any]] = {}  # layer -> the model split before it
        self.checked: set[int] = set()  # layers before which the model can be split
        self.pieces: dict[tuple[int, int], Any] = {}  # of a pipeline, by first layer and end

    def read(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the layers."""
        out = self._forward(self.model.base_model, rows, watched)
        return out.last_hidden_state[0], kept(out, watched)

    def compute_logits(self, states: Tensor) -> Tensor:
        """Logits by the output head, without the final scaling of some models."""
        logits: Tensor = self.model.get_output_embeddings()(states)
        return logits

    def score(self, rows: PassInput, watched: Collection[int]) -> tuple[Tensor, Kept]:
        """Run the whole model."""
        out = self._forward(self.model, rows, watched)
        return out.logits[0], kept(out, watched)

    def convert_head(self, net: nn.Module) -> Any:
        """The head itself: it was loaded in the model's dtype."""
        return net

    # ------------------------------------------------------------------------------------ in part
    @torch.inference_mode()
    def check_layer(self, layer: int) -> None:
        """Refuse a model whose two parts give another result than the whole."""
        if layer in self.checked:
            return
        tokens = torch.arange(2, device=self.device)[None]
        lower, upper = self._halves(layer)
        states = lower.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        parts = upper.base_model(inputs_embeds=states, use_cache=False).last_hidden_state
        whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        if not (parts - whole).abs().max() <= LEAK * whole.std():
            raise SapwoodError(
                f"{type(self.model).__name__} does more than to run its layers one after the "
                "other; it cannot be cut"
            )
        self.checked.add(layer)

    def layer_input(
        self, rows: PassInput, watched: Collection[int], layer: int
    ) -> tuple[Tensor, Kept]:
        """Run the layers before this one."""
        lower = self._halves(layer)[0]
        early = [number for number in watched if number <= layer]
        out = self._forward(lower.base_model, rows, early)
        return out.last_hidden_state[0], kept(out, early)

    def resume(
        self, rows: PassInput, watched: Collection[int], layer: int, states: Tensor
    ) -> tuple[Tensor, Kept]:
        """Run the other layers and the output head."""
        upper = self._halves(layer)[1]
        late = [number - layer for number in watched if number > layer]
        out = self._forward(upper, rows, late, states)
        return out.logits[0], {number + layer: found for number, found in kept(out, late).items()}

    @property
    def parallel_stages(self) -> bool:
        """True unless queries are recorded, which are those of one pass at a time."""
        return not self.records

    def span(
        self, rows: PassInput, first: int, stop: int, states: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run some of the layers, behind the last of them the output head."""
        piece = self._piece(first, stop)
        if stop < len(self.model.base_model.layers):
            return self._forward(piece.base_model, rows, (), states).last_hidden_state[0], None
        out = self._forward(piece, rows, [stop - first], states)
        return out.hidden_states[stop - first][0], out.logits[0]

    def _piece(self, first: int, stop: int) -> Any:
        """The model with these layers alone."""
        if (first, stop) not in self.pieces:
            self.pieces[first, stop] = middle(self.model, first, stop)
        return self.pieces[first, stop]

    def _halves(self, layer: int) -> tuple[Any, Any]:
        """The model split before this layer."""
        if layer not in self.cuts:
            self.cuts[layer] = halves(self.model, layer)
        return self.cuts[layer]

    def skipping(self, sublayers: Collection[int]) -> "HfNetwork":
        """The same network without these sublayers."""
        return self._with(without(self.model, sublayers))

    def rounded(self, bits: int) -> Network:
        """The int8 network for eight bits on a CPU if possible; else a rounded copy, no faster."""
        if bits == BITS and self.device.type == "cpu" and find_spec("numba") is not None:
            from sapwood.backends.torch.cpu_int8 import pack

            packed = pack(self.model)
            if packed is not None and context_of(self.model.config) <= packed.longest:
                return packed
        return self._with(on_grid(self.model, bits))

    def _with(self, model: Any) -> "HfNetwork":
        """The same network with another model of the same KV layout."""
        made = copy.copy(self)
        made.records = False
        made.model = model
        made.cuts = {}
        made.checked = set()
        made.pieces = {}
        return made

    # -------------------------------------------------------------------------- look-ahead rows
    def lookahead(self, derive: Callable[[Any], LookaheadModel]) -> "HfNetwork":
        """The same network with a model that has weights for look-ahead rows."""
        found = derive(self.model)
        made = self._with(found.model.eval())
        made.gate = found.gate
        return made

    def score_lookahead(
        self, rows: PassInput, watched: Collection[int], index: IntArray, anchors: IntArray
    ) -> tuple[Tensor, Kept]:
        """Run the whole model, with the adapters of these rows."""
        self.gate.rows = torch.from_numpy(index).to(self.device)
        self.gate.anchors = torch.from_numpy(anchors).to(self.device)
        try:
            return self.score(rows, watched)
        finally:
            self.gate.rows = self.gate.anchors = None

    # ------------------------------------------------------------------------------------- a pass
    def _forward(
        self, module: Any, rows: PassInput, watched: Collection[int], states: Tensor | None = None
    ) -> Any:
        """Run rows from their tokens, or from hidden states [rows, width]."""
        # one transfer for both
        inputs = torch.from_numpy(np.stack((rows.tokens, rows.positions))).to(self.device)
        options = {
            "input_ids": inputs[:1] if states is None else None,
            "inputs_embeds": None if states is None else states[None],
            "position_ids": inputs[1:],
            "attention_mask": self._mask(rows.blocks),
            "past_key_values": PassCache(self.layout, rows.spans),
            "use_cache": True,
            "output_hidden_states": bool(watched),
        }
        if not self.records:
            return module(**options)
        with recording(self.model) as queries:
            out = module(**options)
        keep_queries(queries, rows.spans)
        return out

    def record_queries(self) -> bool:
        """Keep the queries of every pass from now on; False if this model shows none."""
        self.records = can_record(self.model)
        return self.records

    def _mask(self, blocks: Sequence[MaskBlock]) -> Tensor | dict[str, Tensor | None] | None:
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
