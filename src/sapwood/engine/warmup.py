"""Answers made-up prompts before the first request, so that all shapes of a device are captured.

A shape that comes up for the first time is compiled or captured in the middle of a text: a pause of
20 ms to seconds. Which shapes come up depends on the trees, so real rounds are run until none is
slow.
"""

from collections.abc import Callable, Sequence
from itertools import count

from sapwood.core.sampling import Sampling
from sapwood.engine.outputs import Step
from sapwood.engine.request import Request
from sapwood.engine.scheduler import Scheduler
from sapwood.engine.step_stats import RecentStats

TEXTS = (
    "Name five kinds of trees, and say in one sentence each where they grow.",
    "Write a short letter to a friend about a walk along a river in autumn.",
    "A train leaves at nine and travels at eighty kilometres an hour. How far is it by noon? "
    "Explain each step.",
    "Repeat this list with a number before each line: apples, pears, plums, cherries, grapes.",
    "Summarise: the council met on Monday to discuss the new bridge. Two members asked for a "
    "longer study of the river, and one for a lower budget. In the end the plan was accepted.",
)
REPEATS = (1, 12, 40)  # of a text in its prompt: short, medium and long contexts
TOKENS = 64  # of each answer
CAPTURE_FREE_S = 0.012  # seconds: if no step of a turn takes longer, nothing was captured in it
TURNS = 4  # at most


def warm_up(
    scheduler: Scheduler,
    encode: Callable[[str], list[int]],
    levels: Sequence[int],  # requests at a time
    progress: Callable[[str], None],
) -> None:
    """Answer prompts at each of these levels until no step captures anything."""
    prompts = [tuple(encode(text * times)) for times in REPEATS for text in TEXTS]
    for level in levels:
        for turn in range(1, TURNS + 1):
            progress(f"warming up: {level} at a time, turn {turn}")
            if answer_all(scheduler, prompts, level) < CAPTURE_FREE_S:
                break
    scheduler.steps = scheduler.tokens = 0
    scheduler.recent = RecentStats()


def answer_all(scheduler: Scheduler, prompts: Sequence[tuple[int, ...]], level: int) -> float:
    """Answer prompts, `level` at a time; the seconds of the slowest step without prefill."""
    pool = scheduler.pool
    room = pool.room() - TOKENS - 1
    sampling = Sampling(max_tokens=TOKENS)
    wanted = max(2 * level, len(prompts))
    coming = (prompts[number % len(prompts)][-room:] for number in count())
    started = 0
    slowest = 0.0
    while started < wanted or not pool.idle:
        while started < wanted and pool.active + len(pool.waiting) < level:
            pool.add(Request(next(coming), sampling, on_step=ignore))
            started += 1
        begin = scheduler.now()
        done = scheduler.step()
        if done is not None and not done.prefill:
            slowest = max(slowest, scheduler.now() - begin)
    return slowest


def ignore(step: Step | Exception) -> None:
    """Drop the step of a made-up request; an error is raised."""
    if isinstance(step, Exception):
        raise step
