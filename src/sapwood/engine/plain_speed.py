"""Measures plain decoding beside a finished request, for a speedup that is not a prediction."""

from collections.abc import Sequence

import numpy as np

from sapwood.core.sampling import Sampling
from sapwood.engine.generate import stream
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Completion

SHARE = 0.15  # of the request's tokens that are decoded again
FEWEST, MOST = 6, 32  # tokens decoded again; fewer are too few for a measurement
SPREAD = 0.05  # largest deviation of two estimates from their mean


def measured_speedup(plain: Engine, prompt: Sequence[int], out: Completion) -> float | None:
    """Speedup of a request over plain decoding, the prefill left out.

    The mean of two estimates that share no measurement of plain decoding: one decodes the last
    tokens again without drafts, the other is the cost model's, from the passes of the request.
    None if they disagree, as on a busy machine, if nothing was drafted, or if the answer is short.
    """
    stats = out.stats
    count = min(round(SHARE * len(out.tokens)), MOST)
    if count < FEWEST or not stats.drafted or stats.speedup is None:
        return None
    text = [*prompt, *out.tokens[: -count - 1]]
    seconds = [
        step.outcome.times.total
        for step in stream(plain, text, Sampling(max_tokens=count + 1), measured=True)
    ][1:]  # the first one begins with the prefill
    if len(seconds) < FEWEST:
        return None
    found = float(np.median(seconds)) * stats.tokens / (stats.seconds - stats.prefill_s)
    mean = (found + stats.speedup) / 2
    return mean if abs(found - mean) <= SPREAD * mean else None
