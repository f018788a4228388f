"""Systems that are about how guesses are judged."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "judge",
        "Judge Decoding",
        "2501.19309",
        "eagle3 + beam(beam=10) + judge + fixed(nodes=59, depth=7, width=10)",
        "judge",
    ),
)
