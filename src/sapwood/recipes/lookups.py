"""Systems that look their guesses up: in the text, in earlier answers of the target, in a datastore."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe("pld", "Prompt Lookup Decoding", "", "ngram + chain + match + fixed(nodes=10, depth=10, width=1)"),
    NamedRecipe("llma", "LLMA", "2304.04487", "llma + chain + match + fixed(nodes=19, depth=19, width=1)"),
    NamedRecipe("anpd", "ANPD", "2404.08698", "anpd + chain + match + fixed(nodes=7, depth=7, width=1)"),
    NamedRecipe(
        "n-grammys",
        "N-Grammys",
        "2411.03786",
        "n-grammys + best(estimator=raw) + match + fixed(nodes=100, depth=10, width=10)",
    ),
    NamedRecipe(
        "suffix",
        "SuffixDecoding",
        "2411.04975",
        "suffix + best(estimator=raw) + match + fixed(nodes=32, depth=24, width=4)",
    ),
    NamedRecipe(
        "sam",
        "SAM-Decoding",
        "2411.10666",
        "sam + best(estimator=raw) + match + fixed(nodes=80, depth=40, width=8)",
    ),
    NamedRecipe(
        "rest", "REST", "2311.08252", "rest + best(estimator=raw) + match + fixed(nodes=64, depth=10, width=16)"
    ),
    NamedRecipe("rasd", "RASD", "2503.03434", "rasd + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)"),
    NamedRecipe("aded", "ADED", "2407.12021", "aded + best(estimator=raw) + match + fixed(nodes=64, depth=6, width=8)"),
    NamedRecipe(
        "recycling",
        "Token Recycling",
        "2408.08696",
        "recycling(pairs=0, prompt=0) + best(estimator=raw) + match + fixed(nodes=80, depth=6, width=8)",
    ),
    NamedRecipe("gsd", "GSD", "2407.16207", "gsd + beam(beam=16) + match + fixed(nodes=99, depth=8, width=4)"),
)
