"""Recipes of self-drafting, and of pruning inside the target."""

from sapwood.recipes.entry import OWN, RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "self-skip",
        "self-speculation on few skipped sublayers",
        "2410.06916",
        "self-skip(share=0.1) + chain + match + fixed(nodes=3, depth=3, width=1)",
        fidelity=OWN,
    ),
    NamedRecipe(
        "swift",
        "SWIFT",
        "2410.06916",
        "self-skip(search=bayes) + swift + match + fixed(nodes=130, depth=25, width=10)",
        fidelity=SIMPLIFIED,
        note="Siblings are chosen at every temperature, sets are tried on the last tokens, and the "
        "time of the search is bounded.",
    ),
    NamedRecipe(
        "draft-verify",
        "Draft & Verify",
        "2309.08168",
        "self-skip(search=bayes, seconds=0.1, patience=1000, enough=1.0) + draft-verify + match"
        " + fixed(nodes=12, depth=12, width=1)",
        fidelity=SIMPLIFIED,
        note="Sublayers are searched while decoding, by agreement and for a fixed share, instead "
        "of beforehand by time per token.",
    ),
    NamedRecipe(
        "draft-on-the-fly",
        "Draft on the Fly",
        "2410.01028",
        "draft-on-the-fly + draft-verify + match + fixed(nodes=12, depth=12, width=1)",
        fidelity=SIMPLIFIED,
        note="Similarity is measured around whole layers instead of around attention, half of the "
        "inner layers are skipped at most, and of the paper's rules for the set only the "
        "threshold is here.",
    ),
    NamedRecipe(
        "free",
        "FREE, early exits without a check",
        "2310.05424",
        "early-exit + fallback(confidence=0.9) + bild(rollback=100) + fixed(nodes=6, depth=6, width=1)",
        "early-exit",
        fidelity=SIMPLIFIED,
        note="The exit is an adapter behind a frozen model at a fixed confidence instead of a jointly "
        "trained shallow model with a fitted one.",
    ),
    NamedRecipe(
        "quantized-self",
        "QSpec",
        "2410.11305",
        "quantized-self + chain + match + fixed(nodes=3, depth=3, width=1)",
        fidelity=SIMPLIFIED,
        note="Eight bits by default instead of four-bit weights and activations.",
    ),
    NamedRecipe(
        "sparse-kv",
        "MagicDec, with SnapKV's choice of keys",
        "2408.11049",
        "sparse-kv(recent=60, chosen=192) + chain + match + fixed(nodes=3, depth=3, width=1)",
        fidelity=SIMPLIFIED,
        note="The draft length is fixed instead of set by a cost model; in int8 and on CUDA the "
        "last keys are seen instead of chosen ones.",
    ),
    NamedRecipe(
        "triforce",
        "TriForce",
        "2404.11912",
        "cascade(drafter=sparse-kv(recent=60, chosen=4032, chunk=8), guesser=auto-draft-model,"
        " ahead=3) + chain + match + fixed(nodes=6, depth=6, width=1)",
        fidelity=SIMPLIFIED,
        note="The small model sees all of its keys and drafts three tokens at a time, and chosen "
        "tokens are matched instead of drawn ones tested; in int8 and on CUDA the target's last "
        "keys are seen instead of retrieved chunks.",
    ),
    NamedRecipe(
        "dvi",
        "Draft, Verify & Improve",
        "2510.05421",
        "dvi + chain + match + fixed(nodes=4, depth=4, width=1)",
        fidelity=RECONSTRUCTED,
        note="The schedule from KL to reward, its weights, the rank and the split are ours; the "
        "paper's were not available.",
    ),
    NamedRecipe(
        "propd",
        "ProPD",
        "2402.13485",
        "medusa + propd + match + fixed(nodes=63, depth=4, width=10)",
        "medusa",
        fidelity=SIMPLIFIED,
        note="The number of best tokens that stay is fitted to the record instead of fixed, and "
        "the early head is fitted while decoding.",
    ),
)
