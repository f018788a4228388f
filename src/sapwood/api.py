"""The front door: a model, a recipe, and text in and out."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self
from weakref import WeakValueDictionary

from sapwood.completion import Completion, Step, collect
from sapwood.engine import Engine
from sapwood.loading import ReadText, load
from sapwood.output import steps, within
from sapwood.profile import Profile
from sapwood.protocols import Backend, Words, no_tokenizer, no_words
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.request import read_chat, read_prompt, read_sampling
from sapwood.text import Text


def silent(message: str) -> None:
    """Progress that nobody wants to see."""


class LLM:
    """A model that answers through a token tree; the text is plain decoding's own under the recipe's guarantee."""

    def __init__(
        self,
        model: str | Backend = "smollm2",  # built in; a Hub id, a local folder, a .gguf file; or a backend
        recipe: str | Recipe = "auto",  # a name, a spelling, or a recipe
        *,
        backend: str | None = None,  # None: torch; llamacpp runs a GGUF file as it is
        device: str | None = None,  # None: a GPU where there is one
        dtype: str | None = None,  # None: float16 on a GPU; int8 on a CPU where the model can, else float32
        threads: int | None = None,
        progress: Callable[[str], None] | None = None,  # told what takes long
        drafter: str | None = None,  # these five replace single parts of the recipe
        policy: str | None = None,
        verifier: str | None = None,
        controller: str | None = None,
        estimator: str | None = None,
        text: Text | None = None,  # tokenizer of a backend given as `model`
    ) -> None:
        parts = {"drafter": drafter, "policy": policy, "verifier": verifier, "controller": controller}
        made = resolve(recipe, estimator=estimator, **parts)  # before anything slow: a misspelling fails at once
        self.progress = progress or silent
        self._lent: WeakValueDictionary[str, Backend] = WeakValueDictionary()  # models lent to drafters
        self._readers: dict[str, ReadText] = {}  # of the texts of models lent to drafters
        self._backend, self._device, self._dtype, self._threads = backend, device, dtype, threads
        if isinstance(model, str):
            self.target, read_text = self._load(model)
            self.text: Text | None = read_text()
        else:
            self.target, self.text = model, text
        self.profile = Profile.open(self.target.info)
        self._build(made)

    def _load(self, model: str) -> tuple[Backend, ReadText]:
        place = {"device": self._device, "dtype": self._dtype}
        return load(model, self._backend, **place, threads=self._threads, progress=self.progress)

    def _lend(self, model: str) -> Backend:
        """A further model for a drafter: one for all the recipes that are in use."""
        lent = self._lent.get(model)
        if lent is None:
            lent, self._readers[model] = self._load(model)
            self._lent[model] = lent
        return lent

    def _words(self, model: str) -> Words:
        """The tokenizer of the target, or of a further model."""
        if model:
            if model not in self._readers:
                self._lend(model)
            return self._readers[model]()
        return no_words(model) if self.text is None else self.text

    def _build(self, recipe: Recipe) -> None:
        self.engine = self.bind(recipe)
        if not self.profile.measured and getattr(recipe.controller, "priced", False):
            self.profile.measure(self.target, self.progress, quick=True)

    def bind(self, recipe: Recipe) -> Engine:
        """A further engine for this recipe: the weights are shared, what its parts remember is not."""
        encode = no_tokenizer if self.text is None else partial(self.text.encode, whole=False)
        return Engine(self.target, recipe, self.profile.curve, self._lend, encode=encode, words=self._words)

    @property
    def recipe(self) -> Recipe:
        """The parts that decode."""
        return self.engine.recipe

    def with_recipe(self, recipe: str | Recipe, **overrides: str | None) -> "LLM":
        """The same loaded model under another recipe."""
        other = copy.copy(self)
        other._build(resolve(recipe, **overrides))
        return other

    # ------------------------------------------------------------------------------- requests
    def generate(self, prompt: str | Sequence[int], *, raw: bool = False, **sampling: Any) -> Completion:
        """Answer a prompt: one user turn, or a text to continue verbatim if `raw` or given as tokens."""
        return collect(self.stream(prompt, raw=raw, **sampling))

    def stream(self, prompt: str | Sequence[int], *, raw: bool = False, **sampling: Any) -> Iterator[Step]:
        """The same, round by round."""
        return self._decode(read_prompt(prompt, self.target.info, self.text, raw=raw), sampling)

    def chat(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> Completion:
        """The assistant's next turn in a conversation of {"role", "content"} messages."""
        return collect(self.stream_chat(messages, **sampling))

    def stream_chat(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> Iterator[Step]:
        """The same, round by round."""
        return self._decode(read_chat(messages, self.target.info, self.text), sampling)

    def _decode(self, prompt: list[int], options: Mapping[str, Any]) -> Iterator[Step]:
        sampling = within(read_sampling(options, self.target.info, self.text), self.target.info.context - len(prompt))
        return self._kept(steps(self.engine, prompt, sampling, self.text, measured=self.profile.measured))

    def _kept(self, running: Iterator[Step]) -> Iterator[Step]:
        yield from running
        self.profile.keep()

    # ------------------------------------------------------------------------------- lifetime
    def close(self) -> None:
        """Store what was learned about this machine."""
        self.profile.keep(at_once=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
