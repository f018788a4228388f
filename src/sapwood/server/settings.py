"""Settings of a server: command line over environment over file over defaults."""

import dataclasses
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sapwood.errors import SapwoodError
from sapwood.server.limits import Limits

PREFIX = "SAPWOOD_"
LIMIT = "LIMIT_"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
FALSE = ("0", "false", "no", "off", "")
TRUE = ("1", "true", "yes", "on")
# values of a setting, by the type of its default
KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a list",
}
SHORTEST_KEY = 8  # characters
MOST_REPLICAS = 64
# options that may be repeated, and their fields
ALIASES = {
    "allow_host": "hosts",
    "allow_recipe": "recipes",
    "origin": "origins",
}
MODEL_OPTIONS = (
    "model",
    "recipe",
    "drafter",
    "policy",
    "estimator",
    "verifier",
    "controller",
    "backend",
    "device",
    "dtype",
)


@dataclass(frozen=True)
class ServerSettings:
    """Address, keys, allowed recipes and scheduling of a server."""

    host: str = "127.0.0.1"
    port: int = 8000
    name: str = ""  # of the model in the API; empty: from where it was loaded
    keys: tuple[str, ...] = ()  # API keys; none: requests need no key
    insecure: bool = False  # listen beyond this machine without a key
    hosts: tuple[str, ...] = ()  # further names in Host headers
    origins: tuple[str, ...] = ()  # pages elsewhere that may call, for browsers
    # that a request may name; empty: those that need no training or whose
    # heads were trained for the model; `all`: every named one
    recipes: tuple[str, ...] = ()
    traces: bool = False  # send spans of requests to an OpenTelemetry collector
    temperature: float = 1.0  # of requests that name none, as the API has it
    cadence_ms: float = 0.0  # between events of a stream; 0: events are sent as tokens come
    drain_seconds: float = 30.0
    slo_ms: float = 0.0  # that a pass should not exceed; 0: no limit
    together: int = 0  # requests that may share a pass; 0: the engine's default
    models_memory: float = 0.0  # GiB of models in memory, where there are several; 0: no limit
    memory: int = 0  # tokens of KV cache; 0: the engine's default
    replicas: int = 1  # servers on this machine behind one front
    front: str = ""  # secret that this server shares with its front
    socket: str = ""  # path of a Unix socket to listen on instead of host and port
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise SapwoodError(f"port={self.port} must be from 0 to 65535")
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise SapwoodError(f"replicas={self.replicas} must be from 1 to {MOST_REPLICAS}")
        if not 0 <= self.temperature <= 2:
            raise SapwoodError(f"temperature={self.temperature} must be from 0 to 2")
        for name in (
            "cadence_ms",
            "drain_seconds",
            "slo_ms",
            "together",
            "memory",
            "models_memory",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise SapwoodError(f"{name}={getattr(self, name)} must be a number from 0 up")
        if any(
            len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable()
            for key in self.keys
        ):
            raise SapwoodError(
                f"a key must be at least {SHORTEST_KEY} printable ASCII characters; "
                "make a longer one"
            )
        if not (self.local or self.keys or self.insecure):
            raise SapwoodError(
                f"host {self.host} is reachable from elsewhere and no key is set; "
                "set SAPWOOD_KEY or --keys FILE, or pass --insecure"
            )

    @property
    def local(self) -> bool:
        """True when only this machine can connect."""
        return self.host in LOOPBACK


def gather(
    given: Mapping[str, Any], environment: Mapping[str, str] = os.environ, file: str | None = None
) -> tuple[ServerSettings, dict[str, Any]]:
    """The server's settings, and the other options given: those of the model; None is unset."""
    sources = [
        renamed(source) for source in (read_file(file), read_environment(environment), given)
    ]
    limits = {
        name: value
        for source in sources
        for name, value in (source.pop("limits", None) or {}).items()
    }
    merged = {name: value for source in sources[:2] for name, value in source.items()}
    merged |= {name: value for name, value in sources[2].items() if value not in (None, [], ())}
    keys = string_list(merged.pop("key", ()))
    if path := merged.pop("keys", None):
        keys += read_keys(Path(path))
    known = {setting.name for setting in dataclasses.fields(ServerSettings)} - {"limits", "keys"}
    own = {name: typed(name, merged.pop(name)) for name in known & set(merged)}
    settings = ServerSettings(
        **own, keys=tuple(dict.fromkeys(keys)), limits=Limits().changed(limits)
    )
    return settings, merged


def renamed(source: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, by field name."""
    return {ALIASES.get(name, name): value for name, value in source.items()}


def read_file(file: str | None) -> dict[str, Any]:
    """A TOML file with the names of the options, and a table of limits."""
    if file is None:
        return {}
    try:
        return {
            name.replace("-", "_"): value
            for name, value in tomllib.loads(Path(file).read_text("utf-8")).items()
        }
    except OSError as error:
        raise SapwoodError(f"{file} cannot be read ({error.strerror}); name a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SapwoodError(f"{file} is not TOML ({error}); correct it") from error


def read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """SAPWOOD_PORT=8000 and so on; SAPWOOD_LIMIT_BODY=1000 is a limit."""
    options = {setting.name for setting in dataclasses.fields(ServerSettings)} | {
        "key",
        "threads",
        *MODEL_OPTIONS,
        *ALIASES,
    }
    found: dict[str, Any] = {"limits": {}}
    for name, value in environment.items():
        short = name.removeprefix(PREFIX)
        if short == name:
            continue
        if short.startswith(LIMIT):
            found["limits"][short.removeprefix(LIMIT).lower()] = value
        elif short.lower() in options - {"limits"}:
            found[short.lower()] = value
    return found


def read_keys(path: Path) -> list[str]:
    """One key per line; empty lines and lines that begin with # are left out."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SapwoodError(
            f"the keys file {path} cannot be read; give a text file with one key per line"
        ) from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise SapwoodError(f"the keys file {path} holds no key; write one per line")
    return keys


def string_list(value: Any) -> list[str]:
    """A list of strings; one string is split at its commas."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return [str(item) for item in value]


def typed(name: str, value: Any) -> Any:
    """A setting from a file or the environment, converted to its type."""
    default: Any = next(
        setting.default for setting in dataclasses.fields(ServerSettings) if setting.name == name
    )
    try:
        if isinstance(default, bool):
            return boolean(value)
        if isinstance(default, tuple):
            return tuple(string_list(value))
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise SapwoodError(f"{name}={value!r} must be {KINDS[type(default)]}") from error


def boolean(value: Any) -> bool:
    """A boolean from a word such as on, off, true or 0."""
    word = str(value).lower()
    if word not in (*TRUE, *FALSE):
        raise ValueError(word)
    return word in TRUE
