"""Names, probes, reachability and test folders keep the conventions of the code base.

Sets called PENDING list what still departs from a convention. An entry that is no longer needed
fails its test, so that the set can only shrink; nothing is to be added to them.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sapwood
from sapwood import registry
from tests.helpers.selection import NOT_QUICK, SLOW_TESTS
from tests.helpers.source_tree import MODULES, ROOT, SOURCE, parsed, used

TESTS = ROOT / "tests"
TEST_FILES = sorted(TESTS.rglob("*.py"))


# --------------------------------------------------------------------------------------------- names
def test_no_class_name_is_used_twice() -> None:
    homes = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert not twice, f"one name, several classes: {twice}"


def plain(name: str) -> str:
    """A name without separators and case; a plus sign is spelled p."""
    return re.sub(r"[-_ ]", "", name.replace("+", "p")).lower()


@pytest.mark.parametrize("key", registry.TABLE)
def test_registry_name_file_name_and_class_name_agree(key: str) -> None:
    family, _, name = key.partition(".")
    module, _, class_name = registry.TABLE[key].partition(":")
    assert family in registry.FAMILIES
    assert plain(module.rpartition(".")[2]) == plain(name), f"the file of {key}"
    assert plain(class_name) == plain(name), f"the class of {key}"


def test_few_modules_lie_at_the_top() -> None:
    top = sorted(path.name for path in SOURCE.glob("*.py"))
    assert len(top) <= 12, f"{len(top)} modules beside the packages: {', '.join(top)}"


# -------------------------------------------------------------------------------------------- probes
# `file function attribute` -> the reason; a function may be `*`
ALLOWED_PROBES = {
    "backends/llamacpp/load.py cores sched_getaffinity": "not on every operating system",
    "backends/torch/architectures.py * *": "transformers configurations differ by architecture",
    "backends/torch/cpu_int8/linear.py kernel *": "torch builds differ in their operators",
    "backends/torch/gguf.py write quantization_config": "a transformers configuration",
    "backends/torch/hf/submodel.py * *": "transformers models differ by architecture",
    "backends/torch/hf/support.py * *": "transformers configurations differ by architecture",
    "backends/torch/llama.py * *": "transformers configurations differ by architecture",
    "bench/provenance.py load getloadavg": "not on every operating system",
    "certify/server.py named __self__": "a function may be a bound method",
    "cli/main.py main format_message": "an exception of click",
    "cli/main.py - group": "a module of commands, loaded by name",
    "cli/main.py usage *": "exceptions of click and pydantic",
    "common/numpy_mlp.py as_float32 detach": "a torch tensor, where torch may be missing",
    "heads/early_exit.py check_exits *": "transformers models differ by architecture",
    "heads/early_exit.py early_exit_model layer_types": "a transformers configuration",
    "recipe.py convert __name__": "annotations need not be classes",
    "server/http/middleware.py SecurityMiddleware.__call__ path": "a route of starlette",
    "server/openai/request_builder.py RequestBuilder.build ?": "fields of a request by name",
    "structured_output/compiled.py llguidance_tokenizer to_str": "an object of the tokenizers package",
    "tokenizer/template_sandbox.py * *": "functions that a chat template calls",
    "train/checkpoint.py write errno": "an exception of the operating system",
    "train/draft_model.py DraftModelObjective.config *": "a transformers configuration",
    "train/teacher.py * *": "transformers models differ by architecture",
}
PENDING_PROBES: set[str] = set()


def probes(path: Path) -> Iterator[tuple[str, str]]:
    """(function, attribute) of every hasattr, and of every getattr with a default."""

    def visit(node: ast.AST, inside: str) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{inside}.{node.name}".strip(".")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            least = {"hasattr": 2, "getattr": 3}.get(node.func.id, 99)
            if len(node.args) >= least:
                name = node.args[1]
                yield inside or "-", str(name.value) if isinstance(name, ast.Constant) else "?"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(parsed(path), "")


def all_probes() -> dict[str, tuple[str, str, str]]:
    """Every probe as one line, with its three parts; those of plug-in checks are left out."""
    found: dict[str, tuple[str, str, str]] = {}
    for path in MODULES.values():
        file = path.relative_to(SOURCE).as_posix()
        if not file.startswith("testing/"):
            found |= {
                f"{file} {function} {name}": (file, function, name)
                for function, name in probes(path)
            }
    return found


def patterns(file: str, function: str, name: str) -> set[str]:
    """Lines of the allow-list that cover a probe."""
    return {f"{file} {inside} {what}" for inside in (function, "*") for what in (name, "*")}


def test_own_types_are_not_probed() -> None:
    found = {
        line for line, parts in all_probes().items() if not patterns(*parts) & set(ALLOWED_PROBES)
    }
    new = sorted(found - PENDING_PROBES)
    assert not new, f"declare the attribute in a protocol or base class instead of probing: {new}"
    gone = sorted(PENDING_PROBES - found)
    assert not gone, f"no longer needed in PENDING_PROBES: {gone}"


def test_allowed_probes_exist() -> None:
    covered = {line for parts in all_probes().values() for line in patterns(*parts)}
    assert not sorted(set(ALLOWED_PROBES) - covered), "no longer needed in ALLOWED_PROBES"


# -------------------------------------------------------------------------------------- reachability
NAMED = re.compile(r"sapwood\.([a-z_0-9.]+)")


@cache
def strings(module: str) -> frozenset[str]:
    """Every string constant of a module."""
    nodes = ast.walk(parsed(MODULES[module]))
    return frozenset(
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def named(module: str) -> set[str]:
    """Modules that strings name: whole, or as the end of a name that begins `sapwood.package.`."""
    texts = strings(module)
    found = {name for text in texts for name in NAMED.findall(text)}
    for package in [name.rstrip(".") for name in found if name.endswith(".")]:
        ends = set().union(*(strings(one) for one in (module, *used(module)) if one in MODULES))
        found |= {f"{package}.{end}" for end in ends}
    if "sapwood.peers" in texts:  # run as a process of its own
        found.add("peers.__main__")
    return found & set(MODULES)


def entry_points() -> list[str]:
    """Modules that other programs load by an entry point."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["entry-points"].values()
    return [
        value.partition(":")[0].removeprefix("sapwood.")
        for group in groups
        for value in group.values()
    ]


