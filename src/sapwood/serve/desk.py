"""Where requests meet the engine: counts who is being served, submits jobs, merges their steps, closes at night."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterator

from sapwood.serve.errors import SOON, ApiError
from sapwood.serve.jobs import Busy, Expired, Ticket
from sapwood.serve.limits import Limits
from sapwood.serve.orders import Order
from sapwood.serve.telling import News, news_of
from sapwood.serve.worker import Worker


class Desk:
    """Takes orders as long as it is open."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self.worker, self.limits = worker, limits
        self.draining = False
        self.running: Counter[str] = Counter()  # requests by tenant
        self._tickets: set[Ticket] = set()

    @property
    def busy(self) -> int:
        """Requests under way."""
        return self.running.total()

    @contextlib.contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """A place at the desk while a request is served."""
        if self.draining:
            raise closing()
        if tenant and self.running[tenant] >= self.limits.per_key:
            raise Busy(f"{self.limits.per_key} requests of this key are under way already; wait for one to end")
        self.running[tenant] += 1
        try:
            yield
        finally:
            self.running[tenant] -= 1
            self.running += Counter()  # tenants without a request are forgotten

    def submit(self, order: Order) -> list[Ticket]:
        """All jobs of an order, or none; a prompt is read once for all its choices."""
        tickets: list[Ticket] = []
        count = len(order.jobs) // order.prompts
        try:
            for job in order.jobs[::count]:
                tickets += self.worker.submit_all(job, count)
        except BaseException:
            for ticket in tickets:
                ticket.cancel()
            raise
        return tickets

    async def news(self, order: Order) -> AsyncGenerator[News]:
        """What all choices of an order add, as it comes; leaving early gives all of them up."""
        arrived: asyncio.Queue[News | Exception] = asyncio.Queue()
        tickets = self.submit(order)
        self._tickets.update(tickets)
        pumps = [asyncio.ensure_future(pump(order, index, each, arrived)) for index, each in enumerate(tickets)]
        left, until = len(tickets), asyncio.get_running_loop().time() + self.limits.request_seconds
        try:
            while left:
                got = await before(until, arrived)
                if isinstance(got, Exception):
                    raise got
                left -= got.finish is not None
                yield got
        except TimeoutError as error:
            raise Expired(f"the request took longer than {self.limits.request_seconds:g} s; ask for less") from error
        finally:
            self._tickets.difference_update(tickets)
            for ticket, task in zip(tickets, pumps, strict=True):
                ticket.cancel()
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        """End what is still under way."""
        for ticket in list(self._tickets):
            ticket.give(closing())


async def before(until: float, arrived: "asyncio.Queue[News | Exception]") -> "News | Exception":
    """The next arrival, unless the time of the loop's clock comes first."""
    async with asyncio.timeout_at(until):
        return await arrived.get()


async def pump(order: Order, index: int, ticket: Ticket, arrived: "asyncio.Queue[News | Exception]") -> None:
    """Carry the steps of one choice to the others; trees are dropped on the way."""
    try:
        async for step in ticket:
            arrived.put_nowait(news_of(order, index, step))
    except Exception as error:
        arrived.put_nowait(error)


def closing() -> ApiError:
    """What is said while the server goes down."""
    return ApiError(503, "the server is shutting down; try again soon", headers=SOON)
