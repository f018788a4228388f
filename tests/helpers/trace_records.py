"""A tiny target, prompts for it, and a trace recorded from its answers."""

from functools import cache
from pathlib import Path
from typing import Any

from sapwood.backends.torch.backend import TorchBackend
from sapwood.engine.outputs import Completion, collect
from sapwood.llm import LLM
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.rounds import Trace
from tests.helpers import byte_tokenizer, tiny_models

# guesses from the prompt on
LIVELY = "recycling + best(estimator=raw) + match + fixed(nodes=12, depth=4, width=4)"
PROMPTS = ("hello there hello there", "abcabcabc abc", "what is this this")


@cache
def trace_target() -> TorchBackend:
    return TorchBackend(
        tiny_models.make("llama", vocab_size=byte_tokenizer.SIZE, eos_token_id=byte_tokenizer.EOS),
        "tiny",
    )


def record(
    path: Path, recipe: str, *, prompts: tuple[str, ...] = PROMPTS, **options: Any
) -> tuple[LLM, list[Completion], Trace]:
    """Answers to prompts, and their trace read back."""
    llm = LLM(trace_target(), recipe, text=byte_tokenizer.text())
    with opened(path, llm, recipe, "tiny", options) as book:
        outs = [
            collect(
                traced(
                    llm,
                    byte_tokenizer.text().chat([{"role": "user", "content": prompt}]),
                    book,
                    prompt,
                    **options,
                )
            )
            for prompt in prompts
        ]
    return llm, outs, read(path)
