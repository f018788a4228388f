"""A trained classifier that estimates whether the target's text passes through a node.

C2T (arXiv 2502.13652) uses three numbers: the node's joint draft probability, the entropy of its
parent's draft probs, and its depth. Drafters propose only their best tokens, so the entropy here is
that of the proposed siblings' probabilities and of the remaining mass, taken as one more token. The
paper trains on subsampled negatives, which pushes the score up; here the subsampling is corrected,
so that the score is a probability and can replace the draft's own wherever a tree is valued.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.numpy_mlp import NumpyMlp, load, sigmoid
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import EngineContext
from sapwood.core.tree import Tree

KIND = "c2t"
TINY = 1e-9  # stands in for a probability of zero
SURE = 8.0  # log odds are clipped here
DEEP = 10.0  # unit of depth in the features


@dataclass
class Classified(Part):
    """A trained classifier's chance, from joint probability, the parent's entropy and depth."""

    weights: str = ""  # folder of the trained classifier; empty: the one trained for this model

    paper: ClassVar[str] = "2502.13652"

    def bind(self, setting: EngineContext) -> None:
        """Load the classifier."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.net: NumpyMlp = bundle.nets["classifier"]

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Each node's score over its parent's; the product along a path is the score itself."""
        reach = passing(tree, self.net)
        above: FloatArray = reach[tree.parents[start:]]
        return np.where(above > 0, reach[start:] / np.maximum(above, TINY), 0.0)


def passing(tree: Tree, net: NumpyMlp) -> FloatArray:
    """Probability that the target's text passes through each node, [n]; at most its parent's."""
    score = np.append(1.0, sigmoid(net(features(tree))[1:, 0]))
    parents = tree.parents
    for node in range(1, len(tree)):
        score[node] = min(score[node], score[parents[node]])
    return score


def features(tree: Tree) -> FloatArray:
    """Log odds of joint probability, parent's entropy (nats) and depth of each node, [n, 3]."""
    joint = np.zeros(len(tree))
    logs = np.log(np.maximum(tree.probs, TINY)).tolist()
    parents = tree.parents
    for node in range(1, len(tree)):
        joint[node] = joint[parents[node]] + logs[node]
    odds = joint - np.log(np.maximum(-np.expm1(joint), TINY))
    return np.stack(
        (np.clip(odds, -SURE, SURE), entropies(tree)[parents], tree.depths / DEEP), axis=1
    )


def entropies(tree: Tree) -> FloatArray:
    """Entropy of each node's draft probs (nats), as far as its children show it, [n]."""
    probs = np.append(0.0, np.clip(tree.probs[1:], 0.0, 1.0))
    parents = np.maximum(tree.parents, 0)
    # above 1 where several drafters propose a token, or it was drawn twice
    total = np.bincount(parents, probs, len(tree))
    probs = probs / np.maximum(total, 1.0)[parents]
    known = np.bincount(parents, surprise(probs), len(tree))
    found: FloatArray = known + surprise(np.maximum(1.0 - total, 0.0))
    return found


def surprise(probs: FloatArray) -> FloatArray:
    """-p ln p of each probability, 0 at 0."""
    found: FloatArray = -probs * np.log(np.maximum(probs, TINY))
    return found
