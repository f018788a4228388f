"""The files for those who run a server: what they set exists, and they open nothing by mistake."""

import re
from pathlib import Path

import pytest

from sapwood.cli.serve import chosen
from sapwood.errors import SapwoodError
from sapwood.server.limits import Limits
from sapwood.server.settings import gather

DEPLOY = Path(__file__).parents[2] / "deploy"
KEY = "a-long-enough-key"


def environment() -> dict[str, str]:
    """What the image sets."""
    return dict(
        re.findall(
            r"(SAPWOOD_\w+)=(\S+)",
            re.sub(r"^#.*$", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M),
        )
    )


def test_the_example_is_read_whole() -> None:
    settings, rest = gather({}, {}, str(DEPLOY / "sapwood.toml"))
    assert (settings.host, settings.port, settings.local) == ("127.0.0.1", 8000, True)
    assert (chosen(rest).model, chosen(rest).recipe) == ("smollm2", "auto")
    assert settings.limits == Limits()  # it shows the defaults


def test_the_comments_of_the_example_are_options_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    text = (DEPLOY / "sapwood.toml").read_text()
    loud = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.M).replace("/etc/sapwood/keys", str(keys))
    assert loud != text
    place = tmp_path / "sapwood.toml"
    place.write_text(loud)
    settings, _ = gather({}, {}, str(place))
    assert settings.keys == (KEY,)
    assert settings.hosts == ("llm.example.org",)
    assert settings.origins == ("https://app.example.org",)


def test_the_image_listens_to_all_and_therefore_needs_a_key(tmp_path: Path) -> None:
    assert environment() == {"SAPWOOD_HOST": "0.0.0.0", "SAPWOOD_PORT": "8000"}
    with pytest.raises(SapwoodError, match="no key is set"):
        gather({}, environment())
    settings, _ = gather({}, {**environment(), "SAPWOOD_KEY": KEY})
    assert (settings.host, settings.port, settings.keys) == ("0.0.0.0", 8000, (KEY,))
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    assert gather({}, {**environment(), "SAPWOOD_KEYS": str(keys)})[0].keys == (KEY,)


def test_the_image_runs_as_nobody_special_and_says_how_it_is() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    last = {line.split()[0]: line for line in lines if line and line[0].isupper()}
    assert last["USER"] == "USER sapwood"
    assert "/health" in next(line for line in lines if "CMD" in line and "urllib" in line)
    assert last["STOPSIGNAL"] == "STOPSIGNAL SIGTERM"
    assert last["CMD"] == 'CMD ["serve", "--model", "smollm2"]'
    assert "download.pytorch.org/whl/cpu" in "".join(lines)


def test_what_is_copied_into_the_image_is_there() -> None:
    root = DEPLOY.parent
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.M)
    hidden = (root / ".dockerignore").read_text().split()
    for name in " ".join(copied).split():
        assert (root / name).exists(), name
        assert name not in hidden, name


def test_the_unit_starts_what_there_is() -> None:
    unit = (DEPLOY / "sapwood.service").read_text()
    assert re.search(r"^ExecStart=\S+/sapwood serve --config \S+$", unit, re.M)
    drain = gather({}, {}, str(DEPLOY / "sapwood.toml"))[0].drain_seconds
    [patience] = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert int(patience) > drain
    assert re.search(r"^NoNewPrivileges=yes$", unit, re.M)
