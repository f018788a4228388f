"""Parallel decoding without a draft model, and drafters that draft for drafters."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "jacobi",
        "Jacobi decoding",
        "2305.10427",
        "jacobi + chain + match + fixed(nodes=5, depth=5, width=1)",
        fidelity=SIMPLIFIED,
        note="A row of five places moves along with the text instead of blocks that are finished one "
        "after the other.",
    ),
    NamedRecipe(
        "lookahead",
        "Lookahead Decoding",
        "2402.02057",
        "lookahead + keep-all + match + fixed(nodes=55, depth=9, width=9)",
        fidelity=SIMPLIFIED,
        note="The window is verified too, so that its tokens may be accepted.",
    ),
    NamedRecipe(
        "ouroboros",
        "Ouroboros",
        "2402.13720",
        "cascade(drafter=auto-draft-model, guesser=phrases, ahead=4, first=6)"
        " + static(shape=[1, 1, 1, 1, 1, 1, 3, 1, 1, 1]) + match + fixed(nodes=18, depth=10, width=3)",
        fidelity=SIMPLIFIED,
        note="Phrases come from refused positions and the text, not from a look-ahead window of "
        "the draft model.",
    ),
    NamedRecipe(
        "cascade",
        "CS-Drafting, one draft model and a lookup",
        "2312.11462",
        "cascade(first=5, share=0.5) + chain + match + fixed(nodes=15, depth=15, width=1)",
        fidelity=SIMPLIFIED,
        note="One draft model above a lookup, with a lenience of 2; the paper's ladders have several "
        "models, and a bigram table where the lookup finds nothing.",
    ),
    NamedRecipe(
        "staged",
        "Staged speculative decoding",
        "2308.04623",
        "cascade(drafter=auto-draft-model, guesser=anpd(n=3), ahead=4) + best(stride=4, estimator=raw)"
        " + match + fixed(nodes=16, depth=8, width=3)",
        fidelity=SIMPLIFIED,
        note="The model below the draft model counts trigrams of the text instead of being trained on "
        "the draft model's output.",
    ),
    NamedRecipe(
        "three-model",
        "PyramidSD",
        "2510.12966",
        "cascade(drafter=self-skip(share=0.2), guesser=auto-draft-model, ahead=3) + chain + match"
        " + fixed(nodes=6, depth=6, width=1)",
        fidelity=SIMPLIFIED,
        note="The model in the middle is the target without some sublayers, and both comparisons are "
        "exact instead of fuzzy, so that the text stays.",
    ),
    NamedRecipe(
        "cas-spec",
        "CAS-Spec",
        "2510.26843",
        "cas-spec(drafters=[self-skip(share=0.4), self-skip(share=0.6), quantized-self, ngram])"
        " + best(stride=1, estimator=binned) + match + fixed(nodes=32, depth=12, width=3)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: sublayers are chosen while decoding, and how "
        "often a leaf is accepted is counted instead of multiplied from the drafters' acceptance.",
    ),
)
