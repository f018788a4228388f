"""Known wrong versions of the multi-draft verifiers are noticed, and unsound recipes are biased."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import NoiseKey, NoiseUse, Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.errors import SapwoodError
from sapwood.policies.best import Best
from sapwood.policies.dyspec import DySpec
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import check_part, law_error
from sapwood.verifiers import block as block_module
from sapwood.verifiers import khisti as khisti_module
from sapwood.verifiers import kseq as kseq_module
from sapwood.verifiers import naive as naive_module
from sapwood.verifiers import optimal as optimal_module
from sapwood.verifiers import spechub as spechub_module
from sapwood.verifiers import traversal as traversal_module
from sapwood.verifiers import walk as walk_module
from sapwood.verifiers.block import Block
from sapwood.verifiers.khisti import Khisti
from sapwood.verifiers.kseq import Kseq
from sapwood.verifiers.match import Match
from sapwood.verifiers.naive import Naive
from sapwood.verifiers.optimal import Optimal
from sapwood.verifiers.optimal_iid import OptimalIid
from sapwood.verifiers.spechub import SpecHub
from sapwood.verifiers.traversal import Traversal
from sapwood.verifiers.traversal_iid import TraversalIid
from tests.helpers.unchecked_recipes import unchecked
from tests.helpers.verifier_recipes import EXACT, recipe

SEEN = 1e-6  # a bias that exact laws cannot miss
Patch = Callable[[pytest.MonkeyPatch], None]
TREE = [2, 1]


def bias(made: Recipe, rounds: int = 1) -> float:
    """Worst departure from the target's law over a few toys; 1 where the engine refuses what the rule says."""
    try:
        return max(law_error(made, ToyBackend(salt), rounds=rounds, horizon=3) for salt in "abc")
    except (
        AssertionError,
        ValueError,
        KeyError,
    ):  # a draft that no such draws could give is in no plan
        return 1.0


def grown(draws: Draw, verifier: Any) -> Recipe:
    """Siblings uncovered one by one, by what came before them."""
    return Recipe(
        DraftModel(model=ToyBackend("draft"), draws=draws),
        DySpec(),
        verifier,
        Fixed(nodes=3, depth=2, width=2),
    )


def contract() -> float:
    """1 where `match` breaks the contract of verifiers."""
    try:
        check_part("verifier", Match())
    except (AssertionError, ValueError):
        return 1.0
    return 0.0


CHECKS: dict[str, Callable[[], float]] = {
    "kseq": lambda: bias(recipe(Draw.IID, Kseq(shape=[2, 1]), TREE)),
    "kseq on a growing tree": lambda: bias(grown(Draw.IID, Kseq(shape=[2]))),
    "spechub": lambda: bias(recipe(Draw.MIXED, SpecHub(), TREE)),
    "block": lambda: bias(recipe(Draw.IID, Block(), [1, 1])),
    "block over two rounds": lambda: bias(recipe(Draw.IID, Block(), [1, 1]), rounds=2),
    "traversal": lambda: bias(recipe(Draw.SWOR, Traversal(), TREE)),
    "traversal of independent draws": lambda: bias(recipe(Draw.IID, TraversalIid(), TREE)),
    "optimal": lambda: bias(recipe(Draw.SWOR, Optimal(), TREE)),
    "optimal on a growing tree": lambda: bias(grown(Draw.SWOR, Optimal(shape=[2]))),
    "optimal with a rest symbol": lambda: bias(recipe(Draw.IID, OptimalIid(tokens=1), TREE)),
    "khisti": lambda: bias(recipe(Draw.IID, Khisti(), TREE)),
    "khisti with a rest symbol": lambda: bias(recipe(Draw.IID, Khisti(tokens=1), TREE)),
    "khisti on a growing tree": lambda: bias(grown(Draw.IID, Khisti(shape=[2]))),
    "naive": lambda: bias(recipe(Draw.TOPK, Naive(), TREE)),
    "contract of verifiers": contract,
}


