"""Recipes of lookup drafters: from the text, earlier outputs or a datastore."""

from sapwood.recipes.entry import OWN, RECONSTRUCTED, SIMPLIFIED, NamedRecipe

# the tree of Token Recycling: 80 nodes in 6 levels, as numbers of children, breadth first
RECYCLING_TREE = (
    "[8, 8, 4, 3, 2, 1, 1, 1, 1, 8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, "
    "5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 3, 1, 1, 0, 0, "
    "1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 2, 0, 0, 1]"
)

ENTRIES = (
    NamedRecipe(
        "pld",
        "Prompt Lookup Decoding",
        "",
        "ngram + chain + match + fixed(nodes=10, depth=10, width=1)",
        fidelity=SIMPLIFIED,
        note="The most recent match of up to four tokens is copied; the published code takes the "
        "first match of up to three.",
    ),
    NamedRecipe(
        "llma",
        "LLMA",
        "2304.04487",
        "llma + chain + match + fixed(nodes=19, depth=19, width=1)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: of several places the first is taken, the "
        "longest match deciding.",
    ),
    NamedRecipe(
        "anpd",
        "ANPD",
        "2404.08698",
        "anpd + chain + match + fixed(nodes=7, depth=7, width=1)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description; no code was at hand.",
    ),
    NamedRecipe(
        "n-grammys",
        "N-Grammys",
        "2411.03786",
        "n-grammys + best(estimator=raw) + match + fixed(nodes=100, depth=10, width=10)",
        fidelity=SIMPLIFIED,
        note="Rows are one tree, and bigrams come from earlier passes instead of a table made "
        "beforehand.",
    ),
    NamedRecipe(
        "stand",
        "STAND",
        "2506.04708",
        "stand + static(shape=[4, 2, 1, 1, 1, 1]) + rrs + fixed(nodes=44, depth=6, width=4)",
        fidelity=SIMPLIFIED,
        note="The tree is a fixed shape instead of one fitted to recorded acceptance.",
    ),
    NamedRecipe(
        "ngram-trie",
        "n-gram tries for in-context learning",
        "EMNLP 2025",
        "anpd(n=6) + best(stride=4, estimator=raw) + match + fixed(nodes=24, depth=8, width=4)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the abstract: the trie holds the n-grams of the prompt and of the output "
        "so far, with their counts.",
    ),
    NamedRecipe(
        "constrained",
        "speculation under constrained decoding",
        "2403.06988",
        "forced + chain + match + fixed(nodes=16, depth=16, width=1)",
        fidelity=SIMPLIFIED,
        note="The tokens that a grammar forces alone, which every other recipe drafts as well; tokens "
        "that are only likely in a state of the grammar are left to other drafters.",
    ),
    NamedRecipe(
        "suffix-decoding",
        "SuffixDecoding",
        "2411.04975",
        "suffix-decoding + keep-all + match + fixed(nodes=64, depth=64, width=10)",
        fidelity=SIMPLIFIED,
        note="Earlier outputs are forgotten by the half of a bounded memory, and the present "
        "output counts in the text alone.",
    ),
    NamedRecipe(
        "suffix",
        "after SuffixDecoding, all matches blended",
        "2411.04975",
        "suffix + best(estimator=raw) + match + fixed(nodes=32, depth=24, width=4)",
        fidelity=OWN,
    ),
    NamedRecipe(
        "sam",
        "SAM-Decoding",
        "2411.10666",
        "sam + best(estimator=raw) + match + fixed(nodes=80, depth=40, width=8)",
        fidelity=SIMPLIFIED,
        note="A copy follows the commonest continuation token by token instead of the first "
        "occurrence.",
    ),
    NamedRecipe(
        "rest",
        "REST",
        "2311.08252",
        "rest + best(estimator=raw) + match + fixed(nodes=64, depth=10, width=16)",
        fidelity=SIMPLIFIED,
        note="Too many hits are thinned out evenly instead of cut at the front, and without a file "
        "earlier outputs are the datastore.",
    ),
    NamedRecipe(
        "rasd",
        "RASD",
        "2503.03434",
        "rasd + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        fidelity=RECONSTRUCTED,
        note="The paper does not say how far retrieval is pruned: the drafter's best tokens are as "
        "many as a node may have.",
    ),
    NamedRecipe(
        "respec",
        "ReSpec, with strict verification",
        "2511.01282",
        "respec + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the abstract with constants of our own, and retrieved tokens are verified "
        "as strictly as drafted ones, so that the text stays.",
    ),
    NamedRecipe(
        "aded",
        "ADED",
        "2407.12021",
        "aded + best(estimator=raw) + match + fixed(nodes=64, depth=6, width=8)",
        fidelity=RECONSTRUCTED,
        note="The paper does not say what a chain scores: here its probability.",
    ),
    NamedRecipe(
        "recycling",
        "Token Recycling",
        "2408.08696",
        f"recycling(pairs=0, prompt=0) + rank-paths(children={RECYCLING_TREE})"
        " + match + fixed(nodes=80, depth=6, width=8)",
    ),
    NamedRecipe(
        "recycling-best",
        "Token Recycling, grown by stored probabilities",
        "2408.08696",
        "recycling(pairs=0, prompt=0) + best(estimator=raw) + match + fixed(nodes=80, depth=6, width=8)",
        fidelity=OWN,
    ),
    NamedRecipe(
        "gsd",
        "GSD",
        "2407.16207",
        "gsd + beam(beam=16) + match + fixed(nodes=99, depth=8, width=4)",
        fidelity=SIMPLIFIED,
        note="A node has as many links as it needs, and guesses are chosen instead of sampled.",
    ),
)
