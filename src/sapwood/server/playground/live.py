"""Data of the playground: the rounds of a response as they come, model, machine and recipes.

`POST /playground/chat` takes the body of `/v1/chat/completions`, with the same checks. The response
is a stream of events: `begin` with the drafters of the recipe, one `round` for each pass with its
tree and accepted path, `end` with the statistics, or `error`.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import msgspec
from starlette.types import Send

from sapwood import __version__
from sapwood.common.tree_svg import reaches
from sapwood.core.part import option_value
from sapwood.core.protocols import Drafter
from sapwood.core.types import BackendInfo, Outcome
from sapwood.engine.cost_model import CostModel
from sapwood.engine.outputs import Step, TokenText
from sapwood.llm import LLM
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve
from sapwood.recipes.available import FAMILY_OF, can_run
from sapwood.recipes.drafter_names import drafters_in_use
from sapwood.registry import name_of
from sapwood.server.errors import ApiError, as_error
from sapwood.server.openai.generation_response import GenerationResponse
from sapwood.server.openai.response_builder import delta_of
from sapwood.server.resume import FrontLink

Spell = Callable[[int], str]
DIGITS = 4  # of probabilities


class LiveStream(GenerationResponse):
    """A response that streams rounds with their trees."""

    async def stream(self, send: Send, link: FrontLink | None) -> None:
        """Send events of rounds instead of chunks of text."""
        parsed = self.builder.parsed
        if len(parsed.requests) > 1:
            raise ApiError(400, "the playground shows one choice at a time; leave n out", "n")
        [request] = parsed.requests
        llm: LLM = self.dispatcher.engine_thread.llm
        chosen = resolve(request.recipe) if request.recipe else llm.recipe
        parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        rounds = itertools.count()

        def receive(_: int, step: Step | Exception | None) -> None:
            assert step is not None  # a chat does not end with its prompt
            # encoded at once, so that a slow client holds no trees and no logits
            for part in self.events_of(step, next(rounds)):
                parts.put_nowait(part)
            if isinstance(step, Exception) or step.done:
                parts.put_nowait(None)

        begin = {
            "drafters": drafters_of(chosen.drafter, llm.target.info),
            "budget": largest_budget(chosen),
        }
        parts.put_nowait(event("begin", begin))
        with self.dispatcher.submit(parsed.requests, receive):
            timer = asyncio.get_running_loop().call_later(
                self.settings.limits.request_seconds, receive, 0, self.dispatcher.too_long()
            )
            try:
                await self.send_events(send, until_none(parts))
            finally:
                timer.cancel()

    def events_of(self, step: Step | Exception, number: int) -> list[bytes]:
        """The events of one step, or of the error that ends the stream."""
        if isinstance(step, Exception):
            return [event("error", as_error(step).record())]
        llm: LLM = self.dispatcher.engine_thread.llm
        spell = llm.text.spell if llm.text else str
        self.builder.add(delta_of(self.builder.parsed, 0, step))  # counts tokens for the log
        events = [event("round", round_of(step, number, llm.profile.curve, spell))]
        if step.stats is not None:
            events.append(event("end", {"finish": step.finish, "stats": step.stats.to_json()}))
        return events


async def until_none(parts: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
    """Items of a queue, up to the first None."""
    while (part := await parts.get()) is not None:
        yield part


def event(name: str, record: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(record) + b"\n\n"


def round_of(step: Step, number: int, cost: CostModel, spell: Spell) -> dict[str, Any]:
    """One round: tree, accepted path, added text, and times."""
    outcome = step.outcome
    tree = outcome.tree
    verdict = outcome.verdict
    times = outcome.times
    return {
        "round": number,
        "pieces": [
            {"text": piece.text, "sources": origin(piece, index, outcome)}
            for index, piece in enumerate(step.pieces)
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
        "rows": outcome.rows,  # of the whole pass, which other requests may share
        "trees": outcome.trees,
        "seconds": {"draft": times.draft, "verify": times.verify, "other": times.other},
        # seconds of one token of plain decoding
        "plain": cost.plain(outcome.rows, outcome.context, times.verify, outcome.trees),
        "drift": cost.drift,
    }


def origin(piece: TokenText, index: int, outcome: Outcome) -> int:
    """Bit set of the drafters of an output token; 0 for the target's own."""
    return int(outcome.tree.sources[outcome.verdict.path[index + 1]]) if piece.drafted else 0


# --------------------------------------------------------------------------- state of the server
def state(llm: LLM, recipe: str, allowed: list[str]) -> dict[str, Any]:
    """Model, machine, recipes and the cost curve; nothing of any request."""
    info = llm.target.info
    curve = llm.profile.curve
    profile = llm.profile
    return {
        "version": __version__,
        "model": info.model.rstrip("/").rpartition("/")[2],
        "backend": info.name,
        "device": info.device,
        "dtype": info.dtype,
        "threads": info.threads,
        "context": info.context,
        "recipe": {
            "name": recipe,
            "spelling": str(llm.recipe),
            "guarantee": llm.recipe.guarantee.value,
        },
        "recipes": [about(name) for name in RECIPES if name in allowed and can_run(name, info)],
        "drafters": drafters_of(llm.recipe.drafter, info),
        "budget": largest_budget(llm.recipe),
        "measured": profile.measured,
        "curve": {
            "rows": curve.rows,
            "contexts": curve.contexts,
            "seconds": curve.table,
            "drift": curve.drift,
        },
    }


@cache
def about(name: str) -> dict[str, str]:
    """Name, family, system and guarantee of a named recipe."""
    return {
        "name": name,
        "family": FAMILY_OF[name],
        "system": RECIPES[name].system,
        "guarantee": resolve(name).guarantee.value,
    }


def largest_budget(recipe: Recipe) -> dict[str, int]:
    """The largest budget that the recipe's controller may set."""
    return {
        side: int(option_value(recipe.controller, side, 0)) for side in ("nodes", "depth", "width")
    }


def drafters_of(drafter: Drafter, info: BackendInfo) -> list[dict[str, str]]:
    """Name and description of a recipe's drafters, by their bits in a node's sources."""
    return [
        {"name": name_of(part), "about": (type(part).__doc__ or "").partition("\n")[0]}
        for part in drafters_in_use(drafter, info)
    ]
