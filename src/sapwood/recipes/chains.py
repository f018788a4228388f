"""Recipes that draft chains, with their stopping rules."""

from sapwood.recipes.entry import RECONSTRUCTED, SIMPLIFIED, NamedRecipe

ENTRIES = (
    NamedRecipe(
        "speculative",
        "speculative sampling",
        "2211.17192",
        "auto-draft-model(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
    ),
    NamedRecipe(
        "draft-model",
        "a small model of its own",
        "2211.17192",
        "draft-model(draws=iid) + chain + speculative + fixed(nodes=5, depth=5, width=1)",
        "draft-model",
    ),
    NamedRecipe(
        "distillspec",
        "DistillSpec",
        "2310.08461",
        "draft-model(made_by='distillspec', draws=iid) + chain + speculative"
        " + fixed(nodes=5, depth=5, width=1)",
        "distillspec",
    ),
    NamedRecipe(
        "skd",
        "Speculative Knowledge Distillation",
        "2410.11325",
        "draft-model(made_by='skd', draws=iid) + chain + speculative"
        " + fixed(nodes=5, depth=5, width=1)",
        "skd",
        note="A way of training, here for a draft model that drafts.",
    ),
    NamedRecipe(
        "fastdraft",
        "FastDraft",
        "2411.11055",
        "draft-model(made_by='fastdraft', draws=iid) + chain + speculative"
        " + fixed(nodes=5, depth=5, width=1)",
        "fastdraft",
        fidelity=SIMPLIFIED,
        note="Both stages of training read the target's corpus instead of ten billion tokens of "
        "natural text and code.",
    ),
    NamedRecipe(
        "pearl",
        "PEARL",
        "2408.11850",
        "auto-draft-model + pearl(first=2) + match + fixed(nodes=4, depth=4, width=1)",
        fidelity=SIMPLIFIED,
        note="Drafting ends with the pass, whose extra token checks the first of the new ones; "
        "two tokens are drafted before a pass that would check none; and chosen tokens are "
        "matched instead of drawn ones tested.",
    ),
    NamedRecipe(
        "amusd",
        "AMUSD",
        "2410.17375",
        "auto-draft-model + amusd + match + fixed(nodes=32, depth=32, width=1)",
        fidelity=SIMPLIFIED,
        note="Draft model and target are threads of one process instead of devices, and a draft step "
        "that is under way when a pass ends is finished before the draft model reads the verdict.",
    ),
    NamedRecipe(
        "specbranch",
        "SpecBranch",
        "2506.01979",
        "auto-draft-model + specbranch(first=2) + match + fixed(nodes=4, depth=4, width=4)",
        fidelity=SIMPLIFIED,
        note="The draft's confidence alone decides where to fork, without the network that reads "
        "the target's states; there are four branches at most instead of three, and two tokens "
        "are drafted before a pass that would check none.",
    ),
    NamedRecipe(
        "early-exit",
        "Kangaroo",
        "2404.18911",
        "early-exit + max-confidence + match + fixed(nodes=6, depth=6, width=1)",
        "early-exit",
        fidelity=SIMPLIFIED,
        note="The target goes on from the draft's keys and states in transformers models and in "
        "int8; on CUDA it runs the first layers again.",
    ),
    NamedRecipe(
        "eesd",
        "EESD",
        "2406.03853",
        "early-exit + thompson + match + fixed(nodes=20, depth=20, width=1)",
        "early-exit",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: the exit is Kangaroo's adapter, old rounds "
        "decay, and rare depths borrow the counts of all.",
    ),
    NamedRecipe(
        "specdec++",
        "SpecDec++",
        "2405.19715",
        "eagle3(draws=iid) + specdec++ + speculative + fixed(nodes=20, depth=20, width=1)",
        "specdec++",
        fidelity=SIMPLIFIED,
        note="The head reads the states of an EAGLE-3 head instead of a draft model's; the one that "
        "ships is hardly better than a constant.",
    ),
    NamedRecipe(
        "adaeagle",
        "AdaEAGLE",
        "2412.18910",
        "eagle + chain + match + ldlp(nodes=20, width=1)",
        "ldlp",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: the weight of lengths that are too short "
        "follows from measured prices instead of being chosen, and the predictor that ships is "
        "worse than the best constant.",
    ),
    NamedRecipe(
        "adaedl",
        "AdaEDL",
        "2410.18351",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + adaedl + speculative + fixed(nodes=20, depth=20, width=1)",
        fidelity=SIMPLIFIED,
        note="The first token is always drafted, and the entropy is taken after the request's "
        "sampling options.",
    ),
    NamedRecipe(
        "svip",
        "SVIP",
        "2411.18462",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + svip + speculative + fixed(nodes=40, depth=40, width=1)",
        fidelity=SIMPLIFIED,
        note="The entropy is taken after the request's sampling options instead of before them.",
    ),
    NamedRecipe(
        "hf-dynamic",
        "transformers' dynamic schedule (DISCO)",
        "2405.04304",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + hf-dynamic + speculative + fixed(nodes=20, depth=20, width=1)",
        note="It is transformers' schedule; DISCO itself trains a classifier.",
    ),
    NamedRecipe(
        "on-the-fly",
        "on-the-fly window",
        "ACL 2025, long.482",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + chain + speculative + on-the-fly",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's formula: the number of rounds, the median price and the "
        "slack are ours.",
    ),
    NamedRecipe(
        "cm-asd",
        "CM-ASD, its length rule alone",
        "2508.15371",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + cm-asd + speculative + fixed(nodes=10, depth=10, width=1)",
        fidelity=RECONSTRUCTED,
        note="The paper gives no constants, and certainty is that of the round before, since "
        "positions yet to be drafted have none.",
    ),
    NamedRecipe(
        "cm-asd-lossy",
        "CM-ASD",
        "2508.15371",
        "auto-head(otherwise=auto-draft-model) + cm-asd + threshold + fixed(nodes=10, depth=10, width=1)",
        fidelity=RECONSTRUCTED,
        note="The paper gives no constants, and its tolerance is read as a floor, since as printed "
        "it loosens with uncertainty.",
    ),
    NamedRecipe(
        "bild",
        "BiLD",
        "2302.07863",
        "auto-head(otherwise=auto-draft-model) + fallback + bild + fixed(nodes=10, depth=10, width=1)",
        fidelity=SIMPLIFIED,
        note="Every drafted token is checked; the published code checks only some of them.",
    ),
    NamedRecipe(
        "adasd",
        "AdaSD",
        "2512.11280",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + adasd-stop + adasd + fixed(nodes=20, depth=20, width=1)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the abstract: means decay, and excused tokens do not count as accepted.",
    ),
    NamedRecipe(
        "consultant",
        "Consultant Decoding",
        "2506.02391",
        "auto-head(draws=iid, otherwise=auto-draft-model(draws=iid)) + chain + consultant + fixed(nodes=10, depth=10, width=1)",
        fidelity=RECONSTRUCTED,
        note="Rebuilt from the paper's description: the moving average begins anew each round.",
    ),
    NamedRecipe(
        "specdec",
        "SpecDec, its acceptance rule",
        "2203.16487",
        "parallel + chain + specdec + fixed(nodes=25, depth=25, width=1)",
        "parallel",
        fidelity=SIMPLIFIED,
        note="The acceptance rule alone, with limits of our own: the drafter is a head with mask "
        "rows, as many as it was trained with (six in the one that ships), instead of a model "
        "that fills 25 masks.",
    ),
    NamedRecipe(
        "medusa-typical",
        "Medusa, typical acceptance",
        "2401.10774",
        "medusa + rank-paths + typical + fixed(nodes=63, depth=4, width=10)",
        "medusa",
        fidelity=SIMPLIFIED,
        note="All heads share the target's output matrix instead of having one each.",
    ),
)
