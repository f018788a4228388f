"""The choice of a replica: sessions and prompts find their cache, load stays even."""

import asyncio
import json

import pytest

from sapwood.fleet.replica import Replica
from sapwood.fleet.router import Affinity, Router, affinity_of, prompt_starts


def router(count: int = 3) -> Router:
    """A router over idle replicas."""
    return Router([Replica(number, ready=True) for number in range(count)])


def body(*turns: str, **fields: object) -> bytes:
    """A chat with these turns."""
    return json.dumps(
        {"messages": [{"role": "user", "content": turn} for turn in turns], **fields}
    ).encode()


def test_a_session_stays_on_its_replica() -> None:
    one = router()
    homes: dict[str, int] = {}
    for _ in range(5):
        for name in "abcdefghij":
            chosen = one.choose(affinity_of(body("x"), "", name))
            assert chosen is not None
            assert homes.setdefault(name, chosen.number) == chosen.number
    assert len(set(homes.values())) == 3


def test_a_session_moves_only_when_its_replica_is_gone() -> None:
    one = router()
    names = [f"s{number}" for number in range(60)]
    before = {name: number(one, name) for name in names}
    one.replicas[1].ready = False
    after = {name: number(one, name) for name in names}
    assert all(after[name] == home for name, home in before.items() if home != 1)
    assert {after[name] for name, home in before.items() if home == 1} == {0, 2}


def number(one: Router, session: str) -> int:
    """The number of the replica of a session."""
    chosen = one.choose(Affinity(session))
    assert chosen is not None
    return chosen.number


def test_a_conversation_that_grows_stays() -> None:
    one = router()
    turns = ["A long first turn. " * 30]
    first = one.choose(affinity_of(body(*turns), "", None))
    for turn in range(6):
        one.choose(affinity_of(body(f"Another conversation {turn}. " * 30), "", None))
        turns.append("And further. " * 40)
        assert one.choose(affinity_of(body(*turns), "", None)) is first


def test_prompts_of_different_keys_share_nothing() -> None:
    text = body("A long first turn. " * 30)
    assert affinity_of(text, "one", None) == affinity_of(text, "one", None)
    assert set(affinity_of(text, "one", None).starts).isdisjoint(
        affinity_of(text, "two", None).starts
    )
    assert affinity_of(body("x", prompt_cache_key="k"), "t", None).session == "t k"


def test_starts_double_and_are_those_of_the_longer_text() -> None:
    text = bytes(range(256)) * 9
    starts = prompt_starts(text)
    assert [length for length, _ in starts] == [256, 512, 1024, 2048]
    assert prompt_starts(text[:1500]) == starts[:3]
    assert prompt_starts(text[:255]) == ()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"prompt_cache_key": 5}'])
def test_a_body_that_is_not_ours_has_no_affinity(content: bytes) -> None:
    assert affinity_of(content, "", None) == Affinity()


def test_short_prompts_go_where_least_is_running() -> None:
    one = router()
    for wanted, loads in ((2, (3, 2, 1)), (0, (0, 4, 4)), (1, (5, 0, 1))):
        for replica, load in zip(one.replicas, loads, strict=True):
            replica.running = load
        assert number(one, "") == wanted
    for replica in one.replicas:
        replica.running = 0
    assert {number(one, "") for _ in range(3)} == {0, 1, 2}


def test_affinity_yields_to_load() -> None:
    one = router(2)
    home = number(one, "a session")
    one.replicas[home].running = 3
    one.replicas[1 - home].running = 2
    assert number(one, "a session") == home
    one.replicas[home].running = 9
    assert number(one, "a session") == 1 - home


def test_no_replica_is_chosen_when_none_is_left() -> None:
    one = router(2)
    assert one.choose(Affinity("s"), tried=one.replicas) is None
    one.replicas[0].ready = False
    assert one.choose(Affinity("s"), tried=[one.replicas[1]]) is None


def test_waiting_ends_when_something_changes() -> None:
    async def play() -> tuple[bool, bool]:
        one = router()
        waiting = asyncio.ensure_future(one.wait(5))
        await asyncio.sleep(0)
        one.notify()
        return await waiting, await one.wait(0.01)

    assert asyncio.run(play()) == (True, False)
