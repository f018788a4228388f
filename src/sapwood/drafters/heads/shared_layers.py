"""One request's early-exit draft over the target's own first layers, which are run once.

The target's session runs each drafted node through its first layers (`LayerSplit.layer_input`) and
keeps their keys and values; its next pass goes on from there. Only the adapter has keys of its own:
those of the text, made of the target's states there, and behind them those of the nodes drafted so
far.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.core.protocols import LayerSplit, RequestContext, TreeInput
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome
from sapwood.drafters.heads.head_kv_cache import lineage
from sapwood.heads.kv_cache import CHUNK, HeadKvCache

if TYPE_CHECKING:
    from torch import Tensor


class SharedLayers:
    """Nodes of the current tree that were expanded, with the adapter's outputs there."""

    def __init__(
        self, net: Any, split: LayerSplit, request: RequestContext, like: "Tensor"
    ) -> None:
        self.net = net
        self.split = split
        self.session = request.session
        self.layer = net.config.layer
        self.committed = len(request.prompt) - 1  # position of the root
        self.cache = HeadKvCache(net.config.shape, like, self.committed)
        self.scratch: Tree | None = None
        self.inner: dict[int, int] = {}  # node of the round's tree -> node of the scratch tree
        self.made: Tensor = self.cache.outputs[:0]  # [scratch nodes, width]
        read = request.session.prefill_output(self.committed) if self.committed else None
        # the target's states of text that the adapter has no keys of, [rows, width] each
        self.unread: list[Tensor] = []
        if read is not None:
            self.unread.append(read.hidden(range(self.committed), [self.layer]))

    def outputs(self, tree: Tree, nodes: Sequence[int]) -> "Tensor":
        """Inputs of the output head at these nodes, [nodes, width]."""
        import torch

        if self.scratch is None:
            self._begin(tree)
        rows = [self._place(tree, node) for node in nodes]
        assert self.scratch is not None
        done = len(self.made)
        if len(self.scratch) > done:
            states = self.split.layer_input(TreeInput(self.session, self.scratch, done), self.layer)
            self.made = torch.cat((self.made, self._adapt(states, done)))
        return self.made[rows]

    def _begin(self, tree: Tree) -> None:
        """Write the adapter's keys of new text, and start from the root."""
        import torch

        rows = torch.cat(self.unread) if self.unread else self.cache.outputs[:0]
        self.unread = []
        first = self.committed - len(rows)
        for start in range(0, len(rows) if self.net.config.attention else 0, CHUNK):
            piece = rows[start : start + CHUNK]
            positions = torch.arange(first + start, first + start + len(piece), device=rows.device)
            _, key, value = self.net.project(self.net.begin(piece[None]), positions[None])
            self.cache.write(key, value, self.cache.text)
            self.cache.text += len(piece)
        self.scratch = Tree(int(tree.tokens[ROOT]))
        self.inner = {ROOT: ROOT}
        self.made = self.cache.outputs[:0]

    def _place(self, tree: Tree, node: int) -> int:
        """The node's twin in the scratch tree, added with its ancestors if new."""
        if node not in self.inner:
            assert self.scratch is not None
            parent = self._place(tree, int(tree.parents[node]))
            self.inner[node] = self.scratch.add(parent, int(tree.tokens[node]), 1.0, sampled=True)
        return self.inner[node]

    def _adapt(self, states: "Tensor", first: int) -> "Tensor":
        """The adapter's normed outputs at the scratch nodes from `first` on, [rows, width]."""
        import torch

        assert self.scratch is not None
        begun = self.net.begin(states[None])
        if self.net.config.attention:
            depths = torch.from_numpy(self.scratch.depths[first:].copy()).to(states.device)
            query, key, value = self.net.project(begun, self.committed + depths[None])
            cache = self.cache
            cache.write(key, value, cache.text + first)
            stop = cache.text + len(self.scratch)
            seen = lineage(np.maximum(self.scratch.parents, ROOT).tolist(), first)
            text = np.ones((len(seen), cache.text), bool)
            mask = torch.from_numpy(np.concatenate((text, seen), 1)).to(states.device)
            begun = begun + self.net.self_attn.attend(
                query, cache.keys[:, :, :stop], cache.values[:, :, :stop], mask
            )
        found: Tensor = self.net.norm(self.net.finish(begun))[0]
        return found

    def observe(self, outcome: Outcome) -> None:
        """Take the target's states of the accepted path; drop the nodes of the tree."""
        path = outcome.verdict.path
        self.unread.append(outcome.scores.hidden(path, [self.layer]))
        self.committed = outcome.context + len(path)
        self.scratch = None

    def close(self) -> None:
        """Free the adapter's keys."""
        self.cache.close()
