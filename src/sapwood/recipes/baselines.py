"""The default recipe and the baseline."""

from sapwood.recipes.entry import OWN, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "auto",
        "sapwood",
        "",
        "merge + best(stride=8) + match + goodput(width=6)",
        fidelity=OWN,
    ),
    NamedRecipe("plain", "plain decoding", "", "ngram + chain + match + fixed(nodes=0)"),
)
