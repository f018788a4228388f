"""Commands of remote drafting refuse what they cannot do, in one sentence."""

import pytest

from sapwood.cli.main import main


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["draft-serve", "--host", "0.0.0.0", "--port", "0"], "--host 0.0.0.0 is open to other"),
        (["draft-serve", "--drafter", "recycling"], "recycling reads the target's scores"),
        (["draft-serve", "--drafter", "no-such"], "unknown part 'no-such'"),
        (["draft-serve", "--drafter", "suffix", "--model", "m"], "leave out --drafter or --model"),
        (["target-serve", "--memory", "0"], "--memory 0 must be at least 1"),
        (["run", "Hi", "--model", "tcp://127.0.0.1:9"], "no server answers at tcp://127.0.0.1:9"),
        (["run", "Hi", "--model", "tcp://here/x"], "must be tcp://HOST:PORT"),
        (["run", "Hi", "--model", "tcp://a", "--backend", "torch"], "leave out backend 'torch'"),
        (["run", "Hi", "--model", "tcp://a", "--tensor-parallel", "2"], "is for the torch backend"),
    ],
)
def test_wrong_use_is_one_sentence(
    given: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SAPWOOD_KEY", raising=False)
    assert main(given) == 2
    [line] = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("sapwood: ")
    ][-1:]
    assert sentence in line


def test_a_port_that_is_taken_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["draft-serve", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
