"""Recipes: from text to parts and back, and what cannot be built."""

import dataclasses
import re
from typing import Any

import pytest

from sapwood import recipes, registry
from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part, options, spell
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.types import Draw, Guarantee
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.errors import SapwoodError, Unsound
from sapwood.estimators.binned import Binned
from sapwood.estimators.raw import Raw
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.recipe import Recipe, build, parse
from sapwood.spec_parser import read
from tests.helpers.part_factory import every_part

BASE = "ngram + chain + match + fixed"
OTHER: dict[type, Any] = {
    int: 3,
    float: 0.375,
    bool: True,
    str: "some/model v2.gguf",
    Draw: Draw.SWOR,
}


def changed(part: Part) -> Part:
    """The part with every plain option set to another value than its default."""
    other = {}
    for option in options(part):
        value = getattr(part, option.name)
        if type(value) in OTHER:
            other[option.name] = OTHER[type(value)]
        elif isinstance(value, list) and all(isinstance(item, int) for item in value):
            other[option.name] = [2, 1]
        elif isinstance(value, Part):
            other[option.name] = changed(value)
    return dataclasses.replace(part, **other)  # type: ignore[type-var]


@pytest.mark.parametrize(("family", "name"), every_part())
def test_every_part_reads_back(family: str, name: str) -> None:
    part = registry.lookup(family, name)()
    assert str(part) == name  # defaults are left out
    assert build(family, read(name)) == part
    other = changed(part)
    assert build(family, read(str(other))) == other
    for option in options(other):
        assert f"{option.name}=" in str(other) or getattr(other, option.name) == getattr(
            part, option.name
        )


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_named_recipe_reads_back(name: str) -> None:
    made = recipes.resolve(name)
    assert parse(str(made)) == made
    assert made.guarantee in Guarantee


def test_nested_parts_and_lists_read_back() -> None:
    text = (
        "merge(drafters=[ngram(longest=2), merge(drafters=[recycling(draws=swor), draft-model(model='a + b')])])"
        " + best(stride=2, estimator=binned(fine=2.5)) + match + goodput(nodes=7)"
    )
    made = parse(text)
    assert str(made) == text
    assert parse(str(made)) == made


def test_order_does_not_matter() -> None:
    assert parse("fixed(nodes=3) + match + ngram + chain") == parse(
        "ngram + chain + match + fixed(nodes=3)"
    )


