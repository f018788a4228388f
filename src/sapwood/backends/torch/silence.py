"""Silences progress bars, logs and warnings of libraries; errors are still raised."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Disable huggingface_hub's progress bars, and warnings."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    bars = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            enable_progress_bars()


@contextmanager
def quiet() -> Iterator[None]:
    """Disable transformers' logs and bars too; imports transformers."""
    from transformers.utils import logging

    logs: Any = logging
    level = logs.get_verbosity()
    bars = logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        with quiet_hub():
            yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()
