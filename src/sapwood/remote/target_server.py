"""The target server: clients draft and verify, passes run here, merged across clients."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.common.top_tokens import top_tokens
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import Backend, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.rng import pick_by_key
from sapwood.core.sampling import softmax
from sapwood.core.tree import ROOT, Tree
from sapwood.errors import OutOfMemory
from sapwood.remote.messages import LinkError, RemoteMessage
from sapwood.remote.target_worker import TargetWorker
from sapwood.remote.waist_messages import read_score
from sapwood.tokenizer.tokenizer import Tokenizer

SESSIONS = 1024  # sessions that one client may have


@dataclass
class TargetService:
    """A model for clients that draft elsewhere."""

    backend: Backend
    tokenizer: Tokenizer | None = None
    limited: bool = False  # the memory has a limit that clients may not change
    role: str = "target"
    worker: TargetWorker = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.worker = TargetWorker(self.backend)

    def handshake(self, hello: RemoteMessage) -> tuple[RemoteMessage, "TargetPeer"]:
        """Tell a client the sizes of the model."""
        info = self.backend.info
        fields = {
            "model": info.model,
            "vocab": info.vocab,
            "context": info.context,
            "max_nodes": info.max_nodes,
            "device": info.device,
            "dtype": info.dtype,
            "threads": info.threads,
        }
        return RemoteMessage("welcome", fields), TargetPeer(self)


@dataclass
class HeldSession:
    """A session of a client, and the last output on it."""

    session: Session
    output: int = 0  # number of that output
    tree: Tree | None = None
    logits: FloatArray | None = None  # [rows, vocab] of the tree
    prefill: TargetOutput | None = None


class TargetPeer:
    """One client: its sessions by number."""

    def __init__(self, service: TargetService) -> None:
        self.service = service
        self.worker = service.worker
        self.backend = service.backend
        self.sessions: dict[int, HeldSession] = {}
        self.verbs: dict[str, Callable[[RemoteMessage], RemoteMessage | None]] = {
            "start": self.start,
            "score": self.score,
            "commit": self.commit,
            "rewind": self.rewind,
            "fork": self.fork,
            "close": self.close_session,
            "logits": self.logits,
            "topk": self.topk,
            "follow": self.follow,
            "prefill": self.prefill,
            "memory": self.memory,
            "tokenizer": self.tokenizer,
        }

    def handle(self, message: RemoteMessage) -> RemoteMessage | None:
        """The reply to a message; an error of the target is a reply too."""
        verb = self.verbs.get(message.kind)
        if verb is None:
            raise LinkError(f"a target server has no use for a message {message.kind!r}")
        try:
            return verb(message)
        except LinkError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            if message.kind in ("commit", "rewind", "close"):  # the client does not wait
                raise LinkError(f"{message.kind} failed: {error}") from error
            kind = "memory" if isinstance(error, OutOfMemory) else "value"
            return RemoteMessage("refused", {"type": kind, "sentence": str(error)})

    def held(self, number: int) -> HeldSession:
        """The session of this number."""
        if number not in self.sessions:
            raise ValueError(f"session {number} is not open")
        return self.sessions[number]

    def add(self, number: int, session: Session) -> None:
        """Keep a new session under the client's number."""
        if number in self.sessions or len(self.sessions) >= SESSIONS:
            self.worker.call(session.close)
            raise ValueError(f"session {number} cannot be added to {len(self.sessions)} others")
        self.sessions[number] = HeldSession(session)

    # ------------------------------------------------------------------------------- sessions
    def start(self, message: RemoteMessage) -> RemoteMessage:
        """A session with the cached prefix of a text, or with all of it."""
        tokens = self.checked(message.integers("tokens"))
        if message.fields.get("whole"):
            session = self.worker.call(lambda: self.backend.open(tokens))
        else:
            tenant = message.text("tenant")
            session = self.worker.call(lambda: self.backend.start(tokens, tenant))
        self.add(message.number("session"), session)
        return RemoteMessage("done", {"length": session.length})

    def checked(self, tokens: list[int]) -> list[int]:
        """The tokens, all of which the model must have."""
        if any(not 0 <= token < self.backend.info.vocab for token in tokens):
            raise ValueError(f"a token is outside of the vocabulary of {self.backend.info.vocab}")
        return tokens

    def commit(self, message: RemoteMessage) -> None:
        """Keep a path of the last tree."""
        held = self.held(message.number("session"))
        path = message.integers("path")
        self.worker.call(lambda: held.session.commit(path))
        held.tree = held.prefill = None

    def rewind(self, message: RemoteMessage) -> None:
        """Forget the end of a text."""
        held = self.held(message.number("session"))
        self.worker.call(lambda: held.session.rewind(message.number("length")))
        held.tree = held.logits = held.prefill = None

    def fork(self, message: RemoteMessage) -> RemoteMessage:
        """Copy a session."""
        held = self.held(message.number("session"))
        self.add(message.number("other"), self.worker.call(held.session.fork))
        return RemoteMessage("done")

    def close_session(self, message: RemoteMessage) -> None:
        """Free a session; one that is not open is free already."""
        held = self.sessions.pop(message.number("session"), None)
        if held is not None:
            self.worker.call(held.session.close)

    # --------------------------------------------------------------------------------- passes
    def score(self, message: RemoteMessage) -> RemoteMessage:
        """Score trees and prefill chunks, in a pass that other clients may share."""
        trees, texts = read_score(message)
        work = [TreeInput(self.held(number).session, tree, since) for number, tree, since in trees]
        chunks = [PrefillChunk(self.held(number).session, tokens) for number, tokens in texts]
        for tokens in [item.tree.tokens.tolist() for item in work] + [
            list(chunk.tokens) for chunk in chunks
        ]:
            self.checked(tokens)
        if any(not 0 <= item.since < len(item.tree) for item in work):
            raise ValueError("a pass must score at least one node of each tree")
        results = self.worker.score(work, chunks)
        for (number, _, _), item, rows in zip(trees, work, results, strict=True):
            held = self.held(number)
            held.tree, held.logits, held.output = item.tree, rows, message.number("output")
        best = [rows.argmax(-1) for rows in results]
        argmax = np.concatenate(best) if best else np.zeros(0, np.int64)
        return RemoteMessage("scored", arrays={"argmax": argmax.astype(np.int32)})

    def rows(self, message: RemoteMessage) -> FloatArray:
        """Logits of the last tree of a session, which must be the one that is meant."""
        held = self.held(message.number("session"))
        if held.logits is None or held.output != message.number("output"):
            raise ValueError("the output is out of date: another tree was scored since")
        return held.logits

    def logits(self, message: RemoteMessage) -> RemoteMessage:
        """Logits of one row; of the prefill when no output is named."""
        row = message.number("row")
        if "output" in message.fields:
            rows = self.rows(message)
            if row >= len(rows):
                raise ValueError(f"row {row} was not scored")
            return RemoteMessage("row", arrays={"logits": rows[row]})
        prefill = self.held(message.number("session")).prefill
        if prefill is None:
            raise ValueError("the prefill's output ended with the first commit")
        return RemoteMessage(
            "row", arrays={"logits": self.worker.call(lambda: prefill.logits(row))}
        )

    def topk(self, message: RemoteMessage) -> RemoteMessage:
        """Best tokens of each row and their log-probabilities."""
        count = message.number("count", 1)
        if "output" in message.fields:
            rows = self.rows(message)
            best = top_tokens(rows, count)
        else:
            prefill = self.held(message.number("session")).prefill
            if prefill is None:
                raise ValueError("the prefill's output ended with the first commit")
            best = self.worker.call(lambda: prefill.topk(count))
        return RemoteMessage("best", arrays={"tokens": best[0], "logps": best[1]})

    def follow(self, message: RemoteMessage) -> RemoteMessage:
        """Walk along the target's own draws: the path and the bonus."""
        rows = self.rows(message)
        tree = self.held(message.number("session")).tree
        keys = [int(key, 16) for key in message.text("keys").split()]
        heat = float(message.fields["temperature"])
        if tree is None or len(rows) != len(tree) or len(keys) <= tree.height or heat <= 0:
            raise ValueError("this output cannot be followed")
        path, bonus = follow(tree, rows, heat, keys)
        return RemoteMessage("walked", {"bonus": bonus}, {"path": np.array(path, np.int32)})

    def prefill(self, message: RemoteMessage) -> RemoteMessage:
        """Best tokens after the last tokens of a prompt."""
        held = self.held(message.number("session"))
        last = message.number("last", 1)
        held.prefill = self.worker.call(lambda: held.session.prefill_output(last))
        prefill = held.prefill
        if prefill is None:
            return RemoteMessage("read", {"known": False})
        best = self.worker.call(prefill.argmax)
        return RemoteMessage("read", {"known": True}, {"argmax": best.astype(np.int32)})

    # ---------------------------------------------------------------------------------- rest
    def memory(self, message: RemoteMessage) -> RemoteMessage:
        """State of the memory; sets a limit, or tells whether tokens fit, if that is asked."""
        memory = self.backend.memory
        if "limit" in message.fields and not self.service.limited:
            limit = message.number("limit", 1)
            self.worker.call(lambda: memory.limit(limit))
        fields: dict[str, Any] = self.worker.call(
            lambda: {
                "block": memory.block,
                "blocks": memory.blocks,
                "used": memory.used,
                "cached": memory.cached,
            }
        )
        if "tokens" in message.fields:
            tokens = message.number("tokens")
            fields["fits"] = self.worker.call(lambda: memory.fits(tokens))
        return RemoteMessage("state", fields)

    def tokenizer(self, message: RemoteMessage) -> RemoteMessage:
        """The tokenizer as one file, with template and special tokens."""
        found = self.service.tokenizer
        if found is None:
            raise ValueError("the target server has no tokenizer that it could send")
        record = {
            "tokenizer": found.tokenizer.to_str(),
            "template": found.template,
            "eos": list(found.eos),
            "bos": found.bos,
            "specials": dict(found.specials),
        }
        data = np.frombuffer(json.dumps(record).encode(), np.uint8)
        return RemoteMessage("tokenizer", arrays={"record": data})

    def close(self) -> None:
        """Free all sessions."""
        for held in self.sessions.values():
            self.worker.call(held.session.close)
        self.sessions.clear()


def follow(
    tree: Tree, rows: FloatArray, temperature: float, keys: Sequence[int]
) -> tuple[list[int], int]:
    """Path and bonus by keyed draws; `keys[d]` is the noise key after depth d."""
    path = [ROOT]
    while True:
        token = pick_by_key(softmax(rows[path[-1]], temperature), keys[len(path) - 1])
        child = tree.child(path[-1], token)
        if child is None:
            return path, token
        path.append(child)
