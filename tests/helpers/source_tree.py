"""Modules of src/sapwood by name, and which of them import which."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sapwood"

# name without the package's own -> file
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"
}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def imports(tree: ast.AST, lazy: bool) -> Iterator[tuple[str, str]]:
    """(module, name) of every import that runs; those inside functions only if `lazy`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, lazy)


@cache
def used(module: str, lazy: bool = True) -> frozenset[str]:
    """Modules of the package that this one imports, without the package's own name."""
    found = set()
    for source, name in imports(parsed(MODULES[module]), lazy):
        if source.partition(".")[0] != "sapwood":
            continue
        inner = source.removeprefix("sapwood").lstrip(".")
        whole = f"{inner}.{name}".strip(".")
        found.add(whole if whole in MODULES else inner)
    return frozenset(found - {module, ""})
