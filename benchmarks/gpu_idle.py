"""Share of a round in which the device is idle: the cost of the host.

CUDA events lie around every captured step. Between the first verdict of a text and its last one,
the time that they enclose is the device's work. An event before a launch is recorded at once if the
device is idle, so the few microseconds of such a launch count as work. The first round is left out:
it waits for the prompt.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from unittest.mock import patch

import torch
from gpu_tools import Record

from sapwood.backends.torch.cuda.cuda_graph import CapturedStep
from sapwood.bench.recipe_set import RecipeSet
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.engine.loop import Engine

Marks = list[tuple[torch.cuda.Event, torch.cuda.Event]]


def idle_part(
    lineup: RecipeSet, texts: Sequence[Sequence[int]], sampling: Sampling, record: Record
) -> None:
    """Microseconds of a round, and those in which the device works, on texts not decoded before."""
    kept = {}
    for name, engine in lineup.engines.items():
        spent = 0.0
        rounds = 0
        busy = 0.0
        for text in texts:
            with marked() as taken:
                seconds, count, marks = timed(engine, text, sampling, taken)
            torch.cuda.synchronize()
            spent = spent + seconds
            rounds = rounds + count
            busy += sum(begin.elapsed_time(end) for begin, end in marks) / 1e3
        if rounds:
            kept[name] = {
                "round_us": 1e6 * spent / rounds,
                "device_us": 1e6 * busy / rounds,
                "rounds": rounds,
            }
            share = max(1 - busy / spent, 0.0)
            record.say(
                f"    {name:8s} a round takes {1e6 * spent / rounds:.0f} us, of which the device "
                f"works {1e6 * busy / rounds:.0f}: the host's share is {100 * share:.0f} %"
            )
    record.keep("idle", kept)


def timed(
    engine: Engine, text: Sequence[int], sampling: Sampling, taken: Callable[[], Marks]
) -> tuple[float, int, Marks]:
    """Seconds from the first verdict to the last, the rounds between them, and their events.

    Work launched before the first verdict that runs after it is left out; work launched before the
    last one, and discarded, is counted: the two are as long.
    """
    emitted = 0
    begin = 0.0
    marks = Marks()
    count = -1
    ends = frozenset(sampling.stop_ids)
    with closing(engine.rounds(text, sampling, KeyedRng(sampling.seed))) as rounds:
        for outcome in rounds:
            now = time.perf_counter()
            new = taken()
            count = count + 1
            begin, marks = (now, Marks()) if count == 0 else (begin, marks + new)
            emitted += len(outcome.tokens)
            if emitted >= sampling.max_tokens or ends & {*outcome.tokens}:
                break
    return now - begin, count, marks


@contextmanager
def marked() -> Iterator[Callable[[], Marks]]:
    """Record events around every captured step; the yielded function returns the new ones."""
    marks = Marks()
    run = CapturedStep.__call__

    def marking(self: CapturedStep) -> None:
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        run(self)
        pair[1].record()
        marks.append(pair)

    def taken() -> Marks:
        nonlocal marks
        new = marks
        marks = Marks()
        return new

    with patch.object(CapturedStep, "__call__", marking):
        yield taken
