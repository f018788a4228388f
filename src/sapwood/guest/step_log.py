"""Log of the host's steps: one JSON object in a line, for measurements."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict

from sapwood.guest.core import StepRecord

VARIABLE = "SAPWOOD_GUEST_LOG"


def step_log() -> Callable[[StepRecord], None] | None:
    """A function that appends steps to the file that SAPWOOD_GUEST_LOG names; None without it."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None

    def write(record: StepRecord) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    return write
