"""The lists of files that a token passes on a GPU are those of a fresh trace."""

import pytest
from tools import token_path

from tests.helpers.triton_mode import CUDA, require

require()

pytestmark = pytest.mark.skipif(CUDA, reason="traced in Triton's interpreter")


def check(name: str) -> None:
    """Compare the list of the page with a fresh one."""
    assert set(token_path.traced(name)) == set(token_path.committed(name)), (
        f"run TRITON_INTERPRET=1 python -m tools.token_path --device {name}"
    )


@pytest.mark.parametrize("name", ["rounds", "planned"])
def test_files_of_rounds_that_requests_share(name: str) -> None:
    check(name)


def test_files_of_rounds_of_one_request() -> None:
    check("cuda")
