"""Chains, and when to stop them."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "speculative",
        "speculative sampling",
        "2211.17192",
        "small(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
    ),
    NamedRecipe(
        "draft-model",
        "a small model of its own",
        "2211.17192",
        "draft-model(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
        "draft-model",
    ),
    NamedRecipe(
        "early-exit",
        "Kangaroo, LayerSkip",
        "2404.18911",
        "early-exit + chain + match + fixed(nodes=6, depth=6, width=1)",
        "early-exit",
    ),
    NamedRecipe(
        "eesd",
        "EESD",
        "2406.03853",
        "early-exit + thompson + match + fixed(nodes=20, depth=20, width=1)",
        "early-exit",
    ),
    NamedRecipe(
        "specdec++",
        "SpecDec++",
        "2405.19715",
        "eagle3(draws=iid) + specdec++ + speculative + fixed(nodes=20, depth=20, width=1)",
        "specdec++",
    ),
    NamedRecipe(
        "adaeagle",
        "AdaEAGLE",
        "2412.18910",
        "eagle + chain + match + ldlp(nodes=20, width=1)",
        "ldlp",
    ),
    NamedRecipe(
        "adaedl",
        "AdaEDL",
        "2410.18351",
        "head(draws=iid, otherwise=small(draws=iid)) + adaedl + speculative + fixed(nodes=20, depth=20, width=1)",
    ),
    NamedRecipe(
        "svip",
        "SVIP",
        "2411.18462",
        "head(draws=iid, otherwise=small(draws=iid)) + svip + speculative + fixed(nodes=40, depth=40, width=1)",
    ),
    NamedRecipe(
        "hf-dynamic",
        "transformers' dynamic schedule (DISCO)",
        "2405.04304",
        "head(draws=iid, otherwise=small(draws=iid)) + hf-dynamic + speculative + fixed(nodes=20, depth=20, width=1)",
    ),
    NamedRecipe(
        "on-the-fly",
        "on-the-fly window",
        "ACL 2025, long.482",
        "head(draws=iid, otherwise=small(draws=iid)) + chain + speculative + on-the-fly",
    ),
    NamedRecipe(
        "cm-asd",
        "CM-ASD, its length rule alone",
        "2508.15371",
        "head(draws=iid, otherwise=small(draws=iid)) + cm-asd + speculative + fixed(nodes=10, depth=10, width=1)",
    ),
    NamedRecipe(
        "cm-asd-lossy",
        "CM-ASD",
        "2508.15371",
        "head(otherwise=small) + cm-asd + threshold + fixed(nodes=10, depth=10, width=1)",
    ),
    NamedRecipe(
        "bild",
        "BiLD",
        "2302.07863",
        "head(otherwise=small) + fallback + bild + fixed(nodes=10, depth=10, width=1)",
    ),
    NamedRecipe(
        "adasd",
        "AdaSD",
        "2512.11280",
        "head(draws=iid, otherwise=small(draws=iid)) + adasd-stop + adasd + fixed(nodes=20, depth=20, width=1)",
    ),
    NamedRecipe(
        "consultant",
        "Consultant Decoding",
        "2506.02391",
        "head(draws=iid, otherwise=small(draws=iid)) + chain + consultant + fixed(nodes=10, depth=10, width=1)",
    ),
    NamedRecipe(
        "specdec",
        "SpecDec",
        "2203.16487",
        "parallel + chain + specdec + fixed(nodes=25, depth=25, width=1)",
        "parallel",
    ),
    NamedRecipe(
        "medusa-typical",
        "Medusa, typical acceptance",
        "2401.10774",
        "medusa + sparse + typical + fixed(nodes=63, depth=4, width=10)",
        "medusa",
    ),
)
