"""The load test: it sees what is wrong, and a small one finds nothing wrong with the server."""

import asyncio
import json
from typing import Any

import pytest
from benchmarks.load_clients import Seen, Wish, events, questions, wishes

from benchmarks import load

QUESTION = questions(1, 0)[0]
RIGHT = {Wish("whole", QUESTION).key: "abcdef"}


def judged(*seen: Seen) -> load.Report:
    """What the load test says of these."""
    report = load.Report(len(seen), 1)
    load.judge(list(seen), RIGHT, report)
    return report


def test_what_is_right_is_no_fault() -> None:
    report = judged(
        Seen(Wish("whole", QUESTION), 200, "abcdef", complete=True, first=0.5, seconds=1.0),
        Seen(Wish("whole", QUESTION), 200, "abcdef", complete=True, first=0.5, seconds=1.0),
        Seen(Wish("leaving", QUESTION, 2), 200, "abc"),
        Seen(Wish("leaving", QUESTION, 0)),
        Seen(Wish("nonsense", body=b"{"), 400),
    )
    assert report.faults == []
    assert (report.whole, report.left, report.nonsense) == (2, 2, 1)
    assert report.statuses == {"200": 3, "400": 1}
    assert report.first_ms["50 %"] == 500.0


@pytest.mark.parametrize(
    "seen",
    [
        Seen(Wish("whole", QUESTION), 200, "abcdeX", complete=True),
        Seen(Wish("whole", QUESTION), 200, "abcdef"),
        Seen(Wish("whole", QUESTION), 500),
        Seen(Wish("whole", QUESTION), 200, "abc", trouble="stuck"),
        Seen(Wish("leaving", QUESTION, 3), 200, "abX"),
        Seen(Wish("nonsense", body=b"{"), 200),
        Seen(Wish("nonsense", body=b"{"), 500),
    ],
    ids=["another text", "cut", "5xx", "stuck", "another beginning", "taken", "nonsense 5xx"],
)
def test_what_is_wrong_is_a_fault(seen: Seen) -> None:
    assert len(judged(seen).faults) == 1


def test_growing_memory_is_a_fault() -> None:
    steady = load.Report(1, 1)
    leaking = load.Report(1, 1)
    load.flat([100.0, 150.0] + [200.0, 201.0] * 20, steady)
    load.flat([100.0 + place for place in range(40)], leaking)
    assert steady.faults == []
    assert "memory grew" in leaking.faults[0]


def test_the_mixture_is_as_promised() -> None:
    asked = questions(20, 3)
    wanted = wishes(asked, 200, 4)
    assert [
        sum(wish.kind == kind for wish in wanted) for kind in ("nonsense", "leaving", "whole")
    ] == [20, 40, 140]
    assert wanted == wishes(asked, 200, 4)
    stays = {wish.stay for wish in wanted if wish.kind == "leaving"}
    assert 0 in stays
    assert len(stays) > 5
    assert sum(question["temperature"] == 0 for question in asked) == 15


def test_events_are_read_across_chunks() -> None:
    async def read() -> list[Any]:
        reader = asyncio.StreamReader()
        for piece in (b'data: {"a"', b": 1}\n", b"\ndata: [DONE]\n\n"):
            reader.feed_data(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        reader.feed_data(b"0\r\n\r\n")
        return [record async for record in events(reader)]

    assert asyncio.run(read()) == [{"a": 1}, None]


@pytest.mark.slow
def test_a_small_load(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "report.json"
    report = load.main(["--requests", "40", "--clients", "8", "--json", str(kept)])
    assert report.faults == []
    assert "all as it should be" in capsys.readouterr().out
    assert report.blocks_in_use == 0
    assert report.whole == 28
    assert report.drained > 0
    assert 0 < report.restart_s < 60
    assert set(report.statuses) <= {"200", "400", "404", "415"}
    assert json.loads(kept.read_text())["whole"] == 28
