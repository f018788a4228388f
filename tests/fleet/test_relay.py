"""The front: streams outlive their replicas, keys and limits hold, errors stay what they are."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sapwood.fleet.relay import RelayedResponse
from sapwood.fleet.replica import ReplicaLost
from sapwood.fleet.router import Affinity
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.resume import FrameKind, Opening, TokenCounts, frame
from tests.helpers.asgi_client import HOST, JSON, Answer, Line
from tests.helpers.toy_fleet import FRONT, ToyFleet, toy_fleet

pytestmark = pytest.mark.usefixtures("own_cache")
USER = [{"role": "user", "content": "Tell me something."}]
KEY = "a-key-of-these-tests"


@pytest.fixture(scope="module")
def fleet(own_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyFleet]:
    """A front with two replicas."""
    with toy_fleet(tmp_path_factory.mktemp("fleet")) as one:
        yield one


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test begins with ready replicas and whole connections."""
    yield
    if "fleet" in request.fixturenames:
        one: ToyFleet = request.getfixturevalue("fleet")
        one.run(heal(one))
        for cutter in one.cutters:
            cutter.cuts.clear()


async def heal(one: ToyFleet) -> None:
    """Let all replicas be ready again."""
    one.fleet.heal()


def text_of(answer: Answer) -> str:
    """The text of a chat stream, all of whose events have one id."""
    events = answer.events
    assert len({(event["id"], event["created"]) for event in events}) == 1
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)


def healing(one: ToyFleet, **fields: Any) -> Answer:
    """A chat while lost replicas become ready again soon."""
    given = {"model": "toy", "messages": USER, "max_tokens": 24, "temperature": 1, **fields}
    return one.run(healed(one, "POST", "/v1/chat/completions", given))


async def healed(one: ToyFleet, method: str, path: str, body: Any = None) -> Answer:
    """The answer to a request while lost replicas become ready again soon."""
    content = b"" if body is None else json.dumps(body).encode()
    asking = asyncio.ensure_future(one.ask(method, path, content))
    while not asking.done():
        await asyncio.wait({asking}, timeout=0.02)
        one.fleet.heal()
    return await asking


