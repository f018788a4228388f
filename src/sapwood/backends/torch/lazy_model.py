"""A stand-in for a transformers model, which is loaded only if its own code is needed."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

CPU = torch.device("cpu")


class LazyMatrix:
    """A matrix of the model that is read on first use."""

    def __init__(self, read: Callable[[], Tensor], table: Callable[[], Any] | None = None) -> None:
        """`table` makes an `EmbeddingTable`, where the whole matrix would take more memory."""
        self._read = read
        self._table = table

    @cached_property
    def rows(self) -> Any:
        """The matrix as drafters read it, by rows: a tensor or an `EmbeddingTable`."""
        return self.weight if self._table is None else self._table()

    @cached_property
    def weight(self) -> Tensor:
        """The matrix, float32."""
        return self._read()

    def __call__(self, states: Tensor) -> Tensor:
        """Logits of states, with this matrix as output head."""
        return nn.functional.linear(states, self.weight)


class LazyModel:
    """A transformers model that is loaded when other attributes are read."""

    def __init__(
        self,
        config: Any,  # of transformers, or `LlamaConfig` or `ModelFacts`
        embedding: LazyMatrix,
        head: LazyMatrix,
        load: Callable[[], Any],
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.device = device
        self.dtype = dtype
        self._embedding = embedding
        self._head = head
        self._load = load

    @property
    def vocab(self) -> int:
        """Vocabulary size."""
        return int(self.config.vocab_size)

    def get_input_embeddings(self) -> LazyMatrix:
        """The input embedding."""
        return self._embedding

    def get_output_embeddings(self) -> LazyMatrix:
        """The output head."""
        return self._head

    def eval(self) -> Self:
        """Return the model: it is not trained here."""
        return self

    @cached_property
    def whole(self) -> Any:
        """The transformers model; loading it takes seconds and its full memory."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.whole, name)


def whole(model: Any) -> Any:
    """The transformers model behind a possible `LazyModel`."""
    return model.whole if isinstance(model, LazyModel) else model
