"""Server-sent events: the role first, then text as it comes, the finish, the numbers, [DONE].

Events may be filled up to even sizes, and may go out at a fixed cadence, so that who watches the
traffic learns little about how many tokens a step brought.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from sapwood.serve import replies as r
from sapwood.serve.errors import as_error
from sapwood.serve.shapes import called, certain
from sapwood.serve.telling import News, Teller

EVEN = 256  # bytes that a padded event is filled up to a multiple of
DONE = b"data: [DONE]\n\n"


class Chunks:
    """The events of one answer."""

    def __init__(self, teller: Teller, *, padded: bool) -> None:
        self.teller, self.order, self.padded = teller, teller.order, padded
        self._shown = [0] * len(teller.choices)  # characters that are out, by choice

    def opening(self) -> list[bytes]:
        """What a stream begins with: roles, or echoed prompts."""
        if self.order.chat:
            deltas = [r.Delta(role="assistant", content="") for _ in self.teller.choices]
            return [self.event([r.ChunkChoice(index, delta)]) for index, delta in enumerate(deltas)]
        echoes = [(choice.index, self.teller.echo(choice.index)) for choice in self.teller.choices]
        return [self.event([r.TextChoice(index, echo)]) for index, echo in echoes if echo]

    def told(self, news: News) -> list[bytes]:
        """The events of one step: its text, and the finish."""
        logs = self.teller.take(news)
        events = []
        if not self.order.chat:
            columns = self.teller.columns(self.teller.choices[news.index], logs) if logs else None
            if news.text or logs or news.finish:
                events.append(self.event([r.TextChoice(news.index, news.text, columns, news.finish)], last=news))
            return events
        text = self.visible(news)
        if text or logs:
            found = r.ChatLogprobs(logs) if logs else None
            events.append(self.event([r.ChunkChoice(news.index, r.Delta(content=text), found)]))
        return events + (self.finish(news) if news.finish else [])

    def visible(self, news: News) -> str:
        """Text that may be shown now; what may become a call waits."""
        text, shown = self.teller.choices[news.index].text, self._shown[news.index]
        self._shown[news.index] = max(shown, certain(self.order.shape, text))
        return text[shown : self._shown[news.index]]

    def finish(self, news: News) -> list[bytes]:
        """The last events of a choice: what waited, calls where there are any, and the reason."""
        choice = self.teller.choices[news.index]
        text, calls = called(self.order.shape, choice.text)
        early = choice.text[: self._shown[news.index]]
        late = text.removeprefix(early.strip() if calls else early)
        deltas = [r.Delta(content=late)] if late else []
        for index, call in enumerate(calls):
            call.index = index
            deltas.append(r.Delta(tool_calls=[call]))
        events = [self.event([r.ChunkChoice(news.index, delta)]) for delta in deltas]
        reason = self.teller.finish(choice, calls)
        return [*events, self.event([r.ChunkChoice(news.index, r.Delta(), None, reason)], last=news)]

    def closing(self) -> list[bytes]:
        """What a stream ends with."""
        numbers = [self.event([], usage=self.teller.usage())] if self.order.usage else []
        return [*numbers, DONE]

    def blank(self) -> bytes:
        """An event that adds nothing, for a tick without text."""
        choice = r.ChunkChoice(0, r.Delta(content="")) if self.order.chat else r.TextChoice(0, "")
        return self.event([choice])

    def event(
        self,
        choices: Sequence[r.ChunkChoice | r.TextChoice],
        usage: r.Usage | None = None,
        last: News | None = None,
    ) -> bytes:
        """One event; the one that ends the last choice carries what speculation did."""
        kind = r.ChatChunk if self.order.chat else r.TextCompletion
        name = "chat.completion.chunk" if self.order.chat else "text_completion"
        made = kind(**self.teller.head(name), choices=list(choices))  # type: ignore[arg-type]
        if self.order.usage:
            made.usage = usage
        if last is not None and last.finish and all(choice.finish for choice in self.teller.choices):
            made.speculation = self.teller.told()
        return self.filled(made)

    def filled(self, made: r.ChatChunk | r.TextCompletion) -> bytes:
        """The event as bytes, of an even size where that is asked for."""
        if not self.padded:
            return b"data: " + msgspec.json.encode(made) + b"\n\n"
        made.obfuscation = ""
        missing = -len(msgspec.json.encode(made)) % EVEN
        made.obfuscation = secrets.token_hex(missing // 2 + 1)[:missing]
        return b"data: " + msgspec.json.encode(made) + b"\n\n"


async def events(groups: AsyncGenerator[list[News]], chunks: Chunks) -> AsyncGenerator[bytes]:
    """All bytes of a stream, in the groups in which they go out; a failure under way is the last event."""
    yield b"".join(chunks.opening())
    try:
        async with aclosing(groups):
            async for group in groups:
                yield b"".join(event for news in group for event in chunks.told(news)) if group else chunks.blank()
        yield b"".join(chunks.closing())
    except Exception as problem:
        yield b"data: " + msgspec.json.encode(as_error(problem).record()) + b"\n\n" + DONE


async def paced(groups: AsyncGenerator[list[News]], seconds: float) -> AsyncGenerator[list[News]]:
    """The same news, gathered by choice and given out at every tick; an empty group where nothing came."""
    waiting: dict[int, News] = {}
    following: asyncio.Future[list[News] | None] | None = asyncio.ensure_future(anext(groups, None))
    tick = time.monotonic()
    try:
        while following is not None or waiting:
            tick += seconds
            while following is not None and (rest := tick - time.monotonic()) > 0:
                await asyncio.wait({following}, timeout=rest)
                if following.done():
                    group = following.result()
                    for news in group or ():
                        waiting[news.index] = merged(waiting.get(news.index), news)
                    following = None if group is None else asyncio.ensure_future(anext(groups, None))
            await asyncio.sleep(tick - time.monotonic())
            yield list(waiting.values())
            waiting.clear()
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def merged(first: News | None, second: News) -> News:
    """Two steps of a choice as one."""
    if first is None:
        return second
    return News(
        second.index,
        first.text + second.text,
        first.tokens + second.tokens,
        first.texts + second.texts,
        first.logprobs + second.logprobs,
        second.finish,
        second.stats,
    )
