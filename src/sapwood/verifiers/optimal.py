"""Verification by optimal transport from possible drafts to the target's tokens, node by node.

SpecTr (arXiv 2310.15141) states the problem: of all couplings of the possible drafts with tokens
distributed as p, take one under which the token is most often among the drafts. No rule that
verifies node by node accepts more often. It is a reference for the others: a plan weighs every
possible draft, tokens ** draws of them.

A vocabulary is too large for that, so a plan names the tokens of largest p + q and has one symbol
for the rest, which stays exact. A draft is used up to its first draw outside of the named tokens,
so that its chance follows from the named ones alone; a draft that is given the rest symbol is
tested against p and q within the rest; and what the plan leaves of p goes on to the draws that were
not used, in turn. On vocabularies of no more than `tokens` tokens it is the optimum.

A plan must not depend on how many draws there are, where a policy decides by one draw whether to
keep the next. It weighs as many as `shape` leaves beside the chosen children: further ones are
tested in turn, and missing ones are drawn here, from the probs they would have had. A token drawn
here can be emitted, like any other, but the walk ends with it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from sapwood.core.array_types import FloatArray
from sapwood.core.part import at_least
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.sampling import without
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.errors import SapwoodError
from sapwood.verifiers.transport import transport
from sapwood.verifiers.walk import (
    GreedyWalk,
    Step,
    check_shape,
    drawn_from,
    norm,
    of_level,
    residual,
    walk,
)

MOST = 4096  # drafts that a plan may weigh
Drawn = list[tuple[int, FloatArray]]  # drawn children, each with the probs it was drawn from


@dataclass
class Optimal(GreedyWalk):
    """Accept as often as any rule that verifies node by node can; slow, a reference for others."""

    # children of a node by level, the last for all deeper levels
    shape: list[int] = field(default_factory=lambda: [2, 1])
    tokens: int = 12  # tokens that a plan names, >= 1; the others share a symbol

    paper: ClassVar[str] = "2310.15141"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK, Draw.SWOR, Draw.MIXED})
    guarantee: ClassVar[Guarantee] = Guarantee.LAW
    reads_q: ClassVar[bool] = True
    replacement: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_shape("optimal", self.shape)
        at_least(1, tokens=self.tokens)
        if self.tokens ** max(self.shape) > MOST:
            raise SapwoodError(
                f"optimal cannot weigh {self.tokens}**{max(self.shape)} drafts of "
                f"{max(self.shape)} children, at most {MOST}; "
                "lower tokens, or the largest number in shape"
            )

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk down by a plan per node."""
        return walk(
            tree,
            target,
            position,
            rng,
            planned(self.shape, self.tokens, replacement=self.replacement),
        )


def planned(shape: list[int], tokens: int, *, replacement: bool) -> Step:
    """The rule that verifies a node's children by an optimal plan."""

    def step(
        tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        children = tree.children(node)
        drawn = list(
            drawn_from(
                tree, [child for child in children if tree.sampled[child]], replacement=replacement
            )
        )
        if not drawn:
            return finish(tree, node, p, [], position, rng)
        first, q = drawn[0]
        chosen = [int(tree.tokens[child]) for child in children if child < first]
        draws = max(1, of_level(shape, int(tree.depths[node])) - len(chosen))
        plan = TransportPlan(p, q, chosen, tokens, draws, replacement=replacement)
        draft = frozenset(range(len(chosen)))  # as symbols: chosen tokens are named first
        # of the next draw, and the last draw that was used
        probs = q
        last = None
        for slot in range(plan.draws):
            if plan.rest in draft or not probs.any():
                break
            real = drawn and tree.sources[drawn[0][0]] == tree.sources[first]
            last = drawn.pop(0) if real else None
            made_up = NoiseKey(position, NoiseUse.ACCEPT, CAPACITY + slot)
            token = int(tree.tokens[last[0]]) if last else rng.pick(probs, made_up)
            draft |= {plan.symbol(token)}
            probs = probs if replacement else without(probs, [token])
        choice = plan.spend(draft, NoiseKey(position, NoiseUse.ACCEPT), rng)
        if choice is None:
            return finish(tree, node, plan.unspent(), drawn, position, rng)
        if choice < plan.rest:
            return tree.child(node, plan.named[choice]), plan.named[choice]
        again = [(last[0], without(last[1], plan.named))] if last else []
        return finish(tree, node, without(p, plan.named), [*again, *drawn], position, rng)

    return step


def finish(
    tree: Tree, node: int, probs: FloatArray, drawn: Drawn, position: int, rng: Rng
) -> tuple[int | None, int]:
    """Test draws in turn against `probs`, then draw from what they leave of it."""
    for slot, (child, q) in enumerate(drawn):
        token = int(tree.tokens[child])
        if rng.flip(
            min(1.0, float(probs[token] / q[token])), NoiseKey(position, NoiseUse.ACCEPT, 1 + slot)
        ):
            return child, token
        probs = residual(probs, q)
    token = rng.pick(probs, NoiseKey(position))
    return tree.child(node, token), token


class TransportPlan:
    """Coupling of a node's possible drafts with symbols: indices into `named`, and the rest."""

    def __init__(
        self,
        p: FloatArray,
        q: FloatArray,
        chosen: list[int],
        tokens: int,
        draws: int,
        *,
        replacement: bool,
    ) -> None:
        self.p = p
        self.draws = draws
        self.replacement = replacement
        likely: list[int] = np.argsort(-(p + q), kind="stable")[: tokens + len(chosen)].tolist()
        likely = [token for token in likely if token not in chosen]
        self.named = [*chosen, *likely[: max(0, tokens - len(chosen))]]
        self.rest = len(self.named)
        self.chances: dict[frozenset[int], float] = {}  # of each possible draft
        self._weigh(frozenset(range(len(chosen))), self._symbols(q), draws, 1.0)
        room = self._symbols(p)
        drafts = list(self.chances)
        flow = transport(drafts, np.array(list(self.chances.values())), room)
        self.flow = dict(zip(drafts, flow, strict=True))
        self.left: FloatArray = room - flow.sum(axis=0)

    def symbol(self, token: int) -> int:
        """The symbol of a token."""
        return self.named.index(token) if token in self.named else self.rest

    def _symbols(self, probs: FloatArray) -> FloatArray:
        return np.append(probs[self.named], np.delete(probs, self.named).sum())

    def _weigh(self, draft: frozenset[int], probs: FloatArray, draws: int, chance: float) -> None:
        """Add up the chances of all drafts with this prefix; a draw from the rest ends a draft."""
        if not draws or self.rest in draft or not probs.any():
            self.chances[draft] = self.chances.get(draft, 0.0) + chance
            return
        for symbol in np.flatnonzero(probs).tolist():
            after = probs if self.replacement or symbol == self.rest else without(probs, [symbol])
            self._weigh(draft | {symbol}, after, draws - 1, chance * float(probs[symbol]))

    def spend(self, draft: frozenset[int], place: NoiseKey, rng: Rng) -> int | None:
        """The symbol that this draft is spent on, or None."""
        options = sorted(draft)
        shares = self.flow[draft][options] / self.chances[draft]
        choice = rng.pick(np.append(shares, max(0.0, 1.0 - shares.sum())), place)
        return options[choice] if choice < len(options) else None

    def unspent(self) -> FloatArray:
        """Probs of the token if the draft is spent on none: what all drafts leave of p."""
        probs = without(self.p, self.named) * self.left[self.rest]
        probs[self.named] = self.left[: self.rest]
        return norm(probs, self.p)
