"""Base of drafters whose head has causal layers over the text, with keys and values of its own.

Rows of the text are made from the target's final states as they become known; a round begins with
the output of the last of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_base import HeadBase
from sapwood.heads.kv_cache import CHUNK, HeadKvCache

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class TextLayersBase(HeadBase):
    """A head with causal layers over the target's final states of the text."""

    window: int = 4096  # last prompt tokens the head reads, >= 1

    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def bind(self, setting: EngineContext) -> None:
        """Load the head and have the target keep its final states."""
        super().bind(setting)
        self.layer = setting.target.capabilities.layers
        setting.target.watch([self.layer])

    def reset(self, request: RequestContext) -> None:
        """Take the target's final states of the prompt."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1  # position of the root
        count = min(self.window, self.committed_)
        shape = self.net.config.shape
        self.caches_ = [HeadKvCache(shape, self.embedding, count) for _ in self.net.layers]
        # final states of new text, and the tokens that follow each
        self.unread_: list[tuple[Tensor, Sequence[int]]] = []
        read = request.session.prefill_output(count)
        if read is not None:
            states: Any = read.hidden(range(count), [self.layer])
            self.unread_.append((states, request.prompt[-count:]))
        self._forget()

    def observe(self, outcome: Outcome) -> None:
        """Take the target's final states of the accepted path."""
        path = outcome.verdict.path
        states: Any = outcome.scores.hidden(path, [self.layer])
        self.unread_.append((states, outcome.tokens))
        self.committed_ = outcome.context + len(path)
        self._forget()

    def close(self) -> None:
        """Free keys, values and states."""
        for cache in self.caches_:
            cache.close()
        del self.caches_, self.unread_
        self._forget()

    def _forget(self) -> None:
        """Drop what belongs to the round before."""
        self.last_: list[Tensor] = []  # outputs of the root's row, of each layer, [1, width]

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children to nodes that have a head for their depth, if there is text before."""
        import torch

        within = [
            (node, width) for node, width in frontier if tree.depths[node] < self.net.config.heads
        ]
        if not within or not (self.last_ or self.unread_):
            return
        with torch.inference_mode():
            if self.unread_:
                self._read()
            self._propose(tree, within, rng)

    def _read(self) -> None:
        """Run the new text through the layers."""
        import torch

        states = torch.cat([found for found, _ in self.unread_])
        tokens = [token for _, following in self.unread_ for token in following]
        self.unread_ = []
        following = torch.tensor(tokens, device=states.device)
        first = self.committed_ - len(tokens)
        for start in range(0, len(tokens), CHUNK):
            part = slice(start, start + CHUNK)
            self._read_part(states[part], following[part], first + start)

    def _read_part(self, states: "Tensor", following: "Tensor", first: int) -> None:
        """Run rows that begin at position `first`; keep the outputs of the last one."""
        import torch

        rows = len(states)
        embeds = self.net.embed(following)[None]
        positions = torch.arange(first, first + rows, device=states.device)[None]
        x = states[None].to(embeds.dtype)
        self.last_ = []
        for number, (layer, cache) in enumerate(zip(self.net.layers, self.caches_, strict=True)):
            x = self.net.input_rows(number, embeds, x)
            query, key, value = layer.project(x, positions)
            cache.write(key, value, cache.text)
            cache.text += rows
            slots = torch.arange(cache.text, device=x.device)
            mask = slots <= slots[cache.text - rows :, None]
            read = layer.self_attn.attend(
                query, cache.keys[:, :, : cache.text], cache.values[:, :, : cache.text], mask
            )
            x = layer.finish(x, read)
            self.last_.append(x[0, -1:])

    def _propose(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children to these nodes, none deeper than the number of heads."""
        raise NotImplementedError
