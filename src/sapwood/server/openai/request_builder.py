"""Turns the body of an API request into requests of the engine."""

import dataclasses
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sapwood.common.suggest import suggestion
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.engine.input_processor import check_options
from sapwood.engine.prompt_scores import PromptLogprobs
from sapwood.engine.request import Request
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.recipes import RECIPES, resolve
from sapwood.recipes.available import is_trained
from sapwood.server.errors import ApiError, too_much, unknown_model
from sapwood.server.openai.chat_prompts import ChatPrompts
from sapwood.server.openai.message_content import (
    TokenLimit,
    check_tool_messages,
    content_text,
    effort_variables,
    max_tokens_of,
    one_of,
    param_errors,
    read_bias,
    read_prompts,
    template_message,
    template_variables,
)
from sapwood.server.openai.model_formats import OutputSyntax
from sapwood.server.openai.request_schema import (
    IGNORED,
    ChatRequest,
    CompletionRequest,
    RequestFields,
    SpeculationParam,
)
from sapwood.server.openai.response_format import (
    ResponseFormat,
    check_size,
    response_format_of,
)
from sapwood.server.openai.tools import describe_tools
from sapwood.server.settings import ServerSettings
from sapwood.tokenizer.template_sandbox import JOIN, TICK

STRENGTH = (Guarantee.LOSSY, Guarantee.LAW, Guarantee.TEXT)
COMPLETION_TOKENS = 16  # default max_tokens of /v1/completions
# variables of chat templates that requests cannot set
RESERVED = ("messages", "tools", "add_generation_prompt", TICK, JOIN)
# fields that have the same name in a request and in sampling options
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "stop",
)


