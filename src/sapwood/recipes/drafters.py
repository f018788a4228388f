"""Systems that are about what is guessed."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
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
