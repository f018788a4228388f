"""Recipes whose method is a verifier."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "naive",
        "target-only sampling",
        "2406.02532",
        "auto-draft-model + static(shape=[2, 2, 2, 2]) + naive + fixed(nodes=30, depth=4, width=2)",
    ),
    NamedRecipe(
        "spectr",
        "SpecTr",
        "2310.15141",
        "auto-draft-model(draws=iid) + static(shape=[1, 2, 2, 2, 1, 1, 1, 1]) + kseq(shape=[1, 2, 2, 2, 1])"
        " + fixed(nodes=47, depth=8, width=2)",
        fidelity=SIMPLIFIED,
        note="Each node's own children are tested instead of a pool of drafts that begin alike.",
    ),
    NamedRecipe(
        "spechub",
        "SpecHub",
        "2411.05289",
        "auto-draft-model(draws=mixed) + static(shape=[2, 2, 2, 2]) + spechub + fixed(nodes=30, depth=4, width=2)",
        fidelity=SIMPLIFIED,
        note="A node whose best token has less than a quarter has no hub, and two draws are tested "
        "in turn.",
    ),
    NamedRecipe(
        "mixed",
        "hybrid multi-draft sampling",
        "2502.18779",
        "auto-draft-model(draws=mixed) + static(shape=[4, 2, 1, 1]) + mixed + fixed(nodes=28, depth=4, width=4)",
        note="It is generalised to any number of draws and of chosen tokens.",
    ),
    NamedRecipe(
        "block",
        "block verification",
        "2403.10444",
        "auto-draft-model(draws=iid) + chain + block + fixed(nodes=8, depth=8, width=1)",
    ),
    NamedRecipe(
        "traversal",
        "traversal verification",
        "2505.12398",
        "auto-draft-model(draws=swor) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + traversal + fixed(nodes=20, depth=8, width=3)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper and proved by enumeration; no code was at hand.",
    ),
    NamedRecipe(
        "optimal",
        "optimal multi-draft sampling",
        "2310.15141",
        "auto-draft-model(draws=swor) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + optimal(shape=[1, 1, 3, 1])"
        " + fixed(nodes=20, depth=8, width=3)",
        fidelity=SIMPLIFIED,
        note="Of a large vocabulary the dozen likeliest tokens are planned for and the others "
        "share one symbol.",
    ),
    NamedRecipe(
        "khisti",
        "two-stage multi-draft sampling",
        "2410.18234",
        "auto-draft-model(draws=iid) + static(shape=[1, 1, 3, 1, 1, 1, 1, 1]) + khisti(shape=[1, 1, 3, 1])"
        " + fixed(nodes=20, depth=8, width=3)",
        fidelity=SIMPLIFIED,
        note="The first stage's weights are a maximum flow over the dozen likeliest tokens and one "
        "symbol for the others, at any number of draws, instead of a truncated linear programme for two.",
    ),
    NamedRecipe(
        "cascades",
        "speculative cascades",
        "2405.19261",
        "auto-draft-model(draws=iid) + max-confidence(confidence=0) + cascades + fixed(nodes=5, depth=5, width=1)",
        fidelity=SIMPLIFIED,
        note="The token after the last drafted one is the target's, since the drafter's distribution "
        "is not known there.",
    ),
    NamedRecipe(
        "mtad",
        "MTAD",
        "2407.09722",
        "auto-draft-model + beam-path(beam=4) + mtad + fixed(nodes=6, depth=6, width=4)",
        fidelity=SIMPLIFIED,
        note="The beam is searched instead of sampled, and a draft has six tokens and a threshold "
        "of a tenth, where the examples of the published code have four tokens and mostly one "
        "half.",
    ),
    NamedRecipe(
        "judge",
        "Judge Decoding",
        "2501.19309",
        "eagle3 + beam(beam=10) + judge + fixed(nodes=59, depth=7, width=10)",
        "judge",
        fidelity=SIMPLIFIED,
        note="Labels come from the target's own text, by whether it returns to the same words, "
        "not from annotators or final answers; the judge that ships excuses none of the "
        "mismatches that were held out.",
    ),
)