@pytest.mark.parametrize("cuts", [[0], [30], [700], [1500], [2500, 900, 700], [0, 0, 900, 0]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_cut_stream_has_the_text_of_a_whole_one(
    fleet: ToyFleet, cuts: list[int], temperature: float
) -> None:
    fields = {"stream": True, "seed": 11, "temperature": temperature, "presence_penalty": 0.7}
    whole = text_of(healing(fleet, **fields))
    before = fleet.front.state.resumed + fleet.front.state.repeated
    drop_connections(fleet)
    for cutter in fleet.cutters:
        cutter.cuts += cuts
    assert text_of(healing(fleet, **fields)) == whole
    assert fleet.front.state.resumed + fleet.front.state.repeated > before


class LostReplica:
    """A connection that breaks after these frames."""

    def __init__(self, *frames: bytes) -> None:
        self.frames = frames

    async def body(self) -> AsyncIterator[bytes]:
        for content in self.frames:
            yield content
        raise ReplicaLost("reset by peer")


@pytest.mark.parametrize("complete", [True, False])
def test_a_replica_lost_after_its_last_frame_is_not_asked_again(complete: bool) -> None:
    entry = AccessLogEntry("POST")
    response = RelayedResponse(cast(Any, None), "/v1/chat/completions", b"", Affinity(), entry)
    opening = Opening("chatcmpl-1", 1, [0], {"content-type": "text/event-stream"})
    frames = [frame(FrameKind.OPEN, opening, b"data: {}\n\n")]
    if complete:
        frames.append(frame(FrameKind.END, TokenCounts(3, 2), b"data: [DONE]\n\n"))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    reading = response.read_frames(cast(Any, LostReplica(*frames)), send)
    if complete:
        asyncio.run(reading)
    else:
        with pytest.raises(ReplicaLost, match="reset by peer"):
            asyncio.run(reading)
    bodies = [message for message in sent if message["type"] == "http.response.body"]
    assert b"".join(message["body"] for message in bodies).endswith(
        b"[DONE]\n\n" if complete else b"data: {}\n\n"
    )
    assert [message["more_body"] for message in bodies][-1] is not complete
    assert (entry.prompt_tokens, entry.completion_tokens) == ((3, 2) if complete else (0, 0))


def drop_connections(one: ToyFleet) -> None:
    """Let the next request make a new connection, which a cutter counts."""

    async def drop() -> None:
        for replica in one.fleet.replicas:
            replica.lost()
        one.fleet.heal()

    one.run(drop())


def test_a_cut_response_that_does_not_stream_is_completed(fleet: ToyFleet) -> None:
    whole = healing(fleet, seed=3, n=2, logprobs=True)
    drop_connections(fleet)
    for cutter in fleet.cutters:
        cutter.cuts += [1500]
    again = healing(fleet, seed=3, n=2, logprobs=True)
    assert again.status == 200
    assert [choice["message"]["content"] for choice in again.json["choices"]] == [
        choice["message"]["content"] for choice in whole.json["choices"]
    ]
    assert again.json["choices"] == whole.json["choices"]
    assert again.json["usage"]["completion_tokens"] == whole.json["usage"]["completion_tokens"]


def test_a_request_that_ends_every_replica_is_given_up(fleet: ToyFleet) -> None:
    drop_connections(fleet)
    for cutter in fleet.cutters:
        cutter.cuts += [0] * 40
    answer = healing(fleet)
    assert answer.status == 503
    assert "again and again" in answer.error["message"]
    assert fleet.front.admission.busy == 0


def test_a_cut_stream_of_ollamas_api_goes_on(fleet: ToyFleet) -> None:
    options = {"seed": 11, "temperature": 1, "num_predict": 24}
    body = {"model": "toy", "messages": USER, "options": options}

    def lines() -> list[dict[str, Any]]:
        answer = fleet.run(healed(fleet, "POST", "/api/chat", body))
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.body.splitlines()]

    def text(found: list[dict[str, Any]]) -> str:
        return "".join(line["message"]["content"] for line in found)

    whole = lines()
    before = fleet.front.state.resumed
    drop_connections(fleet)
    for cutter in fleet.cutters:
        cutter.cuts += [900, 900]
    again = lines()
    assert fleet.front.state.resumed > before
    assert text(again) == text(whole)
    assert again[-1]["eval_count"] == whole[-1]["eval_count"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"]
)
def test_a_stream_that_is_given_up_says_so(fleet: ToyFleet, path: str) -> None:
    drop_connections(fleet)
    for cutter in fleet.cutters:  # after the opening, before the end
        cutter.cuts += [1800 if path == "/v1/responses" else 900, *([0] * 40)]
    body: dict[str, Any] = {"model": "toy", "stream": True, "temperature": 0}
    if path == "/v1/responses":
        body |= {"max_output_tokens": 40, "input": "Hi"}
    elif path == "/api/chat":
        body = {"model": "toy", "options": {"num_predict": 40, "temperature": 0}, "messages": USER}
    else:
        body |= {"max_tokens": 40, "messages": USER}
    answer = fleet.run(healed(fleet, "POST", path, body))
    assert answer.status == 200
    assert b"again and again" in answer.body
    if path == "/api/chat":
        assert "error" in json.loads(answer.body.splitlines()[-1])
        return
    assert b"error" in answer.body.split(b"\n\n")[-3 if path.endswith("completions") else -2]


def test_other_routes_pass_through(fleet: ToyFleet) -> None:
    drop_connections(fleet)
    fleet.cutters[0].cuts += [0]
    fleet.cutters[1].cuts += [10]

    models = fleet.run(healed(fleet, "GET", "/v1/models"))
    assert models.json["data"][0]["id"] == "toy"
    assert fleet.get("/health").json == {"status": "ok"}
    assert fleet.get("/health/live").status == 200
    assert fleet.get("/version").status == 200
    assert fleet.get("/openapi.json").json["openapi"]
    assert b"<html" in fleet.get("/").body
    assert fleet.get("/nothing/here").status == 404
    embedded = fleet.post("/v1/messages/count_tokens", {"model": "toy", "messages": USER})
    assert embedded.json["input_tokens"] > 10
    assert fleet.post("/v1/chat/completions", b"{").status == 400
    assert fleet.chat(temperature=9).status == 400
    assert fleet.chat(model="else").status == 404


def test_headers_of_a_response_come_once(fleet: ToyFleet) -> None:
    for answer in (fleet.chat(), fleet.chat(stream=True), fleet.get("/v1/models")):
        assert len(answer.headers) == len({name.lower() for name in answer.headers})
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "x-sapwood-front" not in answer.headers


def test_a_client_cannot_pose_as_the_front(fleet: ToyFleet) -> None:
    body = json.dumps({"model": "toy", "messages": USER}).encode()
    for secret in (FRONT, "", "guess"):
        posed = fleet.post("/v1/chat/completions", body, ("x-sapwood-front", secret))
        assert posed.status == 403
    ordinary = fleet.post("/v1/chat/completions", body, ("x-sapwood-resume", "5"))
    assert ordinary.status == 200


def test_metrics_name_the_replicas(fleet: ToyFleet) -> None:
    fleet.chat()
    page = fleet.get("/metrics").body.decode()
    assert 'sapwood_replica_ready{replica="1"} 1' in page
    assert 'sapwood_requests_now{replica="0",state="running"}' in page
    assert 'vllm:num_requests_waiting{replica="1"' in page
    families = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    from prometheus_client.parser import text_string_to_metric_families

    names = {family.name for family in text_string_to_metric_families(page)}
    assert {"sapwood_front_resumed", "sapwood_passes"} <= names


def test_requests_wait_for_a_replica_and_leave_with_their_client(fleet: ToyFleet) -> None:
    async def play() -> tuple[Answer, int]:
        for replica in fleet.fleet.replicas:
            replica.ready = False
        body = json.dumps({"model": "toy", "messages": USER, "max_tokens": 4}).encode()
        asking = asyncio.ensure_future(fleet.ask("POST", "/v1/chat/completions", body))
        line = Line()
        line.to_app.put_nowait({"type": "http.request", "body": body, "more_body": False})
        leaving = asyncio.ensure_future(
            fleet.call(line, "POST", "/v1/chat/completions", (HOST, JSON))
        )
        await asyncio.sleep(0.1)
        assert not asking.done()
        line.leave()
        await leaving
        busy = fleet.front.admission.busy
        fleet.fleet.heal()
        return await asking, busy

    answer, busy = fleet.run(play())
    assert (answer.status, busy) == (200, 1)
    assert fleet.front.admission.busy == 0


def test_keys_and_limits_hold_before_the_replicas(tmp_path: Path) -> None:
    with toy_fleet(tmp_path, keys=(KEY,), limits={"per_key": 2, "body": 2000}) as one:
        allowed = ("authorization", f"Bearer {KEY}")
        body = {"model": "toy", "messages": USER, "max_tokens": 200}
        assert one.chat().status == 401
        assert one.get("/v1/models").status == 401
        assert one.get("/health").status == 200
        assert one.post("/v1/chat/completions", body, allowed).status == 200
        large = {**body, "messages": [{"role": "user", "content": "x" * 3000}]}
        assert one.post("/v1/chat/completions", large, allowed).status == 413

        async def many() -> list[int]:
            content = json.dumps(body).encode()
            asked = [
                one.ask("POST", "/v1/chat/completions", content, (HOST, JSON, allowed))
                for _ in range(5)
            ]
            return sorted(answer.status for answer in await asyncio.gather(*asked))

        assert one.run(many()) == [200, 200, 429, 429, 429]


def test_a_full_replica_is_passed_over_and_all_full_ones_refuse(fleet: ToyFleet) -> None:
    threads = [api.engine_thread for api in fleet.apis]
    threads[0]._waiting = 0
    try:
        assert [fleet.chat().status for _ in range(4)] == [200] * 4
        threads[1]._waiting = 0
        refused = fleet.chat()
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    finally:
        for thread in threads:
            thread._waiting = 256


def test_draining_refuses_and_aborting_ends_streams(tmp_path: Path) -> None:
    with toy_fleet(tmp_path) as one:

        async def play() -> tuple[Answer, int]:
            for replica in one.fleet.replicas:
                replica.ready = False
            body = json.dumps({"model": "toy", "messages": USER}).encode()
            waiting = asyncio.ensure_future(one.ask("POST", "/v1/chat/completions", body))
            await asyncio.sleep(0.05)
            one.front.admission.draining = True
            late = await one.ask("POST", "/v1/chat/completions", body)
            one.front.admission.abort()
            return await waiting, late.status

        waited, late = one.run(play())
        assert (waited.status, late) == (503, 503)
        assert one.get("/health").status == 503
