"""Chains, and when to stop them."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "speculative",
        "speculative sampling",
        "2211.17192",
        "small(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
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
        "eesd",
        "EESD",
        "2406.03853",
        "early-exit + thompson + match + fixed(nodes=20, depth=20, width=1)",
        "early-exit",
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
)
