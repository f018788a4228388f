"""The named recipes: published systems as combinations of parts, with their papers' defaults."""

import dataclasses

from sapwood import registry
from sapwood.common.suggest import suggestion
from sapwood.core.part import Part, options
from sapwood.core.protocols import Policy
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe, build, parse
from sapwood.recipes import (
    baselines,
    cascades,
    chains,
    controllers,
    drafters,
    lookups,
    multi_token,
    pipelines,
    remotes,
    selves,
    trees,
    verifiers,
)
from sapwood.recipes.entry import NamedRecipe
from sapwood.recipes.without import WITHOUT
from sapwood.spec_parser import read

# by the titles that lists for people use
FAMILIES = {
    "Default and baseline": baselines.ENTRIES,
    "Chains": chains.ENTRIES,
    "Trees": trees.ENTRIES,
    "Lookups": lookups.ENTRIES,
    "Trained and other drafters": drafters.ENTRIES,
    "Several tokens at once": multi_token.ENTRIES,
    "Parallel decoding and cascades": cascades.ENTRIES,
    "Pipelines": pipelines.ENTRIES,
    "Drafting elsewhere": remotes.ENTRIES,
    "Self-drafting": selves.ENTRIES,
    "Verifiers": verifiers.ENTRIES,
    "Controllers": controllers.ENTRIES,
}
RECIPES: dict[str, NamedRecipe] = {
    entry.name: entry for entries in FAMILIES.values() for entry in entries
}


def named(text: str) -> str:
    """The spelling of a recipe's name; a spelling is returned as it is."""
    word = text.strip()
    if word in RECIPES:
        return RECIPES[word].recipe
    if word in WITHOUT:
        raise SapwoodError(f"{WITHOUT[word].system} has no recipe. {WITHOUT[word].why}")
    if (
        "+" not in word
        and "(" not in word
        and not any(word in registry.names(family) for family in registry.FAMILIES)
    ):
        every = (
            f"`sapwood methods` lists all {len(RECIPES)}; or spell one as drafter + policy + verifier"
            " + controller"
        )
        raise SapwoodError(f"unknown recipe {text!r}; {suggestion(word, RECIPES, every)}")
    return text


def resolve(
    recipe: str | Recipe, *, estimator: str | None = None, **overrides: str | None
) -> Recipe:
    """The recipe of this name or spelling, with single parts replaced."""
    for family, text in overrides.items():
        check_is_part(family, text)
    if isinstance(recipe, str):
        made = parse(named(recipe), **overrides)
    elif not isinstance(recipe, Recipe):
        raise SapwoodError(f"recipe={recipe!r} must be a name, a spelling or a Recipe")
    else:
        made = dataclasses.replace(recipe, **parts(overrides))  # type: ignore[arg-type]
    if estimator is not None:
        made = dataclasses.replace(made, policy=valued(made.policy, estimator))
    return made


def check_is_part(family: str, text: str | None) -> None:
    """Refuse the name of a recipe where a part of it is asked for."""
    word = (text or "").partition("(")[0].strip()
    if word in RECIPES and word not in registry.names(family):
        raise SapwoodError(
            f"{word!r} is a recipe, not a {family}; name it as the recipe, or spell a {family}"
            f" such as {registry.names(family)[0]}"
        )


def parts(overrides: dict[str, str | None]) -> dict[str, Part]:
    """The parts that these spellings name, by family."""
    return {
        family: build(family, read(text)) for family, text in overrides.items() if text is not None
    }


def valued(policy: Policy, estimator: str) -> Policy:
    """The policy with another estimator."""
    if not isinstance(policy, Part) or "estimator" not in [
        option.name for option in options(policy)
    ]:
        raise SapwoodError(
            f"policy {policy} takes no estimator; use one that does, such as best or beam"
        )
    return dataclasses.replace(policy, estimator=build("estimator", read(estimator)))  # type: ignore[type-var]
