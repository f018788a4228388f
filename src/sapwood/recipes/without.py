"""Systems of the surveys that have no recipe, and why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WithoutRecipe:
    """A system that no combination of parts makes."""

    name: str
    system: str  # as its authors call it
    paper: str  # arXiv id, empty when there is none
    why: str  # what it is, what is missing, and what is nearest to it here


SYSTEMS = (
    WithoutRecipe(
        "speed",
        "SPEED",
        "2310.12072",
        "It pipelines early predictions through layers that share their weights: a model of that "
        "kind is needed. `ppsd` is the same pipeline for other models.",
    ),
    WithoutRecipe(
        "space",
        "SPACE",
        "2402.11809",
        "It tunes the target itself to fill masks, so that its text is another model's. `pass` and "
        "`knows-the-future` fill masks beside an unchanged target.",
    ),
    WithoutRecipe(
        "fold",
        "FOLD",
        "",
        "It writes alternatives by an exit inside the verifying pass, whose module was not available "
        "(a submission to ICLR 2026). `early-exit` drafts by an exit before that pass.",
    ),
    WithoutRecipe(
        "seed",
        "SEED",
        "2406.18200",
        "It queues several drafts for one target, first come, first served. The server and "
        "`generate` with a list check them in one pass instead, and `n` choices share their prompt.",
    ),
    WithoutRecipe(
        "best-of-n",
        "Best-of-n over a shared tree",
        "",
        "It is the option `n` of a request: the choices share the keys of their prompt, and their "
        "trees one pass.",
    ),
    WithoutRecipe(
        "speculative-beam",
        "Speculative beam search",
        "2409.16560",
        "Beam search is another text than plain decoding's. Of DSBD, its speculative form, `dsbd` "
        "has the width rule.",
    ),
    WithoutRecipe(
        "ssd",
        "SSD, self-speculation of diffusion models",
        "2510.04147",
        "It verifies the steps of a diffusion model, whose text is not written from left to right: "
        "the loop has no such target. `sapwood.engine.diffusion` is a driver of its own, for exact "
        "tables and small masked models; its text is that of the same model step by step.",
    ),
    WithoutRecipe(
        "training-wheels",
        "Training wheels",
        "",
        "No text or code with their rule was at hand. `dvi` and `online` train while they serve.",
    ),
    WithoutRecipe("specpim", "SpecPIM", "", "It is hardware."),
    WithoutRecipe(
        "speculative-rag",
        "Speculative RAG",
        "",
        "It is a pipeline of prompts: no rule of decoding.",
    ),
)
WITHOUT = {system.name: system for system in SYSTEMS}
