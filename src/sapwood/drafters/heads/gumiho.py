"""Gumiho (arXiv 2503.10135): a small transformer drafts two tokens, parallel heads the later ones.

Rows of the tree's first level lie behind those of the text, attend to the text and themselves, and
are overwritten in the next round. Below a node of depth two nothing more is computed than its own
parallel heads, once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.heads.text_layers_base import TextLayersBase

if TYPE_CHECKING:
    from torch import Tensor

SERIAL = 2  # tokens drafted one after the other


@dataclass
class Gumiho(TextLayersBase):
    """Trained serial heads for the first two tokens, and parallel heads for the later ones."""

    paper: ClassVar[str] = "2503.10135"
    trained: ClassVar[str] = "gumiho"

    def _forget(self) -> None:
        super()._forget()
        self.states_: dict[int, Tensor] = {}  # of the root and of nodes of depth one, [width]
        self.later_: dict[int, Tensor] = {}  # of nodes of depth two, [parallel heads, width]

    def _propose(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Make the states of the frontier and propose from them."""
        import torch

        self.states_[ROOT] = self.last_[-1][0]
        nodes = [node for node, _ in frontier]
        paths = {node: tree.path(node) for node in nodes}  # the root first
        first = [path[1] for path in paths.values() if len(path) > 1]
        self._serial(tree, [node for node in dict.fromkeys(first) if node not in self.states_])
        second = [path[SERIAL] for path in paths.values() if len(path) > SERIAL]
        self._parallel(tree, [node for node in dict.fromkeys(second) if node not in self.later_])
        states = torch.stack([self._output(path) for path in paths.values()])
        tree.states.update(zip(nodes, states, strict=True))
        self._add_children(
            tree, frontier, self.net.logits(states), rng, self.sampler_, self.committed_
        )

    def _output(self, path: list[int]) -> "Tensor":
        """The state [width] from which children of the last node of a path are drafted."""
        if len(path) <= SERIAL:
            return self.states_[path[-1]]
        return self.later_[path[SERIAL]][len(path) - SERIAL - 1]

    def _serial(self, tree: Tree, nodes: list[int]) -> None:
        """States of nodes of depth one: their rows see the text and themselves."""
        import torch

        if not nodes:
            return
        embeds = self.net.embed(self._tokens(tree, nodes))[None]
        x = self.states_[ROOT].expand(len(nodes), -1)[None]
        positions = torch.full((1, len(nodes)), self.committed_, device=x.device)
        for number, (layer, cache) in enumerate(zip(self.net.layers, self.caches_, strict=True)):
            x = self.net.input_rows(number, embeds, x)
            query, key, value = layer.project(x, positions)
            cache.write(key, value, cache.text)
            stop = cache.text + len(nodes)
            mask = torch.ones(len(nodes), stop, dtype=torch.bool, device=x.device)
            mask[:, cache.text :] = torch.eye(len(nodes), dtype=torch.bool, device=x.device)
            read = layer.self_attn.attend(
                query, cache.keys[:, :, :stop], cache.values[:, :, :stop], mask
            )
            x = layer.finish(x, read)
        self.states_.update(zip(nodes, x[0], strict=True))

    def _parallel(self, tree: Tree, nodes: list[int]) -> None:
        """States of all places below nodes of depth two."""
        import torch

        if not nodes:
            return
        above = [int(parent) for parent in tree.parents[nodes]]
        tokens = torch.stack((self._tokens(tree, above), self._tokens(tree, nodes)), 1)
        root = self.states_[ROOT]
        states = torch.stack([torch.stack((root, self.states_[parent])) for parent in above])
        found = self.net.later(self.net.embed(tokens), states)  # [places, nodes, width]
        self.later_.update(zip(nodes, found.transpose(0, 1), strict=True))

    def _tokens(self, tree: Tree, nodes: list[int]) -> "Tensor":
        import torch

        return torch.tensor(
            [int(tree.tokens[node]) for node in nodes], device=self.embedding.device
        )
