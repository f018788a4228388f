"""Recipes of tree growth, pruning and size."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "specinfer",
        "SpecInfer",
        "2305.09781",
        "auto-draft-model(draws=iid) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + mss + fixed(nodes=20, depth=8, width=3)",
    ),
    NamedRecipe(
        "specinfer-merged",
        "SpecInfer, several drafters",
        "2305.09781",
        "merge(drafters=[auto-draft-model(draws=iid), auto-boosted-model(draws=iid)]) + static(shape=[1, 1, 1, 1])"
        " + mss + fixed(nodes=30, depth=4, width=1)",
        fidelity=SIMPLIFIED,
        note="The second draft model is trained by `sapwood train boosted-draft-model` on the "
        "first one's mistakes; none ships, and without it token recycling drafts in its place.",
    ),
    NamedRecipe(
        "medusa",
        "Medusa",
        "2401.10774",
        "medusa + rank-paths + match + fixed(nodes=63, depth=4, width=10)",
        "medusa",
        fidelity=SIMPLIFIED,
        note="All heads share the target's output matrix instead of having one each.",
    ),
    NamedRecipe(
        "hydra",
        "Hydra",
        "2402.05109",
        "hydra + rank-paths(head='hydra') + match + fixed(nodes=63, depth=4, width=10)",
        "hydra",
        fidelity=SIMPLIFIED,
        note="The four layers of a head are narrow inside, and all heads share the target's output "
        "matrix.",
    ),
    NamedRecipe(
        "eagle",
        "EAGLE",
        "2401.15077",
        "eagle(draws=swor) + rank-paths(children=[4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2])"
        " + rrs + fixed(nodes=25, depth=5, width=4)",
        "eagle",
        fidelity=SIMPLIFIED,
        note="The head that ships is trained as HASS trains it, in three steps on its own outputs.",
    ),
    NamedRecipe(
        "eagle2",
        "EAGLE-2",
        "2406.16858",
        "eagle + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        "eagle",
        fidelity=SIMPLIFIED,
        note="The head that ships is trained as HASS trains it, in three steps on its own outputs.",
    ),
    NamedRecipe(
        "hass",
        "HASS",
        "2408.15766",
        "eagle + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        "eagle",
        fidelity=SIMPLIFIED,
        note="EAGLE-2's tree with a head trained in three steps on its own outputs; the one that "
        "ships was trained without the loss on the target's ten best tokens (`top=10`).",
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
        fidelity=SIMPLIFIED,
        note="The tree is an EAGLE-3 head's, and the classifier is calibrated, its threshold moved "
        "accordingly.",
    ),
    NamedRecipe(
        "ltd",
        "Learning to Draft",
        "2603.01639",
        "eagle3 + ltd + match + fixed(nodes=240, depth=12, width=10)",
        "ltd",
        fidelity=SIMPLIFIED,
        note="Both policies read fewer probabilities and follow the exact gradient of recorded "
        "rounds instead of being explored by PPO; those that ship are fitted to a CPU and to "
        "trees of 60 nodes.",
    ),
    NamedRecipe(
        "radar",
        "RADAR",
        "github.com/minaduki-sora/RADAR",
        "auto-head(otherwise=recycling) + radar + match + fixed(nodes=59, depth=11, width=10)",
        fidelity=SIMPLIFIED,
        note="The recurrent network is small and learns while decoding, from the gain of each level, "
        "instead of beforehand by REINFORCE.",
    ),
    NamedRecipe(
        "ddd",
        "Dynamic Depth Decoding",
        "2409.00142",
        "auto-head(otherwise=recycling) + ddd + match + fixed(nodes=59, depth=11, width=10)",
    ),
    NamedRecipe(
        "cast",
        "CAST",
        "2510.26577",
        "auto-head(otherwise=recycling) + cast + match + goodput(nodes=63, depth=10, width=10)",
        fidelity=RECONSTRUCTED,
        note="The paper's constants are not known: a second is worth the tokens that it brings at "
        "present.",
    ),
    NamedRecipe(
        "opt-tree",
        "OPT-Tree",
        "2406.17276",
        "auto-draft-model + opt-tree + match + fixed(nodes=50, depth=10, width=50)",
    ),
    NamedRecipe(
        "dyspec",
        "DySpec",
        "2410.11744",
        "auto-draft-model(draws=swor) + dyspec + rrs + fixed(nodes=64, depth=16, width=8)",
        fidelity=SIMPLIFIED,
        note="Drafts follow the request's sampling options instead of a temperature of the paper's, and a node has "
        "eight children at most.",
    ),
    NamedRecipe(
        "dyspec-threshold",
        "DySpec, by a threshold",
        "2410.11744",
        "auto-draft-model(draws=swor) + dyspec(threshold=0.016, stride=64) + rrs + fixed(nodes=64, depth=16, width=8)",
        fidelity=SIMPLIFIED,
        note="Drafts follow the request's sampling options instead of a temperature of the paper's, and a node has "
        "eight children at most.",
    ),
    NamedRecipe(
        "sequoia",
        "Sequoia",
        "2402.12374",
        "auto-draft-model(draws=swor) + sequoia(store='small') + rrs + goodput(nodes=63, depth=10, width=8)",
        fidelity=SIMPLIFIED,
        note="Acceptance is counted while decoding instead of beforehand with wide trees.",
    ),
    NamedRecipe(
        "rsd-c",
        "Recursive Speculative Decoding, constant branching",
        "2402.14160",
        "auto-draft-model(draws=swor) + static(shape=[2, 2, 2, 2]) + rrs + fixed(nodes=30, depth=4, width=2)",
    ),
    NamedRecipe(
        "rsd-s",
        "Recursive Speculative Decoding, stochastic beam",
        "2402.14160",
        "auto-draft-model(draws=swor) + rsd(beam=6) + rrs + fixed(nodes=30, depth=5, width=6)",
    ),
    NamedRecipe(
        "specexec",
        "SpecExec",
        "2406.02532",
        "auto-draft-model + specexec + match + fixed(nodes=512, depth=32, width=16)",
    ),
    NamedRecipe(
        "dsbd",
        "DSBD, its beam width alone",
        "2409.16560",
        "auto-draft-model + dsbd + match + fixed(nodes=18, depth=3, width=6)",
        fidelity=SIMPLIFIED,
        note="The rule for the beam's width alone, by estimated chances instead of the target's: "
        "the output is plain decoding's, not beam sampling's.",
    ),
)
