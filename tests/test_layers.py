"""Imports go one way: data, seams, families, the loop, the package's face, its tools."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "sapwood"
FAMILIES = ("drafters", "policies", "estimators", "verifiers", "controllers", "backends")

# from the bottom up; a module imports from its own layer and from those below. What is not listed is the face.
DATA = (
    "arrays",
    "errors",
    "blocks",
    "tables",
    "paths",
    "gguf_header",
    "rng",
    "tree",
    "records",
    "guide",
    "sampling",
    "cost",
    "trained",
    "nets",
    "learners",
    "promise",
    "doubt",
)
LAYERS: list[tuple[str, ...]] = [
    DATA,
    ("protocols", "part"),
    ("heads",),  # the networks of trained drafters, which know data alone
    FAMILIES,
    ("methods", "spelling", "recipe", "recipes", "laws", "engine"),
    (),  # the face: api, text, request, testing, train, ...
    ("bench", "certify", "trace", "cli", "__main__"),
]
FACE = 5
SIDEWAYS = {("policies", "estimators")}  # a policy may import its default estimator
HEAVY = {"torch", "transformers", "safetensors", "gguf", "accelerate"}
HEAVY_HOMES = ("backends.torch", "heads", "train")
LAZY = {  # only where a function needs it
    "nets": {"safetensors"},  # files of small networks
    "text": {"transformers"},  # tokenizers that are no single file
    "drafters": {"torch"},  # trained ones, whose networks live under heads
    "peers": {"torch", "transformers"},  # other engines, each in its own process
}

MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"
}


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
    for source, name in imports(ast.parse(MODULES[module].read_text()), lazy):
        if source.partition(".")[0] != "sapwood":
            continue
        inner = source.removeprefix("sapwood").lstrip(".")
        whole = f"{inner}.{name}".strip(".")
        found.add(whole if whole in MODULES else inner)
    return frozenset(found - {module, ""})


def layer(module: str) -> int:
    head = module.partition(".")[0]
    return next((index for index, names in enumerate(LAYERS) if head in names), FACE)


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    family = module.partition(".")[0]
    for other in used(module):
        assert layer(other) <= layer(module), f"{module} imports {other}, which lies above it"
        sibling = other.partition(".")[0]
        if family in FAMILIES and sibling in FAMILIES:
            assert sibling == family or (family, sibling) in SIDEWAYS, f"{module} imports {other}, of another family"


@pytest.mark.parametrize("module", [module for module in MODULES if module.partition(".")[0] == "heads"])
def test_networks_know_data_alone(module: str) -> None:
    above = {other for other in used(module) if other.partition(".")[0] not in (*DATA, "heads")}
    assert not above, f"{module} imports {', '.join(above)}; a network takes plain numbers and tensors"


def test_every_layer_has_its_modules() -> None:
    heads = {module.partition(".")[0] for module in MODULES}
    assert heads.issuperset(name for names in LAYERS[:FACE] for name in names)


def test_imports_have_no_cycles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"imports go round: {' -> '.join([*path, module])}"
        if module in done or module not in MODULES:
            return
        for other in used(module, lazy=False):
            visit(other, (*path, module))
        done.add(module)

    for module in MODULES:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_heavy_packages_have_one_home(module: str) -> None:
    if f"{module}.".startswith(tuple(f"{home}." for home in HEAVY_HOMES)):
        return
    for lazy, allowed in ((False, set[str]()), (True, LAZY.get(module.partition(".")[0], set()))):
        found = imports(ast.parse(MODULES[module].read_text()), lazy)
        heavy = {source.partition(".")[0] for source, _ in found} & HEAVY - allowed
        assert not heavy, f"{module} imports {', '.join(heavy)}; that belongs under {', '.join(HEAVY_HOMES)}"


def loaded_by(code: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter that runs this code."""
    probe = f"{code}\nimport sys\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import sapwood",
        "from sapwood import Engine, Recipe, Sampling, Tree",
        "from sapwood import methods; list(methods.everything())",
        "from sapwood.recipes import RECIPES, resolve; [resolve(name) for name in RECIPES]",
        "import sapwood.testing",
    ],
)
def test_the_core_loads_nothing_heavy(code: str) -> None:
    assert not loaded_by(code) & (HEAVY | {"tokenizers", "jinja2"})


def test_the_name_alone_loads_almost_nothing() -> None:
    assert not loaded_by("import sapwood") & {"numpy", "rich", "typer"}
