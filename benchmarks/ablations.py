"""Every adaptive rule beside the same recipe without it, with the claim of its paper.

`on` and `off` share the drafter and the largest number of nodes; where the paper's baseline is a
constant draft length, that is five tokens (Leviathan et al., arXiv 2211.17192).
"""

from typing import NamedTuple

# columns of a measurement that a claim is about: numerator and denominator
PER_PASS = "tokens per pass"
PER_NODE = "accepted per drafted node"
ON_GPU = "modelled tokens per second, H200"
ON_CPU = "modelled tokens per second, CPU"

HEAD = "eagle3(draws=iid)"
CHAIN = "chain + match + fixed(nodes=5, depth=5, width=1)"
FIVE = f"eagle3 + {CHAIN}"
# EAGLE-1's tree of 25 nodes
EAGLE_TREE = (
    "rank-paths(children=[4, 3, 2, 2, 1, 3, 2, 2, 1, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2]) "
    "+ match + fixed(nodes=25, depth=5, width=4)"
)
DEEP_BEAM = "eagle3 + beam(beam=10) + match + fixed(nodes=59, depth=11, width=10)"
PRODUCT = "static(shape=[4, 3, 2, 1]) + match + fixed(nodes=64, depth=4, width=4)"


class Ablation(NamedTuple):
    """A rule on and off."""

    recipe: str
    claim: str  # of the paper, in words, with its number
    measure: str
    on: str  # a name or a spelling
    off: str
    temperature: float = 0.0


def controlled(controller: str) -> str:
    """A chain of the EAGLE-3 head under a controller."""
    return f"{HEAD} + chain + speculative + {controller}"


def stopped(rule: str, most: int = 16) -> str:
    """A chain of the EAGLE-3 head under a stop rule."""
    return f"{HEAD} + {rule} + speculative + fixed(nodes={most}, depth={most}, width=1)"


STOPS = (
    Ablation("svip", "15 to 21 % faster than a constant length", ON_GPU, "svip", FIVE),
    Ablation("adaedl", "10 to 57 % faster than a constant length", ON_GPU, "adaedl", FIVE),
    Ablation("hf-dynamic", "about 10 % over the best constant length", ON_GPU, "hf-dynamic", FIVE),
    Ablation("specdec++", "7 to 11 % over a constant length", ON_GPU, "specdec++", FIVE),
    Ablation("on-the-fly", "4 to 16 % over a constant length", ON_GPU, "on-the-fly", FIVE),
    Ablation("cm-asd", "faster than a constant length", ON_GPU, "cm-asd", FIVE),
    Ablation("tapout", "as fast as tuned stop rules, untuned", ON_GPU, stopped("tapout"), FIVE),
    Ablation(
        "tapout-token",
        "as fast as tuned stop rules, untuned",
        ON_GPU,
        stopped("tapout-token"),
        FIVE,
    ),
    Ablation(
        "adaeagle",
        "1.62 times plain, faster than constant lengths",
        ON_GPU,
        "adaeagle",
        f"eagle + {CHAIN}",
    ),
    Ablation(
        "early-exit",
        "the second exit drafts fewer tokens that are rejected",
        PER_NODE,
        "early-exit",
        "early-exit + chain + match + fixed(nodes=6, depth=6, width=1)",
    ),
    Ablation(
        "eesd",
        "Thompson sampling ends drafts better than a constant length",
        PER_NODE,
        "eesd",
        "early-exit + chain + match + fixed(nodes=6, depth=6, width=1)",
    ),
    Ablation(
        "draft-verify",
        "the adaptive threshold drafts fewer tokens that are rejected",
        PER_NODE,
        "self-skip(seconds=0) + draft-verify + match + fixed(nodes=12, depth=12, width=1)",
        "self-skip(seconds=0) + chain + match + fixed(nodes=12, depth=12, width=1)",
    ),
    Ablation(
        "swift",
        "siblings raise the tokens of a pass",
        PER_PASS,
        "self-skip(seconds=0) + swift + match + fixed(nodes=130, depth=25, width=10)",
        "self-skip(seconds=0) + max-confidence(confidence=0.8) + match "
        "+ fixed(nodes=25, depth=25, width=1)",
    ),
    Ablation(
        "diffuspec",
        "path search over the best token of each row",
        PER_PASS,
        "parallel + causal-path + match + fixed(nodes=6, depth=6, width=5)",
        "parallel + chain + match + fixed(nodes=6, depth=6, width=1)",
    ),
)

