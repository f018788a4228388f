"""What the playground is shown: the rounds of an answer as they come, and the machine they run on.

`POST /playground/chat` takes the body of `/v1/chat/completions` and passes the same checks. The answer is a
stream of events: `begin` with the drafters of the recipe, one `round` for each pass with its tree and what
became of it, `end` with the numbers, or `error`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import msgspec
from starlette.types import Send

from sapwood import __version__
from sapwood.api import LLM
from sapwood.completion import Piece, Step
from sapwood.cost import CostCurve
from sapwood.drafters.found import Found
from sapwood.drafters.merge import Merge
from sapwood.part import Part
from sapwood.pictures import reaches
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve
from sapwood.records import Outcome
from sapwood.serve.delivery import Delivery
from sapwood.serve.errors import ApiError, as_error
from sapwood.serve.jobs import Expired, Ticket
from sapwood.serve.telling import news_of

Spell = Callable[[int], str]
DIGITS = 4  # of probabilities


class Show(Delivery):
    """An answer whose rounds are shown."""

    async def stream(self, send: Send) -> None:
        """Events of rounds instead of chunks; what cannot be submitted is refused before the first of them."""
        if len(self.teller.order.jobs) > 1:
            raise ApiError(400, "the playground shows one answer at a time; leave n out", "n")
        [ticket] = self.desk.submit(self.teller.order)
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        writing = asyncio.ensure_future(self.write_down(ticket, parts))
        try:
            await self.events(send, until_none(parts))
        finally:
            ticket.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def write_down(self, ticket: Ticket, parts: "asyncio.Queue[bytes | None]") -> None:
        """Turn steps into bytes as they come, so that a slow reader holds no trees and no scores."""
        try:
            async with asyncio.timeout(self.settings.limits.request_seconds):
                await self.follow(ticket, parts)
        except TimeoutError:
            late = Expired(f"the answer took longer than {self.settings.limits.request_seconds:g} s; ask for less")
            parts.put_nowait(event("error", as_error(late).record()))
        except Exception as problem:
            parts.put_nowait(event("error", as_error(problem).record()))
        parts.put_nowait(None)

    async def follow(self, ticket: Ticket, parts: "asyncio.Queue[bytes | None]") -> None:
        """The events of an answer that nothing goes wrong with."""
        llm: LLM = self.desk.worker.llm
        spell = llm.text.spell if llm.text else str
        chosen = resolve(ticket.job.recipe) if ticket.job.recipe else llm.recipe
        parts.put_nowait(event("begin", {"drafters": voices(chosen.drafter), "budget": room(chosen)}))
        number = 0
        async for step in ticket:
            self.teller.take(news_of(self.teller.order, 0, step))  # for the log
            parts.put_nowait(event("round", round_of(step, number, llm.profile.curve, spell)))
            if step.stats is not None:
                parts.put_nowait(event("end", {"finish": step.finish, "stats": step.stats.to_json()}))
            number += 1


async def until_none(parts: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
    """What a queue holds, up to the first None."""
    while (part := await parts.get()) is not None:
        yield part


def event(name: str, record: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(record) + b"\n\n"


def round_of(step: Step, number: int, cost: CostCurve, spell: Spell) -> dict[str, Any]:
    """One round: its tree, the path that stayed, the text it added, and what it took."""
    outcome = step.outcome
    tree, verdict, times = outcome.tree, outcome.verdict, outcome.times
    return {
        "round": number,
        "pieces": [
            {"text": piece.text, "sources": origin(piece, place, outcome)} for place, piece in enumerate(step.pieces)
        ],
        "tree": {
            "tokens": [spell(token) for token in tree.tokens.tolist()],
            "parents": tree.parents.tolist(),
            "probs": tree.probs.round(DIGITS).tolist(),
            "reach": [round(reach, DIGITS) for reach in reaches(tree)],
            "sources": tree.sources.tolist(),
        },
        "path": verdict.path,
        "bonus": spell(verdict.bonus),
        "grown": len(outcome.grown) - 1,
        "context": outcome.context,
        "rows": outcome.rows,  # of the whole pass, which others may have shared
        "trees": outcome.trees,
        "seconds": {"draft": times.draft, "verify": times.verify, "other": times.other},
        "plain": cost.plain(outcome.rows, outcome.context, times.verify, outcome.trees),  # seconds of one plain token
        "drift": cost.drift,
    }


def origin(piece: Piece, place: int, outcome: Outcome) -> int:
    """Bit set of the drafters that an accepted token came from; 0 for the target's own."""
    return int(outcome.tree.sources[outcome.verdict.path[place + 1]]) if piece.drafted else 0


# ------------------------------------------------------------------------------- what stands still
def state(llm: LLM, recipe: str, allowed: list[str]) -> dict[str, Any]:
    """Model, machine, recipes and the cost curve; nothing about anybody's text."""
    info, curve, profile = llm.target.info, llm.profile.curve, llm.profile
    return {
        "version": __version__,
        "model": info.model.rstrip("/").rpartition("/")[2],
        "backend": info.name,
        "device": info.device,
        "dtype": info.dtype,
        "threads": info.threads,
        "context": info.context,
        "recipe": {"name": recipe, "spelling": str(llm.recipe), "guarantee": llm.recipe.guarantee.value},
        "recipes": [about(name) for name in allowed if name in RECIPES],
        "drafters": voices(llm.recipe.drafter),
        "budget": room(llm.recipe),
        "measured": profile.measured,
        "curve": {"rows": curve.rows, "contexts": curve.contexts, "seconds": curve.table, "drift": curve.drift},
    }


@cache
def about(name: str) -> dict[str, str]:
    """A named recipe in a few words."""
    entry = RECIPES[name]
    return {"name": name, "system": entry.system, "guarantee": resolve(name).guarantee.value}


def room(recipe: Recipe) -> dict[str, int]:
    """The largest tree that the recipe's controller would ever ask for."""
    return {side: int(getattr(recipe.controller, side, 0)) for side in ("nodes", "depth", "width")}


def voices(drafter: Any) -> list[dict[str, str]]:
    """The drafters of a recipe in the order of their bits in a node's sources."""
    if isinstance(drafter, Merge):
        return [voice for inner in drafter.drafters for voice in voices(inner)]
    part: Part = drafter
    if isinstance(drafter, Found):  # what it found, once it has looked
        part = getattr(drafter, "drafter", None) or part
    name = part.name or type(part).__name__.lower()
    return [{"name": name, "about": (type(part).__doc__ or name).partition("\n")[0]}]
