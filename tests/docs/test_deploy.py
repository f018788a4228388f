"""Files of deploy/: they name paths, extras and settings that exist, and pinned versions."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sapwood.server.settings import read_environment

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile*"))
each_file = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


def test_there_is_one_for_cpus_and_one_for_gpus() -> None:
    assert [path.name for path in DOCKERFILES] == ["Dockerfile", "Dockerfile.cuda"]


@each_file
def test_copied_paths_exist_and_are_sent(path: Path) -> None:
    ignored = set((ROOT / ".dockerignore").read_text().split())
    copies = [words.split() for name, words in instructions(path) if name == "COPY"]
    sources = [word for words in copies if not words[0].startswith("--") for word in words[:-1]]
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(sources)
    assert all((ROOT / source).exists() and source not in ignored for source in sources)


@each_file
def test_packages_are_pinned_and_extras_exist(path: Path) -> None:
    commands = [
        part.strip()
        for name, words in instructions(path)
        if name == "RUN"
        for part in words.split("&&")
        if part.strip().startswith("pip install")
    ]
    assert len(commands) == 3
    for command in commands:
        assert "--constraint constraints.txt" in command or "==" in command
    extras = [one for command in commands for one in re.findall(r"\.\[([\w,-]+)\]", command)]
    assert extras == ["serve"]
    assert set(extras) <= set(EXTRAS)
    assert ("download.pytorch.org/whl/cpu" in commands[0]) is (path.name == "Dockerfile")


@each_file
def test_the_image_is_run_by_a_user_and_looked_after(path: Path) -> None:
    made = instructions(path)
    names = [name for name, _ in made]
    assert ("USER", "sapwood") in made
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert {"HEALTHCHECK", "EXPOSE", "VOLUME", "STOPSIGNAL"} <= set(names)
    assert all(":" in words.split()[0] for name, words in made if name == "FROM")  # a version
    settings = dict(re.findall(r"(SAPWOOD_\w+)=(\S+)", path.read_text().partition("\nENV PATH")[2]))
    assert read_environment({k: v for k, v in settings.items() if v != "..."})["port"] == "8000"


def test_the_compose_file_builds_both_images() -> None:
    yaml: Any = pytest.importorskip("yaml")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = found["services"]
    built = [service["build"]["dockerfile"] for service in services.values()]
    assert built == ["deploy/Dockerfile", "deploy/Dockerfile.cuda"]
    assert all((ROOT / name).is_file() for name in built)
    for service in services.values():
        assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
        assert service["ports"] == ["127.0.0.1:8000:8000"]
        assert set(read_environment(service["environment"])) == {"key", "model", "limits"}
        assert [volume.partition(":")[0] for volume in service["volumes"]] == list(found["volumes"])
    assert services["sapwood-gpu"]["deploy"]["resources"]["reservations"]["devices"]


def test_the_unit_lets_a_gpu_through_and_writes_to_its_cache_alone() -> None:
    lines = (DEPLOY / "sapwood.service").read_text().splitlines()
    pairs = [line.partition("=")[::2] for line in lines if "=" in line and line[0] not in "#["]
    allowed = {value.split()[0] for key, value in pairs if key == "DeviceAllow"}
    assert {"char-nvidia", "char-nvidiactl", "char-nvidia-uvm"} <= allowed
    assert ("PrivateDevices", "yes") not in pairs
    assert ("DevicePolicy", "closed") in pairs
    folder = "/var/cache/" + dict(pairs)["CacheDirectory"]
    kept = [value.partition("=")[2] for key, value in pairs if key == "Environment"]
    assert len(kept) == 4
    assert all(value.startswith(folder) for value in kept)
