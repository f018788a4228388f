"""A script run as its file, in this process: to import torch again takes seconds."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import torch


def run_script(path: Path, *arguments: str) -> int:
    """Run `python path arguments`; its exit code."""
    threads = torch.get_num_threads()
    command = [str(path), *arguments]
    beside = [str(path.parent), *sys.path]  # modules beside the script, as when it is started
    try:
        with mock.patch.object(sys, "argv", command), mock.patch.object(sys, "path", beside):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        torch.set_num_threads(threads)
    return 0
