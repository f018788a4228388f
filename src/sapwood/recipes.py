"""The named recipes: published systems as combinations of parts, with their papers' defaults."""

import dataclasses
from dataclasses import dataclass

from sapwood import methods
from sapwood.errors import SapwoodError
from sapwood.part import Part, options
from sapwood.protocols import Policy
from sapwood.recipe import Recipe, build, parse
from sapwood.spelling import read


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A system of the literature, from parts."""

    name: str
    system: str  # as its authors call it
    paper: str  # arXiv id, empty where there is none
    recipe: str  # its spelling
    training: str = "none"  # what must be trained before it can run


RECIPES: dict[str, NamedRecipe] = {
    entry.name: entry
    for entry in (
        NamedRecipe("auto", "sapwood", "", "merge + best(stride=8) + match + goodput(width=6)"),
        NamedRecipe("plain", "plain decoding", "", "ngram + chain + match + fixed(nodes=0)"),
        NamedRecipe("pld", "Prompt Lookup Decoding", "", "ngram + chain + match + fixed(nodes=10, depth=10, width=1)"),
        NamedRecipe(
            "suffix",
            "SuffixDecoding",
            "2411.04975",
            "suffix + best(estimator=raw) + match + fixed(nodes=32, depth=24, width=4)",
        ),
        NamedRecipe(
            "recycling",
            "Token Recycling",
            "2408.08696",
            "recycling(pairs=0, prompt=0) + best(estimator=raw) + match + fixed(nodes=80, depth=6, width=8)",
        ),
        NamedRecipe(
            "speculative",
            "speculative sampling",
            "2211.17192",
            "recycling(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
        ),
        NamedRecipe(
            "specinfer",
            "SpecInfer",
            "2305.09781",
            "recycling(draws=iid) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + mss + fixed(nodes=20, depth=8, width=3)",
        ),
        NamedRecipe(
            "medusa",
            "Medusa",
            "2401.10774",
            "medusa + sparse + match + fixed(nodes=63, depth=4, width=10)",
            "medusa",
        ),
        NamedRecipe(
            "hydra",
            "Hydra",
            "2402.05109",
            "hydra + sparse(head='hydra') + match + fixed(nodes=63, depth=4, width=10)",
            "hydra",
        ),
        NamedRecipe(
            "eagle",
            "EAGLE",
            "2401.15077",
            "eagle + sparse(children=[4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2])"
            " + match + fixed(nodes=25, depth=5, width=4)",
            "eagle",
        ),
        NamedRecipe(
            "eagle2",
            "EAGLE-2",
            "2406.16858",
            "eagle + beam(beam=10) + match + fixed(nodes=59, depth=7, width=10)",
            "eagle",
        ),
        NamedRecipe(
            "eagle3",
            "EAGLE-3",
            "2503.01840",
            "eagle3 + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
            "eagle3",
        ),
        NamedRecipe(
            "online",
            "Online Speculative Decoding",
            "2310.07177",
            "online(drafter=eagle3) + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
            "eagle3",
        ),
        NamedRecipe(
            "draft-model",
            "a small model of its own",
            "2211.17192",
            "draft-model(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
            "draft-model",
        ),
        NamedRecipe(
            "early-exit",
            "Kangaroo, LayerSkip",
            "2404.18911",
            "early-exit + chain + match + fixed(nodes=6, depth=6, width=1)",
            "early-exit",
        ),
        NamedRecipe(
            "parallel",
            "ParallelSpec",
            "2410.05589",
            "parallel + best(estimator=raw) + match + fixed(nodes=32, depth=6, width=8)",
            "parallel",
        ),
        NamedRecipe(
            "recurrent",
            "ReDrafter",
            "2403.09919",
            "recurrent + beam(beam=5) + match + fixed(nodes=25, depth=5, width=5)",
            "recurrent",
        ),
        NamedRecipe(
            "specdec++",
            "SpecDec++",
            "2405.19715",
            "eagle3(draws=iid) + specdec++ + speculative + fixed(nodes=20, depth=20, width=1)",
            "specdec++",
        ),
        NamedRecipe(
            "adaeagle",
            "AdaEAGLE",
            "2412.18910",
            "eagle + chain + match + ldlp(nodes=20, width=1)",
            "ldlp",
        ),
        NamedRecipe(
            "c2t",
            "C2T",
            "2502.13652",
            "eagle3 + c2t + match + fixed(nodes=150, depth=11, width=10)",
            "c2t",
        ),
        NamedRecipe(
            "ltd",
            "Learning to Draft",
            "2603.01639",
            "eagle3 + ltd + match + fixed(nodes=240, depth=12, width=10)",
            "ltd",
        ),
        NamedRecipe(
            "eesd",
            "EESD",
            "2406.03853",
            "early-exit + thompson + match + fixed(nodes=20, depth=20, width=1)",
            "early-exit",
        ),
        NamedRecipe(
            "judge",
            "Judge Decoding",
            "2501.19309",
            "eagle3 + beam(beam=10) + judge + fixed(nodes=59, depth=7, width=10)",
            "judge",
        ),
    )
}


def named(text: str) -> str:
    """The spelling of a recipe's name; a spelling is returned as it is."""
    word = text.strip()
    if word in RECIPES:
        return RECIPES[word].recipe
    if "+" not in word and "(" not in word and not any(word in methods.names(family) for family in methods.FAMILIES):
        raise SapwoodError(
            f"unknown recipe {text!r}; known: {', '.join(RECIPES)}; "
            "or spell one as drafter + policy + verifier + controller"
        )
    return text


def resolve(recipe: str | Recipe, *, estimator: str | None = None, **overrides: str | None) -> Recipe:
    """The recipe of this name or spelling, with single parts replaced by others; an estimator goes to the policy."""
    if isinstance(recipe, str):
        made = parse(named(recipe), **overrides)
    else:
        made = dataclasses.replace(recipe, **parts(overrides))  # type: ignore[arg-type]
    if estimator is not None:
        made = dataclasses.replace(made, policy=valued(made.policy, estimator))
    return made


def parts(overrides: dict[str, str | None]) -> dict[str, Part]:
    """The parts that these spellings name, by family."""
    return {family: build(family, read(text)) for family, text in overrides.items() if text is not None}


def valued(policy: Policy, estimator: str) -> Policy:
    """The policy with another estimator."""
    if not isinstance(policy, Part) or "estimator" not in [option.name for option in options(policy)]:
        raise SapwoodError(f"policy {policy} takes no estimator; use one that does, such as best or beam")
    return dataclasses.replace(policy, estimator=build("estimator", read(estimator)))  # type: ignore[type-var]
