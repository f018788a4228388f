"""The CTC drafter (arXiv 2412.00061): a tree of the texts that the slots may stand for.

A node is a text with repetitions merged and blanks removed. Its children have the probability that
a filling of the slots begins with them, over the probability that it begins with their parent: the
prefix search of connectionist temporal classification, node by node. A round costs one call of the
head, for any depth and width of its tree.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Frontier
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.heads.parallel import Parallel
from sapwood.drafters.propose import leaders, ranks_do


@dataclass(frozen=True, slots=True)
class Fillings:
    """Probability of the fillings of the first t slots that stand for a text, t from 0 on."""

    token: FloatArray  # whose last slot holds its last token, [slots + 1]
    blank: FloatArray  # whose last slot is blank, [slots + 1]
    last: int  # its last token, as a draft token; -1: the text is empty or unknown
    whole: float  # probability that all slots stand for a text that begins with it


@dataclass
class Ctc(Parallel):
    """A trained layer that fills slots with tokens and blanks in one call."""

    name: ClassVar[str] = "ctc"
    paper: ClassVar[str] = "2412.00061"
    trained: ClassVar[str] = "ctc"

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children of each node from the fillings that begin with its text."""
        import torch

        net: Any = self.net
        frontier = [
            (node, width) for node, width in frontier if tree.depths[node] < net.config.heads
        ]
        with torch.inference_mode():
            if not frontier or (not self.rows_ and not self._read(tree)):
                return
        ranked = ranks_do(tree, self.draws, self.sampler_)
        for node, width in frontier:
            tree.states[node] = self.outputs_[int(tree.depths[node])]
            fillings = self._fillings(tree, node)
            masses = following(self.slots_, fillings)
            if not masses.any():
                continue
            if ranked:
                probs = masses / fillings.whole
                best = leaders(probs, width)
                tokens = self.tokens[best].tolist()
                tree.extend(node, tokens, probs[best].tolist(), source=self.source)
                continue
            with np.errstate(divide="ignore"):
                law = torch.from_numpy(np.log(masses))[None]
            self._draw(tree, [(node, width)], law, rng)

    def _read(self, tree: Tree) -> bool:
        """Run the new text and the slots behind it."""
        net: Any = self.net
        if not super()._read(tree):
            return False
        self.slots_: FloatArray = net.slots(self.outputs_).double().exp().cpu().numpy()
        self.known_ = {ROOT: empty(self.slots_)}
        return True

    def _fillings(self, tree: Tree, node: int) -> Fillings:
        """The fillings of a node's text, from its parent's."""
        if node not in self.known_:
            token = int(tree.tokens[node])
            place = int(np.searchsorted(self.tokens, token))
            known = place < len(self.tokens) and self.tokens[place] == token
            above = self._fillings(tree, int(tree.parents[node]))
            self.known_[node] = longer(self.slots_, above, place if known else -1)
        return self.known_[node]


def empty(slots: FloatArray) -> Fillings:
    """Fillings of the empty text: blanks alone; slots [slots, draft vocab + 1], blank last."""
    blank = np.concatenate(([1.0], np.cumprod(slots[:, -1])))
    return Fillings(np.zeros_like(blank), blank, -1, 1.0)


def following(slots: FloatArray, text: Fillings) -> FloatArray:
    """Probability that the slots begin with this text and each token, [draft vocab]."""
    tokens = slots[:, :-1]
    found: FloatArray = (text.token + text.blank)[:-1] @ tokens
    if text.last >= 0:  # without a blank between, the same token again is no further one
        found[text.last] = text.blank[:-1] @ tokens[:, text.last]
    return found


def longer(slots: FloatArray, text: Fillings, token: int) -> Fillings:
    """Fillings of the text with one more draft token; -1 is none of them, which no filling has."""
    count = len(slots)
    held, blank = np.zeros(count + 1), np.zeros(count + 1)
    if token < 0:
        return Fillings(held, blank, -1, 0.0)
    enter = text.blank + (0.0 if token == text.last else text.token)
    for slot in range(count):
        held[slot + 1] = slots[slot, token] * (held[slot] + enter[slot])
        blank[slot + 1] = slots[slot, -1] * (blank[slot] + held[slot])
    whole = float(enter[:-1] @ slots[:, token])
    return Fillings(held, blank, token, whole)
