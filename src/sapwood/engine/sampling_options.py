"""The keyword arguments of `LLM.generate`, `stream` and `chat`, with their types."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from sapwood.structured_output.compiled import CompiledGrammar
from sapwood.structured_output.grammar import Grammar


class SamplingOptions(TypedDict, total=False):
    """Sampling and stop options of a request; None, or leaving one out, takes its default."""

    temperature: float | None  # 0 takes the best token; default 0
    top_k: int | None  # keep this many of the likeliest tokens; 0, the default, keeps all
    top_p: float | None  # keep the likeliest tokens that hold this probability; default 1
    min_p: float | None  # keep tokens this likely against the best one; default 0
    repetition_penalty: float | None  # of tokens in prompt and output; 1, the default, is none
    frequency_penalty: float | None  # per earlier occurrence of a token in the output; default 0
    presence_penalty: float | None  # once for a token that the output holds; default 0
    logit_bias: Mapping[int, float] | None  # token -> number that is added to its logit
    banned: Sequence[int] | None  # tokens that are never taken
    max_tokens: int | None  # longest output; default 256
    min_tokens: int | None  # the text cannot end before this many; default 0
    stop: str | Sequence[str] | None  # end before one of these texts
    stop_ids: Sequence[int] | None  # end after one of these tokens, beside the model's own
    seed: int | None  # of the sampling; the same seed gives the same text; default 0
    logprobs: int | None  # log-probabilities of the output, with so many alternatives each
    # made by json_schema, json_object, regex or lark of sapwood.structured_output
    grammar: Grammar | CompiledGrammar | None
    prediction: str | Sequence[int] | None  # the output that is expected: changes its speed alone
