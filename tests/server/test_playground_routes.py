"""What the playground is made of: its files, what it is told, and who may ask."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sapwood import LLM
from sapwood.server.playground import routes
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import NormalizedScript, Served, served

TEXT = (
    "A tree grows a ring a year. A tree grows a ring a year. A tree grows <b>tall</b> & old \u2713."
)
RECIPE = "merge + best + match + fixed(nodes=16, depth=8, width=4)"  # trees that ask no clock
HI = [{"role": "user", "content": "Hi"}]
KEY = "a-long-enough-key"

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def toy(own_cache: None) -> Iterator[Served]:
    llm = LLM(
        NormalizedScript(vocab=byte_tokenizer.SIZE, context=512, script=TEXT),
        RECIPE,
        text=byte_tokenizer.text(),
    )
    with served(llm, recipe="ours", recipes=("plain", "suffix")) as one:
        yield one


def test_the_page_is_fenced_in(toy: Served) -> None:
    page = toy.get("/")
    assert page.status == 200
    rules = dict(
        rule.strip().split(" ", 1) for rule in page.headers["content-security-policy"].split(";")
    )
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {
        "'self'"
    }
    assert rules["frame-ancestors"] == "'none'"
    assert page.headers["x-content-type-options"] == "nosniff"


def test_every_file_that_the_page_names_is_served(toy: Served) -> None:
    waiting = {"index.html"}
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        answer = toy.get("/" if name == "index.html" else f"/playground/files/{name}")
        assert answer.status == 200, name
        assert answer.headers["content-type"].startswith(
            routes.MEDIA_TYPES[name.rpartition(".")[2]]
        )
        body = answer.body.decode()
        waiting |= set(re.findall(r'(?:/playground/files/|from "\./)([\w.]+)', body)) - seen
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", body), (
            f"{name} names another place"
        )
        assert "innerHTML" not in body
    assert seen == set(routes.page_files())


@pytest.mark.parametrize(
    "name", ["nothing.js", "..%2fextras.py", "../extras.py", "__init__.py", ""]
)
def test_nothing_else_is_served(toy: Served, name: str) -> None:
    assert toy.get(f"/playground/files/{name}").status == 404


def test_files_are_open_and_data_is_not() -> None:
    with served(keys=(KEY,)) as one:
        assert one.get("/").status == 200
        assert one.get("/playground/files/app.js").status == 200
        assert one.get("/playground/state").status == 401
        assert one.post("/playground/chat", {"model": "toy", "messages": HI}).status == 401
        assert one.get("/playground/state", ("authorization", f"Bearer {KEY}")).status == 200


def test_the_state_tells_of_machine_and_recipe(toy: Served) -> None:
    state = toy.get("/playground/state").json
    llm = toy.api.engine_thread.llm
    assert (state["name"], state["backend"], state["measured"]) == (
        "toy",
        "toy",
        llm.profile.measured,
    )
    assert [drafter["name"] for drafter in state["drafters"]] == ["suffix", "recycling"]
    assert all(drafter["about"].endswith(".") for drafter in state["drafters"])
    assert state["budget"] == {"nodes": 16, "depth": 8, "width": 4}
    assert state["curve"]["rows"] == llm.profile.curve.rows
    assert {entry["name"]: entry["guarantee"] for entry in state["recipes"]} == {
        "plain": "text",
        "suffix": "text",
    }


def events(body: bytes) -> list[tuple[str, Any]]:
    """Names and records of a stream."""
    blocks = [block.split("\n") for block in body.decode().split("\n\n") if block]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def show(one: Served, **fields: Any) -> list[tuple[str, Any]]:
    given = {"model": "toy", "messages": HI, "max_tokens": 120, "temperature": 0, "stream": True}
    answer = one.post("/playground/chat", {**given, **fields})
    assert answer.status == 200, answer.body
    return events(answer.body)


def test_rounds_are_told_whole(toy: Served) -> None:
    wanted = toy.api.engine_thread.llm.chat(HI, max_tokens=120)
    (first, begin), *rounds, (last, end) = show(toy)
    assert (first, last) == ("begin", "end")
    assert begin["budget"]["nodes"] == 16
    assert {name for name, _ in rounds} == {"round"}
    assert [record["round"] for _, record in rounds] == list(range(len(rounds)))
    pieces = [piece for _, record in rounds for piece in record["pieces"]]
    assert "".join(piece["text"] for piece in pieces) == wanted.text == TEXT
    assert (end["finish"], end["stats"]["tokens"]) == ("stop", len(pieces))
    assert end["stats"]["accepted"] == sum(piece["sources"] > 0 for piece in pieces) > 0
    for _, record in rounds:
        check_round(record)


def check_round(record: dict[str, Any]) -> None:
    """A tree whose path spells what was added, with a drafter for each guess."""
    tree = record["tree"]
    path = record["path"]
    size = len(tree["tokens"])
    assert {len(column) for column in tree.values()} == {size}
    assert tree["parents"][0] == -1
    assert all(0 <= parent < node for node, parent in enumerate(tree["parents"][1:], 1))
    assert [tree["parents"][node] for node in path] == [-1, *path[:-1]]
    assert tree["sources"][0] == 0
    assert all(0 < sources < 4 for sources in tree["sources"][1:])
    assert all(0 <= chance <= 1 for chance in (*tree["probs"], *tree["reach"]))
    sources = [tree["sources"][node] for node in path[1:]] + [0]
    assert [piece["sources"] for piece in record["pieces"]] == sources[: len(record["pieces"])]
    assert record["grown"] >= size - 1
    assert record["plain"] > 0
    assert min(record["seconds"].values()) >= 0


def test_another_recipe_names_its_own_drafters(toy: Served) -> None:
    told = show(toy, speculation={"recipe": "suffix"})
    assert [drafter["name"] for drafter in told[0][1]["drafters"]] == ["suffix"]
    plain = show(toy, speculation={"recipe": "plain"})
    assert all(len(record["tree"]["tokens"]) == 1 for name, record in plain if name == "round")


def test_what_the_api_refuses_the_page_is_refused_too(toy: Served) -> None:
    asked = {"model": "toy", "messages": HI, "stream": True}
    wrongs: list[dict[str, Any]] = [{"temperature": 9}, {"n": 2}, {"messages": []}, {"spin": 1}]
    for wrong in [*wrongs, {"speculation": {"recipe": "pld"}}]:
        answer = toy.post("/playground/chat", {**asked, **wrong})
        assert answer.status == 400, wrong
        assert answer.error["message"]
