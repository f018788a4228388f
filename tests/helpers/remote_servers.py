"""Draft and target servers in this process, and texts decoded with them."""

from collections.abc import Iterator
from contextlib import contextmanager

from sapwood.backends.remote import RemoteBackend
from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Backend
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.recipe import Recipe, parse
from sapwood.remote.draft_server import DraftService
from sapwood.remote.message_server import MessageServer
from sapwood.remote.target_server import TargetService

PLAIN = "ngram + chain + match + fixed(nodes=0)"
LOOKUP = parse("suffix + best(stride=8, estimator=raw) + match + fixed")
# drafts what the toy target says, so that trees are accepted
ORACLE = Recipe(DraftModel(model=ToyBackend()), LOOKUP.policy, LOOKUP.verifier, LOOKUP.controller)
PROMPT = [0, 1, 2, 0, 1]
ROOMY = 5000  # milliseconds; on a busy machine a short deadline is missed now and then


def spelled(url: str, deadline_ms: float = ROOMY) -> str:
    """A recipe with a remote drafter."""
    drafter = f"remote(url='{url}', deadline_ms={deadline_ms})"
    return f"{drafter} + best(estimator=raw) + match + fixed(nodes=8, depth=4, width=2)"


@contextmanager
def draft_server(recipe: Recipe = ORACLE, key: str = "", port: int = 0) -> Iterator[str]:
    """The URL of a draft server."""
    with MessageServer("127.0.0.1", port, DraftService(recipe), key).running() as url:
        yield url


@contextmanager
def target_server(backend: Backend, *, limited: bool = False) -> Iterator[TargetService]:
    """A target service, and its server under `url`."""
    service = TargetService(backend, limited=limited)
    with MessageServer("127.0.0.1", 0, service).running() as url:
        service.url = url  # type: ignore[attr-defined]
        try:
            yield service
        finally:
            service.worker.close()


@contextmanager
def remote_target(backend: Backend) -> Iterator[RemoteBackend]:
    """A backend behind a server and a connection."""
    with target_server(backend) as service:
        remote = RemoteBackend(service.url)  # type: ignore[attr-defined]
        try:
            yield remote
        finally:
            remote.close()


def rounds_of(engine: Engine, sampling: Sampling, prompt: list[int] | None = None) -> list[Outcome]:
    """Rounds until the request's last token."""
    found: list[Outcome] = []
    for outcome in engine.rounds(prompt or PROMPT, sampling, KeyedRng(sampling.seed)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= sampling.max_tokens:
            break
    return found


def tokens_of(rounds: list[Outcome]) -> list[int]:
    """Tokens of all rounds."""
    return [token for outcome in rounds for token in outcome.tokens]


def plain_tokens(
    backend: Backend, sampling: Sampling, prompt: list[int] | None = None
) -> list[int]:
    """Tokens of plain decoding."""
    return tokens_of(rounds_of(Engine(backend, parse(PLAIN)), sampling, prompt))
