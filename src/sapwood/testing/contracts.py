"""The contract of each family, as checks for any part."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part, options
from sapwood.core.protocols import (
    Controller,
    Drafter,
    EngineContext,
    Estimator,
    Policy,
    RequestContext,
    Verifier,
)
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw, Guarantee, Outcome, Prune
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.engine.request_decoder import grow
from sapwood.policies.static import Static
from sapwood.recipe import Recipe, build
from sapwood.spec_parser import read
from sapwood.testing.exact import law_error
from sapwood.verifiers.match import Match

PROMPT = [0, 1, 2, 0, 1]
BUDGETS = [Budget(0, 0, 0), Budget(1, 1, 1), Budget(4, 2, 2), Budget(9, 4, 3), Budget(30, 6, 2)]


def check_part(family: str, part: Part) -> None:
    """Run every check of a part's family; an AssertionError names the broken rule."""
    check_spelling(family, part)
    check_copies(part)
    CHECKS[family](part)


def check_spelling(family: str, part: Part) -> None:
    """Options are fields, and the spelling parses to the same part."""
    made: Any = part
    assert dataclasses.is_dataclass(made), f"{part} must be a dataclass: its fields are its options"
    states = [option.name for option in options(part) if option.name.endswith("_")]
    assert not states, f"{states} end in _: that marks state of a request, not an option"
    if "ToyBackend(" in str(part):  # a backend object has no spelling
        return
    assert build(family, read(str(part))) == part, f"{part} does not read back"


def check_copies(part: Part) -> None:
    """A request works on its own copy, nested parts included."""
    copy = part.fresh()
    assert copy == part
    assert copy is not part
    assert all(one is not other for one, other in zip(copy.nested(), part.nested(), strict=True))


def play(recipe: Recipe, sampling: Sampling, tokens: int = 24, seed: int = 5) -> list[Outcome]:
    """Rounds of a recipe on a toy target, until `tokens` tokens are emitted."""
    found: list[Outcome] = []
    for outcome in Engine(ToyBackend(context=128), recipe).rounds(PROMPT, sampling, KeyedRng(seed)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= tokens:
            break
    return found


def check_drafter(part: Part) -> None:
    """`expand` only appends valid children to the requested nodes, and is deterministic."""
    drafter: Drafter = part  # type: ignore[assignment]
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature=temperature, max_tokens=64)
        recipe = Recipe(WatchedDrafter(drafter), Static(shape=[2, 2, 1]), Match(), Fixed())
        texts = [
            [outcome.grown.tokens.tolist() for outcome in play(recipe, sampling)] for _ in range(2)
        ]
        assert texts[0] == texts[1], f"{drafter} drafts differently the second time"


@dataclasses.dataclass
class WatchedDrafter(Part):
    """A drafter whose expansions are checked."""

    drafter: Drafter

    @property
    def fan(self) -> int:
        """Fan of the wrapped drafter."""
        return self.drafter.fan

    @property
    def draws(self) -> Draw:
        """Draws of the wrapped drafter."""
        return self.drafter.draws

    @property
    def needs(self) -> frozenset[str]:
        """Needs of the wrapped drafter."""
        return self.drafter.needs

    def expand(self, tree: Tree, frontier: list[tuple[int, int]], rng: Rng) -> None:
        """Let the drafter expand and check the result."""
        before = [column.copy() for column in (tree.tokens, tree.parents, tree.probs, tree.sampled)]
        size = len(tree)
        asked = {node for node, _ in frontier}
        self.drafter.expand(tree, frontier, rng)
        for old, new in zip(
            before, (tree.tokens, tree.parents, tree.probs, tree.sampled), strict=True
        ):
            assert np.array_equal(old, new[:size]), f"{self.drafter} changed nodes that were there"
        added = range(size, len(tree))
        assert all(int(tree.parents[node]) in asked for node in added), (
            f"{self.drafter} grew a node it was not asked for"
        )
        assert ((tree.probs[size:] >= 0) & (tree.probs[size:] <= 1 + 1e-9)).all(), (
            f"{self.drafter} reports an invalid probability"
        )
        if self.draws is not Draw.IID:
            twins = (tree.parents, tree.tokens, tree.sampled, tree.sources)
            pairs = [tuple(int(column[node]) for column in twins) for node in added]
            assert len(set(pairs)) == len(pairs), f"{self.drafter} proposed a sibling twice"


