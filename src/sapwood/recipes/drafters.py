"""Systems that are about what is guessed."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
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
        "online",
        "Online Speculative Decoding",
        "2310.07177",
        "online(drafter=eagle3) + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        "eagle3",
    ),
)
