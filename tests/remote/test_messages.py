"""Messages survive the wire in any pieces, and bytes of others are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import SapwoodError
from sapwood.remote.messages import (
    FRAME,
    MAGIC,
    MAX_BODY,
    LinkError,
    MessageReader,
    RemoteMessage,
    parse_url,
)

MESSAGE = RemoteMessage(
    "draft",
    {"call": 7, "text": "ä", "none": None},
    {"tokens": np.arange(5), "probs": np.ones((2, 3), np.float32), "empty": np.zeros(0, np.int32)},
)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_messages_come_whole_from_any_pieces(sizes: list[int]) -> None:
    data = MESSAGE.pack() * 2
    reader = MessageReader()
    found: list[RemoteMessage] = []
    while data:
        size = sizes[len(found) % len(sizes)]
        reader.feed(data[:size])
        data = data[size:]
        found += list(reader.messages())
    assert len(found) == 2
    for message in found:
        assert (message.kind, message.fields) == (MESSAGE.kind, MESSAGE.fields)
        for name, array in MESSAGE.arrays.items():
            assert message.arrays[name].dtype == array.dtype
            assert np.array_equal(message.arrays[name], array)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        FRAME.pack(MAGIC, 4, MAX_BODY + 1),
        FRAME.pack(MAGIC, 2, 0) + b"{}",
        FRAME.pack(MAGIC, 9, 0) + b'["a",1,2]',
        FRAME.pack(MAGIC, 33, 0) + b'["a",{},[["tokens","<i8",[9999]]]]'[:33],
        FRAME.pack(MAGIC, 32, 0) + b'["a",{},[["tokens","|O8",[1]]]] ',
        FRAME.pack(MAGIC, 8, 2) + b'["a",{},[]]'[:8] + b"xx",
        FRAME.pack(MAGIC, 31, 0) + b'["a",{},[["tokens","<i8",[-1]]]',
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    reader = MessageReader()
    reader.feed(data)
    with pytest.raises(LinkError):
        reader.next()


def test_a_declared_size_allocates_nothing() -> None:
    reader = MessageReader()
    reader.feed(FRAME.pack(MAGIC, 10, MAX_BODY))
    assert reader.next() is None
    assert len(reader.buffer) == FRAME.size


def test_fields_are_checked_when_they_are_read() -> None:
    message = RemoteMessage(
        "a", {"n": 3, "b": True, "t": "x"}, {"f": np.ones(2), "i": np.ones((1, 2), int)}
    )
    assert message.number("n", 1, 3) == 3
    assert message.text("t") == "x"
    for bad in (
        lambda: message.number("n", 4),
        lambda: message.number("b"),
        lambda: message.number("missing"),
        lambda: message.text("n"),
        lambda: message.integers("f"),
        lambda: message.integers("i"),
    ):
        with pytest.raises(LinkError):
            bad()
    with pytest.raises(LinkError, match="cannot be sent"):
        RemoteMessage("a", {}, {"c": np.ones(1, complex)}).pack()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("tcp://10.0.0.7:81", ("10.0.0.7", 81)),
        ("tcp://gpu2", ("gpu2", 8765)),
        ("tcp://[::1]:9", ("::1", 9)),
        ("tcp://[::1]", ("::1", 8765)),
    ],
)
def test_urls_name_host_and_port(url: str, place: tuple[str, int]) -> None:
    assert parse_url(url) == place


@pytest.mark.parametrize(
    "url", ["http://a:1", "a:1", "tcp://", "tcp://a:b", "tcp://a:0", "tcp://a:1/x"]
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(SapwoodError, match="url"):
        parse_url(url)
