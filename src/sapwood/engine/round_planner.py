"""Plans the shape that the trees of all requests have in rounds on a device.

The device's seconds for a round of each shape are known from its preparation, and the policy knows
what trees of each shape bring. So the shape of most tokens per second is found by trying all of
them. A round takes as long as the device or the host works for it, whichever is longer, and what
recent rounds took beyond that; so rows are free while the device would wait.
"""

import math
from collections.abc import Callable, Sequence

from sapwood.core.device_rounds import (
    DEPTHS,
    SIZES,
    RoundLauncher,
    round_shape,
    round_shapes,
)
from sapwood.core.types import AcceptanceRatio, BatchLoad, TreeShape
from sapwood.engine.request import Request
from sapwood.engine.request_decoder import RequestDecoder

PLANNED = 8  # rounds between two plans
DEEPER = 8  # plans of which one has trees a level deeper, so that their gain stays known
FIRST_ROWS = 64  # of a pass over trees before acceptance was measured
FIRST_NODES = 3  # least nodes of such a tree
FOLLOW = 0.1  # rate of running means of rounds
MISHAP = 2.0  # a round counts at most as this multiple of the mean
SHAPES = tuple(round_shapes())


class RoundPlanner:
    """The shape of the next trees: planned every few rounds, and when the load changes."""

    def __init__(self, most_rows: int, rate: Callable[[], float]) -> None:
        self._most_rows = most_rows
        self._rate = rate  # present tokens per second of all requests
        self._shape: TreeShape | None = None
        self._left = 0  # rounds of the shape that are left
        self._count = 0  # requests that it was planned for
        self._plans = 0
        # accepted tokens against those that were expected, by nodes
        self._ratios: dict[int, AcceptanceRatio] = {}
        # expected tokens and the device's seconds of planned shapes, by nodes and depth
        self._planned: dict[tuple[int, int], tuple[float, float]] = {}
        # powers of two of requests -> mean seconds of the host in a round without prompts, and mean
        # seconds beyond those of host or device
        self._loads: dict[int, tuple[float, float]] = {}

    def forget(self) -> None:
        """Plan anew: other requests follow."""
        self._shape = None

    def shape(
        self, requests: Sequence[Request], launcher: RoundLauncher | None, prefill: int = 0
    ) -> TreeShape | None:
        """The shape of the next trees, beside so many rows of prompts; None for no trees."""
        count = len(requests)
        shape = self._shape
        if (
            shape is None
            or not self._left
            or self._count.bit_length() != count.bit_length()
            or (shape.nodes > SIZES[0] and count * (1 + shape.nodes) + prefill > self._most_rows)
        ):
            self._left = PLANNED
            self._shape = shape = self._plan(requests, launcher, prefill)
            self._count = count
        self._left -= 1
        return shape

    def observe(
        self, shape: TreeShape, count: int, accepted: float, seconds: float, host: float
    ) -> None:
        """Count a round of so many trees, its seconds, and those in which the host was busy.

        Seconds are 0 where prompts were in it: their work follows from the tokens, not the rounds.
        """
        planned = self._planned.get((shape.nodes, shape.depth))
        if planned is None:
            return
        gain, expected = planned
        self._ratios.setdefault(shape.nodes, AcceptanceRatio()).add(gain, accepted / count)
        if not seconds:
            return
        band = count.bit_length()
        beyond = max(seconds - max(expected, host), 0.0)
        usual, more = self._loads.get(band, (host, beyond))
        usual += FOLLOW * (min(host, MISHAP * usual) - usual)
        more += FOLLOW * (min(beyond, MISHAP * max(more, expected)) - more)
        self._loads[band] = usual, more

    def _plan(
        self, requests: Sequence[Request], launcher: RoundLauncher | None, prefill: int
    ) -> TreeShape | None:
        """The shape that one request's policy and controller lead to, for all of the batch."""
        self._plans += 1
        request = requests[self._plans % len(requests)]
        decoder = request.running
        count = len(requests)
        each = 1 + (self._shape.nodes if self._shape is not None else SIZES[0])
        load = BatchLoad(count, (count - 1) * each, self._rate(), alike=True)
        wanted = decoder.plan_round(load)
        if wanted is None or not request.priced:
            return wanted
        # prompts that do not fit have a pass of their own, which costs more than smaller trees
        least = min(SIZES[0], self._most_rows // count - 1)
        room = max((self._most_rows - prefill) // count - 1, least)
        if launcher is not None and (best := self._best(requests, decoder, launcher, room)):
            return best
        if decoder.round_gain(SHAPES[0]) is None:
            self._left = 1  # until gains are known
        if math.isinf(wanted.hope):  # nothing was learned yet
            room = min(room, max(FIRST_ROWS // count - 1, FIRST_NODES))
        nodes = max((size for size in SIZES if size <= min(wanted.nodes, room)), default=0)
        if not nodes:
            return None
        return round_shape(nodes, max(each for each in DEPTHS if each <= min(wanted.depth, nodes)))

    def _ratio(self, nodes: int) -> float:
        """Accepted tokens per expected one, of trees of this size, or else of the next smaller."""
        known = max((size for size in self._ratios if size <= nodes), default=None)
        return 1.0 if known is None else self._ratios[known].ratio

    def _best(
        self,
        requests: Sequence[Request],
        decoder: RequestDecoder,
        launcher: RoundLauncher,
        room: int,
    ) -> TreeShape | None:
        """The shape of most tokens per second; None where gains or seconds are unknown."""
        count = len(requests)
        longest = max(one.running.session.length for one in requests)
        host, beyond = self._loads.get(count.bit_length(), (0.0, 0.0))
        best, found = 0.0, None
        for shape in SHAPES:
            if shape.nodes > room:
                continue
            gain = decoder.round_gain(shape)
            seconds = launcher.seconds(shape, count, longest)
            if gain is None or seconds is None:
                return None
            self._planned[shape.nodes, shape.depth] = gain, seconds
            rate = (1 + self._ratio(shape.nodes) * gain) / (max(seconds, host) + beyond)
            if rate > best:
                best, found = rate, shape
        if found is not None and not self._plans % DEEPER:
            deeper = [depth for depth in DEPTHS if found.depth < depth <= found.nodes]
            return round_shape(found.nodes, min(deeper, default=found.depth))
        return found
