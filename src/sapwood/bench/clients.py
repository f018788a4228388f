"""Many clients at once: each sends its next request as soon as the last one is answered.

At every number of clients the recipes answer the same prompts in turns, in an order that changes
from turn to turn. Seconds are those from the first submission to the last token, prefill included.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from sapwood.bench.measure import rotated
from sapwood.bench.recipe_set import PLAIN

TURNS = 3  # of all recipes at one number of clients
LEAST = 6  # requests of a turn
MOST = 1024  # clients

Item = TypeVar("Item")


@dataclass(slots=True)
class ClientAnswer:
    """The answer to one request, and when its parts arrived."""

    submitted: float  # seconds on the runner's clock, as are the times
    text: str = ""
    tokens: list[int] = field(default_factory=list)  # empty where a server returns text alone
    length: int = 0  # tokens
    times: list[float] = field(default_factory=list)  # of its parts
    counts: list[int] = field(default_factory=list)  # tokens of each part; empty if unknown

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.submitted

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first part; None for an answer of one part."""
        rest = self.length - (self.counts[0] if self.counts else 1)
        return (self.times[-1] - self.times[0]) / rest if rest > 0 else None

    @property
    def pauses(self) -> list[float]:
        """Seconds between its parts."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """Answers of one recipe to the prompts of a turn, and the seconds for all of them."""

    answers: list[ClientAnswer]
    seconds: float
    passes: int = 0  # with trees; 0 over HTTP, where passes are not seen, as are the next two
    nodes: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all answers per second."""
        return sum(answer.length for answer in self.answers) / self.seconds


class ClientRunner(Protocol):
    """Answers prompts with one recipe."""

    @property
    def name(self) -> str:
        """Name of the recipe."""

    @property
    def way(self) -> str:
        """The way of requests to the engine: "in process" or "http"."""

    def run(self, prompts: Sequence[list[int]], clients: int) -> ClientLoad:
        """Answer prompts, `clients` of them at a time."""


@dataclass(frozen=True, slots=True)
class ClientRow:
    """Numbers of one recipe at one number of clients."""

    recipe: str
    way: str
    clients: int
    answers: int
    tokens_per_second: float
    speedup: float  # tokens per second against plain decoding's
    speedup_low: float  # in the slowest turn
    speedup_high: float  # in the fastest turn
    ttft_ms: float  # time to first token, median over answers
    ttft_p99_ms: float
    tpot_ms: float | None  # time per output token after the first, median; None without any
    tpot_p99_ms: float | None
    longest_pause_ms: float  # between two parts of an answer
    nodes_per_pass: float | None  # None over HTTP, as is the waste
    waste: float | None  # share of the nodes that were refused
    identical: int  # texts equal to plain decoding's, which answered one client at a time

    def to_json(self) -> dict[str, Any]:
        """The row as it stands in a record."""
        return asdict(self)


def measure_clients(
    runners: Sequence[ClientRunner],
    prompts: Sequence[list[int]],
    levels: Sequence[int],  # numbers of clients
    tick: Callable[[int], None] = lambda _: None,  # called after every run with their number
) -> list[ClientRow]:
    """One row for each runner and number of clients."""
    base = next(runner for runner in runners if runner.name == PLAIN)
    alone = [text_of(answer) for answer in base.run(prompts, 1).answers]
    runs = len(levels) * len(runners) * TURNS
    rows: list[ClientRow] = []
    for clients in levels:
        loads: dict[int, list[ClientLoad]] = {place: [] for place in range(len(runners))}
        same = dict.fromkeys(loads, 0)
        for turn in range(TURNS):
            chosen = turn_prompts(len(prompts), turn, max(2 * clients, LEAST))
            asked = [prompts[number] for number in chosen]
            for place in rotated(range(len(runners)), turn):
                load = runners[place].run(asked, clients)
                loads[place].append(load)
                same[place] += sum(
                    text_of(answer) == alone[number]
                    for number, answer in zip(chosen, load.answers, strict=True)
                )
                tick(runs)
        plain = {runner.way: loads[at] for at, runner in enumerate(runners) if runner.name == PLAIN}
        rows += [
            row_of(runner, clients, loads[at], plain[runner.way], same[at])
            for at, runner in enumerate(runners)
        ]
    return rows


def turn_prompts(prompts: int, turn: int, count: int) -> list[int]:
    """Numbers of a turn's prompts: the next ones, from the start again where they end."""
    return [(turn * count + place) % prompts for place in range(count)]


def text_of(answer: ClientAnswer) -> str | list[int]:
    """The part of an answer that is compared: its text where it has one, else its tokens."""
    return answer.text or answer.tokens


def row_of(
    runner: ClientRunner,
    clients: int,
    loads: Sequence[ClientLoad],
    plain: Sequence[ClientLoad],  # of the same turns
    identical: int,
) -> ClientRow:
    """The row of one recipe at one number of clients."""
    answers = [answer for load in loads for answer in load.answers]
    first = [answer.first for answer in answers]
    each = [answer.per_token for answer in answers if answer.per_token is not None]
    pauses = [pause for answer in answers for pause in answer.pauses]
    ratios = [
        own.tokens_per_second / base.tokens_per_second
        for own, base in zip(loads, plain, strict=True)
    ]
    passes = sum(load.passes for load in loads)
    nodes = sum(load.nodes for load in loads)
    accepted = sum(load.accepted for load in loads)
    speed = overall_speed(loads)
    return ClientRow(
        recipe=runner.name,
        way=runner.way,
        clients=clients,
        answers=len(answers),
        tokens_per_second=speed,
        speedup=speed / overall_speed(plain),
        speedup_low=min(ratios),
        speedup_high=max(ratios),
        ttft_ms=1e3 * float(np.median(first)),
        ttft_p99_ms=1e3 * float(np.quantile(first, 0.99)),
        tpot_ms=1e3 * float(np.median(each)) if each else None,
        tpot_p99_ms=1e3 * float(np.quantile(each, 0.99)) if each else None,
        longest_pause_ms=1e3 * max(pauses, default=0.0),
        nodes_per_pass=nodes / passes if passes else None,
        waste=None if not passes else 1 - accepted / nodes if nodes else 0.0,
        identical=identical,
    )


def overall_speed(loads: Sequence[ClientLoad]) -> float:
    """Tokens per second over all turns."""
    tokens = sum(answer.length for load in loads for answer in load.answers)
    return tokens / sum(load.seconds for load in loads)


def take(items: Iterator[Item], count: int) -> list[Item]:
    """The next `count` items, or fewer at the end."""
    return [item for _, item in zip(range(count), items, strict=False)]


def read_clients(text: str) -> list[int]:
    """Numbers of clients between commas."""
    from sapwood.bench.sweep import numbers

    rule = f"a whole number from 1 to {MOST}"
    return numbers(text, "clients", int, lambda it: 1 <= it <= MOST, rule)


def record_of(origin: Mapping[str, Any], suite: dict[str, Any], rows: Sequence[ClientRow]) -> Any:
    """The record that is written to a file."""
    return {**origin, "suite": suite, "clients": [row.to_json() for row in rows]}
