"""Recipes of models and heads that predict several tokens in one pass."""

from sapwood.recipes.entry import OWN, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "mtp",
        "multi-token prediction (DeepSeek-V3)",
        "2412.19437",
        "mtp + chain + match + fixed(nodes=1, depth=1, width=1)",
        "mtp",
    ),
    NamedRecipe(
        "mtp-tree",
        "multi-token prediction, the module used again in a tree",
        "2412.19437",
        "mtp + beam(beam=4) + match + fixed(nodes=15, depth=4, width=4)",
        "mtp",
        fidelity=OWN,
    ),
    NamedRecipe(
        "blockwise",
        "Blockwise parallel decoding",
        "1811.03115",
        "medusa + chain + match + fixed(nodes=5, depth=5, width=1)",
        "medusa",
        fidelity=SIMPLIFIED,
        note="The heads are Medusa's, and only the exact criterion is kept.",
    ),
    NamedRecipe(
        "medusa2",
        "Medusa-2",
        "2401.10774",
        "medusa2 + rank-paths(head='medusa2') + match + fixed(nodes=63, depth=4, width=10)",
        "medusa2",
        fidelity=SIMPLIFIED,
        note="The heads weigh the same from the first step on, and the tuned model is written and "
        "declared as another model.",
    ),
    NamedRecipe(
        "cllm",
        "Consistency large language models",
        "2403.00835",
        "jacobi(length=16) + chain + match + fixed(nodes=16, depth=16, width=1)",
        fidelity=SIMPLIFIED,
        note="Jacobi decoding of any model, made for one that a low-rank adapter has tuned to it "
        "instead of a training of all weights; that is another model.",
    ),
    NamedRecipe(
        "pass",
        "PaSS",
        "2311.13581",
        "mask-rows + chain + match + fixed(nodes=5, depth=5, width=1)",
        "mask-rows",
        fidelity=SIMPLIFIED,
        note="The pass with look-ahead rows has keys of its own instead of the target's, and reads "
        "accepted tokens once more.",
    ),
    NamedRecipe(
        "pard",
        "PARD",
        "2504.18583",
        "pard + chain + match + fixed(nodes=8, depth=8, width=1)",
        "pard",
        fidelity=SIMPLIFIED,
        note="The labels are the target's distributions instead of the tokens of a text.",
    ),
    NamedRecipe(
        "ppd",
        "Hardware-aware parallel prompt decoding",
        "2405.18628",
        "ppd + prompt-tree + match + fixed(nodes=32, depth=3, width=10)",
        "ppd",
        fidelity=SIMPLIFIED,
        note="The numbers of candidates and prompt tokens are options, not searched for on the "
        "device, and each prompt token is one embedding instead of an ensemble.",
    ),
    NamedRecipe(
        "knows-the-future",
        "Your LLM Knows the Future",
        "2507.11851",
        "gated-masks + chain + match + fixed(nodes=8, depth=8, width=1)",
        "gated-masks",
        fidelity=SIMPLIFIED,
        note="The labels are the target's distributions instead of the tokens of a text.",
    ),
    NamedRecipe(
        "speculative-streaming",
        "Speculative streaming",
        "2402.11131",
        "streams + beam(beam=4) + match + fixed(nodes=12, depth=4, width=3)",
        "streams",
        fidelity=SIMPLIFIED,
        note="Adapters act on the streams alone, so that the text stays the target's; a beam "
        "chooses the tree instead of an early exit that prunes it, and rows of streams also pass "
        "the lower layers, where they are discarded.",
    ),
    NamedRecipe(
        "diffuspec",
        "DiffuSpec, its search and its lengths",
        "2510.02358",
        "parallel + causal-path + match + adaptive-length(least=2, most=6, step=2)",
        "parallel",
        fidelity=SIMPLIFIED,
        note="A head with mask rows fills the places instead of a diffusion model, six instead of "
        "thirty of them, and the n-grams are those of the request's own text.",
    ),
)
