"""Embeddings in the form of the Ollama API."""

import time
from typing import Any

from sapwood.server.ollama.schema import OllamaEmbeddings
from sapwood.server.ollama.stream import nanoseconds
from sapwood.server.openai.embeddings import EmbeddingResponse, check_dimensions


class OllamaEmbedResponse(EmbeddingResponse):
    """The response to a request for embeddings."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._began = time.monotonic()

    def record(self) -> OllamaEmbeddings:
        """The vectors in the order of the texts."""
        vectors = [reader.vector for reader in self.parsed.readers]
        check_dimensions(self.parsed.dimensions, vectors)
        return OllamaEmbeddings(
            model=self.model,
            embeddings=[vector.tolist() for vector in vectors],
            total_duration=nanoseconds(time.monotonic() - self._began),
            prompt_eval_count=self.parsed.prompt_tokens,
        )
