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
        "specinfer-merged",
        "SpecInfer, several drafters",
        "2305.09781",
        "merge(drafters=[small(draws=iid), recycling(draws=iid, pairs=0)]) + static(shape=[1, 1, 1, 1])"
        " + mss + fixed(nodes=30, depth=4, width=1)",
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
    NamedRecipe(
        "ddd",
        "Dynamic Depth Decoding",
        "2409.00142",
        "head(otherwise=recycling) + ddd + match + fixed(nodes=59, depth=11, width=10)",
    ),
    NamedRecipe(
        "cast",
        "CAST",
        "2510.26577",
        "head(otherwise=recycling) + cast + match + goodput(nodes=63, depth=10, width=10)",
    ),
    NamedRecipe(
        "opt-tree",
        "OPT-Tree",
        "2406.17276",
        "small + opt-tree + match + fixed(nodes=50, depth=10, width=50)",
    ),
    NamedRecipe(
        "dyspec",
        "DySpec",
        "2410.11744",
        "small(draws=swor) + dyspec + rrs + fixed(nodes=64, depth=16, width=8)",
    ),
    NamedRecipe(
        "dyspec-threshold",
        "DySpec, by a threshold",
        "2410.11744",
        "small(draws=swor) + dyspec(threshold=0.016, stride=64) + rrs + fixed(nodes=64, depth=16, width=8)",
    ),
    NamedRecipe(
        "sequoia",
        "Sequoia",
        "2402.12374",
        "small(draws=swor) + sequoia(store='small') + rrs + goodput(nodes=63, depth=10, width=8)",
    ),
    NamedRecipe(
        "rsd-c",
        "Recursive Speculative Decoding, constant branching",
        "2402.14160",
        "small(draws=swor) + static(shape=[2, 2, 2, 2]) + rrs + fixed(nodes=30, depth=4, width=2)",
    ),
    NamedRecipe(
        "rsd-s",
        "Recursive Speculative Decoding, stochastic beam",
        "2402.14160",
        "small(draws=swor) + rsd(beam=6) + rrs + fixed(nodes=30, depth=5, width=6)",
    ),
    NamedRecipe(
        "specexec",
        "SpecExec",
        "2406.02532",
        "small + specexec + match + fixed(nodes=512, depth=32, width=16)",
    ),
    NamedRecipe(
        "dsbd",
        "DSBD",
        "2409.16560",
        "small + dsbd + match + fixed(nodes=18, depth=3, width=6)",
    ),
)
