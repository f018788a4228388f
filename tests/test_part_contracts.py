"""Every part keeps its family's contract, and the contract's checks notice when one does not."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from sapwood import registry
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.array_types import FloatArray
from sapwood.core.part import Part
from sapwood.core.protocols import Frontier, TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Budget, Draw, Prune, Verdict
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.estimators.raw import Raw
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import build
from sapwood.spec_parser import read
from sapwood.testing import check_part
from sapwood.verifiers.match import Match
from sapwood.verifiers.rrs import Rrs
from tests.helpers.part_factory import make, plain_parts

OPTIONS = [
    ("policy", "best(stride=3, estimator=raw)"),
    ("policy", "beam(beam=2, estimator=binned)"),
    ("policy", "groups(floor=0.3)"),
    ("policy", "static(shape=[3, 2])"),
    ("controller", "fixed(nodes=0)"),
    ("controller", "goodput(nodes=2, patience=2, pause=1)"),
    ("controller", "heuristic(start=1)"),
    ("controller", "ema(floor=3.0, probe=2)"),
    ("drafter", "merge(drafters=[ngram, suffix(shortest=2), recycling(draws=swor)])"),
]


@pytest.mark.parametrize(("family", "name"), plain_parts())
def test_every_part_keeps_its_contract(family: str, name: str) -> None:
    check_part(family, make(family, name))


@pytest.mark.parametrize(("family", "spelling"), OPTIONS)
def test_options_keep_the_contract_too(family: str, spelling: str) -> None:
    check_part(family, build(family, read(spelling)))


@pytest.mark.parametrize("draws", Draw, ids=lambda draws: draws.value)
def test_drafters_that_draw_keep_the_contract_with_every_kind(draws: Draw) -> None:
    check_part("drafter", DraftModel(model=ToyBackend("draft"), draws=draws))
    check_part("drafter", build("drafter", read(f"recycling(draws={draws.value})")))


def test_every_part_says_what_the_table_shows() -> None:
    for family, name, made in registry.everything():
        first = (made.__doc__ or "").split("\n")[0]
        assert first.endswith("."), (
            f"{family} {name}: the first line of its docstring is its row in the table"
        )
        assert len(first) <= 110, f"{family} {name}: {len(first)} characters do not fit a row"
        assert name == name.lower()
        if family == "drafter":
            assert make(family, name).draws in Draw  # type: ignore[attr-defined]


# ---------------------------------------------------------------- parts that break one promise each
@dataclasses.dataclass
class Opener(DraftModel):
    """Grows a node it was not asked about."""

    name = "draft-model"

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        super().expand(tree, frontier, rng)
        tree.add(len(tree) - 1, 0, 0.1)


@dataclasses.dataclass
class Changer(DraftModel):
    """Changes a node that was there."""

    name = "draft-model"

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        super().expand(tree, frontier, rng)
        tree.tokens[ROOT] = 2 - tree.tokens[ROOT]


@dataclasses.dataclass
class Boaster(DraftModel):
    """Reports more than a probability."""

    name = "draft-model"

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        size = len(tree)
        super().expand(tree, frontier, rng)
        tree.probs[size:] = 1.5


@dataclasses.dataclass
class Moody(DraftModel):
    """Drafts differently each time."""

    name = "draft-model"
    calls: ClassVar[list[int]] = []

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        self.calls.append(1)
        for node, _ in frontier:
            tree.add(node, int(np.random.default_rng(len(self.calls)).integers(3)), 0.5)


@dataclasses.dataclass
class Greedy(Static):
    """Keeps more than it may."""

    name = "static"

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        return super().frontier(tree, dataclasses.replace(budget, nodes=99))

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        return tree


@dataclasses.dataclass
class Digger(Chain):
    """Grows below the depth."""

    name = "chain"

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        return super().frontier(tree, dataclasses.replace(budget, depth=9, nodes=9))


@dataclasses.dataclass
class Secretive(Static):
    """Cuts, and says that it does not."""

    name = "static"
    prunes = Prune.NOTHING

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        return tree.keep([ROOT])


@dataclasses.dataclass
class Sanguine(Raw):
    """Returns more than a probability."""

    name = "raw"

    def chance(self, tree: Tree, start: int) -> FloatArray:
        return np.full(len(tree) - start, 2.0)


@dataclasses.dataclass
class Jumper(Match):
    """Accepts a path with a gap."""

    name = "match"

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        verdict = super().verify(tree, target, position, rng)
        return (
            Verdict((ROOT, *verdict.path[2:]), verdict.bonus) if len(verdict.path) > 2 else verdict
        )


@dataclasses.dataclass
class Lenient(Rrs):
    """Accepts whatever was drawn."""

    name = "rrs"

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        verdict = super().verify(tree, target, position, rng)
        children = tree.children(ROOT)
        if verdict.path != (ROOT,) or not children or target.greedy:
            return verdict
        return Verdict((ROOT, children[0]), verdict.bonus)


@dataclasses.dataclass
class Stateful(Fixed):
    """Has state among its options."""

    name = "fixed"
    seen_: int = 0


@dataclasses.dataclass
class Sharer(Chain):
    """Copies share a nested part."""

    name = "best"
    estimator: Any = dataclasses.field(default_factory=Raw)

    def fresh(self) -> "Sharer":
        return Sharer(self.estimator)


@pytest.mark.parametrize(
    ("family", "part", "message"),
    [
        ("drafter", Opener(model=ToyBackend("draft")), "was not asked for"),
        ("drafter", Changer(model=ToyBackend("draft")), "changed nodes"),
        ("drafter", Boaster(model=ToyBackend("draft")), "invalid probability"),
        ("drafter", Moody(model=ToyBackend("draft")), "differently the second time"),
        ("policy", Greedy(shape=[3, 3]), "keeps .* of .* nodes"),
        ("policy", Digger(), "below depth"),
        ("policy", Secretive(), "prunes nothing"),
        ("estimator", Sanguine(), "invalid probability"),
        ("verifier", Lenient(), "breaks its guarantee"),
        ("controller", Stateful(), "end in _"),
        ("policy", Sharer(), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Part) else None,
)
def test_a_broken_promise_is_noticed(
    family: str, part: Part, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        registry.TABLE, f"{family}.{part.name}", f"{__name__}:{type(part).__name__}"
    )
    with pytest.raises(AssertionError, match=message):
        check_part(family, part)


def test_a_path_with_a_gap_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.TABLE, "verifier.match", f"{__name__}:Jumper")
    with pytest.raises((AssertionError, ValueError), match="not a path"):
        check_part("verifier", Jumper())
