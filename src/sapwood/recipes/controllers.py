"""Systems that are about how much is spent, on what."""

from sapwood.recipes.entry import NamedRecipe

ENTRIES = (
    NamedRecipe(
        "heuristic",
        "assisted generation (transformers)",
        "",
        "small + chain + match + heuristic(nodes=20, width=1)",
    ),
    NamedRecipe(
        "ema",
        "dynamic drafting (exllamav3)",
        "",
        "small + chain + match + ema(nodes=20, width=1)",
    ),
    NamedRecipe(
        "tapout",
        "TapOut",
        "2511.02017",
        "small(draws=iid) + tapout + speculative + fixed(nodes=16, depth=16, width=1)",
    ),
    NamedRecipe(
        "banditspec",
        "BanditSpec, UCB",
        "2505.15141",
        "small(draws=iid) + chain + speculative + banditspec",
    ),
    NamedRecipe(
        "banditspec-exp3",
        "BanditSpec, EXP3",
        "2505.15141",
        "small(draws=iid) + chain + speculative + banditspec(bandit=exp3)",
    ),
    NamedRecipe(
        "hedge",
        "HedgeSpec",
        "2510.20064",
        "hedge + beam(beam=10) + match + fixed(nodes=59, depth=8, width=10)",
    ),
    NamedRecipe(
        "smartspec",
        "SmartSpec, TurboSpec",
        "2406.14066",
        "small(draws=iid) + chain + speculative + smartspec",
    ),
    NamedRecipe(
        "posterior",
        "Thompson sampling over lengths",
        "2406.03853",
        "small(draws=iid) + chain + speculative + posterior",
    ),
)
