"""Files and functions stay small enough to read at one sitting."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
FILE, FUNCTION = 300, 60  # most lines

FILES = sorted(SOURCE.rglob("*.py"))


def functions(path: Path) -> list[tuple[str, int]]:
    """Every function of a file with its length, decorators left out."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE, f"{lines} lines; split it by idea, at most {FILE}"
    long = [f"{name} ({length})" for name, length in functions(path) if length > FUNCTION]
    assert not long, f"functions above {FUNCTION} lines: {', '.join(long)}"


def test_typical_sizes_are_small() -> None:
    sizes = sorted(len(path.read_text().splitlines()) for path in FILES if path.name != "__init__.py")
    assert sizes[len(sizes) // 2] <= 120, "the median file"
    lengths = sorted(length for path in FILES for _, length in functions(path))
    assert lengths[len(lengths) // 2] <= 8, "the median function"
    assert lengths[len(lengths) * 9 // 10] <= 25, "nine functions in ten"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_public_names_are_documented(path: Path) -> None:
    module = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    named = [node for node in module.body if isinstance(node, kinds)]
    named += [
        inner for node in named if isinstance(node, ast.ClassDef) for inner in node.body if isinstance(inner, kinds)
    ]
    bare = [node.name for node in named if not node.name.startswith("_") and ast.get_docstring(node) is None]
    assert not bare, f"no docstring: {', '.join(bare)}"
    assert not module.body or ast.get_docstring(module), "a module says in one line what it is"