CONTROLLERS = (
    Ablation(
        "banditspec", "close to the best constant length", ON_GPU, controlled("banditspec"), FIVE
    ),
    Ablation(
        "banditspec-exp3",
        "close to the best constant length",
        ON_GPU,
        controlled("banditspec(bandit=exp3)"),
        FIVE,
    ),
    Ablation("smartspec", "up to 3.2 times lower latency", ON_GPU, controlled("smartspec"), FIVE),
    Ablation(
        "heuristic",
        "faster than a constant length",
        ON_GPU,
        "eagle3 + chain + match + heuristic(nodes=20, width=1)",
        FIVE,
    ),
    Ablation(
        "ema",
        "791 against 768 tokens per second of the best constant",
        ON_GPU,
        "eagle3 + chain + match + ema(nodes=20, width=1)",
        FIVE,
    ),
    Ablation("hedge", "5.69 to 7.15 tokens per pass over one drafter", PER_PASS, "hedge", "eagle3"),
    Ablation("minions", "several drafters accept more than one", PER_PASS, "minions", FIVE),
    Ablation(
        "auto",
        "own: trees priced by the cost of a pass beat a fixed size",
        ON_CPU,
        "auto",
        "merge + best(stride=8) + match + fixed(nodes=60, depth=16, width=6)",
    ),
)

TREES = (
    Ablation(
        "eagle2",
        "dynamic trees 20 to 40 % over EAGLE's static one, 11 % in tokens per pass at 26 nodes",
        PER_PASS,
        "eagle + beam(beam=10) + match + fixed(nodes=25, depth=7, width=10)",
        f"eagle + {EAGLE_TREE}",
    ),
    Ablation(
        "eagle3",
        "the same dynamic tree",
        PER_PASS,
        "eagle3 + beam(beam=10) + match + fixed(nodes=25, depth=8, width=10)",
        f"eagle3 + {EAGLE_TREE}",
    ),
    Ablation(
        "opt-tree",
        "more tokens per pass than static trees of the same size",
        PER_PASS,
        "eagle3 + opt-tree + match + fixed(nodes=25, depth=10, width=25)",
        f"eagle3 + {EAGLE_TREE}",
    ),
    Ablation(
        "dyspec",
        "more tokens per pass than fixed trees of the same size",
        PER_PASS,
        "eagle3(draws=swor) + dyspec + rrs + fixed(nodes=30, depth=16, width=8)",
        "eagle3(draws=swor) + static(shape=[2, 2, 2, 2]) + rrs + fixed(nodes=30, depth=4, width=2)",
    ),
    Ablation(
        "sequoia",
        "trees for measured acceptance accept more than regular ones",
        PER_PASS,
        "eagle3(draws=swor) + sequoia(store='ablation') + rrs + fixed(nodes=30, depth=10, width=8)",
        "eagle3(draws=swor) + static(shape=[2, 2, 2, 2]) + rrs + fixed(nodes=30, depth=4, width=2)",
    ),
    Ablation(
        "rsd-s",
        "stochastic beams accept more than a constant branching",
        PER_PASS,
        "eagle3(draws=swor) + rsd(beam=6) + rrs + fixed(nodes=30, depth=5, width=6)",
        "eagle3(draws=swor) + static(shape=[2, 2, 2, 2]) + rrs + fixed(nodes=30, depth=4, width=2)",
        1.0,
    ),
    Ablation(
        "specexec",
        "best-first trees accept more than regular ones of the same size",
        PER_PASS,
        "eagle3 + specexec + match + fixed(nodes=64, depth=32, width=16)",
        f"eagle3 + {PRODUCT}",
    ),
    Ablation(
        "ddd", "the depth stop is faster than EAGLE-2's constant depth", ON_GPU, "ddd", DEEP_BEAM
    ),
    Ablation("radar", "18.7 % fewer draft calls, and faster", ON_GPU, "radar", DEEP_BEAM),
    Ablation(
        "dsbd",
        "a width by confidence accepts more per node than a constant one",
        PER_NODE,
        "eagle3 + dsbd + match + fixed(nodes=18, depth=3, width=6)",
        "eagle3 + beam(beam=6) + match + fixed(nodes=18, depth=3, width=6)",
    ),
    Ablation("cast", "1.72 to 2.16 times plain over EAGLE-3's tree", ON_GPU, "cast", "eagle3"),
    Ablation("c2t", "25 % fewer nodes at equal tokens per pass", PER_NODE, "c2t", DEEP_BEAM),
    Ablation("ltd", "4 to 36 % over EAGLE-3's constants", ON_CPU, "ltd", "eagle3"),
    Ablation(
        "medusa",
        "a tree of measured ranks accepts more than a regular one",
        PER_PASS,
        "medusa",
        f"medusa + {PRODUCT}",
    ),
    Ablation("hydra", "3.26 against Medusa's 2.31 tokens per pass", PER_PASS, "hydra", "medusa"),
    Ablation(
        "propd",
        "early pruning accepts more per checked node",
        PER_NODE,
        "propd",
        "medusa",
    ),
)

