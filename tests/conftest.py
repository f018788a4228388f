"""Settings that all tests share."""

import gc
import itertools
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.helpers.selection import NOT_QUICK, quick

# no deadline: a shared machine may stall; the same examples every time: a failure here is a failure
# anywhere
settings.register_profile("sapwood", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("quick", settings.get_profile("sapwood"), max_examples=8)
settings.load_profile("sapwood")

FREEZE = gc.freeze  # tests see one that does nothing
FREEZE_EVERY = 20  # files
FILES = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--quick`: what a person runs while working."""
    about = "of every test function the first parameters, and none that takes long"
    parser.addoption("--quick", action="store_true", help=about)


def pytest_configure(config: pytest.Config) -> None:
    """Fewer random examples in a quick run; no collection of garbage while modules are imported."""
    if config.getoption("--quick"):
        settings.load_profile("quick")
    gc.disable()


def pytest_collection_finish() -> None:
    """Exempt the million objects of all modules and tests from later collections of garbage.

    Servers and the contract of backends collect often: each time it would take most of a second.
    Collections by themselves, which come after every 700 objects, are made seldom: they took a
    fifth of the time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_unconfigure() -> None:
    """Undo the exemption: what is still frozen at the exit counts as leaked."""
    gc.unfreeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quick run does not even import files that it leaves out."""
    if not config.getoption("--quick") or not collection_path.is_relative_to(config.rootpath):
        return None
    return True if collection_path.relative_to(config.rootpath).as_posix() in NOT_QUICK else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a quick run does not need; where processes share the tests, long ones first."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--quick"):
        chosen = set(quick(items))
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With `--dist loadfile`: files as a whole, and some of them together."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.helpers.work_units import WorkUnitScheduling

    return WorkUnitScheduling(config, log)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for one file of tests, and no seconds spent on measuring the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine() -> Iterator[None]:
    """Tests that share a machine keep their cost profiles; the tests of the load meter undo this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sapwood.engine.machine_load.STAT", Path("/nonexistent"))
        patch.setattr("sapwood.engine.machine_load.SPREAD", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def _frozen_modules() -> Iterator[None]:
    """Servers neither freeze what a test has made nor thaw what was there before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _frozen_files() -> None:
    """Exempt what earlier files have left as well, now and then.

    Every server and every run of training collects garbage: after some hundred files each time
    would take half a second.
    """
    if next(FILES) % FREEZE_EVERY == 0:
        gc.collect()
        FREEZE()


@pytest.fixture(autouse=True)
def _log_of_the_server() -> Iterator[None]:
    """A server that ran in a test logs to that test's captured output, which is closed after it."""
    log = logging.getLogger("sapwood.server")
    handlers, propagate = log.handlers, log.propagate
    yield
    log.handlers, log.propagate = handlers, propagate
