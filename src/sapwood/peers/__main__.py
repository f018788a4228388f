"""A peer's own process: `python -m sapwood.peers NAME`, orders on standard input, answers on standard output.

Libraries print what they like; so the answers go to a copy of standard output, and everything else that is
printed goes to standard error.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from sapwood.peers.table import entry_of
from sapwood.peers.words import Ask, Missing, Opened, Order, Refused


def main(arguments: list[str]) -> int:
    """Load the peer, then answer prompts until there are no more."""
    [name] = arguments
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        order = Order(**json.loads(sys.stdin.readline()))
        opened = attempt(name, order, out)
        if opened is None:
            return 1
        with contextlib.closing(Closing(opened)):
            say(out, {"ready": {"weights": opened.weights, "version": opened.version}})
            for line in sys.stdin:
                answer = opened.decode(Ask(**json.loads(line)))
                say(out, {"answer": {**asdict(answer), "memory": answer.memory or peak_memory()}})
    return 0


class Closing:
    """Closes a peer when its process ends."""

    def __init__(self, opened: Opened) -> None:
        self.close = opened.close


def attempt(name: str, order: Order, out: IO[str]) -> Opened | None:
    """The loaded peer; None, with the reason told, where it is not installed or cannot run."""
    entry = entry_of(name)
    try:
        if entry.needs and importlib.util.find_spec(entry.needs) is None:
            raise Missing(entry.install)
        opened: Opened = importlib.import_module(f"sapwood.peers.{entry.module}").open_peer(order)
    except Missing as error:
        say(out, {"missing": str(error)})
    except Refused as error:
        say(out, {"refused": str(error)})
    except Exception as error:  # whatever a library of others thinks of
        say(out, {"failed": f"{type(error).__name__}: {error}"})
    else:
        return opened
    return None


def say(out: IO[str], record: dict[str, Any]) -> None:
    """One line."""
    out.write(json.dumps(record) + "\n")
    out.flush()


def peak_memory() -> int | None:
    """Most bytes this process has held; None where the system does not tell."""
    try:  # what `getrusage` says would begin with the memory of the process that started this one
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
