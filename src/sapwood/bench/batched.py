"""Several prompts in shared passes, through the scheduler that the server uses.

Each request keeps its own output, seed and parts; the seconds of a pass are split evenly among the
requests in it, so that the sum over requests is the wall time. All start decoding together, once
their prompts are prefilled.
"""

from collections.abc import Sequence
from dataclasses import replace

from sapwood.bench.measure import BenchRun
from sapwood.core.sampling import Sampling
from sapwood.engine.generate import generate
from sapwood.engine.loop import Engine
from sapwood.engine.outputs import Step


def decode_together(
    engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sampling, *, measured: bool = False
) -> list[BenchRun]:
    """Decode all prompts, one tree of each in every pass, until the last of them has ended.

    `measured` says that the engine's cost model was measured on this machine.
    """
    runs = [BenchRun() for _ in prompts]
    context = engine.target.info.context
    fitted = [
        replace(sampling, max_tokens=min(sampling.max_tokens, context - len(prompt)))
        for prompt in prompts
    ]
    start = engine.now()
    prefill = 0.0  # seconds until all prompts were prefilled

    def on_step(index: int, step: Step) -> None:
        nonlocal prefill
        prefill = prefill or engine.now() - start - step.outcome.times.total
        runs[index].count(step.outcome, step.tokens, engine.cost)

    generate(engine, prompts, fitted, on_step, measured=measured, begin_together=True)
    for run in runs:
        run.prefill = prefill / len(runs)
    return runs
