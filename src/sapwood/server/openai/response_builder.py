"""Builds the OpenAI objects of a response from the steps of a request's choices."""

import bisect
import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from sapwood.drafters.lookup.prediction import followed
from sapwood.engine.outputs import Finish, Logprob, Stats, Step, ratio
from sapwood.engine.prompt_scores import PromptLogprobs
from sapwood.server.openai import response_schema as r
from sapwood.server.openai.chat_prompts import ChatPrompts
from sapwood.server.openai.output_parser import ParsedOutput, ParsedToolCall
from sapwood.server.openai.request_builder import ParsedRequest
from sapwood.server.openai.tool_calls import parse_output

LOWEST = -9999.0  # stands for a log-probability of minus infinity, which JSON lacks


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """Output that one step adds to a choice, without the step's tree."""

    index: int
    text: str
    tokens: tuple[int, ...] = ()  # without the end-of-text token
    texts: tuple[str, ...] = ()  # of each token
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None
    stats: Stats | None = None
    stop: str | None = None  # the stop string that ended the choice
    passes: int = 0  # of the target
    drafted: int = 0  # nodes that they checked
    accepted: int = 0  # drafted tokens among `tokens`


def delta_of(parsed: ParsedRequest, index: int, step: Step) -> ChoiceDelta:
    """The delta of a step; a final end-of-text token is left out."""
    request = parsed.requests[index]
    ends = frozenset(request.sampling.stop_ids)
    pieces = step.pieces
    # evaluators that score a prompt expect as many log-probabilities as there are tokens
    keeps_end = request.prompt_reader is not None
    if step.finish == "stop" and pieces and pieces[-1].token in ends and not keeps_end:
        pieces = pieces[:-1]
    tokens = tuple(piece.token for piece in pieces)
    texts = tuple(piece.text for piece in pieces)
    logprobs = step.logprobs[: len(tokens)]
    return ChoiceDelta(
        index,
        step.text,
        tokens,
        texts,
        logprobs,
        step.finish,
        step.stats,
        step.stop,
        passes=1,
        drafted=len(step.outcome.tree) - 1,
        accepted=sum(piece.drafted for piece in step.pieces),
    )


def likely_texts(given: r.TokenLogprob) -> dict[str, float]:
    """A token and its alternatives by their text; of tokens with one text, the most likely."""
    found = {given.token: given.logprob}
    for other in given.top_logprobs:
        found[other.token] = max(other.logprob, found.get(other.token, other.logprob))
    return found


def joined(first: r.TextLogprobs, second: r.TextLogprobs) -> r.TextLogprobs:
    """The tokens of a prompt and of its continuation."""
    return r.TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


