"""Systems that are about how guesses are judged."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "naive",
        "target-only sampling",
        "2406.02532",
        "small + static(shape=[2, 2, 2, 2]) + naive + fixed(nodes=30, depth=4, width=2)",
    ),
    NamedRecipe(
        "spectr",
        "SpecTr",
        "2310.15141",
        "small(draws=iid) + static(shape=[1, 2, 2, 2, 1, 1, 1, 1]) + kseq(shape=[1, 2, 2, 2, 1])"
        " + fixed(nodes=47, depth=8, width=2)",
    ),
    NamedRecipe(
        "spechub",
        "SpecHub",
        "2411.05289",
        "small(draws=mixed) + static(shape=[2, 2, 2, 2]) + spechub + fixed(nodes=30, depth=4, width=2)",
    ),
    NamedRecipe(
        "mixed",
        "hybrid multi-draft sampling",
        "2502.18779",
        "small(draws=mixed) + static(shape=[4, 2, 1, 1]) + mixed + fixed(nodes=28, depth=4, width=4)",
    ),
    NamedRecipe(
        "block",
        "block verification",
        "2403.10444",
        "small(draws=iid) + chain + block + fixed(nodes=8, depth=8, width=1)",
    ),
    NamedRecipe(
        "traversal",
        "traversal verification",
        "2505.12398",
        "small(draws=swor) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + traversal + fixed(nodes=20, depth=8, width=3)",
    ),
    NamedRecipe(
        "optimal",
        "optimal multi-draft sampling",
        "2310.15141",
        "small(draws=swor) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + optimal(shape=[1, 1, 3, 1])"
        " + fixed(nodes=20, depth=8, width=3)",
    ),
    NamedRecipe(
        "judge",
        "Judge Decoding",
        "2501.19309",
        "eagle3 + beam(beam=10) + judge + fixed(nodes=59, depth=7, width=10)",
        "judge",
    ),
)
