"""Targets that draft for themselves, made cheaper; and pruning inside the target."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "self-skip",
        "self-speculation on few skipped sublayers",
        "2410.06916",
        "self-skip(share=0.1) + chain + match + fixed(nodes=3, depth=3, width=1)",
    ),
    NamedRecipe(
        "swift",
        "SWIFT",
        "2410.06916",
        "self-skip + fallback(confidence=0.8) + match + fixed(nodes=25, depth=25, width=1)",
    ),
    NamedRecipe(
        "draft-verify",
        "Draft & Verify",
        "2309.08168",
        "self-skip(seconds=0.1, patience=1000, enough=1.0) + hf-dynamic + match + fixed(nodes=12, depth=12, width=1)",
    ),
    NamedRecipe(
        "quantized-self",
        "QSpec",
        "2410.11305",
        "quantized-self + chain + match + fixed(nodes=3, depth=3, width=1)",
    ),
    NamedRecipe(
        "sparse-kv",
        "MagicDec, with StreamingLLM's cache",
        "2408.11049",
        "sparse-kv + chain + match + fixed(nodes=3, depth=3, width=1)",
    ),
    NamedRecipe(
        "triforce",
        "TriForce, its upper level",
        "2404.11912",
        "sparse-kv(recent=4092) + chain + match + fixed(nodes=6, depth=6, width=1)",
    ),
    NamedRecipe(
        "propd",
        "ProPD",
        "2402.13485",
        "medusa + propd + match + fixed(nodes=63, depth=4, width=10)",
        "medusa",
    ),
)
