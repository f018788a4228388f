"""Plans and launches the next round before the host has received the verdict of this one.

When a device drafts whole trees, the next draft and the target's pass over it can be launched
behind the verification: they start from its result on the device, while the host waits for it,
commits and learns. `RequestDecoder.prelaunch` launches them. If the next round then needs another
tree than the one launched, it is drafted again; the output does not change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sapwood.core.device_rounds import round_shapes
from sapwood.core.protocols import Controller
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, TreeShape
from sapwood.core.whole_tree import (
    BatchShapes,
    DraftLaunch,
    WholeTreeDrafter,
    WholeTreePolicy,
    drafts_batches,
    drafts_whole_trees,
    shapes_whole_trees,
)
from sapwood.recipe import Recipe

NEAR = 2  # with so few tokens left, most likely no round follows


@dataclass(frozen=True, slots=True)
class NextRound:
    """Plan of the next round, made while a pass runs."""

    budget: Budget
    shape: TreeShape | None = None  # of its tree, when it is drafted whole
    launched: bool = False  # its draft was launched behind the verification
    seconds: float = 0.0  # of the device for the launched draft


class WholeTreeParts(NamedTuple):
    """A drafter that drafts whole trees and a policy that shapes them beforehand."""

    drafter: WholeTreeDrafter
    policy: WholeTreePolicy


def whole_tree_parts(drafter: object, policy: object) -> WholeTreeParts | None:
    """Drafter and policy of whole trees; None when growth goes by levels."""
    if drafts_whole_trees(drafter) and shapes_whole_trees(policy):
        return WholeTreeParts(drafter, policy)
    return None


def whole_tree_shape(parts: WholeTreeParts | None, budget: Budget) -> TreeShape | None:
    """The policy's tree shape, for a drafter of whole trees; None when growth goes by levels."""
    return None if parts is None else parts.policy.tree_shape(budget)


def plan_next(
    parts: WholeTreeParts | None,
    controller: Controller,
    fits: Callable[[Budget], bool],  # True when context and backend have room for such a tree
    left: int,  # tokens until the request's max_tokens
) -> NextRound:
    """The next round's budget, and the shape of its tree when it is known in advance."""
    budget = controller.budget()
    if not budget.nodes or not fits(budget) or left <= NEAR:
        return NextRound(budget)
    return NextRound(budget, whole_tree_shape(parts, budget))


def prepare_launch(
    parts: WholeTreeParts | None, planned: NextRound, tree: Tree
) -> DraftLaunch | None:
    """The next draft, to be launched behind the verification of this tree; None if it cannot be."""
    if planned.shape is None or parts is None:
        return None
    return parts.drafter.prelaunch(planned.shape, tree)


def prepare_device(recipe: Recipe) -> None:
    """Compile and capture all whole-tree shapes of a recipe before its first request."""
    largest = recipe.controller.largest
    if largest is None or not shapes_whole_trees(recipe.policy):
        return
    if drafts_whole_trees(recipe.drafter):
        recipe.drafter.prepare(recipe.policy.tree_shapes(largest))


def prepare_batches(recipe: Recipe, requests: int) -> None:
    """Compile and capture the drafts that so many requests of a recipe may share."""
    largest = recipe.controller.largest
    if largest is None or not shapes_whole_trees(recipe.policy):
        return
    if drafts_batches(recipe.drafter):
        drafts = recipe.policy.tree_shapes(largest)
        rounds = round_shapes() if recipe.controller.priced else drafts
        recipe.drafter.prepare_batches(BatchShapes(drafts, rounds), requests)
        prepare_device(recipe)  # buffers were replaced: those of single requests too
