"""A request of one drafter, driven by hand: any tree, any verdict."""

from collections.abc import Callable
from typing import Any

import numpy as np

from sapwood.core.protocols import EngineContext, RequestContext, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Outcome, Verdict
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader

# the last accepted node of a tree: the root alone, a deepest node, a random one
LAST_NODES: dict[str, Callable[[Tree, Any], int]] = {
    "none": lambda tree, noise: ROOT,
    "long": lambda tree, noise: int(np.argmax(tree.depths)),
    "any": lambda tree, noise: int(noise.integers(len(tree))),
}


class DrivenRequest:
    """A drafter bound to a target, with the text of one request."""

    def __init__(self, drafter: Any, target: Any, prompt: list[int], seed: int = 0) -> None:
        self.target = target
        self.text = prompt
        self.noise = np.random.default_rng(seed)
        drafter.bind(EngineContext(target, flat(), no_loader))
        self.session = target.open(prompt[:-1])
        self.drafter = drafter.fresh()
        self.drafter.reset(RequestContext(prompt, Sampler(Sampling(), prompt), self.session))

    def draft(self, levels: int, foreign: int = 0) -> Tree:
        """A tree from random frontiers, with nodes that the drafter did not propose among them."""
        tree = Tree(self.text[-1])
        self.expand(tree, [ROOT])
        for _ in range(levels - 1):
            for token in self.noise.integers(0, 61, foreign).tolist():
                tree.add(int(self.noise.integers(len(tree))), token, 0.1)
            able = [node for node in range(len(tree)) if not tree.expanded[node]]
            self.expand(tree, self.noise.permutation(able)[:4].tolist())
        return tree

    def expand(self, tree: Tree, nodes: list[int]) -> None:
        before = len(tree)
        self.drafter.expand(tree, [(node, 2) for node in nodes], KeyedRng(0))
        assert set(tree.parents[before:].tolist()) <= set(nodes) & set(tree.states)
        for node in nodes:
            tree.close(node)

    def accept(self, tree: Tree, last: int) -> None:
        """Accept the path to this node, and a random bonus, whatever the target's output is."""
        [scores] = self.target.score([TreeInput(self.session, tree)])
        verdict = Verdict(tuple(tree.path(last)), int(self.noise.integers(61)))
        outcome = Outcome(tree, tree, verdict, scores, self.session.length)
        self.session.commit(verdict.path)
        self.drafter.observe(outcome)
        self.text = [*self.text, *outcome.tokens]
