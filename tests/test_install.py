"""First contact: a base install, a source tree that is not installed, and what a wheel must hold."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Never

import pytest
from tools.fresh_install import Told

import sapwood
from sapwood.cli.main import VERBS, main
from sapwood.common.extras import EXTRA_OF
from tests.helpers import without_extras

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "sapwood"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
TORCH = "needs the torch extra: pip install 'sapwood[torch]'"

# commands that work without any extra
WORKING = [
    [],
    ["--help"],
    ["--version"],
    *([verb.replace("_", "-"), "--help"] for verb in VERBS),
    ["methods"],
    ["methods", "--json"],
    ["cache"],
    ["list"],
    ["trace"],
    ["certify", "pld", "--toy"],
]
# commands that need one, and the sentence that says so
REFUSED = [
    (["run", "hi"], f"`sapwood run` {TORCH}"),
    (["run", "hi", "--recipe", "eagle3", "--json"], f"`sapwood run` {TORCH}"),
    (["pull", "org/model"], f"`sapwood pull` {TORCH}"),
    (["chat"], f"`sapwood chat` {TORCH}"),
    (["serve"], "`sapwood serve` needs the serve extra: pip install 'sapwood[serve]'"),
    (
        ["serve", "--backend", "llamacpp"],
        "`sapwood serve` needs the serve-llamacpp extra: pip install 'sapwood[serve-llamacpp]'",
    ),
    (["bench", "--limit", "1"], f"`sapwood bench` {TORCH}"),
    (["profile"], f"`sapwood profile` {TORCH}"),
    (["train", "eagle3"], "`sapwood train` needs the train extra: pip install 'sapwood[train]'"),
    (["train", "ltd"], "`sapwood train` needs the train extra: pip install 'sapwood[train]'"),
    (["evaluate", "{empty}"], f"`sapwood evaluate` {TORCH}"),
    (["export", "{empty}", "--out", "{empty}/out"], f"`sapwood export` {TORCH}"),
    (["certify", "pld"], f"`sapwood certify` {TORCH}"),
    (["target-serve"], f"`sapwood target-serve` {TORCH}"),
    (["deploy", "ray"], "`sapwood deploy` needs the ray extra: pip install 'sapwood[ray]'"),
    (["trace", "record", "{empty}/trace.jsonl"], f"`sapwood trace` {TORCH}"),
    (
        ["run", "hi", "--backend", "llamacpp", "--model", "{empty}/model.gguf"],
        "`sapwood run` needs the llamacpp extra: pip install 'sapwood[llamacpp]'",
    ),
]
# statements that work
STATEMENTS = [
    ["python", *(f"from sapwood import {name}" for name in sapwood.__all__)],
    [
        "python",
        "from sapwood import LLM",
        "from sapwood.backends.toy import ToyBackend",
        "llm = LLM(ToyBackend(), 'pld')",
        "assert len(llm.generate([1, 2, 0], max_tokens=4).tokens) == 4",
    ],
]
# statements that raise an ImportError with one sentence
RAISING = [
    (["python", "from sapwood import LLM", "LLM('smollm2')"], f"the torch backend {TORCH}"),
    (
        [
            "python",
            "from pathlib import Path",
            "from sapwood import Tokenizer",
            "Tokenizer.load(Path())",
        ],
        f"a tokenizer file {TORCH}",
    ),
]


@pytest.fixture(scope="module")
def base_install(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What every command answers where only the base dependencies are installed; one process runs all."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "model.gguf").write_bytes(b"GGUF")
    asked = [*WORKING, *STATEMENTS, *(case for case, _ in (*REFUSED, *RAISING))]
    lines = [[word.replace("{empty}", str(folder)) for word in case] for case in asked]
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.without_extras"],
        input=json.dumps(lines),
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SAPWOOD_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(map(str, asked), json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", [*WORKING, *STATEMENTS], ids=lambda case: " ".join(case)[-40:])
def test_what_needs_no_extra_works(
    case: list[str], base_install: dict[str, dict[str, Any]]
) -> None:
    found = base_install[str(case)]
    assert (found["code"], found["err"]) == (0, "")


@pytest.mark.parametrize(("case", "sentence"), REFUSED, ids=lambda case: " ".join(case)[:40])
def test_a_command_names_the_extra_it_needs(
    case: list[str], sentence: str, base_install: dict[str, dict[str, Any]]
) -> None:
    found = base_install[str(case)]
    assert (found["code"], found["out"]) == (2, "")
    assert found["err"].splitlines()[-1] == f"sapwood: {sentence}"
    assert "Traceback" not in found["err"]


def test_fresh_environments_are_asked_for_the_same_sentences(
    base_install: dict[str, dict[str, Any]],
) -> None:
    for case, extra in (
        (["run", "hi"], "torch"),
        (["serve"], "serve"),
        (["train", "eagle3"], "train"),
    ):
        said = Told(**base_install[str(case)])
        assert said.sentence(f"'sapwood[{extra}]'"), said
        assert not said.sentence("'sapwood[all]'")
        assert not Told(1, said.out, said.err).sentence(extra)
        assert not Told(2, said.out, f"Traceback: {said.err}").sentence(extra)
        assert not Told(2, said.out, f"one more line\n{said.err}").sentence(extra)


def test_every_command_is_tried() -> None:
    working = {"methods", "cache", "list", "draft-serve"}  # the last one serves until a signal
    names = {verb.replace("_", "-") for verb in VERBS}
    assert names - {"replay"} == {case[0] for case, _ in REFUSED} | working


@pytest.mark.parametrize(("case", "sentence"), RAISING, ids=lambda case: case[-1][:40])
def test_a_name_that_needs_an_extra_says_so(
    case: list[str], sentence: str, base_install: dict[str, dict[str, Any]]
) -> None:
    found = base_install[str(case)]
    assert found["code"] == 1
    assert found["err"].splitlines()[-1] == f"sapwood.common.extras.MissingExtra: {sentence}"


# --------------------------------------------------------------------------------------- version
def test_the_version_is_asked_from_one_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sapwood.server.openai.openapi import document
    from sapwood.server.settings import ServerSettings

    def missing(name: str) -> Never:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", missing)
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "sapwood.__version__"}
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sapwood {sapwood.__version__}\n"
    assert document("toy", 64, (), ServerSettings())["info"]["version"] == sapwood.__version__


# ---------------------------------------------------------------------------------------- extras
def packages(extra: str) -> set[str]:
    """Names of the packages that an extra brings, those of the extras it names included."""
    found = set[str]()
    for requirement in EXTRAS[extra]:
        name, inner = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        found |= set().union(*map(packages, inner.split(","))) if name == "sapwood" else {name}
    return found


INDIRECT = {"huggingface_hub": "transformers", "llvmlite": "numba"}  # brought by another package
WHEELS = {
    "llama_cpp": "llama-cpp-python",
    "opentelemetry": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}


def test_extras_bring_the_packages_they_are_named_for() -> None:
    for package, extra in EXTRA_OF.items():
        assert WHEELS.get(package, INDIRECT.get(package, package)) in packages(extra)


def test_extras_bring_all_that_their_command_needs() -> None:
    assert packages("serve") == packages("torch") | packages("http")
    assert packages("serve-llamacpp") == packages("llamacpp") | packages("http")
    assert "torch" not in packages("serve-llamacpp")
    assert packages("train") > packages("torch")
    assert packages("all") == packages("serve") | packages("train") | packages("llamacpp")


BROUGHT = {"markdown_it"}  # by rich, which cannot do without it
OPTIONAL = {"matplotlib", "triton"}  # left out in silence where they are missing
PEERS = {"openvino", "openvino_genai", "vllm"}  # have a table of their own in sapwood.peers


def roots(path: Path) -> set[str]:
    """Top-level packages that a module imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_every_optional_package_has_its_extra() -> None:
    imported = set().union(*map(roots, SOURCE.rglob("*.py")))
    base = {re.split("[<>=]", line)[0] for line in PROJECT["project"]["dependencies"]}
    others = (
        imported - set(sys.stdlib_module_names) - base - BROUGHT - {"sapwood"} - OPTIONAL - PEERS
    )
    assert others <= set(EXTRA_OF)
    assert set(EXTRA_OF) <= without_extras.HIDDEN


# ------------------------------------------------------------------------------------ package data
def test_every_file_beside_the_code_is_package_data() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["sapwood"]
    listed = {path for pattern in patterns for path in SOURCE.glob(pattern) if path.is_file()}
    kept = {
        path
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert kept == listed
    assert all((path.parent / "__init__.py").is_file() for path in SOURCE.rglob("*.py"))
