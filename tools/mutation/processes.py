"""Pytest in forked processes with limits of time and memory."""

import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MEMORY = 12 << 30  # bytes of address space
PATIENCE = 8  # wall seconds for each second of CPU that a task may use: the machine may be busy


@dataclass
class Task:
    """Work for a forked process; its exit status is the result."""

    name: str
    work: Callable[[], int]
    log: Path
    seconds: float  # CPU seconds that it may use
    began: float = field(default=0.0)
    pid: int = field(default=0)


@dataclass(frozen=True)
class Done:
    """A finished task: its exit status, None where it ran out of time."""

    name: str
    status: int | None
    seconds: float


def run_all(tasks: Iterable[Task], jobs: int) -> Iterator[Done]:
    """Run tasks in forked processes, so many at a time, and yield each as it ends."""
    waiting = list(tasks)[::-1]
    running: dict[int, Task] = {}  # by the file descriptor that closes when the process ends
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                running[start(task)] = task
            ready, _, _ = select.select(list(running), [], [], 0.5)
            for end in [*ready, *late(running)]:
                if end in running:
                    yield finish(end, running.pop(end))
    finally:
        for end, task in running.items():
            stop(task)
            finish(end, task)


def start(task: Task) -> int:
    """Fork; the child works and leaves, the parent gets what closes when it has left."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    task.began = time.monotonic()
    task.pid = os.fork()
    if task.pid:
        os.close(theirs)
        return ours
    status = 70
    try:
        os.setsid()
        os.close(ours)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        limit = int(task.seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        status = task.work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def late(running: dict[int, Task]) -> list[int]:
    """Tasks that have waited too long, as a deadlock does; they are stopped."""
    now = time.monotonic()
    found = [
        end for end, task in running.items() if now - task.began > PATIENCE * (task.seconds + 1)
    ]
    for end in found:
        stop(running[end])
    return found


def stop(task: Task) -> None:
    """End a task and whatever it has started."""
    os.killpg(task.pid, signal.SIGKILL)


def finish(end: int, task: Task) -> Done:
    """Reap a task."""
    os.close(end)
    _, status = os.waitpid(task.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    out_of_time = -code in (signal.SIGXCPU, signal.SIGKILL)
    return Done(task.name, None if out_of_time else code, time.monotonic() - task.began)
