"""Parallel decoding without a draft model, and drafters that draft for drafters."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe("jacobi", "Jacobi decoding", "2305.10427", "jacobi + chain + match + fixed(nodes=5, depth=5, width=1)"),
    NamedRecipe(
        "lookahead",
        "Lookahead Decoding",
        "2402.02057",
        "lookahead + whole + match + fixed(nodes=55, depth=9, width=9)",
    ),
    NamedRecipe(
        "ouroboros",
        "Ouroboros",
        "2402.13720",
        "cascade(drafter=small, guesser=phrases, ahead=4, first=6)"
        " + static(shape=[1, 1, 1, 1, 1, 1, 3, 1, 1, 1]) + match + fixed(nodes=18, depth=10, width=3)",
    ),
    NamedRecipe(
        "cascade",
        "CS-Drafting",
        "2312.11462",
        "cascade(first=5) + chain + match + fixed(nodes=15, depth=15, width=1)",
    ),
    NamedRecipe(
        "cas-spec",
        "CAS-Spec",
        "2510.26843",
        "cas-spec + best(stride=1, estimator=binned) + match + fixed(nodes=32, depth=12, width=3)",
    ),
)