def check_policy(part: Part) -> None:
    """Growth ends and stays within depth, and the pruned tree is within the budget."""
    recipe = Recipe(DraftModel(model=ToyBackend("draft")), part, Match(), Fixed())  # type: ignore[arg-type]
    bound = recipe.bind(EngineContext(ToyBackend(), flat(), no_loader))
    for budget in BUDGETS:
        sampling = Sampling(temperature=1.0)
        drafter, policy, _, _ = bound.fresh(
            RequestContext(PROMPT, Sampler(sampling, PROMPT), ToyBackend().open(PROMPT[:-1]))
        )
        tree = grow(PROMPT[-1], drafter, EndingPolicy(policy), budget, KeyedRng(1))
        kept = policy.prune(tree, budget)
        assert len(kept) - 1 <= budget.nodes, (
            f"{policy} keeps {len(kept) - 1} of {budget.nodes} nodes"
        )
        assert kept.height <= budget.depth, (
            f"{policy} keeps a path of {kept.height} at depth {budget.depth}"
        )
        assert kept.tokens[ROOT] == tree.tokens[ROOT], f"{policy} lost the root"
        assert policy.prunes in Prune
        if policy.prunes is Prune.NOTHING:
            assert len(kept) == len(tree), f"{policy} says it prunes nothing"


@dataclasses.dataclass
class EndingPolicy(Part):
    """A policy that must stop, and must expand no node twice."""

    policy: Policy
    prunes = Prune.NODES

    def frontier(self, tree: Tree, budget: Budget) -> list[tuple[int, int]]:
        """Frontier of the wrapped policy, checked."""
        found = self.policy.frontier(tree, budget)
        for node, width in found:
            assert not tree.expanded[node], f"{self.policy} expands node {node} twice"
            assert tree.depths[node] < budget.depth, (
                f"{self.policy} grows below depth {budget.depth}"
            )
            assert 1 <= width <= budget.width, (
                f"{self.policy} asks for {width} children of at most {budget.width}"
            )
        return found

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """Prune with the wrapped policy."""
        return self.policy.prune(tree, budget)


def check_estimator(part: Part) -> None:
    """Estimates are probabilities, one per node, before and after learning."""
    from sapwood.policies.beam import Beam

    estimator: Estimator = part  # type: ignore[assignment]
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")), Beam(estimator=estimator), Match(), Fixed()
    )
    estimator.bind(EngineContext(ToyBackend(), flat(), no_loader))
    for outcome in play(recipe, Sampling(max_tokens=64)):
        chances = estimator.chance(outcome.grown, 1)
        assert len(chances) == len(outcome.grown) - 1
        ok = ((chances >= 0) & (chances <= 1 + 1e-9)).all()
        assert ok, f"{estimator} returns an invalid probability"
        estimator.observe(outcome)


def check_verifier(part: Part) -> None:
    """Verdicts are paths of the tree; TEXT or LAW holds exactly on a toy target."""
    verifier: Verifier = part  # type: ignore[assignment]
    for draws in verifier.accepts:
        recipe = Recipe(
            DraftModel(model=ToyBackend("draft"), draws=draws),
            Static(shape=[2, 1]),
            verifier,
            Fixed(),
        )
        for outcome in play(recipe, Sampling(max_tokens=64)):
            path = outcome.verdict.path
            assert path[0] == ROOT
            assert list(path) == outcome.tree.path(path[-1]), (
                f"{verifier} accepted {path}, which is not a path"
            )
        if verifier.guarantee is not Guarantee.LOSSY and part.name != "greedy":
            assert law_error(recipe, horizon=2) <= 1e-12, (
                f"{verifier} breaks its guarantee on {draws.value} drafts"
            )


def check_controller(part: Part) -> None:
    """Budgets are never negative, and the text does not depend on them."""
    controller: Controller = part  # type: ignore[assignment]
    sampling = Sampling(temperature=1.0, max_tokens=64)
    plain = play(
        Recipe(
            DraftModel(model=ToyBackend("draft")), Static(shape=[2, 1]), Match(), Fixed(nodes=0)
        ),
        sampling,
    )
    ours = play(
        Recipe(DraftModel(model=ToyBackend("draft")), Static(shape=[2, 1]), Match(), controller),
        sampling,
    )
    text = [token for outcome in ours for token in outcome.tokens]
    expected = [token for outcome in plain for token in outcome.tokens]
    assert text[: len(expected)] == expected[: len(text)], f"{controller} changed the text"


CHECKS: dict[str, Callable[[Part], None]] = {
    "drafter": check_drafter,
    "policy": check_policy,
    "estimator": check_estimator,
    "verifier": check_verifier,
    "controller": check_controller,
}
