"""Many clients at once: rows, turns, the scheduler in this process and a server over HTTP."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.bench import client_runners, clients
from sapwood.bench.client_runners import HttpClients, ScheduledClients, ServerProcess
from sapwood.bench.clients import ClientAnswer, ClientLoad, measure_clients, read_clients
from sapwood.cli.bench_clients import over_http, server_options
from sapwood.cli.main import main
from sapwood.cli.options import ModelChoice
from sapwood.core.sampling import Sampling
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.peers import http
from sapwood.recipes import resolve

PROMPTS = [[0, 1, 2, 0, 1, 2], [3, 3, 1], [4, 2, 4, 2, 4], [1, 1], [2, 0, 2]]


def answer(times: list[float], counts: list[int], text: str = "a") -> ClientAnswer:
    return ClientAnswer(0.0, text, [], sum(counts), times, counts)


class Canned:
    """A runner with answers that are given."""

    def __init__(self, name: str, seconds: float, texts: dict[int, str]) -> None:
        self.name = name
        self.way = "in process"
        self.seconds = seconds
        self.texts = texts
        self.asked: list[tuple[int, int]] = []  # prompts and clients of every run

    def run(self, prompts: Sequence[list[int]], at_once: int) -> ClientLoad:
        self.asked.append((len(prompts), at_once))
        made = [
            answer([1.0, 2.0, 4.0], [2, 1, 3], self.texts.get(prompt[0], "same"))
            for prompt in prompts
        ]
        return ClientLoad(made, self.seconds * len(prompts), 10, 40, 10)


def test_an_answer_has_the_latencies_of_the_field() -> None:
    it = answer([1.0, 2.0, 4.0], [2, 1, 3])
    assert it.first == 1.0
    assert it.per_token == 3.0 / 4  # four tokens after the first part
    assert it.pauses == [1.0, 2.0]
    assert answer([1.0], [6]).per_token is None
    unknown = ClientAnswer(0.0, "a", [], 4, [1.0, 4.0])
    assert unknown.per_token == 1.0  # the first part counts as one token


def test_rows_compare_with_plain_and_count_equal_texts() -> None:
    plain = Canned("plain", 2.0, {})
    fast = Canned("auto", 1.0, {3: "other"})
    ticks: list[int] = []
    rows = measure_clients([plain, fast], PROMPTS, [1, 4], ticks.append)
    assert ticks == [12] * 12
    assert [(row.clients, row.recipe) for row in rows] == [
        (1, "plain"), (1, "auto"), (4, "plain"), (4, "auto"),
    ]  # fmt: skip
    assert rows[1].speedup == pytest.approx(2.0)
    assert (rows[1].speedup_low, rows[1].speedup_high) == pytest.approx((2.0, 2.0))
    assert rows[1].tokens_per_second == pytest.approx(6.0)
    assert rows[1].nodes_per_pass == 4.0
    assert rows[1].waste == 0.75
    assert rows[0].identical == rows[0].answers == 3 * clients.LEAST
    others = sum(
        PROMPTS[number][0] == 3
        for turn in range(3)
        for number in clients.turn_prompts(len(PROMPTS), turn, clients.LEAST)
    )
    assert rows[1].answers - rows[1].identical == others > 0
    assert fast.asked == [(6, 1)] * 3 + [(8, 4)] * 3
    assert plain.asked[0] == (5, 1)  # every prompt alone, for the texts


@pytest.fixture
def toy() -> LLM:
    return LLM(ToyBackend(vocab=5, context=200), "plain")


def test_the_scheduler_gives_every_client_the_text_that_it_gets_alone(toy: LLM) -> None:
    sampling = Sampling(max_tokens=12)
    runners = [
        ScheduledClients(toy, name, toy.bind(resolve(name)), sampling, 4)
        for name in ("plain", "suffix")
    ]
    rows = measure_clients(runners, PROMPTS, [1, 4])
    assert all(row.identical == row.answers for row in rows)
    assert [row.nodes_per_pass for row in rows if row.recipe == "plain"] == [0.0, 0.0]
    assert all(row.tokens_per_second > 0 for row in rows)


def test_no_more_clients_than_wanted_run_at_once(toy: LLM) -> None:
    runner = ScheduledClients(toy, "plain", toy.bind(resolve("plain")), Sampling(max_tokens=6), 8)
    runner.run(PROMPTS, 2)
    assert max(step.trees for step in runner.steps) == 2


def test_http_clients_read_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Any, str]] = []

    def events(url: str, body: Any, key: str) -> Any:
        seen.append((url, body, key))
        yield {"choices": [{"text": "on"}]}
        yield {"choices": [{"text": "e"}]}
        yield {"choices": [], "usage": {"completion_tokens": 3}}

    monkeypatch.setattr(http, "events", events)
    body = client_runners.request_body(Sampling(max_tokens=3, seed=5), ignore_eos=True)
    runner = HttpClients("auto", "http://127.0.0.1:1/v1", iter(["one", "two"]), body)
    load = runner.run([[1, 2], [3]], 1)
    assert [it.text for it in load.answers] == ["one", "one"]
    assert [it.length for it in load.answers] == [3, 3]
    assert all(len(it.times) == 2 for it in load.answers)
    url, sent, key = seen[0]
    assert url.endswith("/v1/completions")
    assert key == "one"
    assert sent["speculation"] == {"recipe": "auto"}
    assert sent["prompt"] == [1, 2]
    assert sent["ignore_eos"] is True
    runner.run([[1]], 1)
    assert seen[-1][2] == "two"  # every run has a key of its own


def test_every_recipe_of_a_server_is_warmed_up_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, list[int], str]] = []

    def events(_: str, body: Any, key: str) -> Any:
        seen.append((body["speculation"]["recipe"], body["prompt"], key))
        return iter([{"choices": [], "usage": {"completion_tokens": 1}}])

    class Server:
        def __init__(self, options: list[str], keys: list[str], most: int) -> None:
            self.url = "http://127.0.0.1:1/v1"
            self.keys.extend(keys)

        keys: ClassVar[list[str]] = []
        close = staticmethod(lambda: None)

    monkeypatch.setattr(http, "events", events)
    monkeypatch.setattr(client_runners, "ServerProcess", Server)
    prompt = SimpleNamespace(tokens=lambda *_: [1, 2])
    plan: Any = SimpleNamespace(prompts=[prompt], sampling=Sampling(max_tokens=1), ignore_eos=True)
    llm: Any = SimpleNamespace(text=object(), target=SimpleNamespace(info=None))
    with ExitStack() as stack:
        runners = over_http(plan, llm, ModelChoice("smollm2"), ["plain", "auto"], [1, 4], stack)
    assert [each[:2] for each in seen] == [("plain", [1, 2]), ("auto", [1, 2])]
    # what is left is for all turns and for plain decoding's texts, a key for each
    left = [list(runner.keys) for runner in runners if isinstance(runner, HttpClients)]
    assert [len(keys) for keys in left] == [2 * clients.TURNS + 1] * 2
    used = [key for _, _, key in seen]
    assert sorted([*left[0], *left[1], *used]) == sorted(Server.keys)


def test_an_error_in_a_stream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "events", lambda *_: iter([{"error": {"message": "no memory"}}]))
    runner = HttpClients("auto", "http://127.0.0.1:1/v1", iter(["one"]), {})
    with pytest.raises(SapwoodError, match="no memory"):
        runner.run([[1]], 1)


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise http.Rejected("the server answered 400: no such recipe")

    monkeypatch.setattr(http, "events", refuse)
    runner = HttpClients("auto", "http://127.0.0.1:1/v1", iter(["one"]), {})
    with pytest.raises(SapwoodError, match=r"recipe 'auto' failed: .* no such recipe"):
        runner.run([[1]], 1)


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(SapwoodError, match=r"did not start: .*nosuchfolder"):
        ServerProcess(["--model", "./nosuchfolder"], ["k" * 24], 2)


def test_the_server_gets_the_same_model_and_recipes() -> None:
    made = server_options(ModelChoice("tiny", threads=2), ["plain", "auto"], 8)
    assert made == [
        "--model", "tiny", "--recipe", "plain", "--threads", "2", "--together", "8",
        "--allow-recipe", "plain", "--allow-recipe", "auto",
    ]  # fmt: skip


# -------------------------------------------------------------------------------------- command
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--clients", "0"], "clients=0 must be a whole number from 1 to 1024"),
        (["--clients", "many"], "clients=many must be"),
        (["--http"], "--http needs --clients"),
        (["--clients", "2", "--batch", "4"], "does not go with --batch"),
        (["--clients", "2", "--temperature", "0,1"], "several values of --temperature"),
    ],
)
def test_wrong_options_get_one_sentence(
    options: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *options]) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


def test_the_command_writes_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ModelChoice, "open", lambda *_: LLM(ToyBackend(vocab=5, context=99), "plain")
    )
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    file = tmp_path / "clients.json"
    options = ["--suite", "random", "--limit", "2", "--max-tokens", "6", "--recipes", "suffix"]
    assert main(["bench", "--clients", "1,2", *options, "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    assert {"machine", "model", "command", "commit", "suite", "clients"} <= set(record)
    assert [(row["clients"], row["recipe"]) for row in record["clients"]] == [
        (1, "plain"), (1, "suffix"), (2, "plain"), (2, "suffix"),
    ]  # fmt: skip
    assert all(row["identical"] == row["answers"] for row in record["clients"])


def test_numbers_of_clients_are_read() -> None:
    assert read_clients("1, 8,8,32") == [1, 8, 32]
