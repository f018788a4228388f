"""Recipes whose method is a controller."""

from sapwood.recipes.entry import OWN, RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "heuristic",
        "assisted generation (transformers)",
        "",
        "auto-draft-model + chain + match + heuristic(nodes=20, width=1)",
    ),
    NamedRecipe(
        "ema",
        "dynamic drafting (exllamav3)",
        "",
        "auto-draft-model + chain + match + ema(nodes=20, width=1)",
    ),
    NamedRecipe(
        "tapout",
        "TapOut",
        "2511.02017",
        "auto-draft-model(draws=iid) + tapout + speculative + fixed(nodes=16, depth=16, width=1)",
        fidelity=RECONSTRUCTED,
        note="The five arms are the paper's; their thresholds and the weight in the blended reward "
        "are ours.",
    ),
    NamedRecipe(
        "tapout-token",
        "TapOut, a choice at every token",
        "2511.02017",
        "auto-draft-model(draws=iid) + tapout-token + speculative + fixed(nodes=16, depth=16, width=1)",
        fidelity=RECONSTRUCTED,
        note="The paper's reward of a single decision is not known to us.",
    ),
    NamedRecipe(
        "banditspec",
        "BanditSpec, UCB",
        "2505.15141",
        "auto-draft-model(draws=iid) + chain + speculative + banditspec",
        fidelity=SIMPLIFIED,
        note="The bonus counts an arm's own rounds; the published code's is the same for all arms "
        "and never explores.",
    ),
    NamedRecipe(
        "banditspec-exp3",
        "BanditSpec, EXP3",
        "2505.15141",
        "auto-draft-model(draws=iid) + chain + speculative + banditspec(bandit=exp3)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description; only the UCB form is published.",
    ),
    NamedRecipe(
        "hedge",
        "HedgeSpec",
        "2510.20064",
        "hedge + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        fidelity=SIMPLIFIED,
        note="A drafter's loss is an unbiased estimate of its accepted length instead of the "
        "overlap of p and q.",
    ),
    NamedRecipe(
        "smartspec",
        "SmartSpec, TurboSpec",
        "2406.14066",
        "auto-draft-model(draws=iid) + chain + speculative + smartspec",
        fidelity=SIMPLIFIED,
        note="The acceptance rate counts tested tokens instead of drafted ones.",
    ),
    NamedRecipe(
        "specserve",
        "SpecServe, AdaSpec",
        "2503.05096",
        "merge + best(stride=8) + match + specserve(width=6)",
        fidelity=SIMPLIFIED,
        note="Trees of `auto` instead of chains of a draft model; nothing is trimmed after it was "
        "drawn.",
    ),
    NamedRecipe(
        "spin",
        "SPIN, a drafter per request",
        "2503.15921",
        "spin + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the abstract: a bandit by speed over plain decoding; pieces of equal "
        "length are not needed without padding.",
    ),
    NamedRecipe(
        "minions",
        "Minions, its votes",
        "2402.15678",
        "minions + beam-path(beam=1) + match + heuristic(nodes=20, width=3)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the abstract: drafters of different kinds vote, and the length rises after "
        "a full acceptance and falls otherwise.",
    ),
    NamedRecipe(
        "posterior",
        "Thompson sampling over lengths",
        "2406.03853",
        "auto-draft-model(draws=iid) + chain + speculative + posterior",
        fidelity=OWN,
    ),
)
