"""Settings that all tests share."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# no deadline: a shared machine may stall; the same examples every time: a failure here is a failure anywhere
settings.register_profile("sapwood", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("sapwood")


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for one file of tests, and no seconds spent on measuring the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("sapwood.profile.QUICK_S", 0.0)
        yield