def reached() -> set[str]:
    """Modules that commands, public names, registry, recipes and entry points lead to."""
    todo = ["__main__", "cli.main", "registry", "recipes", *sapwood.HOMES.values()]
    todo += entry_points()
    todo += [name for name in MODULES if name.partition(".")[0] == "testing"]  # for other packages
    done: set[str] = set()
    while todo:
        module = todo.pop()
        if module in done or module not in MODULES:
            continue
        done.add(module)
        todo += [*used(module), *named(module), module.rpartition(".")[0]]
    return done


def test_every_module_is_reached() -> None:
    unreached = sorted(set(MODULES) - reached())
    assert not unreached, f"nothing leads to these modules: {unreached}"


# ---------------------------------------------------------------------------------------- docstrings
RIDDLE = re.compile(r"(What|Who|Whose|Whom|Whoever|Whatever|How|Why|Nobody|Somebody)\b")


def first_lines() -> Iterator[tuple[str, str]]:
    """(module, first line) of every docstring of the package."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for module, path in MODULES.items():
        for node in ast.walk(parsed(path)):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield module, text.splitlines()[0]


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    riddles = [f"{module}: {line}" for module, line in first_lines() if RIDDLE.match(line)]
    assert not riddles, "first lines that ask instead of tell:\n" + "\n".join(riddles)


# --------------------------------------------------------------------------------------------- tests
# folders of tests that mirror no package
EXTRA_FOLDERS = {"helpers", "docs", "benchmarks", "server/clients"}


def test_no_test_imports_a_test() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {node.module}"
        for path in TEST_FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and re.search(r"(^|\.)test_", node.module or "")
    ]
    assert not wrong, f"shared code belongs to tests/helpers: {wrong}"


def test_folders_of_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TEST_FILES}
    packages = {path.parent.relative_to(SOURCE).as_posix() for path in MODULES.values()}
    strange = sorted(folders - packages - EXTRA_FOLDERS - {"."})
    assert not strange, f"no such package in src/sapwood: {strange}"


def test_helpers_hold_no_tests() -> None:
    wrong = [path.name for path in (TESTS / "helpers").rglob("test_*.py")]
    assert not wrong


def test_what_is_left_out_of_a_quick_run_exists() -> None:
    for name in (*NOT_QUICK, *SLOW_TESTS):
        path, _, function = name.partition("::")
        assert (ROOT / path).exists(), name
        # a function, or a class of hypothesis' state machines
        wanted = f"def {function}" if "::" not in function else function.partition("::")[0]
        assert wanted in (ROOT / path).read_text(), name
