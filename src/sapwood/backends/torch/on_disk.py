"""A model whose own code is not loaded: what drafters ask a transformers model for, read when they ask."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from sapwood.backends.torch.config import Config


class Table:
    """A matrix of the model that is read when it is asked for."""

    def __init__(self, read: Callable[[], Tensor]) -> None:
        self._read = read

    @cached_property
    def weight(self) -> Tensor:
        """The matrix, float32."""
        return self._read()

    def __call__(self, states: Tensor) -> Tensor:
        """Logits by it."""
        return nn.functional.linear(states, self.weight)


class OnDisk:
    """Stands in for a transformers model on a CPU; whatever it does not know itself it asks the model itself."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, config: Config, embedding: Table, head: Table, load: Callable[[], Any]) -> None:
        self.config, self._embedding, self._head, self._load = config, embedding, head, load

    @property
    def vocab(self) -> int:
        """Tokens that it gives logits for."""
        return self.config.vocab_size

    def get_input_embeddings(self) -> Table:
        """What tokens are turned into states by."""
        return self._embedding

    def get_output_embeddings(self) -> Table:
        """What states are turned into logits by."""
        return self._head

    def eval(self) -> Self:
        """Nothing here is trained."""
        return self

    @cached_property
    def whole(self) -> Any:
        """The transformers model, for those who run or change its parts; it takes seconds and all of its memory."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole, name)


def whole(model: Any) -> Any:
    """The transformers model itself, for what may only stand in for it."""
    return model.whole if isinstance(model, OnDisk) else model
