"""A method from another package is found by name, keeps the contract, and decodes."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "sapwood_alternate"
BY_NAME = """
from sapwood.backends.toy import ToyBackend
from sapwood.engine.loop import Engine
from sapwood.recipe import parse
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling

recipe = parse("recycling + alternate(wide=2) + match + fixed(nodes=12, depth=6)")
assert str(recipe) == "recycling + alternate(wide=2) + match + fixed(nodes=12, depth=6)"
texts = []
for made in (recipe, parse(str(recipe), controller="fixed(nodes=0)")):
    text = []
    for outcome in Engine(ToyBackend(), made).rounds([0, 1, 2], Sampling(temperature=1.0), KeyedRng(7)):
        text += outcome.tokens
    texts.append(text[:50])
assert texts[0] == texts[1], texts

from sapwood import registry
assert type(recipe.policy).__module__ == "sapwood_alternate"
assert registry.names("policy")[-1] == "alternate"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks as if the example had been installed there."""
    folder = tmp_path_factory.mktemp("installed")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    [module] = project["tool"]["setuptools"]["py-modules"]
    shutil.copy(EXAMPLE / f"{module}.py", folder)
    info = folder / f"{module}-{project['project']['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {module}\nVersion: {project['project']['version']}\n"
    )
    lines = [
        line
        for group, entries in project["project"]["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the example installed."""
    paths = [str(installed), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=120
    )


def test_it_passes_its_own_checks(installed: Path) -> None:
    done = run(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLE))
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_it_is_used_by_name(installed: Path) -> None:
    done = run(installed, "-c", BY_NAME)
    assert done.returncode == 0, done.stderr


def test_the_command_line_lists_it(installed: Path) -> None:
    done = run(installed, "-m", "sapwood", "methods", "--json")
    assert done.returncode == 0, done.stderr
    rows = {
        (row["family"], row["name"]): row
        for row in json.loads(done.stdout.splitlines()[-1])["parts"]
    }
    row = rows["policy", "alternate"]
    assert row["summary"] == "Fork on every other level, follow single children in between."
    assert row["prunes"] == "groups"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("alternate(wide=0)", "wide of alternate must be at least 1, not 0"),
        ("alternate(deep=2)", "alternate has no option 'deep'; it has: wide"),
        ("alternative", "unknown policy 'alternative'; did you mean alternate?"),
    ],
)
def test_its_mistakes_read_like_any_others(installed: Path, option: str, message: str) -> None:
    done = run(installed, "-m", "sapwood", "run", "Hello", "--policy", option)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_without_the_package_it_is_unknown() -> None:
    probe = "from sapwood import registry; print('alternate' in registry.names('policy'))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_guide_shows_these_very_files() -> None:
    guide = (EXAMPLE.parents[1] / "docs" / "adding-a-method.md").read_text()
    for file in (*EXAMPLE.glob("*.py"), EXAMPLE / "pyproject.toml"):
        assert file.read_text() in guide, f"{file.name} differs; run python -m tools.tables"
