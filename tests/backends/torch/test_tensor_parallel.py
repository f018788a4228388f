"""Two processes that share a model keep the contract of the waist and give one process's text."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sapwood.backends.torch.tensor_parallel import (
    LeadBackend,
    LeadSession,
    RankFailure,
    check_divides,
    load_parallel,
)
from sapwood.cli.main import main
from sapwood.core.protocols import PrefillChunk, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.model_loader import load
from sapwood.recipe import parse
from sapwood.testing import check_backend
from sapwood.testing.prefill_contract import feed
from sapwood.testing.texts import text
from tests.helpers import tiny_models
from tests.helpers.byte_model import save_byte_model
from tests.helpers.remote_servers import plain_tokens, rounds_of, tokens_of

# two processes load transformers, for some ten seconds; one group of processes at a time
pytestmark = pytest.mark.slow

TREES = "suffix + best(estimator=raw) + match + fixed(nodes=8, depth=4, width=2)"
PROMPTS = int(os.environ.get("SAPWOOD_TENSOR_PARALLEL_PROMPTS", "6"))  # 24 in a longer run


def silent(message: str) -> None:
    """Drop a message."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tensor-parallel")


@contextmanager
def shared(folder: Path, name: str, ranks: int = 2) -> Iterator[LeadBackend]:
    """A tiny model on two ranks."""
    place = folder / name
    if not place.exists():
        tiny_models.make(name).save_pretrained(place)
    options = {"device": "cpu", "dtype": "float32", "threads": 1}
    lead, _ = load_parallel(str(place), ranks, **options, progress=silent)  # type: ignore[arg-type]
    try:
        yield lead
    finally:
        lead.close()


@pytest.mark.parametrize(
    ("name", "end"), [("llama", "before a pass"), ("qwen3", "during passes"), ("mixtral", "")]
)
def test_two_ranks_keep_the_contract_and_give_one_process_s_text(
    folder: Path, name: str, end: str
) -> None:
    alone = tiny_models.backend(name)
    noise = np.random.default_rng(7)
    with shared(folder, name) as lead:
        heads = [shape.heads for shape in lead.inner.network.layout.shapes]
        assert heads == [shape.heads // 2 for shape in alone.network.layout.shapes]
        assert lead.info.provides == frozenset()
        check_backend(lead)
        engine = Engine(lead, parse(TREES))
        for number in range(PROMPTS):
            prompt = text(alone, noise, 6) * 3
            sampling = Sampling(temperature=float(number % 2), seed=number, max_tokens=16)
            found = tokens_of(rounds_of(engine, sampling, prompt))
            assert found == plain_tokens(alone, sampling, prompt), f"prompt {number}"
        memory_is_shared(lead)
        if end:  # of a follower; here, since two processes take seconds to start
            a_follower_that_dies_ends_the_request_with_a_sentence(lead, end)


def memory_is_shared(lead: LeadBackend) -> None:
    """A limit, a prefix cache and refused passes are the same on both ranks."""
    noise = np.random.default_rng(3)
    lead.memory.limit(96)
    prompt = text(lead, noise, 40)
    for _ in range(3):
        session = lead.start(prompt)
        feed(lead, session, prompt, noise)
        with pytest.raises(SapwoodError):
            lead.score((), [PrefillChunk(session, prompt * 2)])
        lead.score([TreeInput(session, Tree(1))])
        session.commit([0])
        session.close()
    assert lead.memory.used == 0
    assert lead.start(prompt).length == 32
    dropped = lead.open(text(lead, noise, 20))
    del dropped
    assert lead.open(text(lead, noise, 20)).length == 20


def a_follower_that_dies_ends_the_request_with_a_sentence(lead: LeadBackend, moment: str) -> None:
    """A killed follower, at rest or at work, breaks a pass at once, and every later one."""
    kill = partial(os.kill, lead.followers.processes[0].pid, signal.SIGKILL)
    session = lead.open([1, 2, 3])
    late = moment == "during passes"
    if not late:
        kill()
    start = time.monotonic()
    with pytest.raises(RankFailure, match=r"rank 1 of 2 ended \(exit code -9\)"):
        many_passes(lead, session, kill if late else None)
    assert time.monotonic() - start < 30  # far from the limit of a collective operation
    with pytest.raises(RankFailure, match="load the model again"):
        lead.open([1])
    session.close()


def many_passes(lead: LeadBackend, session: LeadSession, kill: Callable[[], None] | None) -> None:
    """Passes until one breaks."""
    for number in range(100_000):
        if kill is not None and number == 20:
            threading.Thread(target=kill).start()  # at any moment of this pass or the next
        lead.score([TreeInput(session, Tree(4))])


def test_followers_end_with_rank_0(folder: Path) -> None:
    place = folder / "llama"
    if not place.exists():
        tiny_models.make("llama").save_pretrained(place)
    code = (
        "from sapwood.backends.torch.tensor_parallel import load_parallel\n"
        f"lead, _ = load_parallel({str(place)!r}, 2, device='cpu', dtype='float32', threads=1, "
        "progress=lambda _: None)\n"
        "import os, signal\n"
        "print(lead.followers.processes[0].pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    pid = int(done.stdout.split()[-1])
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    """True while a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("numbers", "ranks", "named"),
    [
        ({"num_attention_heads": 9, "num_key_value_heads": 3}, 2, "num_attention_heads=9"),
        ({"num_attention_heads": 8, "num_key_value_heads": 2}, 4, "num_key_value_heads=2"),
        ({"text_config": {"num_attention_heads": 3}}, 2, "num_attention_heads=3"),
    ],
)
def test_heads_that_do_not_divide_are_refused(
    tmp_path: Path, numbers: dict[str, int], ranks: int, named: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    with pytest.raises(SapwoodError, match=f"{named}, which {ranks} ranks do not divide"):
        check_divides(tmp_path, "m", ranks)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ranks": 0}, "must be at least 1"),
        ({"ranks": 2, "backend": "llamacpp"}, "is for the torch backend"),
        ({"ranks": 2, "dtype": "int8"}, "cannot be shared by ranks"),
    ],
)
def test_other_uses_are_refused(options: dict[str, object], sentence: str) -> None:
    given = {"backend": None, "device": "cpu", "dtype": None, "threads": 1, **options}
    with pytest.raises(SapwoodError, match=sentence):
        load("no-such-model", progress=silent, **given)  # type: ignore[arg-type]


def test_the_command_gives_one_process_s_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_byte_model(tmp_path / "model")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    given = [
        "run",
        "abcabcabc",
        "--model",
        str(tmp_path / "model"),
    ]
    given += ["--raw", "--max-tokens", "12", "--recipe", "pld", "--json", "--dtype", "float32"]
    given += ["--device", "cpu", "--threads", "1", "--tensor-parallel"]
    tokens = []
    for ranks in ("1", "2"):
        assert main([*given, ranks]) == 0
        tokens.append(json.loads(capsys.readouterr().out.splitlines()[-1])["tokens"])
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 12
