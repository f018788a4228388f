"""Wrapper of a policy under a grammar: prunes nodes that the grammar forbids.

A forbidden node cannot be accepted: the target's probs at its parent give it zero. A chosen one is
pruned with any verifier, since it was not drawn at random. A drawn one must stay where the verifier
reads q: that the draw was refused is part of the rule, r = norm((r - q)+), and without it the
siblings would be verified against a distribution they were not drawn from. Such nodes are rare:
drafters that draw apply the grammar to q, so that they draw no forbidden token.

Where the grammar allows a single token, that token is drafted even if the policy wants no further
level: it needs no drafter, and will not be refused.
"""

from dataclasses import dataclass

import numpy as np

from sapwood.core.array_types import BoolArray
from sapwood.core.part import Part
from sapwood.core.protocols import Frontier, Policy, RequestContext
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Prune
from sapwood.structured_output.grammar_matcher import GrammarMatcher

LIKELY = 0.2  # least reach of a node whose forced tokens are looked up


@dataclass
class GrammarPrune(Part):
    """Prune what the grammar forbids, then prune by another policy; trees grow node by node."""

    policy: Policy
    # True where the verifier reads q: forbidden nodes that were drawn stay
    spares_draws: bool = False
    forces: bool = False  # True where forced tokens are drafted beside the drafter's own

    @property
    def prunes(self) -> Prune:
        """The wrapped policy's kind of pruning."""
        return self.policy.prunes

    @property
    def reads_probs(self) -> bool:  # type: ignore[override]
        """True when the wrapped policy reads the draft probs."""
        return self.policy.reads_probs

    def reset(self, request: RequestContext) -> None:
        """Take the request's grammar."""
        super().reset(request)
        self.guide_ = request.sampler.guide

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """The wrapped policy's frontier, and nodes after which the grammar allows one token."""
        asked = self.policy.frontier(tree, budget)
        if not self.forces or self.guide_ is None:
            return asked
        open_nodes = np.flatnonzero(
            ~tree.expanded & (tree.depths < budget.depth) & (tree.reach >= LIKELY)
        ).tolist()
        free = [
            node
            for node in set(open_nodes).difference(node for node, _ in asked)
            if self._is_forced(tree, node)
        ]
        return [*asked, *((node, 1) for node in sorted(free))]

    def _is_forced(self, tree: Tree, node: int) -> bool:
        state = None if self.guide_ is None else self.guide_.state(tree.spell(node)[1:])
        return state is not None and state.forced() is not None

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The nodes that the policy keeps of those that the grammar allows."""
        stays = (
            np.ones(len(tree), bool)
            if self.guide_ is None
            else allowed_nodes(tree, self.guide_, self.spares_draws)
        )
        if stays.all():
            return self.policy.prune(tree, budget)
        rest = tree.keep(np.flatnonzero(stays).tolist())
        cut = self.policy.prune(rest, budget)
        assert rest.kept is not None
        if cut is not rest:  # its nodes are counted as those of the tree that was grown
            cut.kept = rest.kept if cut.kept is None else rest.kept[cut.kept]
        return cut


def allowed_nodes(tree: Tree, guide: GrammarMatcher, spares_draws: bool) -> BoolArray:
    """True for the nodes that stay, [n]; descendants of a pruned node are pruned too."""
    stays = np.ones(len(tree), bool)
    for node in range(1, len(tree)):
        spared = spares_draws and bool(tree.sampled[node])
        stays[node] = stays[tree.parents[node]] and (spared or guide.allows(tree.spell(node)[1:]))
    return stays
