"""From the steps of a request's choices to the objects that answer it."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from sapwood.completion import Finish, Logprob, Stats, Step, ratio
from sapwood.drafters.prediction import followed
from sapwood.serve import replies as r
from sapwood.serve.orders import Order
from sapwood.serve.prompts import Prompts
from sapwood.serve.shapes import called

LOWEST = -9999.0  # stands for a log-probability of minus infinity, which JSON lacks


@dataclass(frozen=True, slots=True)
class News:
    """What one step added to a choice; the tree is left behind, so that a slow reader holds none."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()  # the end of the text is none of them
    texts: tuple[str, ...] = ()  # what each of them let out
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None
    stats: Stats | None = None


def news_of(order: Order, index: int, step: Step) -> News:
    """The part of a step that is told."""
    ends = frozenset(order.jobs[index].sampling.stop_ids)
    pieces = step.pieces
    if step.finish == "stop" and pieces and pieces[-1].token in ends:
        pieces = pieces[:-1]  # the end of the text is no part of it
    tokens = tuple(piece.token for piece in pieces)
    texts = tuple(piece.text for piece in pieces)
    return News(index, step.text, tokens, texts, step.logprobs[: len(tokens)], step.finish, step.stats)


@dataclass
class Choice:
    """One of n answers, as far as it has come."""

    index: int
    parts: list[str] = field(default_factory=list)
    logs: list[r.TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # characters of text before each token
    length: int = 0  # characters
    finish: Finish | None = None
    stats: Stats | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.parts)


class Teller:
    """Makes the answer of one order, whole or chunk by chunk."""

    def __init__(self, order: Order, prompts: Prompts, model: str, fingerprint: str) -> None:
        self.order, self.prompts = order, prompts
        self.per_prompt = len(order.jobs) // order.prompts
        self.choices = [Choice(index) for index in range(len(order.jobs))]
        for choice in self.choices if order.echo else ():
            choice.length = len(self.echo(choice.index))
        self.id = ("chatcmpl-" if order.chat else "cmpl-") + secrets.token_hex(12)
        self.model, self.fingerprint, self.created = model, fingerprint, int(time.time())

    # ------------------------------------------------------------------------------- taking in
    def take(self, news: News) -> list[r.TokenLogprob]:
        """Add to a choice; the new log-probabilities."""
        choice = self.choices[news.index]
        logs = [self.logprob(log) for log in news.logprobs]
        for text in news.texts:
            choice.offsets.append(choice.length)
            choice.length += len(text)
        choice.parts.append(news.text)
        choice.logs += logs
        choice.tokens += news.tokens
        choice.finish, choice.stats = news.finish, news.stats
        return logs

    def logprob(self, log: Logprob) -> r.TokenLogprob:
        """A token's record, with bytes for those that are no whole characters."""
        spell, read = self.prompts.spell, self.prompts.bytes_of
        top = [r.Top(spell(token), max(value, LOWEST), read(token)) for token, value in log.top]
        return r.TokenLogprob(spell(log.token), max(log.logprob, LOWEST), read(log.token), top)

    # ------------------------------------------------------------------------------- whole answers
    def whole(self) -> r.ChatCompletion | r.TextCompletion:
        """The answer of a request that does not stream."""
        spent, told = self.usage(), self.told()
        if self.order.chat:
            choices = [self.chat_choice(choice) for choice in self.choices]
            return r.ChatCompletion(**self.head("chat.completion"), choices=choices, usage=spent, speculation=told)
        texts = [self.text_choice(choice) for choice in self.choices]
        return r.TextCompletion(**self.head("text_completion"), choices=texts, usage=spent, speculation=told)

    def head(self, kind: str) -> dict[str, Any]:
        """What every object begins with."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def chat_choice(self, choice: Choice) -> r.ChatChoice:
        """A message; calls of tools stand beside its text."""
        logs = r.ChatLogprobs(choice.logs) if self.logs_wanted else None
        text, calls = called(self.order.shape, choice.text)
        message = r.Reply(text if text or not calls else None, tool_calls=calls or UNSET)
        return r.ChatChoice(choice.index, message, logs, self.finish(choice, calls))

    def finish(self, choice: Choice, calls: Sequence[r.Call]) -> r.Finish:
        """Why a choice ended."""
        return "tool_calls" if calls and choice.finish == "stop" else choice.finish or "stop"

    def text_choice(self, choice: Choice) -> r.TextChoice:
        """A continuation, after its prompt where that is echoed."""
        logs = self.columns(choice, choice.logs) if self.logs_wanted else None
        return r.TextChoice(choice.index, self.echo(choice.index) + choice.text, logs, choice.finish)

    def echo(self, index: int) -> str:
        """What stands before a choice."""
        return self.order.echo[index // self.per_prompt] if self.order.echo else ""

    def columns(self, choice: Choice, logs: Sequence[r.TokenLogprob]) -> r.TextLogprobs:
        """The last log-probabilities of a choice as /v1/completions writes them."""
        offsets = choice.offsets[len(choice.offsets) - len(logs) :]
        best = [{top.token: top.logprob for top in log.top_logprobs} | {log.token: log.logprob} for log in logs]
        return r.TextLogprobs([log.token for log in logs], [log.logprob for log in logs], best, offsets)

    @property
    def logs_wanted(self) -> bool:
        """True where the request asks for log-probabilities."""
        return self.order.jobs[0].sampling.logprobs is not None

    # ------------------------------------------------------------------------------- numbers
    def usage(self) -> r.Usage:
        """Tokens read and written, all choices together."""
        stats = [choice.stats for choice in self.choices if choice.stats is not None]
        written, read = sum(each.tokens for each in stats), self.order.prompt_tokens
        cached = sum(getattr(each, "cached", 0) for each in stats[:: self.per_prompt])
        details = r.CompletionDetails()
        if expected := self.order.jobs[0].prediction:
            counts = [followed(expected, choice.tokens) for choice in self.choices]
            details.accepted_prediction_tokens = sum(count.accepted for count in counts)
            details.rejected_prediction_tokens = sum(count.rejected for count in counts)
        return r.Usage(read, written, read + written, r.PromptDetails(cached), details)

    def told(self) -> r.Told | UnsetType:
        """What speculation did, where the request asks."""
        if not self.order.recipe:
            return UNSET
        stats = [choice.stats for choice in self.choices if choice.stats is not None]
        passes, drafted = sum(each.passes for each in stats), sum(each.drafted for each in stats)
        accepted, tokens = sum(each.accepted for each in stats), sum(each.tokens for each in stats)
        rate, waste = ratio(tokens, passes), ratio(drafted - accepted, drafted)
        return r.Told(self.order.recipe, self.order.guarantee, passes, rate, drafted, accepted, waste)
