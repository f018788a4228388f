"""Named recipes on exact tables, with a draft model of another table where they look for a trained one."""

import copy
from dataclasses import replace
from typing import Any

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Verdict
from sapwood.drafters.compose.auto_draft_model import AutoDraftModel
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error

PROMPT = (0, 1, 2, 0, 1)
EXACT = 1e-12


def on_tables(name: str, vocab: int = 3, nodes: int = 3) -> Recipe:
    """The recipe of this name with a small budget, and a draft model of another table."""
    found = resolve(name)
    drafter: Any = found.drafter
    if isinstance(drafter, AutoDraftModel | AutoHead | DraftModel):
        drafter = DraftModel(model=ToyBackend("draft", vocab=vocab), draws=drafter.draws)
    controller: Any = copy.copy(found.controller)
    if isinstance(controller, Fixed):
        controller = Fixed(min(controller.nodes, nodes), min(controller.depth, 2), controller.width)
    if isinstance(controller, Goodput):
        controller = replace(controller, nodes=nodes, depth=2, width=2)
    return Recipe(drafter, found.policy, found.verifier, controller)


def law_on_tables(recipe: Recipe, vocab: int = 3, rounds: int = 2) -> float:
    """Departure from the target's law over so many rounds, enumerated."""
    target = ToyBackend("a", vocab=vocab)
    return law_error(recipe, target, prompt=PROMPT, rounds=rounds, horizon=rounds)


def unseen(verify: Any, accepted: int = 0) -> Any:
    """A faulty `verify`: it takes the first child unseen where no more nodes were accepted."""

    def faulty(self: Any, tree: Tree, probs: TargetProbs, position: int, rng: Rng) -> Verdict:
        first = tree.children(ROOT)
        found: Verdict = verify(self, tree, probs, position, rng)
        if not first or len(found.path) - 1 > accepted:
            return found
        return Verdict((ROOT, first[0]), found.bonus)

    return faulty