class ResponseBuilder:
    """Collects the deltas of a request's choices and builds its response, whole or in chunks."""

    @dataclass
    class Choice:
        """Output of one choice so far."""

        parts: list[str] = field(default_factory=list)
        logprobs: list[r.TokenLogprob] = field(default_factory=list)
        tokens: list[int] = field(default_factory=list)
        offsets: list[int] = field(default_factory=list)  # characters of text before each token
        length: int = 0  # characters
        finish: Finish | None = None
        stats: Stats | None = None
        stop: str | None = None
        call_ids: list[str] = field(default_factory=list)

    def __init__(
        self, parsed: ParsedRequest, prompts: ChatPrompts, model: str, fingerprint: str
    ) -> None:
        self.parsed = parsed
        self.prompts = prompts
        self.per_prompt = len(parsed.requests) // parsed.prompts
        self._choices = [
            self.Choice(length=len(self.echo(index))) for index in range(len(parsed.requests))
        ]
        # a server that resumes the response sets both
        self.id = ("chatcmpl-" if parsed.chat else "cmpl-") + secrets.token_hex(12)
        self.model = model
        self.fingerprint = fingerprint
        self.created = int(time.time())

    # ------------------------------------------------------------------------------- choices
    def add(self, delta: ChoiceDelta) -> list[r.TokenLogprob]:
        """Add a delta to its choice; returns the new log-probabilities."""
        choice = self._choices[delta.index]
        logprobs = [self.logprob(each) for each in delta.logprobs]
        for text in delta.texts:
            choice.offsets.append(choice.length)
            choice.length += len(text)
        choice.parts.append(delta.text)
        choice.logprobs += logprobs
        choice.tokens += delta.tokens
        choice.finish = delta.finish
        choice.stats = delta.stats
        choice.stop = delta.stop
        return logprobs

    def logprob(self, given: Logprob) -> r.TokenLogprob:
        """The log-probability of a token and of its alternatives, with the tokens' bytes."""
        spell, bytes_of = self.prompts.spell, self.prompts.bytes_of
        top = [
            r.TopLogprob(spell(token), max(value, LOWEST), bytes_of(token))
            for token, value in given.top
        ]
        return r.TokenLogprob(
            spell(given.token), max(given.logprob, LOWEST), bytes_of(given.token), top
        )

    @property
    def indexes(self) -> range:
        """Indexes of all choices."""
        return range(len(self._choices))

    @property
    def finished(self) -> bool:
        """True when all choices have ended."""
        return all(choice.finish for choice in self._choices)

    def is_finished(self, index: int) -> bool:
        """True when a choice has ended."""
        return self._choices[index].finish is not None

    @property
    def completion_tokens(self) -> int:
        """Output tokens of all choices so far."""
        return sum(len(choice.tokens) for choice in self._choices)

    def text(self, index: int, since: int = 0) -> str:
        """Text of a choice so far, from this part on."""
        return "".join(self._choices[index].parts[since:])

    def parts(self, index: int) -> int:
        """Number of parts of a choice's text so far."""
        return len(self._choices[index].parts)

    @property
    def parses(self) -> bool:
        """True when the output may have reasoning, markup or tool calls beside its text."""
        form, syntax = self.parsed.response_format, self.parsed.syntax
        return bool(form and form.functions.names) or bool(syntax and syntax.reasoning)

    def output(self, index: int) -> ParsedOutput:
        """The parts of a choice's output so far."""
        return parse_output(
            self.text(index),
            self.parsed.syntax,
            self.parsed.response_format,
            done=self.is_finished(index),
        )

    def reasoning_tokens(self) -> int:
        """Output tokens of reasoning, of all choices."""
        if not self.parses:
            return 0
        ends = [self.output(index).reasoning_end for index in self.indexes]
        return sum(
            bisect.bisect_left(choice.offsets, end)
            for choice, end in zip(self._choices, ends, strict=True)
        )

    def stop(self, index: int) -> str | None:
        """The stop string that ended a choice."""
        return self._choices[index].stop

    def logprobs(self, index: int) -> list[r.TokenLogprob]:
        """Log-probabilities of a choice so far."""
        return self._choices[index].logprobs

    def call_id(self, index: int, number: int) -> str:
        """Id of a tool call of a choice."""
        ids = self._choices[index].call_ids
        while len(ids) <= number:
            # derived, so that a server that resumes the response names its calls alike
            name = f"{self.id} {index} {len(ids)}".encode()
            ids.append(f"call_{hashlib.blake2b(name, digest_size=12).hexdigest()}")
        return ids[number]

    def finish_reason(self, index: int, calls: Sequence[ParsedToolCall]) -> r.Finish:
        """The finish reason of a choice with these tool calls."""
        finish = self._choices[index].finish or "stop"
        return "tool_calls" if calls and finish == "stop" else finish

    def echo(self, index: int) -> str:
        """The prompt that is repeated before a choice, empty unless asked for."""
        return self.parsed.echo[index // self.per_prompt] if self.parsed.echo else ""

    # ------------------------------------------------------------------------------- response
    def response(self) -> r.ChatCompletion | r.TextCompletion:
        """The response to a request that does not stream."""
        usage = self.usage()
        speculation = self.speculation()
        if self.parsed.chat:
            return r.ChatCompletion(
                **self.head("chat.completion"),
                choices=[self.chat_choice(index) for index in self.indexes],
                usage=usage,
                speculation=speculation,
            )
        return r.TextCompletion(
            **self.head("text_completion"),
            choices=[self.text_choice(index) for index in self.indexes],
            usage=usage,
            speculation=speculation,
        )

    def head(self, kind: str) -> dict[str, Any]:
        """The fields that all objects of a response share."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def chat_choice(self, index: int) -> r.ChatChoice:
        """A choice as a message; tool calls stand beside its text."""
        choice = self._choices[index]
        logprobs = r.ChatLogprobs(choice.logprobs) if self.wants_logprobs else None
        output = self.output(index)
        text, calls = output.text, output.calls
        replies = [
            r.ToolCallReply(
                self.call_id(index, number), r.CalledFunction(call.name, call.arguments)
            )
            for number, call in enumerate(calls)
        ]
        form = self.parsed.response_format
        no_text = bool(calls) or (form is not None and form.constraint == "calls")
        message = r.AssistantMessage(None if no_text and not text else text)
        message.tool_calls = replies or UNSET
        message.reasoning_content = output.reasoning or UNSET
        return r.ChatChoice(index, message, logprobs, self.finish_reason(index, calls))

    def text_choice(self, index: int) -> r.TextChoice:
        """A choice as text, after its prompt if that is echoed."""
        choice = self._choices[index]
        logprobs = self.text_logprobs(index, choice.logprobs) if self.wants_logprobs else None
        if logprobs is not None and self.parsed.requests[index].prompt_reader is not None:
            logprobs = joined(self.prompt_logprobs(index), logprobs)
        return r.TextChoice(index, self.echo(index) + self.text(index), logprobs, choice.finish)

    def text_logprobs(self, index: int, last: Sequence[r.TokenLogprob]) -> r.TextLogprobs:
        """The last log-probabilities of a choice in the form of /v1/completions."""
        offsets = self._choices[index].offsets
        return r.TextLogprobs(
            [each.token for each in last],
            [each.logprob for each in last],
            [likely_texts(each) for each in last],
            offsets[len(offsets) - len(last) :],
        )

    def prompt_logprobs(self, index: int) -> r.TextLogprobs:
        """The tokens of an echoed prompt; the first has no log-probability."""
        request = self.parsed.requests[index]
        assert isinstance(request.prompt_reader, PromptLogprobs)
        found = [self.logprob(each) for each in request.prompt_reader.logprobs]
        return r.TextLogprobs(
            [self.prompts.spell(token) for token in request.prompt],
            [None, *(each.logprob for each in found)],
            [None, *(likely_texts(each) for each in found)],
            self.prompts.offsets(request.prompt, self.echo(index)),
        )

    @property
    def wants_logprobs(self) -> bool:
        """True when the request asks for log-probabilities."""
        return self.parsed.requests[0].sampling.logprobs is not None

    # ------------------------------------------------------------------------------- usage
    def stats(self) -> list[Stats]:
        """Counts and times of the choices that have ended."""
        return [choice.stats for choice in self._choices if choice.stats is not None]

    def usage(self) -> r.Usage:
        """Tokens of the prompts and of all choices."""
        stats = self.stats()
        completion = sum(each.tokens for each in stats)
        prompt = self.parsed.prompt_tokens
        cached = sum(each.cached_tokens for each in stats[:: self.per_prompt])
        details = r.CompletionDetails(reasoning_tokens=self.reasoning_tokens())
        if expected := self.parsed.requests[0].sampling.prediction:
            counts = [followed(expected, choice.tokens) for choice in self._choices]
            details.accepted_prediction_tokens = sum(count.accepted for count in counts)
            details.rejected_prediction_tokens = sum(count.rejected for count in counts)
        return r.Usage(prompt, completion, prompt + completion, r.PromptDetails(cached), details)

    def speculation(self) -> r.SpeculationUsage | UnsetType:
        """Statistics of speculation, if the request asks for them."""
        if not self.parsed.recipe:
            return UNSET
        stats = self.stats()
        passes = sum(each.passes for each in stats)
        drafted = sum(each.drafted for each in stats)
        accepted = sum(each.accepted for each in stats)
        tokens = sum(each.tokens for each in stats)
        rate = ratio(tokens, passes)
        waste = ratio(drafted - accepted, drafted)
        return r.SpeculationUsage(
            self.parsed.recipe, self.parsed.guarantee, passes, rate, drafted, accepted, waste
        )
