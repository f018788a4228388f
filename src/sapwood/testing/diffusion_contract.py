"""Check of self-speculation: any diffusion model must give its own step-by-step text."""

from sapwood.backends.toy_diffusion import ToyDiffusion
from sapwood.core.diffusion import DiffusionModel, Text
from sapwood.engine.diffusion import decode_self_speculative, decode_stepwise, masked

DRAFTS = (1, 2, 4, 8)


def check_diffusion(
    model: DiffusionModel | None = None, text: Text | None = None, block: int = 0
) -> dict[int, int]:
    """Passes by number of drafts; raises where a text or its order differs from single steps."""
    target = model or ToyDiffusion()
    begun = text or masked([0], 8)
    plain = decode_stepwise(target, begun, block)
    passes: dict[int, int] = {}
    for drafts in DRAFTS:
        fast = decode_self_speculative(target, begun, drafts, block)
        if (fast.tokens, fast.steps) != (plain.tokens, plain.steps):
            raise AssertionError(
                f"{drafts} drafts a pass fill {fast.steps}, and single steps {plain.steps}"
            )
        passes[drafts] = fast.passes
    return passes
