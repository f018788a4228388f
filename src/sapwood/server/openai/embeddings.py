"""POST /v1/embeddings: mean of the final hidden states of each text, with a length of 1."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sapwood.core.array_types import FloatArray
from sapwood.core.sampling import Sampling
from sapwood.engine.prompt_scores import MeanState
from sapwood.engine.request import Request
from sapwood.server.dispatcher import Dispatcher, Requests
from sapwood.server.errors import ApiError, too_much, unknown_model
from sapwood.server.http.access_log import AccessLogEntry
from sapwood.server.openai.generation_response import until_disconnect
from sapwood.server.openai.message_content import param_errors, read_prompts
from sapwood.server.openai.request_builder import RequestBuilder
from sapwood.server.openai.request_schema import Count, Word

TOGETHER = 32  # texts that are submitted to the engine at a time


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    input: str | list[str | int | list[int]]
    model: Word | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: Word | None = None


class Embedding(msgspec.Struct):
    """The vector of one text; as base64, little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    """The vectors of all texts."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


class ParsedEmbeddings(msgspec.Struct):
    """A request for embeddings as requests of the engine."""

    requests: Requests
    readers: list[MeanState]
    encoded: bool  # as base64
    dimensions: int | None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(request.prompt) for request in self.requests)


class EmbeddingBuilder:
    """Parses requests for embeddings of one model."""

    def __init__(self, builder: RequestBuilder) -> None:
        self.builder = builder

    def parse(self, body: EmbeddingRequest, tenant: str) -> ParsedEmbeddings:
        """One engine request for every text."""
        builder = self.builder
        if body.model is not None and body.model != builder.name:
            raise unknown_model(body.model, builder.name)
        if "hidden" not in builder.info.provides:
            raise ApiError(
                400,
                f"the backend {builder.info.name} gives no hidden states, which embeddings need; "
                "serve the model with --backend torch",
                code="unsupported",
            )
        with param_errors("input"):
            texts = read_prompts(body.input, "input")
            if len(texts) > builder.limits.inputs:
                raise too_much("inputs", len(texts), builder.limits.inputs, "input")
            prompts = [builder.prompts.raw(text) for text in texts]
        readers = [MeanState() for _ in prompts]
        return ParsedEmbeddings(
            tuple(
                self.request(prompt, reader, tenant)
                for prompt, reader in zip(prompts, readers, strict=True)
            ),
            readers,
            body.encoding_format == "base64",
            body.dimensions,
        )

    def request(self, prompt: tuple[int, ...], reader: MeanState, tenant: str) -> Request:
        """The engine request of one text."""
        timeout = self.builder.limits.request_seconds
        made = Request(prompt, Sampling(max_tokens=1), tenant, "plain", timeout)
        made.prompt_reader = reader
        made.prompt_only = True
        return made


class EmbeddingResponse(Response):
    """The response to a request for embeddings; cancelled when the client disconnects."""

    def __init__(
        self,
        parsed: ParsedEmbeddings,
        dispatcher: Dispatcher,
        model: str,
        log_entry: AccessLogEntry,
    ) -> None:
        self.parsed = parsed
        self.dispatcher = dispatcher
        self.model = model
        self.log_entry = log_entry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Compute all vectors, then send them."""
        with self.dispatcher.admit(self.log_entry.tenant):
            self.log_entry.prompt_tokens = self.parsed.prompt_tokens
            await until_disconnect(receive, self.compute())
            body = msgspec.json.encode(self.record())
            await Response(body, media_type="application/json")(scope, receive, send)

    async def compute(self) -> None:
        """Score the texts, a group at a time, so that they do not fill the queue."""
        requests = self.parsed.requests
        limit = self.dispatcher.limits.request_seconds
        deadline = asyncio.get_running_loop().time() + limit
        for start in range(0, len(requests), TOGETHER):
            await self.dispatcher.finish_prompts(requests[start : start + TOGETHER], deadline)

    def record(self) -> msgspec.Struct:
        """The vectors in the order of the texts."""
        vectors = [reader.vector for reader in self.parsed.readers]
        check_dimensions(self.parsed.dimensions, vectors)
        data = [
            Embedding(index, encoded(vector) if self.parsed.encoded else vector.tolist())
            for index, vector in enumerate(vectors)
        ]
        count = self.parsed.prompt_tokens
        return EmbeddingList(data, self.model, EmbeddingUsage(count, count))


def check_dimensions(wanted: int | None, vectors: Sequence[FloatArray]) -> None:
    """Refuse shorter vectors: the model was not trained for their beginning to stand alone."""
    width = len(vectors[0])
    if wanted not in (None, width):
        raise ApiError(
            400,
            f"this model's embeddings have {width} dimensions and cannot be shortened; "
            "leave dimensions out",
            "dimensions",
        )


def encoded(vector: FloatArray) -> str:
    """A vector as base64 of little-endian float32."""
    return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
