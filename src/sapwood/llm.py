"""LLM: load a model with a recipe; generate, stream and chat."""

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self, TypeGuard, Unpack, cast, overload
from weakref import WeakValueDictionary

from sapwood.common.heap import trim_heap
from sapwood.core.protocols import Backend, TokenizerLike, no_tokenizer, no_words
from sapwood.engine.cost_profiler import CostProfile
from sapwood.engine.generate import generate, stream
from sapwood.engine.input_processor import read_chat, read_prompt, read_sampling
from sapwood.engine.loop import Engine
from sapwood.engine.output_processor import within
from sapwood.engine.outputs import Completion, Step, collect
from sapwood.engine.plain_speed import measured_speedup
from sapwood.engine.sampling_options import SamplingOptions
from sapwood.model_loader import LoadTokenizer, load
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int]  # a text, or tokens
Prompts = list[str] | list[list[int]] | tuple[str, ...] | tuple[Sequence[int], ...]
LONG_LIST = 8  # prompts from which on a progress bar is shown on a terminal


def silent(message: str) -> None:
    """Drop a progress message: the default."""


def is_list_of_prompts(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    """True for a list of texts or of token lists; a list of ints is one prompt."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
        return False
    return isinstance(prompt[0], str | Sequence)


@contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error; yields a function to call after each prompt."""
    shown = total >= LONG_LIST and sys.stderr.isatty() if wanted is None else wanted
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)


