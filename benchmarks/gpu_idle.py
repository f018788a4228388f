"""Which share of a round the device is idle: what the host costs, whatever it does.

Marks on the device's own clock lie around everything that was captured. Between the first verdict of a text and
its last one, what they enclose is the device's work. A mark before a launch is passed at once where the device has
nothing to do, so the few microseconds that such a launch takes count as work. The first round is left out: it
waits for the prompt.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from unittest.mock import patch

import torch
from gpu_tools import Record

from sapwood.backends.torch.fused.capture import Captured
from sapwood.bench.lineup import Lineup
from sapwood.engine import Engine
from sapwood.rng import Keyed
from sapwood.sampling import Sampling

Marks = list[tuple[torch.cuda.Event, torch.cuda.Event]]


def idle_part(lineup: Lineup, texts: Sequence[Sequence[int]], sampling: Sampling, record: Record) -> None:
    """Microseconds of a round, and those in which the device was at work; texts that nobody has decoded before."""
    kept = {}
    for name, engine in lineup.engines.items():
        spent, rounds, busy = 0.0, 0, 0.0
        for text in texts:
            with marked() as taken:
                seconds, count, marks = timed(engine, text, sampling, taken)
            torch.cuda.synchronize()
            spent, rounds = spent + seconds, rounds + count
            busy += sum(begin.elapsed_time(end) for begin, end in marks) / 1e3
        if rounds:
            kept[name] = {"round_us": 1e6 * spent / rounds, "device_us": 1e6 * busy / rounds, "rounds": rounds}
            share = max(1 - busy / spent, 0.0)
            record.say(
                f"    {name:8s} a round takes {1e6 * spent / rounds:.0f} us, of which the device works "
                f"{1e6 * busy / rounds:.0f}: the host's share is {100 * share:.0f} %"
            )
    record.keep("idle", kept)


def timed(
    engine: Engine, text: Sequence[int], sampling: Sampling, taken: Callable[[], Marks]
) -> tuple[float, int, Marks]:
    """Seconds from the first verdict to the last, the rounds between them, and the marks that were set meanwhile.

    What was begun before the first verdict and runs behind it is left out; what is begun before the last one, and runs
    in vain, is counted: the two are as long.
    """
    said, begin, marks, count, ends = 0, 0.0, Marks(), -1, frozenset(sampling.stop_ids)
    with closing(engine.rounds(text, sampling, Keyed(sampling.seed))) as rounds:
        for outcome in rounds:
            now, new, count = time.perf_counter(), taken(), count + 1
            begin, marks = (now, Marks()) if count == 0 else (begin, marks + new)
            said += len(outcome.tokens)
            if said >= sampling.max_tokens or ends & {*outcome.tokens}:
                break
    return now - begin, count, marks


@contextmanager
def marked() -> Iterator[Callable[[], Marks]]:
    """Have marks set around every captured step; the yielded function hands over those set since it was last asked."""
    marks = Marks()
    run = Captured.__call__

    def marking(self: Captured) -> None:
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        run(self)
        pair[1].record()
        marks.append(pair)

    def taken() -> Marks:
        nonlocal marks
        new, marks = marks, Marks()
        return new

    with patch.object(Captured, "__call__", marking):
        yield taken
