"""Several models in one server: named by requests, loaded on demand, unloaded for room."""

import asyncio
import gc
import json
import subprocess
import sys
import urllib.request
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sapwood import LLM
from sapwood.errors import SapwoodError
from sapwood.server.app import ApiRoutes, make
from sapwood.server.engine_thread import EngineThread
from sapwood.server.errors import ApiError
from sapwood.server.model_pool import GIB, ModelPool, PooledModel, file_bytes
from sapwood.server.settings import ServerSettings
from tests.helpers import byte_tokenizer
from tests.helpers.asgi_client import NormalizedScript, Served
from tests.helpers.byte_model import save_byte_model
from tests.server.clients.server import KEY, running

pytestmark = pytest.mark.usefixtures("own_cache")


def opener(name: str, opened: list[str]) -> Any:
    """A function that loads a model whose only answer is its name."""

    def open_model() -> ApiRoutes:
        opened.append(name)
        target = NormalizedScript(vocab=byte_tokenizer.SIZE, context=512, script=f"I am {name}.")
        llm = LLM(target, "plain", text=byte_tokenizer.text())
        api = ApiRoutes(EngineThread(llm), ServerSettings(), name, "plain")
        if name != "a":
            api.engine_thread.start()
        return api

    return open_model


@contextmanager
def application(pool: ModelPool) -> Iterator[Served]:
    """The application of several models; the first one's thread starts with it."""
    one = Served(pool.first_api)
    one.app = make(pool.first_api, pool.app)
    try:
        yield one
    finally:
        pool.close()
        one.close()


def pool_of(opened: list[str], limit: float = 0.0, sizes: int = GIB) -> ModelPool:
    names = ("a", "b", "c")
    models = [PooledModel(name, name, opener(name, opened), size=sizes) for name in names]
    models[0].api = models[0].open()
    return ModelPool(models, limit)


@pytest.fixture
def opened() -> list[str]:
    return []


@pytest.fixture
def pool(opened: list[str]) -> Iterator[ModelPool]:
    one = pool_of(opened)
    yield one
    one.close()


def test_a_request_names_its_model(pool: ModelPool, opened: list[str]) -> None:
    with application(pool) as one:
        assert opened == ["a"]
        assert [entry["name"] for entry in one.get("/api/ps").json["models"]] == ["a"]
        listed = one.get("/v1/models").json["data"]
        assert [entry["id"] for entry in listed] == ["a", "b", "c"]
        assert [entry["max_model_len"] for entry in listed] == [512, None, None]
        ask = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
        for name in ("b", "a", "b"):
            answer = one.post("/v1/chat/completions", {**ask, "model": name}).json
            assert answer["model"] == name
            assert answer["choices"][0]["message"]["content"] == f"I am {name}."
        assert one.post("/v1/chat/completions", ask).json["model"] == "a"
        said = one.post("/v1/messages", {**ask, "model": "c", "max_tokens": 20}).json
        assert said["content"][0]["text"] == "I am c."
        tags = one.get("/api/tags").json["models"]
        assert [entry["name"] for entry in tags] == ["a", "b", "c"]
        turn = {"messages": ask["messages"], "model": "b:latest", "stream": False}
        greedy = {"options": {"temperature": 0}}
        answer = one.post("/api/chat", {**turn, **greedy}).json
        assert (answer["model"], answer["message"]["content"]) == ("b", "I am b.")
        assert one.post("/api/show", {"name": "c"}).json["model_info"]["toy.context_length"] == 512
        assert opened == ["a", "b", "c"]
        assert one.get("/v1/models/b").json["max_model_len"] == 512
        wrong = one.post("/v1/chat/completions", {**ask, "model": "d"})
        assert (wrong.status, wrong.error["code"]) == (404, "model_not_found")
        assert "'a', 'b', 'c'" in wrong.error["message"]
        assert one.post("/v1/chat/completions", {**ask, "model": 3}).status == 400
        assert one.get("/health").status == 200


def test_the_one_used_least_recently_makes_room(opened: list[str]) -> None:
    pool = pool_of(opened, limit=2.0)

    async def run() -> None:
        async with pool.use("b") as api:
            held = weakref.ref(api.engine_thread.llm)
            pool.models["b"].size = GIB  # measured: next to nothing
            with pytest.raises(ApiError, match=r"'c' does not fit: 2\.0 of 2\.0 GiB"):
                async with pool.use("c"):
                    pass
        del api
        async with pool.use("c"):
            assert [model.name for model in pool.loaded] == ["a", "c"]
        gc.collect()
        assert held() is None, "the unloaded model is still in memory"
        async with pool.use("b"):
            pass

    asyncio.run(run())
    assert opened == ["a", "b", "c", "b"]
    pool.close()


