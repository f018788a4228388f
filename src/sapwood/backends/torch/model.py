"""Any Hugging Face causal language model behind the waist, with no fork of its code.

The tree becomes a 4-D mask and positions (committed length + depth). Several sessions are packed
as rows of one sequence; the mask keeps them apart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import PassCache, Slots, Span
from sapwood.backends.torch.mask import WHOLE, Block, build
from sapwood.backends.torch.scores import TorchScores
from sapwood.backends.torch.session import Reading, TorchSession
from sapwood.backends.torch.support import context_of, layout_of, windows_of
from sapwood.errors import SapwoodError
from sapwood.protocols import Scores, Work
from sapwood.records import BackendInfo

CHUNK = 512  # prompt tokens per pass of a prefill


class TorchBackend:
    """Scores token trees with a transformers model on its device."""

    def __init__(self, model: Any, name: str = "") -> None:
        self.model = model.eval()
        self._watched: set[int] = set()  # layers whose inputs each pass keeps
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        if self.device.type == "cuda":
            # cuDNN prepares each new number of keys anew: measured 65 ms a pass against 25 without it
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._windows = windows_of(model.config.get_text_config())
        self._layout = layout_of(model)
        self.info = self._describe(name or type(model).__name__)

    def _describe(self, name: str) -> BackendInfo:
        config = self.model.config.get_text_config()
        return BackendInfo(
            name="torch",
            model=name,
            vocab=self.model.get_output_embeddings().weight.shape[0],
            context=context_of(config),
            provides=frozenset({"hidden"}),
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
        )

    # ------------------------------------------------------------------------------- the waist
    @torch.inference_mode()
    def open(self, tokens: Sequence[int]) -> TorchSession:
        """A session with these tokens committed; nothing is scored."""
        if len(tokens) > self.info.context:
            raise SapwoodError(
                f"a text of {len(tokens)} tokens does not fit the model's context of {self.info.context}"
            )
        session = TorchSession(Slots(self._layout, len(tokens)))
        parts = [
            self._prefill(session, np.asarray(tokens[start : start + CHUNK], np.int64))
            for start in range(0, len(tokens), CHUNK)
        ]
        if parts:
            hidden = {layer: torch.cat([kept[layer] for _, kept in parts]) for layer in parts[0][1]}
            states = torch.cat([last for last, _ in parts])
            session.read = Reading(self.model.get_output_embeddings(), states, hidden)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so that the prompt's time is not booked on the first round
        return session

    @torch.inference_mode()
    def score(self, work: Sequence[Work]) -> list[Scores]:
        """One pass over all trees; row i of a result is node `since + i`. Commits nothing."""
        sessions = [self._own(job) for job in work]
        if not work:
            return []
        if len({id(session) for session in sessions}) < len(sessions):
            raise ValueError("one pass scores one tree per session")
        begun = [session.begin(job.tree, job.since) for session, job in zip(sessions, work, strict=True)]
        blocks, spans = [block for block, _ in begun], [span for _, span in begun]
        tokens = np.concatenate([job.tree.tokens[job.since :] for job in work])
        logits, hidden = self._run(tokens, blocks, spans)
        for session, job in zip(sessions, work, strict=True):
            session.scored(job.tree)
        return _split(logits, hidden, blocks)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on; the last layer's number plus one is what the head reads."""
        depth = self.model.config.get_text_config().num_hidden_layers
        unknown = [layer for layer in layers if not 0 <= layer <= depth]
        if unknown:
            raise SapwoodError(f"{self.info.model} has {depth} layers; it cannot show the inputs of {unknown}")
        self._watched.update(layers)

    def _own(self, job: Work) -> TorchSession:
        session = job.session
        if not isinstance(session, TorchSession) or session.slots.layout is not self._layout:
            raise TypeError("a session is scored by the backend that opened it")
        return session

    # --------------------------------------------------------------------------------- a pass
    def _prefill(self, session: TorchSession, tokens: IntArray) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Commit a piece of a prompt; its last states [rows, width] and those of watched layers."""
        rows = np.arange(len(tokens))
        block, span = Block(session.length, rows - 1, rows), session.extend(len(tokens))
        out = self._forward(self.model.base_model, tokens, [block], [span], output_hidden_states=bool(self._watched))
        session.advance(len(tokens))
        return out.last_hidden_state[0], self._kept(out)

    def _run(
        self, tokens: IntArray, blocks: Sequence[Block], spans: Sequence[Span]
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Logits [rows, vocab] and the states [rows, width] of watched layers."""
        self._check_room(blocks)
        out = self._forward(self.model, tokens, blocks, spans, output_hidden_states=bool(self._watched))
        return out.logits[0], self._kept(out)

    def _kept(self, out: Any) -> dict[int, torch.Tensor]:
        return {layer: out.hidden_states[layer][0] for layer in sorted(self._watched)}

    def _forward(
        self,
        module: Any,
        tokens: IntArray,
        blocks: Sequence[Block],
        spans: Sequence[Span],
        **options: Any,
    ) -> Any:
        positions = np.concatenate([block.length + block.depths[block.since :] for block in blocks])
        inputs = torch.from_numpy(np.stack((tokens, positions))).to(self.device)  # one transfer
        return module(
            input_ids=inputs[:1],
            position_ids=inputs[1:],
            attention_mask=self._mask(blocks),
            past_key_values=PassCache(self._layout, spans),
            use_cache=True,
            **options,
        )

    def _mask(self, blocks: Sequence[Block]) -> torch.Tensor | dict[str, torch.Tensor | None] | None:
        built: dict[int, torch.Tensor | None] = {}  # effective window -> mask
        masks: dict[str, torch.Tensor | None] = {}
        for kind, window in self._windows.items():
            effective = window if any(block.windowed(window) for block in blocks) else WHOLE
            if effective not in built:
                built[effective] = build(blocks, effective, self.dtype, self.device)
            masks[kind] = built[effective]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _check_room(self, blocks: Sequence[Block]) -> None:
        need = max(block.length + int(block.depths.max()) + 1 for block in blocks)
        if need > self.info.context:
            raise SapwoodError(f"a tree that ends at token {need} does not fit the context of {self.info.context}")


def _split(logits: torch.Tensor, hidden: Mapping[int, torch.Tensor], blocks: Sequence[Block]) -> list[Scores]:
    ends = np.cumsum([block.rows for block in blocks]).tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return [TorchScores(logits[span], {layer: states[span] for layer, states in hidden.items()}) for span in spans]
