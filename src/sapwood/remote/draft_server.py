"""The draft server: texts grow elsewhere, trees are drafted here.

One drafter serves all clients with the same vocabulary; what it learns is shared by them, as it is
by the requests of an engine. Drafts are made one at a time, because a draft model has one device.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sapwood.core.protocols import Backend, EngineContext, no_tokenizer, no_words
from sapwood.core.tree import CAPACITY, Tree
from sapwood.core.types import BackendInfo, Budget
from sapwood.engine.cost_model import flat
from sapwood.engine.draft_session import (
    DetachedTarget,
    DraftSession,
    bind_detached,
    check_detached,
)
from sapwood.engine.loop import no_loader
from sapwood.recipe import Recipe
from sapwood.remote.messages import LinkError, RemoteMessage

TEXTS = 256  # texts of one client that are kept; the longest unused one goes first
SHARE = 0.5  # share of a client's deadline in which drafting may begin another level


@dataclass
class DraftService:
    """Drafts for clients of any number, each with texts of its own."""

    recipe: Recipe  # its drafter and policy are used
    load: Callable[[str], Backend] = no_loader
    encode: Callable[[str], list[int]] = no_tokenizer
    vocab: int | None = None  # of the drafter; None: it works with any
    role: str = "drafter"
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    bound: dict[int, Recipe] = field(default_factory=dict, repr=False)  # by vocabulary

    def __post_init__(self) -> None:
        check_detached(self.recipe)

    def handshake(self, hello: RemoteMessage) -> tuple[RemoteMessage, "DraftPeer"]:
        """Bind the drafter to the client's vocabulary."""
        vocab = hello.number("vocab", 1)
        context = hello.number("context", 1)
        if self.vocab not in (None, vocab):
            raise LinkError(
                f"its drafter has {self.vocab} tokens and the target has {vocab}; "
                "they must share a vocabulary"
            )
        with self.lock:
            if vocab not in self.bound:
                info = BackendInfo("remote", hello.text("model"), vocab, context)
                setting = EngineContext(
                    DetachedTarget(info), flat(), self.load, self.encode, no_words
                )
                self.bound[vocab] = bind_detached(self.recipe, setting)
        welcome = RemoteMessage("welcome", {"drafter": str(self.recipe.drafter)})
        return welcome, DraftPeer(self, self.bound[vocab], vocab)


@dataclass
class DraftPeer:
    """One client: its texts by request, and the trees drafted for them."""

    service: DraftService
    recipe: Recipe
    vocab: int
    texts: "OrderedDict[int, DraftSession]" = field(default_factory=OrderedDict)

    def handle(self, message: RemoteMessage) -> RemoteMessage | None:
        """A tree for a text, or nothing when a request ends."""
        received = time.perf_counter()
        request = message.number("request")
        if message.kind == "end":
            self.forget(request)
            return None
        if message.kind != "draft":
            raise LinkError(f"a draft server has no use for a message {message.kind!r}")
        with self.service.lock:
            return self.draft(request, message, received)

    def draft(self, request: int, message: RemoteMessage, received: float) -> RemoteMessage:
        """Bring the text up to date and draft what may follow it."""
        start, tokens = message.number("start"), message.integers("tokens")
        if any(not 0 <= token < self.vocab for token in tokens):
            raise LinkError(f"a token is outside of the vocabulary of {self.vocab}")
        text = self.update(request, start, tokens)
        if text is None:  # the text has a gap: the client sends it again from the beginning
            return reply(message, 0, Tree.of_root(0))
        budget = Budget(
            message.number("nodes", 1, CAPACITY - 1),
            message.number("depth", 1),
            message.number("width", 1),
        )
        until = received + SHARE * 1e-6 * message.number("micros", 1)
        grown = text.grow(budget, until)
        return reply(message, len(text.text), text.policy.prune(grown, budget))

    def update(self, request: int, start: int, tokens: list[int]) -> DraftSession | None:
        """The text of a request with these tokens from `start` on; None when some are missing."""
        text = self.texts.get(request)
        known = 0 if text is None else len(text.text)
        if start > known or start + len(tokens) == 0:
            return None
        fresh = tokens[known - start :]
        if (
            text is None
            or start + len(tokens) < known
            or text.text[start:] != tokens[: known - start]
        ):
            self.forget(request)
            if start:
                return None
            text = self.texts[request] = DraftSession(self.recipe, tokens)
            if len(self.texts) > TEXTS:
                self.forget(next(iter(self.texts)))
        elif fresh:
            text.extend(fresh)
        self.texts.move_to_end(request)
        return text

    def forget(self, request: int) -> None:
        """Free the text of a request."""
        text = self.texts.pop(request, None)
        if text is not None:
            text.close()

    def close(self) -> None:
        """Free all texts."""
        with self.service.lock:
            for request in list(self.texts):
                self.forget(request)


def reply(message: RemoteMessage, known: int, tree: Tree) -> RemoteMessage:
    """The reply to a call: tokens of the text that are known here, and the tree's nodes."""
    return RemoteMessage(
        "tree",
        {"call": message.number("call"), "known": known},
        {
            "tokens": tree.tokens[1:].astype(np.int32),
            "parents": tree.parents[1:].astype(np.int32),
            "probs": np.minimum(tree.probs[1:], 1.0),
        },
    )