def test_overrides_replace_single_slots() -> None:
    made = parse(BASE, policy="beam(beam=3)", controller=None)
    assert made.policy == Beam(beam=3)
    assert str(made.controller) == "fixed"
    assert parse("ngram + match + fixed", policy="best").policy == Best()
    other = recipes.resolve(made, estimator="binned", verifier="naive")
    assert other.policy == Beam(beam=3, estimator=Binned())
    assert str(other.verifier) == "naive"
    assert made.policy == Beam(beam=3, estimator=Raw())  # the recipe it came from is left alone


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ngram + chain + match + nonsense", "unknown part 'nonsense'; `sapwood methods` lists"),
        ("ngram + chain + match", "lacks a controller; `sapwood methods` lists"),
        ("", "lacks a drafter and a policy and a verifier and a controller"),
        (
            "ngram + suffix + chain + match + fixed",
            "two parts of the family drafter: ngram and suffix",
        ),
        (
            "ngram + chain + raw + match + fixed",
            r"'raw' is an estimator: give it to a policy, as in best\(estimator=raw",
        ),
        (
            "ngram(long=2) + chain + match + fixed",
            "ngram has no option 'long'; did you mean longest",
        ),
        ("ngram + chain(x=1) + match + fixed", "chain has no option 'x'; it has: none"),
        ("ngram(longest=2.5) + chain + match + fixed", "longest of ngram must be int, not 2.5"),
        ("ngram(longest=true) + chain + match + fixed", "longest of ngram must be int, not true"),
        ("ngram(longest=many) + chain + match + fixed", "longest of ngram must be int, not many"),
        (
            "ngram + static(shape=3) + match + fixed",
            "shape of static must be a list in brackets, not 3",
        ),
        ("ngram + static(shape=[1, x]) + match + fixed", "shape of static must be int, not x"),
        (
            "ngram + static(shape=[]) + match + fixed",
            "shape of static must list children per level",
        ),
        (
            "ngram + best(estimator=3) + match + fixed",
            "estimator of best must name a part of the family estimator, not 3",
        ),
        (
            "ngram + best(estimator=chain) + match + fixed",
            "unknown estimator 'chain'; known: raw, binned",
        ),
        (
            "recycling(draws=all) + chain + match + fixed",
            "draws of recycling must be one of topk, iid, swor, mixed, not",
        ),
        ("ngram + chain + match + fixed(nodes=1) x", "expected . before 'x'"),
    ],
)
def test_mistakes_are_named_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(SapwoodError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_override_lists_what_is_known() -> None:
    with pytest.raises(SapwoodError, match="unknown policy 'wild'; known: chain, pearl"):
        parse(BASE, policy="wild")
    with pytest.raises(
        SapwoodError, match="chain takes no estimator; use one that does, such as best or beam"
    ):
        recipes.resolve(BASE, estimator="raw")
    with pytest.raises(SapwoodError, match="unknown recipe 'zzz'; `sapwood methods` lists"):
        recipes.resolve("zzz")


@pytest.mark.parametrize("draws", [Draw.IID, Draw.SWOR, Draw.MIXED])
def test_verifiers_that_cannot_judge_name_those_that_can(draws: Draw) -> None:
    for name in registry.names("verifier"):
        if draws in registry.lookup("verifier", name).accepts:  # type: ignore[attr-defined]
            continue
        with pytest.raises(Unsound, match=f"{name} cannot verify {draws.value} drafts") as caught:
            parse(f"recycling(draws={draws.value}) + chain + {name} + fixed")
        way_out = str(caught.value).partition("use ")[2].partition(",")[0].split(" or ")
        for other in way_out:
            parse(f"recycling(draws={draws.value}) + chain + {other} + fixed")


@pytest.mark.parametrize("policy", ["best", "beam"])
def test_cutting_sampled_nodes_by_token_names_the_way_out(policy: str) -> None:
    text = "recycling(draws=swor) + {} + {} + fixed"
    with pytest.raises(
        Unsound, match="use groups, static or chain as the policy, draws=topk, or match"
    ) as caught:
        parse(text.format(policy, "rrs"))
    assert policy in str(caught.value)
    for other in ("groups", "static", "chain"):
        assert parse(text.format(other, "rrs")).guarantee is Guarantee.LAW
    assert parse(text.format(policy, "match")).guarantee is Guarantee.TEXT
    parse(text.format(policy, "mixed").replace("swor", "topk"))


def test_iid_draws_mix_with_no_others() -> None:
    with pytest.raises(Unsound, match="use draws=swor, or draws=iid in every drafter"):
        parse("merge(drafters=[ngram, recycling(draws=iid)]) + chain + match + fixed")


def test_a_missing_capability_is_named() -> None:
    @dataclasses.dataclass
    class Seer(Recycling):
        needs = frozenset({"hidden"})

    recipe = dataclasses.replace(parse(BASE), drafter=Seer())
    with pytest.raises(
        SapwoodError,
        match="needs hidden, which the toy backend does not provide for toy-target; use",
    ):
        recipe.bind(EngineContext(ToyBackend(), flat(), no_loader))


def test_draft_model_says_what_is_wrong_with_it() -> None:
    setting = EngineContext(ToyBackend(vocab=3), flat(), no_loader)
    base = parse(BASE)
    with pytest.raises(
        SapwoodError, match=r"draft-model needs a model; write draft-model\(model='NAME'\)"
    ):
        dataclasses.replace(base, drafter=DraftModel()).bind(setting)
    with pytest.raises(SapwoodError, match="must share the target's vocabulary"):
        dataclasses.replace(base, drafter=DraftModel(model=ToyBackend(vocab=4))).bind(setting)
    with pytest.raises(SapwoodError, match="model 'x' cannot be loaded here"):
        dataclasses.replace(base, drafter=DraftModel(model="x")).bind(setting)


def test_requests_share_memory_but_not_state() -> None:
    bound = parse("recycling + best + match + goodput").bind(
        EngineContext(ToyBackend(), flat(), no_loader)
    )
    request = RequestContext([0, 1], Sampler(Sampling(), [0, 1]), ToyBackend().open([0]))
    (one, best, _, pace), (two, other, _, pace2) = bound.fresh(request), bound.fresh(request)
    assert one is not two
    assert one.successors is two.successors  # type: ignore[attr-defined]
    assert best.estimator is not other.estimator  # type: ignore[attr-defined]
    assert best.estimator.hits is other.estimator.hits  # type: ignore[attr-defined]
    assert pace.stats is pace2.stats  # type: ignore[attr-defined]


def test_an_add_on_that_is_no_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def load(self) -> object:
            return print

    monkeypatch.setattr(
        registry, "addons", lambda: {"policy.odd": Entry(), "policy.chain": Entry()}
    )
    assert registry.names("policy").count("chain") == 1
    assert registry.lookup("policy", "chain").__name__ == "Chain"  # built-ins win
    with pytest.raises(SapwoodError, match=r"policy 'odd' names .*, which is not a sapwood\.Part"):
        registry.lookup("policy", "odd")


@pytest.mark.parametrize(
    ("spelled", "rule"),
    [
        ("merge(drafters=[])", "drafters=0 must be from 1 to 28"),
        ("recycling(count=100000)", "count=100000 must be from 1 to 1024"),
        ("recycling(pairs=1000000000)", "pairs=1000000000 must be from 0"),
        ("groups(floor=1.5)", "floor=1.5 must be from 0 to 1"),
        ("ema(rise=1e999)", "rise=inf must be from 0 to 1"),
        ("goodput(nodes=1000000000)", "nodes=1000000000 must be from 1 to 1023"),
        ("goodput(slack=2)", "slack=2.0 must be from 0 to 1"),
        ("best(estimator=binned(coarse=0))", "coarse=0.0 must be from 1e-09"),
    ],
)
def test_options_have_ranges(spelled: str, rule: str) -> None:
    call = read(spelled)
    with pytest.raises(SapwoodError, match=rule):
        build(registry.family_of(call.name), call)


def test_the_way_out_exists() -> None:
    with pytest.raises(Unsound, match=r"use greedy or match or naive or mixed"):
        parse("suffix + chain + mss + fixed")
    with pytest.raises(Unsound, match=r"or draws=iid in the drafter$"):
        parse("recycling + chain + mss + fixed")


def test_names_belong_to_one_family() -> None:
    every = [name for _, name in every_part()]
    assert len(every) == len(set(every))
    assert {registry.family_of(name) for name in every} == set(registry.FAMILIES)
    for name in set(every) & set(recipes.RECIPES):  # a system named after its part is made with it
        assert name in re.findall(
            r"[a-z0-9+-]+", recipes.RECIPES[name].recipe.replace(" + ", " ")
        ), name


def test_values_are_spelled_for_the_reader() -> None:
    assert [spell(value) for value in (None, True, 2, 0.5, "a", "it's", [1, "b"], Draw.IID)] == [
        "none", "true", "2", "0.5", "'a'", '"it\'s"', "[1, 'b']", "iid",
    ]  # fmt: skip


def test_a_recipe_is_its_four_parts() -> None:
    made = parse(BASE)
    assert [str(part) for part in made.parts()] == BASE.split(" + ")
    assert isinstance(made, Recipe)
