"""A peer's process: `python -m sapwood.peers NAME`; messages on standard input and output.

Libraries print to standard output; so the answers go to a copy of it, and everything else that is
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

from sapwood.peers.messages import LoadedPeer, LoadMessage, PeerMissing, PeerRefused, PromptMessage
from sapwood.peers.table import entry_of


def main(arguments: list[str]) -> int:
    """Load the peer, then answer prompts until there are no more."""
    [name] = arguments
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        message = LoadMessage(**json.loads(sys.stdin.readline()))
        opened = attempt(name, message, out)
        if opened is None:
            return 1
        with contextlib.closing(ClosePeer(opened)):
            send(out, {"ready": {"weights": opened.weights, "version": opened.version}})
            for line in sys.stdin:
                answer = opened.decode(PromptMessage(**json.loads(line)))
                send(out, {"answer": {**asdict(answer), "memory": answer.memory or peak_memory()}})
    return 0


class ClosePeer:
    """Closes a peer when its process ends."""

    def __init__(self, opened: LoadedPeer) -> None:
        self.close = opened.close


def attempt(name: str, message: LoadMessage, out: IO[str]) -> LoadedPeer | None:
    """The loaded peer; None, with the reason sent, if it is not installed or cannot run."""
    entry = entry_of(name)
    try:
        if entry.needs and importlib.util.find_spec(entry.needs) is None:
            raise PeerMissing(entry.install)
        opened: LoadedPeer = importlib.import_module(f"sapwood.peers.{entry.module}").open_peer(
            message
        )
    except PeerMissing as error:
        send(out, {"missing": str(error)})
    except PeerRefused as error:
        send(out, {"refused": str(error)})
    except Exception as error:  # of a third-party library
        send(out, {"failed": f"{type(error).__name__}: {error}"})
    else:
        return opened
    return None


def send(out: IO[str], record: dict[str, Any]) -> None:
    """Write one message as a line."""
    out.write(json.dumps(record) + "\n")
    out.flush()


def peak_memory() -> int | None:
    """Peak memory of this process in bytes; None if the system does not report it."""
    try:  # `getrusage` would include the memory of the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
