"""Mixture of attentions (arXiv 2410.03804): drafts read the target's layers by cross-attention.

The text before the root has keys of two kinds: of its tokens, for self-attention, and of the
target's states there, for cross-attention. The root and the drafted nodes have the first kind only,
behind those of the text; they are overwritten in the next round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sapwood.core.part import at_least
from sapwood.core.protocols import EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_base import HeadBase, first_missing
from sapwood.drafters.heads.head_kv_cache import lineage
from sapwood.errors import SapwoodError
from sapwood.heads.kv_cache import HeadKvCache

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Moa(HeadBase):
    """A trained layer with attention over layers, drafted tokens and the target's states."""

    window: int = 4096  # last prompt tokens the head reads, >= 1

    paper: ClassVar[str] = "2410.03804"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "moa"
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def bind(self, setting: EngineContext) -> None:
        """Load the head and have the target keep the states of its layers."""
        super().bind(setting)
        target = setting.target
        self.features: tuple[int, ...] = self.net.config.features
        if max(self.features) > target.capabilities.layers:
            raise SapwoodError(
                f"this {self.trained} head reads layer {max(self.features)} and "
                f"{target.info.model} has {target.capabilities.layers}; "
                "use the model it was trained for"
            )
        target.watch(list(self.features))

    def reset(self, request: RequestContext) -> None:
        """Take the prompt's states; the head runs over them at its first draft."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1  # position of the root
        count = min(self.window, self.committed_)
        shape = self.net.config.shape
        self.tokens_ = HeadKvCache(shape, self.embedding, count)  # of self-attention
        self.memory_ = HeadKvCache(shape, self.embedding, count)  # of cross-attention
        self.rows_: dict[int, int] = {}  # node -> its row among those of the tree
        self.ups_: list[int] = []  # row -> row of its parent; the root's is its own
        # states of the text, and its tokens
        self.unread_: list[tuple[Tensor, Sequence[int]]] = []
        read = request.session.prefill_output(count)
        if read is not None:
            states = read.hidden(range(count), list(self.features))
            self.unread_.append((states, request.prompt[-count - 1 : -1]))

    def observe(self, outcome: Outcome) -> None:
        """Take the states of the accepted path; drop the rows of the tree."""
        path = outcome.verdict.path
        states = outcome.scores.hidden(path, list(self.features))
        self.unread_.append((states, outcome.tree.tokens[list(path)].tolist()))
        self.committed_ = outcome.context + len(path)
        self.rows_ = {}
        self.ups_ = []

    def close(self) -> None:
        """Free the rows."""
        self.tokens_.close()
        self.memory_.close()
        del self.tokens_, self.memory_, self.unread_

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Run the head on the frontier and propose children of each of its nodes."""
        import torch

        with torch.inference_mode():
            self._read()
            if not self.memory_.text:
                return
            nodes = [node for node, _ in frontier]
            while missing := first_missing(tree, nodes, self.rows_):
                self._grow(tree, missing)
            # a copy: the rows are written again in the next round
            outputs = self.tokens_.take([self.rows_[node] for node in nodes]).clone()
            tree.states.update(zip(nodes, outputs, strict=True))
            logits = self.net.logits(outputs)
            self._add_children(tree, frontier, logits, rng, self.sampler_, self.committed_)

    def _read(self) -> None:
        """Write both kinds of keys of new text, which ends before the root."""
        import torch

        first = self.committed_ - sum(len(tokens) for _, tokens in self.unread_)
        for states, tokens in self.unread_:
            words = torch.tensor(list(tokens), device=states.device)
            positions = torch.arange(first, first + len(words), device=states.device)[None]
            _, key, value = self.net.project(self.net.embed(words)[None], positions)
            self.tokens_.write(key, value, self.tokens_.text)
            key, value = self.net.project_memory(states[None], positions)
            self.memory_.write(key, value, self.memory_.text)
            for cache in (self.tokens_, self.memory_):
                cache.text += len(words)
            first += len(words)
        self.unread_ = []

    def _grow(self, tree: Tree, nodes: list[int]) -> None:
        """Make rows of these nodes, whose parents have theirs."""
        import torch

        device = self.embedding.device
        start = len(self.ups_)
        self.rows_.update(zip(nodes, range(start, start + len(nodes)), strict=True))
        self.ups_ += [0 if node == ROOT else self.rows_[int(tree.parents[node])] for node in nodes]
        text = self.tokens_.text
        words = torch.from_numpy(np.asarray(tree.tokens[nodes])).to(device)
        depths = torch.from_numpy(np.asarray(tree.depths[nodes])).to(device)
        positions = (self.committed_ + depths)[None]
        embeds = self.net.embed(words)[None]
        query, key, value = self.net.project(embeds, positions)
        self.tokens_.write(key, value, text + start)
        seen = lineage(self.ups_, start)
        whole = np.concatenate((np.ones((len(nodes), text), bool), seen), 1)
        stop = text + len(self.ups_)
        read = self.net.own.attend(
            query,
            self.tokens_.keys[:, :, :stop],
            self.tokens_.values[:, :, :stop],
            torch.from_numpy(whole).to(device),
        )
        states = embeds + read
        known = self.memory_.text
        asked = self.net.cross.attend(
            self.net.ask(states, positions),
            self.memory_.keys[:, :, :known],
            self.memory_.values[:, :, :known],
            None,
        )
        self.tokens_.outputs[start : start + len(nodes)] = self.net.finish(states, asked)[0]
