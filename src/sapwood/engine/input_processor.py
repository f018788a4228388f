"""Checks and tokenizes the input of a request: prompts, sampling options, conversations."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sapwood.common.suggest import suggestion
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.structured_output import Grammar
from sapwood.structured_output.compiled import CompiledGrammar, compiled
from sapwood.structured_output.grammar_matcher import GrammarRules
from sapwood.tokenizer.tokenizer import Tokenizer, check_unicode

WHOLE = ("top_k", "max_tokens", "min_tokens", "seed", "logprobs")  # options that count something
PROMPT = "the prompt"  # as errors about it name it
KNOWN = tuple(option.name for option in dataclasses.fields(Sampling))


def read_sampling(
    options: Mapping[str, Any], info: BackendInfo, text: Tokenizer | None
) -> Sampling:
    """The sampling of a request; the model's end-of-text tokens are added to `stop_ids`."""
    sampling = check_options(options)
    if sampling.stop and text is None:
        raise SapwoodError(
            "stop strings need a tokenizer, which this backend came without; use stop_ids"
        )
    sampling = dataclasses.replace(
        sampling,
        grammar=read_grammar(sampling.grammar, info, text),
        prediction=read_prediction(sampling.prediction, text),
    )
    for name in ("stop_ids", "banned", "logit_bias", "prediction"):
        check_ids(getattr(sampling, name), name, info)
    ends = (*(text.eos if text else ()), *sampling.stop_ids)
    return dataclasses.replace(sampling, stop_ids=tuple(dict.fromkeys(ends)))


def check_options(options: Mapping[str, Any]) -> Sampling:
    """Check sampling options as far as that needs no model; None is the default of each."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in KNOWN:
            end = suggestion(name, KNOWN, f"known: {', '.join(KNOWN)}")
            raise SapwoodError(f"unknown option {name!r}; {end}")
    for name in WHOLE:
        if name in given and not is_whole(given[name]):
            raise SapwoodError(f"{name}={given[name]!r} must be a whole number")
    if given.get("logprobs", 0) < 0:
        raise SapwoodError(f"logprobs={given['logprobs']} must be at least 0")
    given["stop"] = read_stops(given.get("stop", ()))
    if not isinstance(given.get("grammar"), Grammar | CompiledGrammar | None):
        raise SapwoodError(
            f"grammar={given['grammar']!r} must be made by json_schema, regex or lark "
            "of sapwood.structured_output"
        )
    return Sampling(**given)


def read_stops(stop: Any) -> tuple[str, ...]:
    """Stop strings from one or several."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or any(
        not isinstance(item, str) or not item for item in stops
    ):
        raise SapwoodError(f"stop={stop!r} must be a text or a list of texts, none of them empty")
    return tuple(stops)


def read_grammar(grammar: Any, info: BackendInfo, text: Tokenizer | None) -> GrammarRules | None:
    """The grammar compiled for the model's tokens, unless it is already."""
    if not isinstance(grammar, Grammar):
        return grammar  # type: ignore[no-any-return]
    if text is None:
        raise SapwoodError(
            "a grammar needs a tokenizer, which this backend came without; leave the grammar out"
        )
    return compiled(grammar, text, info.vocab)


def read_prediction(prediction: Any, text: Tokenizer | None) -> Sequence[int]:
    """Tokens of the predicted output, given as text or as tokens."""
    if not isinstance(prediction, str):
        return prediction  # type: ignore[no-any-return]
    if text is None:
        raise SapwoodError(
            "a prediction in words needs a tokenizer, which this backend came without; give tokens"
        )
    return tuple(text.encode(prediction, whole=False))


def check_ids(tokens: Any, name: str, info: BackendInfo) -> None:
    """Refuse what is not a collection of tokens of the model's vocabulary."""
    if not isinstance(tokens, Sequence | Mapping) or isinstance(tokens, str | bytes):
        text = "a text or " if name == PROMPT else ""
        raise SapwoodError(f"{name} is {tokens!r} and must be {text}a list of token ids")
    for token in tokens:
        if not is_whole(token) or not 0 <= token < info.vocab:
            raise SapwoodError(
                f"{name} holds {token!r}, but the tokens of {info.model} are 0 to {info.vocab - 1}"
            )
    if isinstance(tokens, Mapping) and not all(is_finite(bias) for bias in tokens.values()):
        raise SapwoodError(
            f"{name}={tokens!r} must map token ids to finite numbers; `banned` forbids a token"
        )


def read_prompt(
    prompt: str | Sequence[int], info: BackendInfo, text: Tokenizer | None, *, raw: bool
) -> list[int]:
    """Tokens of a prompt.

    A text becomes one user turn when the model has a chat template, unless `raw`.
    """
    if not isinstance(prompt, str):
        check_ids(prompt, PROMPT, info)
        return fitting(list(prompt), info)
    if text is None:
        raise SapwoodError(
            "a text prompt needs a tokenizer, which this backend came without; "
            "give a list of tokens"
        )
    check_text(prompt)
    if raw or text.template is None:
        return fitting(text.encode(prompt), info)
    return read_chat([{"role": "user", "content": prompt}], info, text)


def check_text(prompt: str) -> None:
    """Refuse a prompt that is empty or not valid Unicode."""
    if not prompt:
        raise SapwoodError("the prompt is empty; write at least one character")
    check_unicode(prompt)


def read_chat(messages: Any, info: BackendInfo, text: Tokenizer | None) -> list[int]:
    """Tokens of a conversation, up to the start of the next assistant turn."""
    if text is None:
        raise SapwoodError(
            "a chat needs a tokenizer, which this backend came without; give a list of tokens"
        )
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise SapwoodError("messages must be a list of at least one {'role': ..., 'content': ...}")
    for message in messages:
        if (
            not isinstance(message, Mapping)
            or not isinstance(message.get("role"), str)
            or "content" not in message
        ):
            raise SapwoodError(f"message {message!r} must have a role and a content")
    return fitting(text.chat(messages), info)


def fitting(tokens: list[int], info: BackendInfo) -> list[int]:
    """The same tokens, if the context holds them and at least one output token."""
    if not tokens:
        raise SapwoodError("the prompt holds no tokens; give at least one")
    if len(tokens) >= info.context:
        raise SapwoodError(
            f"the prompt has {len(tokens)} tokens, but {info.model} holds {info.context} "
            "with its answer; shorten it"
        )
    if max(tokens) >= info.vocab:
        raise SapwoodError(
            f"the tokenizer made token {max(tokens)}, but {info.model} knows {info.vocab} tokens; "
            "use the tokenizer that belongs to the model"
        )
    return tokens


def is_finite(value: Any) -> bool:
    """True for a number that is neither infinite nor nan."""
    return isinstance(value, int | float) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """True for an int that is not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)
