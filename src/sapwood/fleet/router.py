"""Chooses the replica of a request: where its session or the start of its prompt was seen.

A replica that has more than its share of the load is passed over, as in consistent hashing with
bounded loads.
"""

import asyncio
import math
import zlib
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from sapwood.fleet.replica import Replica

BALANCE = 1.25  # share of the mean load that a replica may have and still be chosen by affinity
SHORTEST = 256  # bytes of a prompt that are worth finding again
REMEMBERED = 1 << 16  # beginnings of prompts
SESSION = "x-session-id"  # header
Key = tuple[int, int]  # length and checksum of the start of a prompt


class PromptFields(msgspec.Struct):
    """The fields of a request that its prompt is made of, as they were sent."""

    prompt_cache_key: str | None = None
    tools: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(PromptFields).decode


@dataclass(frozen=True)
class Affinity:
    """The session of a request, and checksums of the starts of its prompt, shortest first."""

    session: str = ""
    starts: tuple[Key, ...] = ()


def affinity_of(content: bytes, tenant: str, session: str | None) -> Affinity:
    """The affinity of a request by its body; one that is not JSON has none."""
    try:
        fields = _decode(content)
    except msgspec.DecodeError:
        return Affinity()
    named = session or fields.prompt_cache_key
    if named:
        return Affinity(f"{tenant} {named}")
    parts = (fields.tools, fields.system, fields.instructions)
    text = b"".join(bytes(part) for part in (*parts, fields.messages, fields.prompt, fields.input))
    return Affinity(starts=prompt_starts(text, zlib.crc32(tenant.encode())))


def prompt_starts(text: bytes, checksum: int = 0) -> tuple[Key, ...]:
    """Checksums of the first 256, 512, 1024 ... bytes; a conversation that grows keeps them."""
    found = []
    begin, end = 0, SHORTEST
    while end <= len(text):
        checksum = zlib.crc32(text[begin:end], checksum)
        found.append((end, checksum))
        begin, end = end, 2 * end
    return tuple(found)


class Router:
    """Replicas, their load, and the beginnings of prompts that each has seen."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self.replicas = replicas
        self._seen: OrderedDict[Key, int] = OrderedDict()
        self._changed = asyncio.Event()
        self._turn = 0

    @property
    def ready(self) -> list[Replica]:
        """Replicas that accept requests."""
        return [replica for replica in self.replicas if replica.ready]

    def choose(self, affinity: Affinity, tried: Collection[Replica] = ()) -> Replica | None:
        """The best ready replica that was not tried yet."""
        ready = [replica for replica in self.ready if replica not in tried]
        if not ready:
            return None
        total = sum(replica.running for replica in ready)
        most = math.ceil(BALANCE * (total + 1) / len(ready))
        open_ones = [replica for replica in ready if replica.running < most]
        chosen = self._by_affinity(affinity, open_ones) or self._least(ready)
        for start in affinity.starts:
            self._seen[start] = chosen.number
            self._seen.move_to_end(start)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return chosen

    def _by_affinity(self, affinity: Affinity, ready: Sequence[Replica]) -> Replica | None:
        if affinity.session:
            return max(ready, key=lambda replica: weight(affinity.session, replica), default=None)
        by_number = {replica.number: replica for replica in ready}
        for start in reversed(affinity.starts):
            found = by_number.get(self._seen.get(start, -1))
            if found is not None:
                return found
        return None

    def _least(self, ready: Sequence[Replica]) -> Replica:
        """The replica with the least load; equals take turns."""
        self._turn += 1
        count = len(self.replicas)
        return min(ready, key=lambda one: (one.running, (one.number + self._turn) % count))

    # ------------------------------------------------------------------------------- waiting
    def notify(self) -> None:
        """Wake the requests that wait for a replica."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait until a replica may have become ready; False when the time is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


def weight(session: str, replica: Replica) -> int:
    """The weight of a replica for a session; the largest wins (rendezvous hashing)."""
    return zlib.crc32(f"{replica.number} {session}".encode()) * 2654435761 % (1 << 32)