class LLM:
    """A model decoded with token trees; its text is that of plain decoding, by the guarantee."""

    def __init__(
        self,
        # built-in model, Hub id, local folder or .gguf file; or a backend
        model: str | os.PathLike[str] | Backend = "smollm2",
        recipe: str | Recipe = "auto",  # a name, a spelling, or a recipe
        *,
        backend: str | None = None,  # None: torch; llamacpp runs a GGUF file as it is
        device: str | None = None,  # None: a GPU where there is one
        # None: float16 on a GPU; int8 on a CPU if the model can, else float32; int4 reads 4-bit
        # GGUF files as they are
        dtype: str | None = None,
        threads: int | None = None,
        tensor_parallel: int = 1,  # processes that share the layers of the model
        lora: str | None = None,  # folder of a LoRA adapter in PEFT's format
        progress: Callable[[str], None] | None = None,  # called with messages on slow steps
        drafter: str | None = None,  # these five replace single parts of the recipe
        policy: str | None = None,
        verifier: str | None = None,
        controller: str | None = None,
        estimator: str | None = None,
        text: Tokenizer | None = None,  # tokenizer of a backend given as `model`
    ) -> None:
        parts = {
            "drafter": drafter,
            "policy": policy,
            "verifier": verifier,
            "controller": controller,
        }
        if isinstance(model, os.PathLike):
            model = os.fspath(model)
        # before anything slow: a misspelt recipe fails at once
        made = resolve(recipe, estimator=estimator, **parts)
        self.progress = progress or silent
        # further models of drafters, and functions that load their tokenizers
        self._draft_models: WeakValueDictionary[str, Backend] = WeakValueDictionary()
        self._tokenizers: dict[str, LoadTokenizer] = {}
        self._backend = backend
        self._device = device
        self._dtype = dtype
        self._threads = threads
        if isinstance(model, str):
            self.target, load_tokenizer = self._load(model, ranks=tensor_parallel, lora=lora)
            self.text: Tokenizer | None = load_tokenizer()
        else:
            self.target = model
            self.text = text
        self.profile = CostProfile.open(self.target.info)
        self._build(made)
        trim_heap()  # tens of megabytes that loading has freed

    def _load(
        self, model: str, ranks: int = 1, lora: str | None = None
    ) -> tuple[Backend, LoadTokenizer]:
        return load(
            model,
            self._backend,
            device=self._device,
            dtype=self._dtype,
            threads=self._threads,
            progress=self.progress,
            ranks=ranks,
            lora=lora,
        )

    def _draft_model(self, model: str) -> Backend:
        """A further model for a drafter, shared by all recipes in use."""
        found = self._draft_models.get(model)
        if found is None:
            found, self._tokenizers[model] = self._load(model)
            self._draft_models[model] = found
        return found

    def _tokenizer_of(self, model: str) -> TokenizerLike:
        """The tokenizer of a further model, or of the target if the name is empty."""
        if model:
            if model not in self._tokenizers:
                self._draft_model(model)
            return self._tokenizers[model]()
        return no_words(model) if self.text is None else self.text

    def _build(self, recipe: Recipe) -> None:
        self.engine = self.bind(recipe)
        if not self.profile.measured and recipe.controller.priced:
            self.profile.measure(self.target, self.progress, quick=True)

    def bind(self, recipe: Recipe, now: Callable[[], float] = time.perf_counter) -> Engine:
        """A further engine for this recipe: weights are shared, the state of its parts is not."""
        encode = no_tokenizer if self.text is None else partial(self.text.encode, whole=False)
        return Engine(
            self.target,
            recipe,
            self.profile.curve,
            self._draft_model,
            now,
            encode=encode,
            words=self._tokenizer_of,
        )

    @property
    def recipe(self) -> Recipe:
        """The recipe in use, with its bound parts."""
        return self.engine.recipe

    def with_recipe(self, recipe: str | Recipe, **overrides: str | None) -> "LLM":
        """The same loaded model under another recipe."""
        other = copy.copy(self)
        other._build(resolve(recipe, **overrides))
        return other

    # ------------------------------------------------------------------------------- requests
    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        progress: bool | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        *,
        raw: bool = False,
        progress: bool | None = None,
        **sampling: Unpack[SamplingOptions],
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        *,
        raw: bool = False,
        progress: bool | None = None,  # a bar on standard error; None: for long lists on a terminal
        **sampling: Unpack[SamplingOptions],
    ) -> Completion | list[Completion]:
        """Generate for one prompt, or for a list of prompts in passes that they share.

        A prompt is one user turn, or a text to continue verbatim if `raw` or given as tokens.
        Outputs of a list come in its order, and each is the output that its prompt gets alone.
        The options in `sampling` are those of SamplingOptions, for all prompts alike.
        """
        if not is_list_of_prompts(prompt):
            return collect(self.stream(cast(Prompt, prompt), raw=raw, **sampling))
        info = self.target.info
        prompts = [read_prompt(one, info, self.text, raw=raw) for one in prompt]
        options = read_sampling(sampling, info, self.text)
        fitted = [within(options, info.context - len(one)) for one in prompts]
        steps: list[list[Step]] = [[] for _ in prompts]
        with progress_bar(len(prompts), progress) as advance:

            def on_step(index: int, step: Step) -> None:
                steps[index].append(step)
                if step.done:
                    advance()

            generate(
                self.engine, prompts, fitted, on_step, self.text, measured=self.profile.measured
            )
        self.profile.keep()
        return [collect(own) for own in steps]

    def stream(
        self, prompt: Prompt, *, raw: bool = False, **sampling: Unpack[SamplingOptions]
    ) -> Iterator[Step]:
        """Generate for one prompt, step by step."""
        return self._decode(read_prompt(prompt, self.target.info, self.text, raw=raw), sampling)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], **sampling: Unpack[SamplingOptions]
    ) -> Completion:
        """The assistant's next turn in a conversation of {"role", "content"} messages."""
        return collect(self.stream_chat(messages, **sampling))

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **sampling: Unpack[SamplingOptions]
    ) -> Iterator[Step]:
        """The assistant's next turn, step by step."""
        return self._decode(read_chat(messages, self.target.info, self.text), sampling)

    def _decode(self, prompt: list[int], options: Mapping[str, Any]) -> Iterator[Step]:
        sampling = within(
            read_sampling(options, self.target.info, self.text),
            self.target.info.context - len(prompt),
        )
        measured = self.profile.measured
        keep = self.profile.keep
        return stream(self.engine, prompt, sampling, self.text, measured=measured, on_end=keep)

    def measure_speedup(
        self, prompt: Prompt | Sequence[Mapping[str, Any]], out: Completion, *, raw: bool = False
    ) -> float | None:
        """Speedup of an answer over plain decoding, which decodes its last tokens again.

        `prompt` is that of the answer, or the messages of a chat. None if it cannot be told.
        """
        info = self.target.info
        if isinstance(prompt, str) or not isinstance(prompt[0], Mapping):
            tokens = read_prompt(cast(Prompt, prompt), info, self.text, raw=raw)
        else:
            tokens = read_chat(cast(Sequence[Mapping[str, Any]], prompt), info, self.text)
        return measured_speedup(self.bind(resolve("plain")), tokens, out)

    # ------------------------------------------------------------------------------- lifetime
    def close(self) -> None:
        """Store the cost profile of this machine."""
        self.profile.keep(at_once=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