LOOKUPS = (
    Ablation("suffix-decoding", "more than prompt lookup", PER_PASS, "suffix-decoding", "pld"),
    Ablation("sam", "more than prompt lookup", PER_PASS, "sam", "pld"),
    Ablation(
        "recycling",
        "2.73 against 1.75 tokens per pass of prompt lookup",
        PER_PASS,
        "recycling",
        "pld",
    ),
    Ablation("lookahead", "n-grams accept more than Jacobi's row", PER_PASS, "lookahead", "jacobi"),
    Ablation(
        "cascade",
        "up to 81 % faster than speculative decoding by lookups below the draft model",
        PER_PASS,
        "cascade",
        "auto-draft-model + chain + match + fixed(nodes=15, depth=15, width=1)",
    ),
    Ablation(
        "specinfer-merged",
        "several models in one tree accept more than one",
        PER_PASS,
        "specinfer-merged",
        "auto-draft-model(draws=iid) + static(shape=[1, 1, 1, 1]) + mss "
        "+ fixed(nodes=30, depth=4, width=1)",
    ),
    Ablation("rasd", "retrieval adds to a drafter's tree", PER_PASS, "rasd", "eagle3"),
    Ablation("respec", "switching to retrieval adds to a drafter", PER_PASS, "respec", "eagle3"),
)

LOSSY = (
    Ablation(
        "medusa-typical",
        "about 10 % faster than exact acceptance",
        PER_PASS,
        "medusa-typical",
        "medusa",
        1.0,
    ),
    Ablation(
        "consultant",
        "a likelihood limit accepts more than speculative sampling",
        PER_PASS,
        "consultant",
        f"{HEAD} + chain + speculative + fixed(nodes=10, depth=10, width=1)",
        1.0,
    ),
    Ablation(
        "adasd",
        "accepts more than speculative sampling",
        PER_PASS,
        "adasd",
        f"{HEAD} + adasd-stop + speculative + fixed(nodes=20, depth=20, width=1)",
        1.0,
    ),
    Ablation(
        "cm-asd-lossy",
        "accepts more than exact verification",
        PER_PASS,
        "cm-asd-lossy",
        "cm-asd",
        1.0,
    ),
    Ablation(
        "bild",
        "rolls back less often than exact verification rejects",
        PER_NODE,
        "bild",
        "eagle3 + fallback + match + fixed(nodes=10, depth=10, width=1)",
    ),
    Ablation("judge", "6.3 to 19.7 accepted tokens a pass", PER_PASS, "judge", "eagle3"),
)

ABLATIONS = (*STOPS, *CONTROLLERS, *TREES, *LOOKUPS, *LOSSY)
# adaptive recipes whose claim is about time that tokens per pass cannot show, and where it is told
ELSEWHERE = {
    "pearl": "drafting beside the pass: docs/decisions/cpu-overlap.md",
    "amusd": "drafting beside the pass: docs/decisions/cpu-overlap.md",
    "specbranch": "drafting beside the pass: docs/decisions/cpu-overlap.md",
    "pipeinfer": "a pipeline over machines",
    "pipedec": "a pipeline over machines",
    "ppsd": "a pipeline of stages",
    "predictive": "a pipeline of stages",
    "spin": "a drafter for each of many requests",
    "specserve": "a deadline for many requests: docs/benchmarks.md",
    "cas-spec": "variants of a large target; see docs/families/cascades.md",
    "triforce": "long texts: docs/benchmarks.md",
    "sparse-kv": "long texts: docs/benchmarks.md",
}
