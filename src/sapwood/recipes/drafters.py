"""Recipes whose method is a drafter."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "parallel",
        "ParallelSpec",
        "2410.05589",
        "parallel + best(estimator=raw) + match + fixed(nodes=32, depth=6, width=8)",
        "parallel",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description; no code was at hand.",
    ),
    NamedRecipe(
        "recurrent",
        "ReDrafter",
        "2403.09919",
        "recurrent + beam(beam=5) + match + fixed(nodes=25, depth=5, width=5)",
        "recurrent",
        fidelity=SIMPLIFIED,
        note="A gate decides how much of the recurrent state a step replaces.",
    ),
    NamedRecipe(
        "online",
        "Online Speculative Decoding",
        "2310.07177",
        "online(drafter=eagle3) + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        "eagle3",
        fidelity=SIMPLIFIED,
        note="A correction of the head's logits learns from rejected tokens instead of the draft "
        "model itself.",
    ),
)
