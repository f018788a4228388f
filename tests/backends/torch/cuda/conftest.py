"""A choice among the tests of kernels, for Triton's interpreter, which takes seconds for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.selection import representatives
from tests.helpers.triton_mode import few_programs

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a choice of this folder's tests as `interpreter`."""
    for item in representatives(item for item in items if HERE in item.path.parents):
        item.add_marker("interpreter")


@pytest.fixture(scope="module")
def wide_tiles() -> Iterator[None]:
    """Wide tiles and short texts in the interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        few_programs(patch)
        yield
