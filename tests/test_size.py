"""Files and functions stay small enough to read at one sitting."""

import ast
from pathlib import Path

from tests.helpers.source_tree import ROOT, parsed

SOURCE = ROOT / "src"
# most lines
FILE = 500
FUNCTION = 80

FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def functions(path: Path) -> list[tuple[str, int]]:
    """Every function of a file with its length, decorators left out."""
    nodes = ast.walk(parsed(path))
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def long_files(files: list[Path]) -> list[str]:
    """Names of files that have too many lines."""
    counts = {path: len(path.read_text().splitlines()) for path in files}
    return [f"{path.relative_to(ROOT)} ({count})" for path, count in counts.items() if count > FILE]


def test_files_and_functions_are_short() -> None:
    long = long_files(FILES)
    assert not long, f"above {FILE} lines; split by idea: {', '.join(long)}"
    long = [
        f"{path.relative_to(SOURCE)} {name} ({length})"
        for path in FILES
        for name, length in functions(path)
        if length > FUNCTION
    ]
    assert not long, f"functions above {FUNCTION} lines: {', '.join(long)}"


def test_files_of_tests_are_short() -> None:
    long = long_files(TESTS)
    assert not long, f"above {FILE} lines; split by the part they test: {', '.join(long)}"


def test_typical_sizes_are_small() -> None:
    sizes = sorted(
        len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py"
    )
    assert sizes[len(sizes) // 2] <= 120, "the median file"
    lengths = sorted(length for path in FILES for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= 8, "the median function"
    assert lengths[len(lengths) * 9 // 10] <= 25, "nine functions in ten"


def undocumented(path: Path) -> list[str]:
    """Public names of a file without a docstring, and the module itself where it has none."""
    module = parsed(path)
    kinds = (ast.FunctionDef, ast.ClassDef)
    named = [node for node in module.body if isinstance(node, kinds)]
    named += [
        inner
        for node in named
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, kinds)
    ]
    bare = [
        node.name
        for node in named
        if not node.name.startswith("_")
        and ast.get_docstring(node) is None
        and not any(ast.unparse(mark) == "overload" for mark in node.decorator_list)
    ]
    return bare if not module.body or ast.get_docstring(module) else ["the module", *bare]


def test_public_names_are_documented() -> None:
    bare = {str(path.relative_to(SOURCE)): undocumented(path) for path in FILES}
    assert not {path: names for path, names in bare.items() if names}, "no docstring"