def test_requests_that_come_together_load_a_model_once(pool: ModelPool, opened: list[str]) -> None:
    async def use() -> str:
        async with pool.use("b") as api:
            return api.name

    async def run() -> list[str]:
        return await asyncio.gather(*(use() for _ in range(5)))

    assert asyncio.run(run()) == ["b"] * 5
    assert opened == ["a", "b"]


def test_a_model_that_cannot_be_loaded_is_one_sentence(pool: ModelPool) -> None:
    def fail() -> ApiRoutes:
        raise SapwoodError("there is no such folder")

    pool.models["b"].open = fail

    async def run() -> None:
        async with pool.use("b"):
            pass

    with pytest.raises(ApiError, match="'b' cannot be loaded: there is no such folder"):
        asyncio.run(run())
    assert pool.models["b"].users == 0


def test_names_must_differ(opened: list[str]) -> None:
    model = PooledModel("a", "a", opener("a", opened))
    with pytest.raises(SapwoodError, match="two models have one name"):
        ModelPool([model, model])


def test_one_model_needs_no_pool_and_no_tracing() -> None:
    later = ("sapwood.server.model_pool", "sapwood.server.model_router", "sapwood.server.tracing")
    script = (
        "import sys; import sapwood.server.app, sapwood.server.server, sapwood.cli.serve;"
        f"print([name for name in {(*later, 'opentelemetry')} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_sizes_of_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    (tmp_path / "config.json").write_bytes(b"x")
    assert file_bytes(str(tmp_path)) == file_bytes(str(tmp_path / "model.safetensors")) == 10
    assert file_bytes("someone/a-model") == 0


def test_the_command_serves_two(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        save_byte_model(folder)
    more = ("--model", str(folders[1]))
    with running(tmp_path, *more, model=folders[0], name="") as server:
        found = json.loads(fetch(f"{server.api}/models"))
        assert [entry["id"] for entry in found["data"]] == ["one", "two"]
        for name in ("two", "one"):
            body = {"model": name, "prompt": "a", "max_tokens": 2}
            assert json.loads(fetch(f"{server.api}/completions", body))["model"] == name


def fetch(url: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        found: bytes = answer.read()
    return found


@pytest.mark.slow
def test_an_adapter_is_a_model_of_its_own(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    base = save_byte_model(tmp_path / "base", max_position_embeddings=256)
    layer = base.model.layers[0].mlp.down_proj
    outputs, inputs = layer.weight.shape
    torch.manual_seed(1)
    factors = {"A": torch.randn(2, inputs), "B": torch.randn(outputs, 2)}
    key = "base_model.model.model.layers.0.mlp.down_proj.lora_"
    adapter = tmp_path / "style"
    adapter.mkdir()
    tensors = {f"{key}{letter}.weight": factor for letter, factor in factors.items()}
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    options = ("--lora", f"style={adapter}", "--dtype", "float32")
    prompt = "Hello, Hello, Hello"
    with running(tmp_path, *options, model=tmp_path / "base", name="") as server:
        said: dict[str, str] = {}
        for name in ("base", "style", "base", "style"):
            body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, "model": name}
            answer = json.loads(fetch(f"{server.url}/v1/completions", body))
            text = answer["choices"][0]["text"]
            assert said.setdefault(name, text) == text
            assert answer["model"] == name
        listed = json.loads(fetch(f"{server.url}/v1/models"))["data"]
        assert [one["id"] for one in listed] == ["base", "style"]
    layer.weight.data += factors["B"] @ factors["A"]
    base.save_pretrained(tmp_path / "merged")
    byte_tokenizer.save(tmp_path / "merged")
    for name, folder in (("base", "base"), ("style", "merged")):
        llm = LLM(str(tmp_path / folder), "plain", dtype="float32", threads=1)
        wanted = llm.generate(prompt, raw=True, max_tokens=40, temperature=0).text
        assert said[name] == wanted
    assert said["base"] != said["style"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (["style"], "must be NAME=FOLDER"),
        (["=x"], "must be NAME=FOLDER"),
        (["a=x", "a=y"], "two adapters are called 'a'"),
    ],
)
def test_adapters_are_named_in_pairs(pairs: list[str], words: str) -> None:
    from sapwood.cli.serve import adapters_of

    with pytest.raises(SapwoodError, match=words):
        adapters_of(pairs)
    assert adapters_of(["a=x", "b=y=z"]) == {"a": "x", "b": "y=z"}


def test_an_adapter_that_is_missing_is_refused_before_the_model_is_loaded() -> None:
    from sapwood.cli.options import ModelChoice
    from sapwood.cli.serve import check_adapters

    with pytest.raises(SapwoodError, match="there is no adapter in nowhere"):
        check_adapters({"a": "nowhere"}, ModelChoice())
    with pytest.raises(SapwoodError, match="torch backend"):
        check_adapters({"a": "nowhere"}, ModelChoice(backend="llamacpp"))
    check_adapters({}, ModelChoice(backend="llamacpp"))
