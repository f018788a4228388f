"""`sapwood replica`: forks the servers behind the front of `sapwood serve --replicas`."""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading

# imported before a replica is forked, so that its start takes no time for them
PRELOADED = (
    "sapwood.server.app",
    "sapwood.server.server",
    "sapwood.server.playground.routes",
    "torch",
    "numba",
    "tokenizers",
    "sapwood.backends.torch.load",
    "sapwood.backends.torch.cpu_int8.network",
)


def command() -> None:
    """Fork a server for each line of settings that the front writes to standard input."""
    from sapwood.errors import SapwoodError

    if sys.stdin.isatty():
        raise SapwoodError(
            "`sapwood replica` is started by a front; use `sapwood serve --replicas N`"
        )
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # memory that is never written stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended replicas leave no zombies
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve_replica(line)
            return
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def serve_replica(line: str) -> None:
    """Serve with these settings until a signal, or until the front has ended."""
    from sapwood.cli.serve import run

    start = json.loads(line)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(start["environment"])
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, start["cores"])
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    threading.Thread(target=end_with_front, daemon=True).start()
    run(start["given"], start["config"], start["number"])


def end_with_front() -> None:
    """End this process when the front has ended, cleanly or not."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # no event but a hang-up
    poll.poll()
    os._exit(1)
