"""Keep the libraries' bars, notes and warnings off the terminal; errors still come as exceptions."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_hub() -> Iterator[None]:
    """No bars of the Hub's library, and no warnings."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

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
    """Nothing of transformers either; it is imported here, for those who are about to use it."""
    from transformers.utils import logging

    logs: Any = logging
    level, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        with quiet_hub():
            yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()
