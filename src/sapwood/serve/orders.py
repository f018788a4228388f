"""What a request asks of the engine: its jobs, and how the answer is to be told."""

import dataclasses
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.api import LLM
from sapwood.errors import SapwoodError
from sapwood.recipes import RECIPES, resolve
from sapwood.records import Guarantee
from sapwood.request import check_options
from sapwood.sampling import Sampling
from sapwood.serve.content import agreed, blamed, content, several, spoken
from sapwood.serve.errors import ApiError, too_much, unknown_model
from sapwood.serve.jobs import Job
from sapwood.serve.prompts import Prompts
from sapwood.serve.schema import IGNORED, ChatRequest, Common, CompletionRequest, Speculation
from sapwood.serve.settings import Settings
from sapwood.serve.shapes import Shape, shape_of
from sapwood.serve.tools import explained

STRENGTH = (Guarantee.LOSSY, Guarantee.LAW, Guarantee.TEXT)
COMPLETION_TOKENS = 16  # of /v1/completions where a request names no number
# as requests and as samplings call them
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "stop": "stop",
}


@dataclass(frozen=True)
class Order:
    """A request, ready to be worked on; choice i is job i."""

    chat: bool
    jobs: tuple[Job, ...]
    prompts: int  # texts among the jobs; each has the same number of choices
    stream: bool = False
    usage: bool = False  # a stream ends with the numbers
    padded: bool = False  # events of a stream are filled up to even sizes
    echo: tuple[str, ...] = ()  # by prompt: what stands before each answer
    shape: Shape | None = None  # what the text must be, and how calls are read from it
    recipe: str = ""  # reported with the numbers of speculation; empty: not asked for
    guarantee: str = ""
    ignored: tuple[str, ...] = ()  # fields that changed nothing

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once."""
        return sum(len(job.prompt) for job in self.jobs[:: len(self.jobs) // self.prompts])


class Orders:
    """Turns requests for one model into orders."""

    def __init__(self, llm: LLM, name: str, recipe: str, settings: Settings) -> None:
        self.name, self.recipe, self.settings, self.limits = name, recipe, settings, settings.limits
        self.info, self.prompts = llm.target.info, Prompts(llm.target.info, llm.text)
        self.ends = llm.text.eos if llm.text else ()
        self.guarantee = llm.recipe.guarantee
        free = [entry.name for entry in RECIPES.values() if entry.training == "none"]
        named = list(RECIPES) if "all" in settings.recipes else list(settings.recipes) or free
        for strange in set(named) - set(RECIPES):
            raise SapwoodError(f"recipe {strange!r} has no name that requests could use; known: {', '.join(RECIPES)}")
        self.allowed = dict.fromkeys([recipe, "plain", *named])

    # ------------------------------------------------------------------------------- the two kinds
    def chat(self, asked: ChatRequest, tenant: str) -> Order:
        """An order for the assistant's next turn."""
        self.check(asked)
        if len(asked.messages) > self.limits.messages:
            raise too_much("messages", len(asked.messages), self.limits.messages)
        if asked.modalities not in (None, [], ["text"]):
            raise ApiError(400, "answers are text; leave modalities out", "modalities", "unsupported_parameter")
        top = self.alternatives(asked.top_logprobs or 0, "top_logprobs")
        if asked.top_logprobs is not None and not asked.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
        shape = shape_of(asked, self.prompts, self.limits)
        messages = [spoken(message, place) for place, message in enumerate(asked.messages)]
        with blamed("messages"):
            told, shown = explained(messages, asked.tools, asked.tool_choice, self.prompts.text.template)
            prompt = self.prompts.chat(told, **shown)
        longest = agreed(asked.max_tokens, asked.max_completion_tokens)
        return self.order(asked, tenant, [prompt], longest, top if asked.logprobs else None, shape=shape)

    def completion(self, asked: CompletionRequest, tenant: str) -> Order:
        """An order for continuing texts."""
        self.check(asked)
        if asked.best_of is not None and asked.best_of != (asked.n or 1):
            raise ApiError(400, "best_of must equal n: every choice is returned", "best_of", "unsupported_parameter")
        if asked.echo and asked.logprobs is not None:
            raise ApiError(400, "echo with logprobs is not supported; leave one out", "echo", "unsupported_parameter")
        texts = several(asked.prompt)
        if len(texts) > self.limits.prompts:
            raise too_much("prompts", len(texts), self.limits.prompts, "prompt")
        with blamed("prompt"):
            prompts = [self.prompts.raw(text) for text in texts]
        top = None if asked.logprobs is None else self.alternatives(asked.logprobs, "logprobs")
        echo = [text if isinstance(text, str) else self.prompts.text.show(text) for text in texts if asked.echo]
        longest = asked.max_tokens or COMPLETION_TOKENS
        shape = shape_of(asked, self.prompts, self.limits)
        return self.order(asked, tenant, prompts, longest, top, shape=shape, echo=tuple(echo))

    def order(
        self,
        asked: Common,
        tenant: str,
        prompts: Sequence[tuple[int, ...]],
        longest: int | None,
        top: int | None,
        **told: Any,
    ) -> Order:
        """Jobs for every prompt and choice."""
        count, options = asked.n or 1, asked.stream_options
        shape = told["shape"]
        recipe, guarantee = self.speculation(asked.speculation)
        seed = secrets.randbits(63) if asked.seed is None else asked.seed
        sampling = self.sampling(asked, top, shape)
        prediction = self.prediction(asked)
        jobs = []
        for prompt in prompts:
            most = self.room(len(prompt), asked.min_tokens or 0, longest, count * len(prompts))
            for choice in range(count):
                own = dataclasses.replace(sampling, max_tokens=most, seed=seed + choice)
                seconds = self.limits.request_seconds
                jobs.append(Job(prompt, own, tenant, recipe, prediction, seconds))
        if options is not None and not asked.stream:
            raise ApiError(400, "stream_options needs stream: true", "stream_options")
        return Order(
            chat=isinstance(asked, ChatRequest),
            jobs=tuple(jobs),
            prompts=len(prompts),
            stream=bool(asked.stream),
            usage=bool(options and options.include_usage),
            padded=bool(options and options.include_obfuscation),
            recipe=(recipe or self.recipe) if asked.speculation else "",
            guarantee=guarantee.value,
            ignored=tuple(name for name in IGNORED if getattr(asked, name, None) is not None),
            **told,
        )

    # ------------------------------------------------------------------------------- checks
    def check(self, asked: Common) -> None:
        """Refuse another model, or more than the limits allow."""
        if asked.model != self.name:
            raise unknown_model(asked.model, self.name)
        if (asked.n or 1) > self.limits.n:
            raise too_much("n", asked.n, self.limits.n)
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        if len(stops) > self.limits.stop or len(asked.stop_token_ids or ()) > self.limits.stop:
            most = max(len(stops), len(asked.stop_token_ids or ()))
            raise too_much("the number of stops", most, self.limits.stop, "stop")
        if any(not 0 < len(stop) <= self.limits.stop_chars for stop in stops):
            raise ApiError(400, f"a stop string must have 1 to {self.limits.stop_chars} characters", "stop")
        for name, tokens in (("logit_bias", asked.logit_bias or {}), ("stop_token_ids", asked.stop_token_ids or ())):
            if len(tokens) > self.limits.logit_bias:
                raise too_much(f"the size of {name}", len(tokens), self.limits.logit_bias, name)
            strange = next((token for token in tokens if int(token) >= self.info.vocab), None)
            if strange is not None:
                raise ApiError(400, f"{name} names token {strange}; this model has 0 to {self.info.vocab - 1}", name)

    def alternatives(self, top: int, name: str) -> int:
        """How many tokens are reported beside each."""
        if top > self.limits.top_logprobs:
            raise too_much(name, top, self.limits.top_logprobs)
        return top

    def room(self, prompt: int, least: int, longest: int | None, choices: int) -> int:
        """The longest answer to a prompt of this length."""
        share = self.limits.new_tokens // choices
        if longest is not None and longest > self.info.context:
            raise too_much("max_tokens", longest, f"{self.info.context}, the context of this model")
        if longest is not None and longest > share:
            raise too_much(
                "n x prompts x max_tokens", choices * longest, f"{self.limits.new_tokens} new tokens", "max_tokens"
            )
        if longest is not None and least > longest:
            raise ApiError(400, f"min_tokens is {least}, more than max_tokens {longest}", "min_tokens")
        room = self.info.context - prompt
        return min(room, share if longest is None else longest)

    def sampling(self, asked: Common, top: int | None, shape: Shape | None) -> Sampling:
        """How tokens are chosen."""
        options = {name: getattr(asked, field) for field, name in NAMES.items()}
        if options["temperature"] is None:
            options["temperature"] = self.settings.temperature
        if options["top_p"] == 0:  # the smallest nucleus is the best token
            options |= {"top_p": None, "top_k": 1}
        if options["top_k"] == -1:
            options["top_k"] = 0
        bias = {int(token): value for token, value in (asked.logit_bias or {}).items()}
        ends = (*(() if asked.ignore_eos else self.ends), *(asked.stop_token_ids or ()))
        if shape is not None and shape.grammar is not None:
            options["grammar"] = shape.grammar
        return check_options({**options, "logit_bias": bias, "logprobs": top, "stop_ids": tuple(dict.fromkeys(ends))})

    def prediction(self, asked: Common) -> tuple[int, ...]:
        """Tokens of the answer that the caller expects."""
        if asked.prediction is None:
            return ()
        words = content(asked.prediction.content, "prediction.content")
        tokens = self.prompts.literal(words[: self.limits.prediction * 8])
        if len(tokens) > self.limits.prediction:
            raise too_much("the prediction", f"{len(tokens)} tokens", self.limits.prediction, "prediction")
        return tuple(tokens)

    def speculation(self, asked: Speculation | bool | None) -> tuple[str, Guarantee]:
        """The recipe by name, where it is allowed and keeps what is asked for."""
        wish = asked if isinstance(asked, Speculation) else Speculation()
        if asked is False:
            wish = Speculation(recipe="plain")
        if wish.recipe is not None and wish.recipe not in self.allowed:
            known = ", ".join(self.allowed)
            raise ApiError(400, f"recipe {wish.recipe!r} is not served here; use one of: {known}", "speculation.recipe")
        kept = self.guarantee if wish.recipe in (None, self.recipe) else resolve(wish.recipe).guarantee
        own = min(self.guarantee, Guarantee.LAW, key=STRENGTH.index)
        least = Guarantee(wish.guarantee) if wish.guarantee else own
        if STRENGTH.index(kept) < STRENGTH.index(least):
            raise ApiError(
                400,
                f"recipe {wish.recipe or self.recipe!r} promises {kept.value}, less than {least.value}; "
                f'ask for "guarantee": "{kept.value}" or another recipe',
                "speculation.guarantee",
            )
        return ("" if wish.recipe == self.recipe else wish.recipe or ""), kept
