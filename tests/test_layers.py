"""Imports go one way: data, seams, families, the loop, the package's face, its tools."""

import subprocess
import sys

import pytest

from tests.helpers.source_tree import MODULES, imports, parsed, used

FAMILIES = ("drafters", "policies", "estimators", "verifiers", "controllers", "backends")

# from the bottom up; a module imports from its own layer and from those below. What is not listed
# is the face.
LAYERS: list[tuple[str, ...]] = [
    (
        "errors",
        "kv_cache",
        "common",
        "structured_output.grammar_matcher",
        "core",
        "engine.cost_model",
        "remote.messages",
        "remote.connection",
        "remote.draft_client",
        "remote.wait_rule",
        "remote.waist_messages",
    ),
    ("heads",),  # the networks of trained drafters, which know data alone
    FAMILIES,
    (
        "registry",
        "spec_parser",
        "recipe",
        "recipes",
        "engine.overlap",
        "engine.pipeline",
        "engine.stages",
        "engine.prelaunch",
        "engine.request_decoder",
        "engine.loop",
    ),
    (),  # the face: llm, engine, tokenizer, testing, train, ...
    ("bench", "certify", "trace", "cli", "__main__"),
]
FACE = 4
SIDEWAYS = {("policies", "estimators")}  # a policy may import its default estimator
HEAVY = {"torch", "transformers", "safetensors", "gguf", "accelerate"}
HEAVY_HOMES = ("backends.torch", "heads", "train")
LAZY = {  # only where a function needs it
    "common": {"safetensors"},  # files of small networks
    "tokenizer": {"transformers"},  # tokenizers that are no single file
    "drafters": {"torch"},  # trained ones, whose networks live under heads
    "peers": {"torch", "transformers"},  # other engines, each in its own process
    "guest": {"torch"},  # tensors of the engine that it drafts in
}


PACKAGES = sorted({module.partition(".")[0] for module in MODULES})
each_package = pytest.mark.parametrize("package", PACKAGES)


def layer(module: str) -> int:
    lengths = range(module.count(".") + 1, 0, -1)  # the longest listed name decides
    names = [".".join(module.split(".")[:length]) for length in lengths]
    return next(
        (index for name in names for index, layer in enumerate(LAYERS) if name in layer), FACE
    )


def within(package: str) -> list[str]:
    """Modules of a package, or the module of that name."""
    return [module for module in MODULES if module.partition(".")[0] == package]


@each_package
def test_imports_go_down(package: str) -> None:
    for module, other in [(one, other) for one in within(package) for other in used(one)]:
        assert layer(other) <= layer(module), f"{module} imports {other}, which lies above it"
        sibling = other.partition(".")[0]
        if package in FAMILIES and sibling in FAMILIES:
            assert sibling == package or (package, sibling) in SIDEWAYS, (
                f"{module} imports {other}, of another family"
            )


def test_networks_know_data_alone() -> None:
    for module in within("heads"):
        above = {other for other in used(module) if layer(other) > layer(module)}
        assert not above, (
            f"{module} imports {', '.join(above)}; a network takes plain numbers and tensors"
        )


def test_every_layer_has_its_modules() -> None:
    packages = {module.partition(".")[0] for module in MODULES} | set(MODULES)
    assert packages.issuperset(name for names in LAYERS[:FACE] for name in names)


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


@each_package
def test_heavy_packages_have_one_home(package: str) -> None:
    for module in within(package):
        if f"{module}.".startswith(tuple(f"{home}." for home in HEAVY_HOMES)):
            continue
        for lazy, allowed in ((False, set[str]()), (True, LAZY.get(package, set()))):
            found = imports(parsed(MODULES[module]), lazy)
            heavy = {source.partition(".")[0] for source, _ in found} & HEAVY - allowed
            assert not heavy, (
                f"{module} imports {', '.join(heavy)}; that belongs under {', '.join(HEAVY_HOMES)}"
            )


def loaded_by(code: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter that runs this code."""
    probe = (
        f"{code}\nimport sys\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import sapwood",
        "from sapwood import Engine, Recipe, Sampling, Tree",
        "from sapwood import registry; list(registry.everything())",
        "from sapwood.recipes import RECIPES, resolve; [resolve(name) for name in RECIPES]",
        "import sapwood.testing",
    ],
)
def test_the_core_loads_nothing_heavy(code: str) -> None:
    assert not loaded_by(code) & (HEAVY | {"tokenizers", "jinja2"})


def test_the_name_alone_loads_almost_nothing() -> None:
    assert not loaded_by("import sapwood") & {"numpy", "rich", "typer"}
