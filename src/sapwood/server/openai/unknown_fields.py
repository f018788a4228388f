"""Fields of other servers that are not fields here: dropped where neutral, else refused."""

import difflib
from typing import Any

import msgspec

from sapwood.server.errors import ApiError

# known to other servers and refused here, with the reason
REFUSED = {
    "add_generation_prompt": "the output is the assistant's next turn",
    "allowed_token_ids": "a grammar or logit_bias says which tokens may be output",
    "audio": "the output is text",
    "bad_words": "logit_bias says which tokens may not be output",
    "cache_salt": "cached prefixes are shared within a key only",
    "chat_template": "the model's own template is used; templates never come from a request",
    "continue_final_message": "the output is the assistant's next turn",
    "conversation": "responses are not kept; send the earlier items in input",
    "documents": "chat_template_kwargs sets variables of the template",
    "dry_multiplier": "there is no DRY sampler",
    "dynatemp_range": "the temperature is constant",
    "echo": "a chat has no text to repeat",
    "enable_thinking": "chat_template_kwargs sets variables of the template",
    "function_call": "it was replaced by tool_choice",
    "functions": "they were replaced by tools",
    "guided_whitespace_pattern": "JSON is written on one line",
    "include_stop_str_in_output": "a stop string is not part of the output",
    "length_penalty": "there is no beam search",
    "logits_processors": "a request brings no code",
    "mirostat": "there is no Mirostat sampler",
    "mm_processor_kwargs": "the input is text",
    "n_probs": "logprobs asks for log-probabilities",
    "previous_response_id": "responses are not kept; send the earlier items in input",
    "prompt_logprobs": "/v1/completions scores a prompt with echo and logprobs",
    "repeat_last_n": "the repetition penalty counts the whole text",
    "return_tokens_as_token_ids": "tokens are returned as text",
    "samplers": "the order of samplers is fixed",
    "skip_special_tokens": "special tokens are not part of the output",
    "suffix": "the model continues a text, it does not fill one in",
    "tfs_z": "there is no tail-free sampler",
    "top_a": "there is no top-a sampler",
    "top_n_sigma": "there is no top-n-sigma sampler",
    "truncate_prompt_tokens": "a prompt is never cut",
    "typical_p": "there is no locally typical sampler",
    "use_beam_search": "there is no beam search",
    "web_search_options": "the server opens no connections",
    "xtc_probability": "there is no XTC sampler",
}
# values of these fields that change nothing, so that they are accepted; null always is
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "echo": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_probs": (0,),
    "repeat_last_n": (-1,),
    "return_tokens_as_token_ids": (False,),
    "samplers": ([],),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "tfs_z": (1,),
    "top_a": (0,),
    "top_n_sigma": (-1, 0),
    "truncate_prompt_tokens": (-1,),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "xtc_probability": (0,),
}
# without effect on the output whatever their value: options of samplers that are off, of caches
# and of other implementations
UNUSED = (
    "cache_prompt",
    "dry_allowed_length",
    "dry_base",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "guided_decoding_backend",
    "id_slot",
    "mirostat_eta",
    "mirostat_tau",
    "priority",
    "request_id",
    "spaces_between_special_tokens",
    "timings_per_token",
    "xtc_threshold",
)


def without_neutral(body: Any, kind: type[msgspec.Struct]) -> Any:
    """The body without unknown fields that change nothing; nulls are dropped at every level."""
    import msgspec.inspect  # only for bodies with unknown fields

    if not isinstance(body, dict):
        return body
    known = kind.__struct_fields__
    used = {
        name: value
        for name, value in body.items()
        if name in known or not (name in UNUSED or value in NEUTRAL.get(name, ()))
    }
    return dropped(used, msgspec.inspect.type_info(kind))


def dropped(value: Any, kind: Any) -> Any:
    """A value without unknown fields that are null."""
    from msgspec.inspect import ListType, StructType, UnionType

    if isinstance(kind, UnionType):
        fitting = StructType if isinstance(value, dict) else ListType
        kind = next((item for item in kind.types if isinstance(item, fitting)), None)
    if isinstance(value, list) and isinstance(kind, ListType):
        return [dropped(item, kind.item_type) for item in value]
    if not isinstance(value, dict) or not isinstance(kind, StructType):
        return value
    known = {field.encode_name: field.type for field in kind.fields}
    return {
        name: dropped(item, known.get(name))
        for name, item in value.items()
        if item is not None or name in known
    }


def unknown_field(name: str, param: str, kind: type[msgspec.Struct]) -> ApiError:
    """The error of an unknown field, with the nearest known name."""
    if param in REFUSED:
        return ApiError(
            400, f"{name} is not supported: {REFUSED[name]}", param, "unsupported_parameter"
        )
    near = difflib.get_close_matches(name[:64], kind.__struct_fields__, 1)
    hint = f"; did you mean {near[0]!r}?" if near and param == name else "; leave it out"
    return ApiError(400, f"unknown field {name[:64]!r}{hint}", param, "unknown_parameter")
