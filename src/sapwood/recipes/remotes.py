"""Recipes whose drafter runs on another machine or device."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "sled",
        "SLED",
        "2506.09397",
        "remote(nodes=8, depth=8, width=1) + fallback(confidence=0.5) + match"
        " + goodput(nodes=8, depth=8, width=1)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: chains end at the first unlikely token, and a "
        "late draft means plain decoding instead of unverified text.",
    ),
    NamedRecipe(
        "dsd",
        "DSD",
        "2511.21669",
        "remote(nodes=16, depth=16, width=1) + best(estimator=binned) + match + goodput(nodes=16, depth=16, width=1)",
        fidelity=SIMPLIFIED,
        note="The window follows measured costs and acceptance instead of a trained predictor.",
    ),
    NamedRecipe(
        "edgellm",
        "EdgeLLM",
        "doi.org/10.1109/TMC.2024.3513457",
        "remote(nodes=32, depth=8, width=4) + best(stride=8, estimator=binned) + match"
        " + goodput(nodes=32, depth=8, width=4)",
        fidelity=SIMPLIFIED,
        note="Branches progress by calibrated probability; drafting does not go on during "
        "verification.",
    ),
)
