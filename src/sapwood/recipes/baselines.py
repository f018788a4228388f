"""Ours, and what everything is measured against."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe("auto", "sapwood", "", "merge + best(stride=8) + match + goodput(width=6)"),
    NamedRecipe("plain", "plain decoding", "", "ngram + chain + match + fixed(nodes=0)"),
)
