"""Prometheus metrics of a front: those of its replicas with a label each, and its own."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sapwood.fleet.replica import Replica, ReplicaLost

if TYPE_CHECKING:
    from sapwood.fleet.relay import FrontState

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = 5.0  # that a replica has to answer


async def render(state: "FrontState") -> str:
    """The metrics of all replicas that answer, and of the front."""
    fleet = state.fleet

    async def page(replica: Replica) -> str:
        try:
            _, body = await replica.fetch("/metrics", fleet.headers, SECONDS)
        except ReplicaLost:
            return ""
        return body.decode()

    pages = await asyncio.gather(*(page(replica) for replica in fleet.replicas))
    return own_metrics(state) + joined(
        (replica.number, text) for replica, text in zip(fleet.replicas, pages, strict=True)
    )


def own_metrics(state: "FrontState") -> str:
    """The metrics of the front."""
    fleet = state.fleet
    running = [(f'{{replica="{one.number}"}}', one.running) for one in fleet.replicas]
    ready = [(f'{{replica="{one.number}"}}', int(one.ready)) for one in fleet.replicas]
    return "".join(
        (
            family("front_requests", "gauge", "requests under way", running),
            family("replica_ready", "gauge", "1 when a replica accepts requests", ready),
            family(
                "replica_restarts_total",
                "counter",
                "replicas that ended and were started again",
                [("", fleet.restarts)],
            ),
            family(
                "front_resumed_total",
                "counter",
                "responses that another replica went on with",
                [("", state.resumed)],
            ),
            family(
                "front_repeated_total",
                "counter",
                "requests sent to another replica before their first token",
                [("", state.repeated)],
            ),
        )
    )


def family(name: str, kind: str, about: str, samples: Iterable[tuple[str, int]]) -> str:
    """One metric with its samples, by labels."""
    full = f"sapwood_{name}"
    lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    return "\n".join([*lines, *(f"{full}{labels} {value}" for labels, value in samples), ""])


def joined(pages: Iterable[tuple[int, str]]) -> str:
    """Pages of several replicas as one: each family once, its samples with the replica's number."""
    families: dict[str, list[str]] = {}
    heads: dict[str, list[str]] = {}
    for number, page in pages:
        name = ""
        for line in page.splitlines():
            if line.startswith("# "):
                name = line.split(" ", 3)[2]
                if line not in heads.setdefault(name, []):
                    heads[name].append(line)
            elif line:
                families.setdefault(name, []).append(labelled(line, number))
    return "".join("\n".join([*heads[name], *families.get(name, ()), ""]) for name in heads)


def labelled(sample: str, number: int) -> str:
    """A sample with the label of its replica."""
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{replica="{number}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{number}"}} {value}'