@dataclass(frozen=True, eq=False)
class ParsedRequest:
    """An API request as requests of the engine; choice i is request i."""

    chat: bool
    requests: tuple[Request, ...]
    prompts: int  # prompts among them; each has the same number of choices
    stream: bool = False
    usage: bool = False  # a stream ends with its usage
    padded: bool = False  # events of a stream are padded to even sizes
    echo: tuple[str, ...] = ()  # by prompt: text that is repeated before each choice
    response_format: ResponseFormat | None = None
    syntax: OutputSyntax | None = None  # of a chat's output
    recipe: str = ""  # reported with the statistics of speculation; empty: not body for
    guarantee: str = ""
    ignored: tuple[str, ...] = ()  # fields of the request without effect

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(
            len(request.prompt) for request in self.requests[:: len(self.requests) // self.prompts]
        )


def check_recipes(names: Iterable[str]) -> None:
    """Refuse a name for requests that is no named recipe's."""
    for name in names:
        if name not in RECIPES:
            end = suggestion(name, RECIPES, "`sapwood methods` lists them")
            raise SapwoodError(f"--allow-recipe {name!r} is not the name of a recipe; {end}")


class RequestBuilder:
    """Parses the requests of one model."""

    def __init__(self, llm: LLM, name: str, recipe: str, settings: ServerSettings) -> None:
        self.name = name
        self.recipe = recipe
        self.settings = settings
        self.limits = settings.limits
        self.info = llm.target.info
        self.prompts = ChatPrompts(llm.target.info, llm.text)
        self.ends = llm.text.eos if llm.text else ()
        self.guarantee = llm.recipe.guarantee
        ready = [entry.name for entry in RECIPES.values() if is_trained(entry, self.info)]
        named = list(RECIPES) if "all" in settings.recipes else list(settings.recipes) or ready
        check_recipes(named)
        self.allowed = dict.fromkeys([recipe, "plain", *named])

    # ------------------------------------------------------------------------------- endpoints
    def chat(self, body: ChatRequest, tenant: str) -> ParsedRequest:
        """A chat completion: the assistant's next turn."""
        self.check(body)
        if len(body.messages) > self.limits.messages:
            raise too_much("messages", len(body.messages), self.limits.messages)
        if body.modalities not in (None, [], ["text"]):
            raise ApiError(
                400,
                "the output is text; leave modalities out",
                "modalities",
                "unsupported_parameter",
            )
        top = self.alternatives(body.top_logprobs or 0, "top_logprobs")
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        response_format = response_format_of(body, self.prompts, self.limits)
        check_tool_messages(body.messages)
        messages = [template_message(message, index) for index, message in enumerate(body.messages)]
        tokenizer = self.prompts.tokenizer
        check_size(body.chat_template_kwargs, "chat_template_kwargs", self.limits)
        reserved = {*RESERVED, *tokenizer.specials}
        own = template_variables(body.chat_template_kwargs, reserved)
        with param_errors("messages"):
            messages, variables = describe_tools(
                messages, body.tools, body.tool_choice, tokenizer.template
            )
            effort = effort_variables(body.reasoning_effort, tokenizer.template)
            variables |= effort | own
            prompt, syntax = self.prompts.chat(messages, **variables)
        parsed = self.build(
            body,
            tenant,
            [prompt],
            max_tokens_of(body),
            top if body.logprobs else None,
            response_format,
        )
        special = tokenizer.special_tokens()
        shown = frozenset(special[text] for text in syntax.tokens if text in special)
        for request in parsed.requests:
            request.shown_tokens = shown
        used = {"reasoning_effort"} if effort else set()
        ignored = tuple(name for name in parsed.ignored if name not in used)
        return dataclasses.replace(parsed, syntax=syntax, ignored=ignored)

    def completion(self, body: CompletionRequest, tenant: str) -> ParsedRequest:
        """A text completion: continuations of prompts."""
        self.check(body)
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise ApiError(
                400,
                "best_of must equal n: every choice is returned",
                "best_of",
                "unsupported_parameter",
            )
        texts = read_prompts(body.prompt)
        if len(texts) > self.limits.prompts:
            raise too_much("prompts", len(texts), self.limits.prompts, "prompt")
        with param_errors("prompt"):
            prompts = [self.prompts.raw(text) for text in texts]
        top = None if body.logprobs is None else self.alternatives(body.logprobs, "logprobs")
        echo = [
            text if isinstance(text, str) else self.prompts.tokenizer.show(text)
            for text in texts
            if body.echo
        ]
        max_tokens = max_tokens_of(body)
        if body.max_tokens is None and body.n_predict is None:
            max_tokens = TokenLimit(COMPLETION_TOKENS)
        response_format = response_format_of(body, self.prompts, self.limits)
        return self.build(body, tenant, prompts, max_tokens, top, response_format, tuple(echo))

    def build(
        self,
        body: RequestFields,
        tenant: str,
        prompts: Sequence[tuple[int, ...]],
        max_tokens: TokenLimit,
        top_logprobs: int | None,
        response_format: ResponseFormat | None,
        echo: tuple[str, ...] = (),
    ) -> ParsedRequest:
        """One engine request for every prompt and choice."""
        count = body.n or 1
        options = body.stream_options
        recipe, guarantee = self.speculation(body.speculation)
        seed = secrets.randbits(63) if body.seed is None else body.seed
        sampling = dataclasses.replace(
            self.sampling(body, top_logprobs, response_format), prediction=self.prediction(body)
        )
        requests = []
        for prompt in prompts:
            most = self.most_tokens(
                len(prompt), body.min_tokens or 0, max_tokens, count * len(prompts)
            )
            scored = bool(echo) and top_logprobs is not None
            reader = PromptLogprobs(top_logprobs or 0) if scored else None
            for choice in range(count):
                own = dataclasses.replace(sampling, max_tokens=max(most, 1), seed=seed + choice)
                request = Request(prompt, own, tenant, recipe, self.limits.request_seconds)
                request.prompt_reader = reader
                request.prompt_only = most == 0
                requests.append(request)
        if options is not None and not body.stream:
            raise ApiError(400, "stream_options needs stream: true", "stream_options")
        return ParsedRequest(
            chat=isinstance(body, ChatRequest),
            requests=tuple(requests),
            prompts=len(prompts),
            stream=bool(body.stream),
            usage=bool(options and options.include_usage),
            padded=bool(options and options.include_obfuscation),
            echo=echo,
            response_format=response_format,
            recipe=(recipe or self.recipe) if body.speculation else "",
            guarantee=guarantee.value,
            ignored=tuple(name for name in IGNORED if getattr(body, name, None) is not None),
        )

    # ------------------------------------------------------------------------------- checks
    def check(self, body: RequestFields) -> None:
        """Refuse another model, and values above the limits."""
        if body.model is not None and body.model != self.name:
            raise unknown_model(body.model, self.name)
        if (body.n or 1) > self.limits.n:
            raise too_much("n", body.n, self.limits.n)
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        for name, given in (("stop", stops), ("stop_token_ids", body.stop_token_ids or [])):
            if len(given) > self.limits.stop:
                raise too_much(f"the number of {name}", len(given), self.limits.stop, name)
        if any(not 0 < len(stop) <= self.limits.stop_chars for stop in stops):
            raise ApiError(
                400, f"a stop string must have 1 to {self.limits.stop_chars} characters", "stop"
            )
        if len(body.logit_bias or ()) > self.limits.logit_bias:
            size = len(body.logit_bias or ())
            raise too_much("the size of logit_bias", size, self.limits.logit_bias, "logit_bias")
        for name, tokens in (
            ("logit_bias", body.logit_bias or {}),
            ("stop_token_ids", body.stop_token_ids or ()),
        ):
            unknown = next((token for token in tokens if int(token) >= self.info.vocab), None)
            if unknown is not None:
                raise ApiError(
                    400,
                    f"{name} names token {unknown}; this model has 0 to {self.info.vocab - 1}",
                    name,
                )

    def alternatives(self, top: int, name: str) -> int:
        """The number of alternatives that are reported for each token."""
        if top > self.limits.top_logprobs:
            raise too_much(name, top, self.limits.top_logprobs)
        return top

    def most_tokens(self, prompt: int, least: int, limit: TokenLimit, choices: int) -> int:
        """The most output tokens for a prompt of this length."""
        share = self.limits.new_tokens // choices
        longest, param = limit
        if longest is None:
            return min(self.info.context - prompt, share)
        if longest > self.info.context:
            raise too_much(param, longest, f"{self.info.context}, the context of this model")
        if longest > share:
            raise too_much(
                f"n x prompts x {param}",
                choices * longest,
                f"{self.limits.new_tokens} new tokens",
                param,
            )
        if least > longest:
            raise ApiError(400, f"min_tokens is {least}, more than {param} {longest}", "min_tokens")
        return min(self.info.context - prompt, longest)

    def sampling(
        self,
        body: RequestFields,
        top_logprobs: int | None,
        response_format: ResponseFormat | None,
    ) -> Sampling:
        """Sampling options of a request."""
        options = {name: getattr(body, name) for name in SAMPLING_FIELDS}
        options["repetition_penalty"], _ = one_of(body, ("repetition_penalty", "repeat_penalty"))
        if options["temperature"] is None:
            options["temperature"] = self.settings.temperature
        if options["top_p"] == 0:  # the smallest nucleus is the best token
            options |= {"top_p": None, "top_k": 1}
        if options["top_k"] == -1:
            options["top_k"] = 0
        bias = read_bias(body.logit_bias or {})
        ends = (*(() if body.ignore_eos else self.ends), *(body.stop_token_ids or ()))
        if response_format is not None and response_format.grammar is not None:
            options["grammar"] = response_format.grammar
        options |= {
            "logit_bias": bias,
            "logprobs": top_logprobs,
            "stop_ids": tuple(dict.fromkeys(ends)),
        }
        return check_options(options)

    def prediction(self, body: RequestFields) -> tuple[int, ...]:
        """Tokens of the output that the caller expects."""
        if body.prediction is None:
            return ()
        text = content_text(body.prediction.content, "prediction.content")
        tokens = self.prompts.literal(text[: self.limits.prediction * 8])
        if len(tokens) > self.limits.prediction:
            raise too_much(
                "the prediction", f"{len(tokens)} tokens", self.limits.prediction, "prediction"
            )
        return tuple(tokens)

    def speculation(self, asked: SpeculationParam | bool | None) -> tuple[str, Guarantee]:
        """Name and guarantee of the recipe, checked against those allowed and asked for."""
        wanted = asked if isinstance(asked, SpeculationParam) else SpeculationParam()
        if asked is False:
            wanted = SpeculationParam(recipe="plain")
        if wanted.recipe is not None and wanted.recipe not in self.allowed:
            known = ", ".join(self.allowed)
            raise ApiError(
                400,
                f"recipe {wanted.recipe!r} is not served here; use one of: {known}",
                "speculation.recipe",
            )
        if wanted.recipe in (None, self.recipe):
            given = self.guarantee
        else:
            given = resolve(wanted.recipe).guarantee
        own = min(self.guarantee, Guarantee.LAW, key=STRENGTH.index)
        least = Guarantee(wanted.guarantee) if wanted.guarantee else own
        if STRENGTH.index(given) < STRENGTH.index(least):
            raise ApiError(
                400,
                f"recipe {wanted.recipe or self.recipe!r} guarantees {given.value}, "
                f"less than {least.value}; "
                f'ask for "guarantee": "{given.value}" or another recipe',
                "speculation.guarantee",
            )
        return ("" if wanted.recipe == self.recipe else wanted.recipe or ""), given
