"""SpecHub: two drafts around a hub token, verified by a transport plan in closed form.

Sun et al. (arXiv 2411.05289). One draft is the best token a of q, the hub, the other is a draw i
from q without a. The paper draws the pair in order: (i, a) if a first draw from q is i, and (a, i)
if it is a. The pair {a, i} then has chance q(i) / (1 - q(a)), and its order is a coin that comes up
(i, a) with chance 1 - q(a), whatever i is; so here the drafter chooses a and draws i (mixed draws),
and the verifier flips the coin. The plan, with A(i) the chance of the pair (i, a) and B(i) that of
(a, i), gives i what it can, from A first, and the hub what is left of both:

1. (i, a): accept i with chance min(1, p(i) / A(i)).
   (a, i): with min(1, p'(i) / B(i)), p' = (p - A)+.
2. a takes the rest of the pairs (a, .), then of the pairs (., a), while its own p lasts.
3. Else the token comes from what is left of p.

It accepts as often as `mixed` does on the same drafts. A public version accepts a outright when
p(a) > 0.999, which is not quite the target's distribution. Siblings of any other number or kind are
verified by `mixed`.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers import mixed
from sapwood.verifiers.walk import GreedyWalk, norm, walk


@dataclass
class SpecHub(GreedyWalk):
    """Verify pairs of the best token and one draw from the rest by an optimal plan."""

    paper: ClassVar[str] = "2411.05289"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down the accepted members of pairs."""
        return walk(tree, target, position, rng, step)


def step(tree: Tree, node: int, p: FloatArray, position: int, rng: Rng) -> tuple[int | None, int]:
    """Verify a pair around a hub by the plan, anything else by `mixed`."""
    children = tree.children(node)
    # the hub was chosen, the other drawn
    pair = sorted(children, key=lambda child: bool(tree.sampled[child]))
    if len(pair) != 2 or tree.sampled[pair].tolist() != [False, True]:
        return mixed.step(tree, node, p, position, rng)
    q = tree.proposal(node, pair[1])
    hub = int(tree.tokens[pair[0]])
    if q[hub] > 0:  # another drafter's choice, which the draw could have hit
        return mixed.step(tree, node, p, position, rng)
    plan = PairPlan(p, q, hub, float(tree.probs[pair[0]]))
    first = rng.flip(plan.hub_first, NoiseKey(position, NoiseUse.ACCEPT))
    chances = plan.accept(first, int(tree.tokens[pair[1]]))
    choice = rng.pick(
        np.array([*chances, max(0.0, 1.0 - sum(chances))]), NoiseKey(position, NoiseUse.ACCEPT, 1)
    )
    return (pair[choice], -1) if choice < 2 else (None, rng.pick(plan.rest, NoiseKey(position)))


class PairPlan:
    """Coupling of the pairs with the target's tokens."""

    def __init__(self, p: FloatArray, q: FloatArray, hub: int, hub_first: float) -> None:
        # chance that the paper's first draw is the hub
        self.hub_first = min(max(hub_first, 0.0), 1.0)
        # A and B, [vocab] each; q is 0 at the hub
        self.pairs = ((1 - self.hub_first) * q, self.hub_first * q)
        first = np.minimum(p, self.pairs[0])
        second = np.minimum(p - first, self.pairs[1])
        self.paid = (first, second)  # of A and of B, spent on the drawn token
        self.open = (float((self.pairs[0] - first).sum()), float((self.pairs[1] - second).sum()))
        to_hub_b = min(float(p[hub]), self.open[1])
        to_hub_a = min(float(p[hub]) - to_hub_b, self.open[0])
        self.hub = (to_hub_a, to_hub_b)
        rest = p - first - second
        rest[hub] -= to_hub_a + to_hub_b
        self.rest = norm(rest, p)

    def accept(self, hub_first: bool, drawn: int) -> tuple[float, float]:
        """Chances to accept the hub and the drawn token of a pair in this order."""
        side = int(hub_first)
        taken = float(self.paid[side][drawn] / self.pairs[side][drawn])
        return (1 - taken) * share(self.hub[side], self.open[side]), taken


def share(part: float, whole: float) -> float:
    """A part of a whole, at most 1; 0 if the whole is 0."""
    return min(1.0, part / whole) if whole > 0 else 0.0
