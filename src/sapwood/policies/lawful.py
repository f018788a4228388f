"""Another policy, under a grammar: what the grammar forbids is cut before the pass.

A forbidden node cannot be accepted, the target's law at its parent gives it nothing. A chosen one is cut whatever the
verifier: its being in the tree was no chance. One drawn at random must stay where the verifier reads q: that the draw
was refused is part of the rule, r = norm((r - q)+), and without it the siblings would be judged by a law they were not
drawn under. Such nodes are rare: drafters that draw apply the grammar to q, so that they draw no forbidden token.

And where the grammar leaves one token, that one is drafted, whatever the policy thinks of another level: it takes no
drafter, and will not be refused.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.arrays import BoolArray
from sapwood.guide import Guide
from sapwood.part import Part
from sapwood.protocols import Frontier, Policy, Request
from sapwood.records import Budget, Levels, Prune
from sapwood.tree import Tree

LIKELY = 0.2  # reach of a node from which on it is worth looking at what follows


@dataclass
class Lawful(Part):
    """Prune as another policy does, after what the grammar forbids was cut."""

    policy: Policy
    spares_draws: bool = False  # True where the verifier reads q: forbidden nodes that were drawn stay
    forces: bool = False  # True where forced tokens are drafted beside the drafter's own

    @property
    def prunes(self) -> Prune:
        """As the policy inside."""
        return self.policy.prunes

    @property
    def reads_laws(self) -> bool:  # type: ignore[override]
        """As the policy inside."""
        return self.policy.reads_laws

    def reset(self, request: Request) -> None:
        """Take the request's grammar."""
        super().reset(request)
        self.guide_ = request.sampler.guide

    def levels(self, budget: Budget) -> Levels | None:
        """None: under a grammar trees are grown node by node."""
        return None

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """What the policy inside says, and the nodes after which the grammar leaves one token."""
        asked = self.policy.frontier(tree, budget)
        if not self.forces or self.guide_ is None:
            return asked
        open_nodes = np.flatnonzero(~tree.expanded & (tree.depths < budget.depth) & (tree.reach >= LIKELY)).tolist()
        free = [node for node in set(open_nodes).difference(node for node, _ in asked) if self._is_forced(tree, node)]
        return [*asked, *((node, 1) for node in sorted(free))]

    def _is_forced(self, tree: Tree, node: int) -> bool:
        state = None if self.guide_ is None else self.guide_.state(tree.spell(node)[1:])
        return state is not None and state.forced() is not None

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """What the policy keeps of the nodes that can become output."""
        stays = np.ones(len(tree), bool) if self.guide_ is None else lawful(tree, self.guide_, self.spares_draws)
        if stays.all():
            return self.policy.prune(tree, budget)
        rest = tree.keep(np.flatnonzero(stays).tolist())
        cut = self.policy.prune(rest, budget)
        assert rest.kept is not None
        if cut is not rest:  # its nodes are counted as those of the tree that was grown
            cut.kept = rest.kept if cut.kept is None else rest.kept[cut.kept]
        return cut


def lawful(tree: Tree, guide: Guide, spares_draws: bool) -> BoolArray:
    """True for the nodes that stay, [n]; what is below a cut node goes with it."""
    stays = np.ones(len(tree), bool)
    for node in range(1, len(tree)):
        spared = spares_draws and bool(tree.sampled[node])
        stays[node] = stays[tree.parents[node]] and (spared or guide.lawful(tree.spell(node)[1:]))
    return stays
