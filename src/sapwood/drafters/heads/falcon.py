"""Falcon (arXiv 2412.12639): a head that drafts two levels of a tree in one call.

A block of two rows predicts the children of a node and, for all these children alike, theirs. The
first block is the last two rows of the text, made of the target's own states; a later one is made
of two drafted tokens and the states that the block above predicted. Rows of drafted blocks lie
behind those of the text and are overwritten in the next round.
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
from sapwood.drafters.heads.head_base import HeadBase
from sapwood.errors import SapwoodError
from sapwood.heads.kv_cache import HeadKvCache

if TYPE_CHECKING:
    from torch import Tensor

    from sapwood.heads.falcon import Carry

BLOCK = 2  # rows of a block, and levels that it predicts


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Predictions of one block below its node."""

    states: "Tensor"  # of the next two places, [2, width]
    carry: "Carry"
    seen: tuple[int, ...]  # rows of the tree's blocks on the path, its own included


@dataclass
class Falcon(HeadBase):
    """A trained LSTM and layer that draft two tokens in one call."""

    window: int = 4096  # last prompt tokens the head reads, >= 2

    paper: ClassVar[str] = "2412.12639"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "falcon"
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(BLOCK, window=self.window)

    def bind(self, setting: EngineContext) -> None:
        """Load the head and have the target keep its final states."""
        super().bind(setting)
        target = setting.target
        self.layer = target.capabilities.layers
        if self.net.config.layer != self.layer:
            raise SapwoodError(
                f"this falcon head reads the state after {self.net.config.layer} layers "
                f"and {target.info.model} has {self.layer}; use the model it was trained for"
            )
        target.watch([self.layer])

    def reset(self, request: RequestContext) -> None:
        """Take the prompt's final states; the head runs over them at its first draft."""
        self.sampler_ = request.sampler
        self.committed_ = len(request.prompt) - 1  # position of the root
        count = min(self.window, self.committed_)
        self.cache_ = HeadKvCache(self.net.config.shape, self.embedding, count)
        self.blocks_: dict[int, DraftBlock] = {}  # node of even depth -> its block
        self.carry_: Carry | None = None  # of the LSTM behind the text
        self.tail_: Tensor | None = None  # last rows of the text, at most a block, [rows, width]
        # final states of the text, and the tokens that follow each
        self.unread_: list[tuple[Tensor, Sequence[int]]] = []
        read = request.session.prefill_output(count)
        if read is not None:
            self.unread_.append((read.hidden(range(count), [self.layer]), request.prompt[-count:]))

    def observe(self, outcome: Outcome) -> None:
        """Take the final states of the accepted path; drop the blocks of the tree."""
        path = outcome.verdict.path
        self.unread_.append((outcome.scores.hidden(path, [self.layer]), outcome.tokens))
        self.committed_ = outcome.context + len(path)
        self.blocks_ = {}

    def close(self) -> None:
        """Free the rows."""
        self.cache_.close()
        del self.cache_, self.unread_, self.blocks_, self.tail_

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children of each node from the block that reaches it."""
        import torch

        with torch.inference_mode():
            if not self.blocks_ and not self._read():
                return
            nodes = [node for node, _ in frontier]
            while missing := self._missing(tree, nodes):
                self._grow(tree, missing)
            states = torch.stack(
                [
                    self.blocks_[home_of(tree, node)].states[int(tree.depths[node]) % BLOCK]
                    for node in nodes
                ]
            )
            tree.states.update(zip(nodes, states, strict=True))
            logits = self.net.logits(states)
            self._add_children(tree, frontier, logits, rng, self.sampler_, self.committed_)

    def _read(self) -> bool:
        """Make rows of the new text and the block of its last two; False while it has only one."""
        import torch

        for states, tokens in self.unread_:
            words = torch.tensor(list(tokens), device=states.device)
            rows, self.carry_ = self.net.input_rows(
                self.net.embed(words)[None], states[None], self.carry_
            )
            first = self.committed_ - sum(len(later) for _, later in self.unread_)
            positions = first + torch.arange(len(words), device=states.device)
            _, key, value = self.net.project(rows, positions[None])
            self.cache_.write(key, value, self.cache_.text)
            self.cache_.text += len(words)
            self.unread_ = self.unread_[1:]
            tail = rows[0] if self.tail_ is None else torch.cat((self.tail_, rows[0]))
            self.tail_ = tail[-BLOCK:].clone()
        if self.tail_ is None or len(self.tail_) < BLOCK:
            return False
        assert self.carry_ is not None
        places = self.committed_ - BLOCK + torch.arange(BLOCK, device=self.tail_.device)
        query, _, _ = self.net.project(self.tail_[None], places[None])
        outputs = self._attend(self.tail_[None], query, self.cache_.text, None)
        self.blocks_ = {ROOT: DraftBlock(outputs, self.carry_, ())}
        self.rows_ = 0  # of the tree's blocks
        return True

    def _missing(self, tree: Tree, nodes: Sequence[int]) -> list[int]:
        """The first node without a block on the path to each of these, of even depths alone."""
        found = []
        for node in nodes:
            homes = [one for one in tree.path(node) if int(tree.depths[one]) % BLOCK == 0]
            found += [one for one in homes if one not in self.blocks_][:1]
        return list(dict.fromkeys(found))

    def _grow(self, tree: Tree, nodes: list[int]) -> None:
        """Make the blocks of these nodes, of their own token and their parent's."""
        import torch

        device = self.embedding.device
        pairs = [[int(tree.parents[node]), node] for node in nodes]
        above = [self.blocks_[int(tree.parents[parent])] for parent, _ in pairs]
        tokens = torch.from_numpy(np.asarray(tree.tokens[pairs])).to(device)
        hidden, cell = (
            torch.cat([block.carry[part] for block in above], 1).contiguous() for part in (0, 1)
        )
        rows, carry = self.net.input_rows(
            self.net.embed(tokens), torch.stack([block.states for block in above]), (hidden, cell)
        )
        depths = torch.from_numpy(np.asarray(tree.depths[pairs])).to(device)
        flat = rows.flatten(0, 1)[None]
        query, key, value = self.net.project(flat, (self.committed_ - 1 + depths).view(1, -1))
        text = self.cache_.text
        self.cache_.write(key, value, text + self.rows_)
        mask = np.zeros((BLOCK * len(nodes), text + self.rows_ + BLOCK * len(nodes)), bool)
        mask[:, :text] = True
        seen = []
        for index, block in enumerate(above):
            first = self.rows_ + BLOCK * index
            seen.append((*block.seen, *range(first, first + BLOCK)))
            mask[BLOCK * index : BLOCK * (index + 1), [text + row for row in seen[-1]]] = True
        self.rows_ += BLOCK * len(nodes)
        outputs = self._attend(
            flat, query, text + self.rows_, torch.from_numpy(mask).to(device)
        ).view(len(nodes), BLOCK, -1)
        for index, node in enumerate(nodes):
            own = carry[0][:, index : index + 1], carry[1][:, index : index + 1]
            self.blocks_[node] = DraftBlock(outputs[index], own, seen[index])

    def _attend(
        self, rows: "Tensor", query: "Tensor", stop: int, mask: "Tensor | None"
    ) -> "Tensor":
        """Predicted states [rows, width] of rows that see the slots before `stop`, by a mask."""
        cache = self.cache_
        read = self.net.self_attn.attend(
            query, cache.keys[:, :, :stop], cache.values[:, :, :stop], mask
        )
        found: Tensor = self.net.finish(rows, read)[0]
        return found


def home_of(tree: Tree, node: int) -> int:
    """The node whose block predicts the children of this one."""
    return node if int(tree.depths[node]) % BLOCK == 0 else int(tree.parents[node])
