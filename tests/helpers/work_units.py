"""What one process runs in one piece: the tests of a file, so that what they share is made once.

`--dist loadgroup` would read this from marks, but with pytest 9.2 it no longer groups anything
(https://github.com/pytest-dev/pytest-xdist/issues/1386): this needs names of tests only.
"""

from xdist.scheduler import LoadFileScheduling

INT8 = "compiled int8 code"  # compiled when it is first used: by one process, not by all
SOURCES = "parsed sources"
# files, folders or tests that belong with others
TOGETHER = {
    "tests/backends/torch/cpu_int8/": INT8,
    "tests/backends/torch/test_expert_load.py": INT8,
    "tests/test_smol.py": INT8,
    "tests/engine/test_tree_builder_contract.py::test_compiled_cpu_code": INT8,
    "tests/train/test_generate.py::test_smollm2": INT8,
    "tests/test_conventions.py": SOURCES,
    "tests/test_layers.py": SOURCES,
    "tests/test_size.py": SOURCES,
}
# files whose tests share nothing and take long, each
APART = ("tests/backends/torch/cuda/test_kernels_compile.py",)


def work_unit(nodeid: str) -> str:
    """The name of the piece of work that a test belongs to."""
    for prefix, unit in TOGETHER.items():
        if nodeid.startswith(prefix):
            return unit
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


class WorkUnitScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Hands out whole pieces of work, in the order in which their first tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return work_unit(nodeid)
