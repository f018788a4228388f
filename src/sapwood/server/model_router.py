"""Passes requests to the model that their body names, where a server has several."""

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from sapwood.server.app import json_response
from sapwood.server.http.http_body import OLLAMA, read_body
from sapwood.server.model_pool import ModelPool
from sapwood.server.ollama.schema import LATEST, OllamaModels
from sapwood.server.openai import response_schema as r

MODELS = "/v1/models"
LOADED = "/api/ps"
LISTS = ("/api/tags", LOADED)
SHOW = "/api/show"


class NamedModel(msgspec.Struct):
    """The one field of a body that decides where it goes."""

    model: str | None = None


class OlderName(NamedModel):
    """The same where the field may have its older name, as in /api/show."""

    name: str | None = None

    def __post_init__(self) -> None:
        if self.model is None:
            self.model = self.name


class ModelRouter:
    """ASGI application in front of the routes of each model."""

    def __init__(self, pool: ModelPool) -> None:
        self.pool = pool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["path"]
        if scope["method"] == "GET" and path == MODELS:
            await json_response(r.ModelList([*map(self.card, self.pool.models)]))(
                scope, receive, send
            )
        elif scope["method"] == "GET" and path.removeprefix(f"{MODELS}/") in self.pool.models:
            card = self.card(path.removeprefix(f"{MODELS}/"))
            await json_response(card)(scope, receive, send)
        elif scope["method"] == "GET" and path in LISTS:
            await json_response(self.ollama_models(loaded=path == LOADED))(scope, receive, send)
        elif scope["method"] == "POST":
            await self.post(scope, receive, send)
        else:
            # the first model's routes, and all that are not of a model
            await self.pool.first_api.router(scope, receive, send)

    async def post(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass it to the model that it names."""
        limits = self.pool.first_api.settings.limits
        content = await read_body(Request(scope, receive), limits)
        waiting: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        name = named_model(content, older=scope["path"] == SHOW)
        if name is not None and scope["path"].startswith(OLLAMA) and name not in self.pool.models:
            name = name.removesuffix(LATEST)
        async with self.pool.use(name) as api:
            await api.router(scope, replay, send)

    def ollama_models(self, *, loaded: bool) -> OllamaModels:
        """The models, or those in memory, as /api/tags and /api/ps list them."""
        from sapwood.server.ollama.models import listed, unloaded

        found = []
        for name, model in self.pool.models.items():
            if model.api is not None:
                found.append(listed(model.api, loaded=loaded))
            elif not loaded:
                found.append(unloaded(name, model.size, self.pool.first_api.created))
        return OllamaModels(found)

    def card(self, name: str) -> r.ModelCard:
        """A model as /v1/models lists it; the context of one that is not loaded is not known."""
        api = self.pool.models[name].api
        if api is not None:
            return api.model()
        return r.ModelCard(name, self.pool.first_api.created, None)


def named_model(content: bytes, *, older: bool = False) -> str | None:
    """The model that a body names; None where it names none or is no JSON object."""
    kind = OlderName if older else NamedModel
    try:
        return msgspec.json.decode(content, type=kind).model
    except msgspec.MsgspecError:
        return None  # the first model's routes say what is wrong
