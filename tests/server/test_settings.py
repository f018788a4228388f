"""Settings of the server from the command line, the environment and a file."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_settings_come_from_line_environment_and_file(tmp_path: Path) -> None:
    from sapwood.server.settings import gather

    file = tmp_path / "sapwood.toml"
    file.write_text(
        'port = 1\nhost = "localhost"\ndrain-seconds = 3\nmodel = "m"\n[limits]\nbody = 10\nn = 2\n'
    )
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst-key-1\n\nsecond-key\n")
    environment = {
        "SAPWOOD_PORT": "2",
        "SAPWOOD_ORIGIN": "http://a,http://b",
        "SAPWOOD_THREADS": "2",
        "SAPWOOD_LIMIT_N": "3",
        "SAPWOOD_KEY": "third-key",
        "SAPWOOD_CACHE": "x",
    }
    given = {"port": None, "name": "a", "limits": {"queue": "7"}, "keys": str(keys), "recipe": None}
    settings, rest = gather(given, environment, str(file))
    assert (settings.port, settings.host, settings.name, settings.drain_seconds) == (
        2,
        "localhost",
        "a",
        3.0,
    )
    assert (settings.limits.body, settings.limits.n, settings.limits.queue) == (10, 3, 7)
    assert settings.keys == ("third-key", "first-key-1", "second-key")
    assert settings.origins == ("http://a", "http://b")
    assert rest == {"model": "m", "threads": "2"}


@pytest.mark.parametrize(
    ("options", "words_"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--port", "99999"], "port=99999"),
        (["--limit", "body"], "NAME=VALUE"),
        (["--limit", "boddy=5"], "boddy"),
        (["--limit", "body=-1"], "body=-1"),
        (["--limit", "n=many"], "must be a number"),
        (["--key", "short"], "8 printable"),
        (["--keys", "/nowhere/keys"], "cannot be read"),
        (["--config", "/nowhere/file.toml"], "cannot be read"),
        (["--temperature", "3"], "from 0 to 2"),
        (["--cadence-ms", "-1"], "cadence_ms"),
        (["--allow-recipe", "atuo"], "'atuo' is not the name of a recipe; did you mean auto?"),
    ],
)
def test_wrong_options_are_one_sentence_before_a_model_is_loaded(
    options: list[str], words_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from sapwood.cli.main import main

    assert main(["serve", *options]) == 2
    said_ = capsys.readouterr().err
    assert words_ in said_
    assert said_.count("\n") == 1


def test_a_file_that_is_no_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sapwood.cli.main import main

    file = tmp_path / "sapwood.toml"
    for text, words_ in (
        ("port = ", "not TOML"),
        ("prot = 5", "prot"),
        ("port = 'x'", "port='x' must be a whole number"),
    ):
        file.write_text(text)
        assert main(["serve", "--config", str(file)]) == 2
        assert words_ in capsys.readouterr().err
