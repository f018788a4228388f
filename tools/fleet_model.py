"""Model of a fleet of replicas: requests arrive, are routed, prefilled and decoded in shared steps.

A replica is a `SpeedCurve`: seconds of a step by the number of requests in it, tokens that a
request gains in a step, and prompts prefilled in a second. All three come from measurements
(`tools.fleet_simulator`). Time is simulated and random numbers are seeded: a run repeats exactly.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

SPREAD = 1.25  # share of the mean load up to which a replica keeps its sessions, as the front does


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """Measured points of one replica, by mean number of requests in a step."""

    batch: tuple[float, ...]
    seconds: tuple[float, ...]  # of a step
    tokens: tuple[float, ...]  # of a request in a step
    prompts: tuple[float, ...]  # prefilled per second beside the steps

    def step(self, batch: int) -> float:
        """Seconds of a step; the line through the last two points goes on beyond them."""
        if batch > self.batch[-1] and len(self.batch) > 1:
            rise = (self.seconds[-1] - self.seconds[-2]) / (self.batch[-1] - self.batch[-2])
            return self.seconds[-1] + rise * (batch - self.batch[-1])
        return float(np.interp(batch, self.batch, self.seconds))

    def gain(self, batch: int) -> float:
        """Tokens that each request gains in a step."""
        return float(np.interp(batch, self.batch, self.tokens))

    def rate(self, batch: int) -> float:
        """Prompts prefilled per second."""
        return float(np.interp(batch, self.batch, self.prompts))


@dataclass(slots=True)
class FleetRequest:
    """One request: when it came, its output's length, and when its tokens came."""

    arrived: float
    length: int
    session: int = -1  # requests of a session share a prefix; -1: of its own
    first: float = -1.0  # when its first token came
    done: float = -1.0


@dataclass(slots=True)
class SimulatedReplica:
    """Requests of one replica and its prefix cache, in simulated time."""

    curve: SpeedCurve
    limit: int  # most requests in a step
    room: int = 0  # sessions whose prefix the cache holds
    shared: float = 0.0  # part of a prompt that a cached prefix saves, 0 to 1
    waiting: deque[FleetRequest] = field(default_factory=deque)
    running: list[tuple[float, int, FleetRequest]] = field(default_factory=list)  # heap by end
    cached: OrderedDict[int, None] = field(default_factory=OrderedDict)
    made: float = 0.0  # tokens of a request that has run from the beginning
    credit: float = 0.0  # prompts that may be admitted
    count: int = 0
    hits: int = 0

    @property
    def load(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    def step(self, now: float) -> float | None:
        """Run one step that begins now; its end, or None when there is nothing to do."""
        joined = self._admit()
        if not self.running:
            if not self.waiting:
                return None
            wait = (self._cost(self.waiting[0]) - self.credit) / self.curve.rate(1)
            self.credit = self._cost(self.waiting[0])
            return now + max(wait, 1e-6)
        batch = len(self.running)
        seconds = self.curve.step(batch)
        end = now + seconds
        self.made += self.curve.gain(batch)
        for request in joined:
            request.first = end
        while self.running and self.running[0][0] <= self.made:
            heapq.heappop(self.running)[2].done = end
        spare = self.credit + seconds * self.curve.rate(batch)
        self.credit = spare if self.waiting else 0.0
        return end

    def _admit(self) -> list[FleetRequest]:
        """Move waiting requests into the batch, as far as prompts were prefilled."""
        joined = []
        while self.waiting and len(self.running) < self.limit:
            cost = self._cost(self.waiting[0])
            if cost > self.credit + 1e-9:
                break
            self.credit -= cost
            request = self.waiting.popleft()
            self._remember(request.session)
            self.count += 1
            heapq.heappush(self.running, (self.made + request.length, self.count, request))
            joined.append(request)
        return joined

    def _cost(self, request: FleetRequest) -> float:
        """Part of a prompt that must be prefilled."""
        return 1.0 - self.shared if request.session in self.cached else 1.0

    def _remember(self, session: int) -> None:
        """Put a session's prefix into the cache; the one used longest ago leaves."""
        if session < 0 or not self.room:
            return
        self.hits += session in self.cached
        self.cached[session] = None
        self.cached.move_to_end(session)
        if len(self.cached) > self.room:
            self.cached.popitem(last=False)


Router = Callable[[FleetRequest, Sequence[SimulatedReplica]], int]


def in_turn() -> Router:
    """Route to each replica in turn."""
    turn = iter(range(1 << 62))
    return lambda _, replicas: next(turn) % len(replicas)


def by_session(request: FleetRequest, replicas: Sequence[SimulatedReplica]) -> int:
    """Route to the session's replica; past it while that has more than its share of the load."""
    most = SPREAD * (1 + sum(one.load for one in replicas)) / len(replicas)
    start = hash((request.session, 7)) % len(replicas)
    for step in range(len(replicas)):
        place = (start + step) % len(replicas)
        if replicas[place].load < most:
            return place
    return start


def run_open(
    replicas: Sequence[SimulatedReplica], requests: Sequence[FleetRequest], route: Router
) -> None:
    """Run requests that arrive at their own times, ascending, until all are done."""
    ends: list[tuple[float, int]] = []  # heap of (end of the step, replica)
    idle = set(range(len(replicas)))
    for request in requests:
        _advance(replicas, ends, idle, request.arrived)
        place = route(request, replicas)
        replicas[place].waiting.append(request)
        if place in idle:
            idle.remove(place)
            heapq.heappush(ends, (request.arrived, place))
    _advance(replicas, ends, idle, float("inf"))


def _advance(
    replicas: Sequence[SimulatedReplica],
    ends: list[tuple[float, int]],
    idle: set[int],
    until: float,
) -> None:
    """Run all steps that begin before this time."""
    while ends and ends[0][0] <= until:
        now, place = heapq.heappop(ends)
        end = replicas[place].step(now)
        if end is None:
            idle.add(place)
        else:
            heapq.heappush(ends, (end, place))


def run_closed(replica: SimulatedReplica, lengths: Sequence[int], level: int) -> list[FleetRequest]:
    """Run so many requests at a time on one replica, as the benchmarks of servers do."""
    coming = deque(lengths)
    requests: list[FleetRequest] = []
    now: float | None = 0.0
    while now is not None:
        while coming and replica.load < level:
            requests.append(FleetRequest(now, coming.popleft()))
            replica.waiting.append(requests[-1])
        now = replica.step(now)
    return requests


def arrivals(
    rate: float, seconds: float, lengths: Sequence[int], seed: int, turns: int = 0
) -> list[FleetRequest]:
    """Requests of a Poisson process; with `turns`, sessions of so many on average."""
    noise = np.random.default_rng(seed)
    times = np.cumsum(noise.exponential(1 / rate, int(rate * seconds)))
    sizes = noise.choice(np.asarray(lengths), len(times))
    sessions = max(1, len(times) // turns) if turns else 0
    owners = noise.integers(sessions, size=len(times)) if sessions else np.full(len(times), -1)
    return [
        FleetRequest(float(time), int(size), int(owner))
        for time, size, owner in zip(times, sizes, owners, strict=True)
    ]
