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
        note="The state begins as the target's, a gate decides how much of it a step replaces, and "
        "the target's output matrix stands for one of the head's own.",
    ),
    NamedRecipe(
        "clover",
        "Clover",
        "2405.00263",
        "clover + beam(beam=8) + match + fixed(nodes=48, depth=4, width=8)",
        "clover",
        fidelity=RECONSTRUCTED,
        note="The attention decoder weighs its one key by a cosine, as the code of Clover-2 does; "
        "all heads share the target's output matrix.",
    ),
    NamedRecipe(
        "amphista",
        "Amphista",
        "2406.13170",
        "amphista + best(estimator=raw) + match + fixed(nodes=48, depth=4, width=8)",
        "amphista",
        fidelity=RECONSTRUCTED,
        note="Sizes and the order of norms are ours, since no code was at hand; all heads share "
        "the target's output matrix.",
    ),
    NamedRecipe(
        "hidden-transfer",
        "Hidden transfer",
        "2404.12022",
        "hidden-transfer + best(estimator=raw) + match + fixed(nodes=24, depth=4, width=6)",
        "hidden-transfer",
        fidelity=SIMPLIFIED,
        note="The pseudo states have a pass of their own instead of the one that verifies, and all "
        "are made at one layer.",
    ),
    NamedRecipe(
        "gumiho",
        "Gumiho",
        "2503.10135",
        "gumiho + beam(beam=8) + match + fixed(nodes=59, depth=6, width=8)",
        "gumiho",
        fidelity=SIMPLIFIED,
        note="Branches have nodes of their own where Full Tree Attention shares them, and the "
        "serial heads are trained on their own outputs.",
    ),
    NamedRecipe(
        "ctc",
        "CTC-drafter",
        "2412.00061",
        "ctc + best(estimator=raw) + match + fixed(nodes=32, depth=4, width=8)",
        "ctc",
        fidelity=SIMPLIFIED,
        note="Trees grow by prefix probabilities of the slots, where the paper merges the paths of "
        "a fixed tree; the layer reads three layers of the target.",
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
    NamedRecipe(
        "falcon",
        "Falcon",
        "2412.12639",
        "falcon + rank-paths(children=["
        "20, 11, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, "
        "10, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, "
        "0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1"
        "]) + match + fixed(nodes=75, depth=4, width=20)",
        "falcon",
        fidelity=SIMPLIFIED,
        note="Every row is trained in both places of a block, the share of the glance is constant, "
        "and children are chosen at every temperature; the tree is the published one of four "
        "levels.",
    ),
    NamedRecipe(
        "moa",
        "Mixture of Attentions",
        "2410.03804",
        "moa + beam(beam=10) + match + fixed(nodes=59, depth=6, width=10)",
        "moa",
        fidelity=SIMPLIFIED,
        note="Attention over layers reads the hidden states of four layers instead of the keys "
        "and values of all, one MLP follows the three attentions instead of one each, and no "
        "layers of the target run behind the head.",
    ),
    NamedRecipe(
        "glide",
        "GLIDE with CaPE",
        "2402.02082",
        "glide + cape + match + fixed(nodes=32, depth=4, width=8)",
        "glide",
        fidelity=SIMPLIFIED,
        note="Keys and values of the target's last layer are computed again from its input.",
    ),
    NamedRecipe(
        "cerberus",
        "Cerberus",
        "2410.13344",
        "cerberus + rank-paths(head='cerberus') + match + fixed(nodes=63, depth=4, width=10)",
        "cerberus",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from a description: the entropy that the gate reads and its limit are ours.",
    ),
    NamedRecipe(
        "owl",
        "OWL",
        "2510.07535",
        "owl + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        "owl",
        fidelity=SIMPLIFIED,
        note="Without the special token behind the text whose state the drafter reads there, and "
        "without the mixture with suffix decoding.",
    ),
)
