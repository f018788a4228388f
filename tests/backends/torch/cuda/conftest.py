"""A choice among the tests of kernels, for Triton's interpreter, which takes seconds for each."""

from pathlib import Path

import pytest

from tests.helpers.selection import representatives

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark a choice of this folder's tests as `interpreter`."""
    for item in representatives(item for item in items if HERE in item.path.parents):
        item.add_marker("interpreter")