def rho_of_one(patch: pytest.MonkeyPatch) -> None:
    """Every draw is tested as if it were the only one."""
    patch.setattr(kseq_module, "discount", lambda p, q, most: 1.0)


def residual_of_one_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kseq_module, "after", lambda p, claim, refused: walk_module.norm(p - claim, p))


def rho_of_the_draws_at_hand(patch: pytest.MonkeyPatch) -> None:
    original = kseq_module.discounted

    def discounted(shape: list[int]) -> Any:
        return lambda tree, node, *rest: original([max(1, len(tree.children(node)))])(
            tree, node, *rest
        )

    patch.setattr(kseq_module, "discounted", discounted)


def plan_for_the_draws_at_hand(patch: pytest.MonkeyPatch) -> None:
    original = optimal_module.planned

    def planned(shape: list[int], tokens: int, *, replacement: bool) -> Any:
        return lambda tree, node, *rest: original(
            [max(1, len(tree.children(node)))], tokens, replacement=replacement
        )(tree, node, *rest)

    patch.setattr(optimal_module, "planned", planned)


def likely_hub_accepted_outright(patch: pytest.MonkeyPatch) -> None:
    """The public shortcut, with a bar that toys reach."""
    original = spechub_module.step

    def step(
        tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        hubs = [
            child
            for child in tree.children(node)
            if not tree.sampled[child] and p[tree.tokens[child]] > 0.5
        ]
        return (hubs[0], -1) if hubs else original(tree, node, p, position, rng)

    patch.setattr(spechub_module, "step", step)


def pair_always_in_one_order(patch: pytest.MonkeyPatch) -> None:
    original = spechub_module.PairPlan.accept
    patch.setattr(
        spechub_module.PairPlan, "accept", lambda self, first, drawn: original(self, False, drawn)
    )


def hub_takes_its_share_twice(patch: pytest.MonkeyPatch) -> None:
    original = spechub_module.PairPlan.accept

    def accept(self: Any, first: bool, drawn: int) -> tuple[float, float]:
        hub, taken = original(self, first, drawn)
        return min(1 - taken, 2 * hub), taken

    patch.setattr(spechub_module.PairPlan, "accept", accept)


def path_kept_by_its_own_chance(patch: pytest.MonkeyPatch) -> None:
    """Each path of a block is kept with P_i, as the last one is."""
    patch.setattr(
        block_module, "excess", lambda chance, p, q: (chance, walk_module.excess(chance, p, q)[1])
    )


def next_token_from_the_plain_residual(patch: pytest.MonkeyPatch) -> None:
    """(p - q)+ in the place of (P p - q)+."""
    patch.setattr(
        block_module,
        "excess",
        lambda chance, p, q: (walk_module.excess(chance, p, q)[0], walk_module.residual(p, q)),
    )


def chance_above_one_is_carried_on(patch: pytest.MonkeyPatch) -> None:
    def credit(chance: float, p: FloatArray, q: FloatArray, token: int) -> float:
        return float(chance * p[token] / q[token])

    patch.setattr(block_module, "credit", credit)


def parents_chance_by_what_the_child_left(patch: pytest.MonkeyPatch) -> None:
    """A public rendering of traversal: min(1, S / (1 - q(x))), here with the largest of q as x."""

    def excess(chance: float, p: FloatArray, q: FloatArray) -> tuple[float, FloatArray]:
        total = float(np.maximum(chance * p - q, 0).sum())
        return min(1.0, total / max(1 - float(q.max()), 1e-9)), walk_module.excess(chance, p, q)[1]

    patch.setattr(traversal_module, "excess", excess)


def bonus_from_the_law_before_refusals(patch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> None:
        self.chance, _ = walk_module.excess(self.chance, self.p, self.q)

    patch.setattr(traversal_module.PathNode, "refuse", refuse)


def coins_by_the_position_they_judge(patch: pytest.MonkeyPatch) -> None:
    """A position that one round gave up is judged again in the next, by the same number."""
    patch.setattr(
        block_module,
        "NoiseKey",
        lambda position, *use: NoiseKey(position + sum(use[1:]) - bool(use), *use[:1]),
    )


def siblings_from_the_last(patch: pytest.MonkeyPatch) -> None:
    original = walk_module.drawn_from
    patch.setattr(
        traversal_module,
        "drawn_from",
        lambda tree, children, replacement: original(tree, children[::-1], replacement=replacement),
    )


def refused_draws_stay_in_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Traversal, "replacement", True)


def independent_draws_leave_q(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TraversalIid, "replacement", False)


def flow_without_its_chance(patch: pytest.MonkeyPatch) -> None:
    """Each draft is spent on its tokens by p alone, whatever other drafts spend."""

    def spread(drafts: list[frozenset[int]], chances: FloatArray, room: FloatArray) -> FloatArray:
        flow = np.zeros((len(drafts), len(room)))
        for row, draft in enumerate(drafts):
            flow[row, list(draft)] = chances[row] * room[list(draft)] / room[list(draft)].sum()
        return flow

    patch.setattr(optimal_module, "transport", spread)


def rest_symbol_accepts_whatever_was_drawn(patch: pytest.MonkeyPatch) -> None:
    original = optimal_module.finish

    def finish(
        tree: Tree, node: int, probs: FloatArray, drawn: Any, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        taken = [child for child, q in drawn if not probs[q == 0].any()]  # tested within the rest
        return (taken[0], -1) if taken else original(tree, node, probs, drawn, position, rng)

    patch.setattr(optimal_module, "finish", finish)


def picked_token_tested_by_the_drafters_law(patch: pytest.MonkeyPatch) -> None:
    """The second stage divides by q, although the first has picked."""
    patch.setattr(khisti_module.DraftSelection, "law", lambda self: self.q)


def rest_of_q_keeps_its_mass(patch: pytest.MonkeyPatch) -> None:
    """The picked rest is taken to be as frequent as a drawn one."""
    original = khisti_module.DraftSelection.law

    def law(self: Any) -> FloatArray:
        probs = original(self)
        rest = [token for token in range(len(probs)) if token not in self.named]
        probs[rest] = self.q[rest]
        return probs

    patch.setattr(khisti_module.DraftSelection, "law", law)


def draws_at_hand_are_all_there_are(patch: pytest.MonkeyPatch) -> None:
    original = Khisti._step

    def step(self: Khisti, tree: Tree, node: int, *rest: Any) -> tuple[int | None, int]:
        return original(Khisti([max(1, len(tree.children(node)))]), tree, node, *rest)

    patch.setattr(Khisti, "_step", step)


def lenient_target_mass(patch: pytest.MonkeyPatch) -> None:
    """A server's thresholds below 1: the coin is held against more mass than the children have."""

    def step(
        tree: Tree, node: int, p: FloatArray, position: int, rng: Rng
    ) -> tuple[int | None, int]:
        rest = p.copy()
        left = 1.0
        for slot, child in enumerate(tree.children(node)):
            token = int(tree.tokens[child])
            if rng.flip(
                min(1.0, float(p[token]) / 0.8 / left), NoiseKey(position, NoiseUse.ACCEPT, slot)
            ):
                return child, token
            left, rest[token] = max(left - float(p[token]) / 0.8, 1e-9), 0.0
        return None, rng.pick(rest / rest.sum(), NoiseKey(position))

    patch.setattr(naive_module, "step", step)


def padding_is_matched(patch: pytest.MonkeyPatch) -> None:
    """Rows of unequal length, filled up with node 0 and token 0, which counts as a match when the target says 0."""

    def verify(self: Match, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        rows = [tree.path(node) for node in range(len(tree)) if not tree.children(node)]
        longest = max(map(len, rows)) + 1
        best = [ROOT]
        said = [int(np.argmax(target.probs(node))) for node in range(len(tree))]
        for row in rows:
            nodes = row + [ROOT] * (longest - len(row))
            words = tree.tokens[row].tolist() + [0] * (longest - len(row))
            count = 1
            while count < longest and said[nodes[count - 1]] == words[count]:
                count += 1
            best = max(best, nodes[:count], key=len)
        return Verdict(tuple(best), said[best[-1]])

    patch.setattr(Match, "verify", verify)


MUTANTS: list[tuple[Patch, str]] = [
    (rho_of_one, "kseq"),
    (residual_of_one_draw, "kseq"),
    (rho_of_the_draws_at_hand, "kseq on a growing tree"),
    (plan_for_the_draws_at_hand, "optimal on a growing tree"),
    (likely_hub_accepted_outright, "spechub"),
    (pair_always_in_one_order, "spechub"),
    (hub_takes_its_share_twice, "spechub"),
    (path_kept_by_its_own_chance, "block"),
    (next_token_from_the_plain_residual, "block"),
    (chance_above_one_is_carried_on, "block"),
    (coins_by_the_position_they_judge, "block over two rounds"),
    (parents_chance_by_what_the_child_left, "traversal"),
    (bonus_from_the_law_before_refusals, "traversal"),
    (siblings_from_the_last, "traversal"),
    (refused_draws_stay_in_q, "traversal"),
    (independent_draws_leave_q, "traversal of independent draws"),
    (flow_without_its_chance, "optimal"),
    (rest_symbol_accepts_whatever_was_drawn, "optimal with a rest symbol"),
    (picked_token_tested_by_the_drafters_law, "khisti"),
    (rest_of_q_keeps_its_mass, "khisti with a rest symbol"),
    (draws_at_hand_are_all_there_are, "khisti on a growing tree"),
    (lenient_target_mass, "naive"),
    (padding_is_matched, "contract of verifiers"),
]


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_real_rules_pass(check: str) -> None:
    assert CHECKS[check]() <= EXACT


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_the_wrong_version_is_noticed(
    mutant: Patch, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert CHECKS[check]() > SEEN, f"{mutant.__name__} slipped past: {check}"


UNSOUND: list[tuple[str, Draw, Any, Any]] = [
    (
        "draws without replacement judged as independent",
        Draw.SWOR,
        Static(shape=TREE),
        TraversalIid(),
    ),
    ("independent draws judged as without replacement", Draw.IID, Static(shape=TREE), Traversal()),
    ("independent draws planned as without replacement", Draw.IID, Static(shape=TREE), Optimal()),
    (
        "draws without replacement discounted as independent",
        Draw.SWOR,
        Static(shape=TREE),
        Kseq(shape=[2, 1]),
    ),
    ("draws dropped by their own probability under kseq", Draw.IID, Best(), Kseq(shape=[2, 1])),
    ("draws dropped by their own probability under khisti", Draw.IID, Best(), Khisti()),
    ("draws dropped by their own probability under traversal", Draw.SWOR, Best(), Traversal()),
    ("draws dropped by their own probability under optimal", Draw.SWOR, Best(), Optimal()),
    ("draws dropped by their own probability under spechub", Draw.MIXED, Best(), SpecHub()),
]


@pytest.mark.parametrize(
    ("draws", "policy", "verifier"), [row[1:] for row in UNSOUND], ids=[row[0] for row in UNSOUND]
)
def test_what_the_recipe_refuses_is_biased(draws: Draw, policy: Any, verifier: Any) -> None:
    with pytest.raises(SapwoodError, match="use "):
        Recipe(DraftModel(model=ToyBackend("draft"), draws=draws), policy, verifier, Fixed())
    assert bias(unchecked(draws, policy, verifier)) > SEEN
