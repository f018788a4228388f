"""Trees: growth, pruning, size."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "specinfer",
        "SpecInfer",
        "2305.09781",
        "small(draws=iid) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + mss + fixed(nodes=20, depth=8, width=3)",
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
)
