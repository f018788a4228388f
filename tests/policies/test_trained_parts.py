"""Every trained part keeps the contract of its family, refuses senseless options, says how to train it."""

from pathlib import Path

import pytest

from sapwood import registry
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.ldlp import Ldlp
from sapwood.core.part import Part
from sapwood.core.rng import KeyedRng
from sapwood.core.types import Budget
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import grow
from sapwood.errors import SapwoodError
from sapwood.policies.best import Best
from sapwood.policies.c2t import C2t
from sapwood.policies.ltd import Ltd
from sapwood.policies.specdecpp import SpecDecPp
from sapwood.policies.thompson import Thompson
from sapwood.recipe import Recipe
from sapwood.testing import check_part
from sapwood.testing.contracts import check_copies, check_spelling
from sapwood.verifiers.judge import Judge
from sapwood.verifiers.match import Match
from tests.helpers.hidden_state_toy import Stateful, random_part
from tests.helpers.trained_policy_rounds import bound

TABLE = {
    "policy.specdec++": "sapwood.policies.specdecpp:SpecDecPp",
    "policy.thompson": "sapwood.policies.thompson:Thompson",
    "policy.c2t": "sapwood.policies.c2t:C2t",
    "policy.ltd": "sapwood.policies.ltd:Ltd",
    "estimator.c2t": "sapwood.estimators.classified:Classified",
    "controller.ldlp": "sapwood.controllers.ldlp:Ldlp",
    "verifier.judge": "sapwood.verifiers.judge:Judge",
}


def test_every_part_keeps_the_contract_of_its_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "TABLE", registry.TABLE | TABLE)
    folders = {kind: random_part(kind, tmp_path / kind) for kind in ("c2t", "ltd")}
    check_part("policy", registry.lookup("policy", "thompson")())
    for family, kind in (("policy", "c2t"), ("policy", "ltd"), ("estimator", "c2t")):
        check_part(family, registry.lookup(family, kind)(weights=folders[kind]))  # type: ignore[call-arg]
    for family, kind in (("policy", "specdec++"), ("controller", "ldlp"), ("verifier", "judge")):
        part = registry.lookup(family, kind)(weights="some/folder")  # type: ignore[call-arg]
        check_spelling(family, part)
        check_copies(part)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpecDecPp(threshold=2.0), "threshold=2.0 must be from 0 to 1"),
        (lambda: SpecDecPp(most=0), "most=0 must be at least 1"),
        (lambda: Thompson(no=0.0), "no=0.0 must be from"),
        (lambda: C2t(least=-1.0), "least=-1.0 must be from 0 to 1"),
        (lambda: Ltd(beam=0), "beam=0 must be at least 1"),
        (lambda: Ldlp(most=0), "most=0 must be at least 1"),
        (lambda: Judge(threshold=1.5), "threshold=1.5 must be from 0 to 1"),
    ],
)
def test_senseless_options_are_refused(make: type[Part], message: str) -> None:
    with pytest.raises(SapwoodError, match=message):
        make()


def test_a_part_that_was_never_trained_says_how_to_train_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    recipe = Recipe(Stateful(model=ToyBackend("draft")), SpecDecPp(), Match(), Fixed())
    with pytest.raises(
        SapwoodError,
        match=r"no trained specdec\+\+ for toy-target; make one with `sapwood train spec",
    ):
        Engine(ToyBackend(), recipe)


def test_growth_without_a_frontier_ends(tmp_path: Path) -> None:
    policy = bound(Ltd(weights=random_part("ltd", tmp_path)))
    policy.context_ = 3  # type: ignore[attr-defined]
    drafter = DraftModel(model=ToyBackend("draft"))
    recipe = Recipe(drafter, Best(), Match(), Fixed())
    engine = Engine(ToyBackend(), recipe)
    assert len(grow(0, engine.recipe.drafter, policy, Budget(0, 0, 0), KeyedRng(0))) == 1  # type: ignore[arg-type]
