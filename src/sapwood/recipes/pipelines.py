"""Recipes that keep several runs of one tree in the stages of the target."""

from sapwood.recipes.entry import SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "ppsd",
        "PPSD",
        "2509.19368",
        "layer-exit + ppsd + match + fixed(nodes=24, depth=24, width=1)",
        fidelity=SIMPLIFIED,
        note="The exit is a linear map that is fitted while decoding instead of a trained head, and "
        "stages are threads of one process instead of devices.",
    ),
    NamedRecipe(
        "predictive",
        "Predictive Pipelined Decoding",
        "2307.05908",
        "layer-exit(share=0.5) + predictive + match + fixed(nodes=24, depth=8, width=3)",
        fidelity=SIMPLIFIED,
        note="Guesses are rows of one run instead of processes of their own, the exit is fitted while "
        "decoding, and 24 guesses at most are made before a commit.",
    ),
    NamedRecipe(
        "pipeinfer",
        "PipeInfer",
        "2407.11798",
        "auto-draft-model + pipeinfer + match + fixed(nodes=24, depth=24, width=1)",
        fidelity=SIMPLIFIED,
        note="Stages are threads of one process instead of machines, results are read in order, and "
        "24 drafted tokens at most are under way before a commit.",
    ),
    NamedRecipe(
        "pipedec",
        "PipeDec",
        "2504.04104",
        "auto-draft-model + pipedec + match + fixed(nodes=64, depth=24, width=4)",
        fidelity=SIMPLIFIED,
        note="Stages are threads of one process instead of machines, a run in the pipeline keeps its "
        "nodes while one of them counts, and 64 nodes at most are sent before a commit.",
    ),
)
