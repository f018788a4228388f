"""Tensor parallelism: rank 0 decodes, the other ranks replay its calls of the waist.

Each rank holds a share of every layer and runs the same passes; the shares meet in collective
operations (gloo on CPUs, nccl on GPUs). Only rank 0 has drafters, verifiers and clocks. It sends
each call to the others before it makes it itself, over a socket for each of them: a rank that died
is noticed by the next call, and followers end when rank 0 does.
"""

import json
import os
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.hf.support import check_tree
from sapwood.backends.torch.load import brief, find_device, find_dtype, read_model
from sapwood.backends.torch.resolve_model import QUANTISED, check, find_folder
from sapwood.backends.torch.session import TorchSession
from sapwood.backends.torch.silence import quiet
from sapwood.core.protocols import (
    Capabilities,
    KvMemory,
    PrefillChunk,
    Session,
    TargetOutput,
    TreeInput,
)
from sapwood.errors import SapwoodError
from sapwood.remote.messages import RemoteMessage
from sapwood.remote.waist_messages import score_message

Found = TypeVar("Found")
TIMEOUT_S = 120  # of a collective operation: a rank may still be loading
GRACE_S = 3.0  # seconds in which the exit code of a rank that broke a pass is looked for
FOLLOWER = "sapwood.backends.torch.follower"
# numbers of a configuration that the ranks must divide
DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


class RankFailure(SapwoodError):
    """A rank ended while it was needed; the model cannot be used any more."""


class Followers:
    """The processes of the other ranks, and a socket to each."""

    def __init__(self, ranks: int, options: dict[str, Any]) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.sockets: list[socket.socket] = []
        self.failure = ""
        self.port = free_port()
        for rank in range(1, ranks):
            ours, theirs = socket.socketpair()
            record = json.dumps({**options, "rank": rank, "ranks": ranks, "port": self.port})
            given = [sys.executable, "-m", FOLLOWER, str(theirs.fileno()), record]
            with theirs:
                process = subprocess.Popen(
                    given, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
                )
            self.processes.append(process)
            self.sockets.append(ours)
        self.close = weakref.finalize(self, end, self.processes, self.sockets)

    def send(self, message: RemoteMessage) -> None:
        """Send a call to every follower."""
        self.check()
        data = message.pack()
        for one in self.sockets:
            try:
                one.sendall(data)
            except OSError:
                self.fail()

    def check(self) -> None:
        """Refuse to go on when a rank has ended."""
        if self.failure:
            raise RankFailure(self.failure)
        if self.ended() is not None:
            self.fail()

    def fail(self, reason: str = "a rank does not answer") -> None:
        """Say which rank ended, and end all of them."""
        until = time.monotonic() + GRACE_S
        while (rank := self.ended()) is None and time.monotonic() < until:
            time.sleep(0.01)
        if rank is not None:
            code = self.processes[rank - 1].returncode
            reason = f"rank {rank} of {len(self.processes) + 1} ended (exit code {code})"
        self.failure = f"tensor parallelism failed: {reason}; load the model again"
        for process in self.processes:
            process.kill()
        self.close()
        raise RankFailure(self.failure)

    def ended(self) -> int | None:
        """The first follower that has ended; None when all run."""
        codes = [process.poll() for process in self.processes]
        return next((rank for rank, code in enumerate(codes, 1) if code is not None), None)

    def run(self, action: Callable[[], Found]) -> Found:
        """Do rank 0's share of a call; a pass that broke is a failed rank."""
        try:
            return action()
        except SapwoodError:
            raise
        except RuntimeError as error:
            if "CUDA out of memory" in str(error):
                raise
            try:
                self.fail(brief(error))
            except RankFailure as failure:
                raise failure from error
            raise


def end(processes: "Sequence[subprocess.Popen[bytes]]", sockets: Sequence[socket.socket]) -> None:
    """Close the sockets, upon which followers end; those that do not are killed."""
    for one in sockets:
        one.close()
    for process in processes:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if dist.is_initialized():
        dist.destroy_process_group()


class LeadSession:
    """A session of rank 0, with the number by which the followers know theirs."""

    def __init__(self, inner: TorchSession, number: int, lead: "LeadBackend") -> None:
        self.inner = inner
        self.number = number
        self.lead = lead
        # a session that is dropped without `close` is dropped by the followers too
        self.finalizer = weakref.finalize(self, lead.dropped.append, number)
        self.finalizer.atexit = False

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self.inner.length

    def prefill_output(self, last: int) -> TargetOutput | None:
        """Output of the last prompt tokens; every rank computes it, as its head may be shared."""

        def read() -> TargetOutput | None:
            found = self.inner.prefill_output(last)
            if found is not None:
                found.argmax()
            return found

        return self.lead.replay("prefill", read, session=self.number, last=last)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of a path."""
        nodes = np.array(path, np.int64)
        self.lead.replay("commit", lambda: self.inner.commit(path), session=self.number, path=nodes)

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        self.lead.replay(
            "rewind", lambda: self.inner.rewind(length), session=self.number, length=length
        )

    def fork(self) -> "LeadSession":
        """An independent copy."""
        number = next(self.lead.numbers)
        inner = self.lead.replay("fork", self.inner.fork, session=self.number, other=number)
        return LeadSession(inner, number, self.lead)

    def close(self) -> None:
        """Free the memory on all ranks."""
        if self.finalizer.detach():
            self.inner.close()
            if not self.lead.followers.failure:
                self.lead.followers.send(RemoteMessage("close", {"session": self.number}))


class LeadMemory:
    """Memory of keys and values on every rank; all ranks hold the same blocks."""

    def __init__(self, lead: "LeadBackend") -> None:
        self.lead = lead
        self.inner = lead.inner.memory

    @property
    def block(self) -> int:
        """Tokens of a block."""
        return self.inner.block

    @property
    def blocks(self) -> int | None:
        """Most blocks; None when unlimited."""
        return self.inner.blocks

    @property
    def used(self) -> int:
        """Blocks that open sessions hold."""
        return self.inner.used

    @property
    def cached(self) -> int:
        """Blocks of the prefix cache."""
        return self.inner.cached

    def fits(self, tokens: int) -> bool:
        """True when there is room for one more session of so many tokens."""
        return self.inner.fits(tokens)

    def limit(self, tokens: int) -> None:
        """Limit the tokens of all sessions, on every rank."""
        self.lead.replay("limit", lambda: self.inner.limit(tokens), tokens=tokens)


class LeadBackend:
    """Rank 0 of a model whose layers are shared by several processes."""

    def __init__(self, inner: TorchBackend, followers: Followers) -> None:
        self.inner = inner
        self.followers = followers
        self.numbers = count(1)
        self.dropped: deque[int] = deque()  # sessions that are gone without `close`
        # trained heads need the whole model; a pass costs other than that of one process
        ranks = len(followers.processes) + 1
        self.info = replace(inner.info, name=f"torch x{ranks}", provides=frozenset())
        self.memory: KvMemory = LeadMemory(self)

    @property
    def capabilities(self) -> Capabilities:
        """None: no process has the whole model."""
        return Capabilities()

    def replay(self, kind: str, action: Callable[[], Found], **fields: Any) -> Found:
        """Send a call to the followers and make it here."""
        arrays = {
            name: fields.pop(name) for name in list(fields) if isinstance(fields[name], np.ndarray)
        }
        self.send(RemoteMessage(kind, fields, arrays))
        return self.followers.run(action)

    def send(self, message: RemoteMessage) -> None:
        """Send a call, after what is to be dropped before it."""
        while self.dropped:
            self.followers.send(RemoteMessage("close", {"session": self.dropped.popleft()}))
        self.followers.send(message)

    def open(self, tokens: Sequence[int]) -> LeadSession:
        """A session with these tokens committed."""
        return self._start(tokens, lambda: self.inner.open(tokens), whole=True)

    def start(self, tokens: Sequence[int], tenant: str = "") -> LeadSession:
        """A session for these tokens, with the tenant's cached prefix committed."""
        return self._start(tokens, lambda: self.inner.start(tokens, tenant), tenant=tenant)

    def _start(
        self, tokens: Sequence[int], action: Callable[[], TorchSession], **fields: Any
    ) -> LeadSession:
        number = next(self.numbers)
        text = np.array(tokens, np.int64)
        inner = self.replay("start", action, session=number, tokens=text, **fields)
        return LeadSession(inner, number, self)

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass on all ranks."""
        trees = [own(item.session) for item in work]
        readers = [own(chunk.session) for chunk in chunks]
        message = score_message(
            0,
            [(one.number, item.tree, item.since) for one, item in zip(trees, work, strict=True)],
            [(one.number, chunk.tokens) for one, chunk in zip(readers, chunks, strict=True)],
        )
        inputs = [
            TreeInput(one.inner, item.tree, item.since)
            for one, item in zip(trees, work, strict=True)
        ]
        texts = [
            PrefillChunk(one.inner, chunk.tokens)
            for one, chunk in zip(readers, chunks, strict=True)
        ]
        self.send(message)
        return self.followers.run(lambda: self.inner.score(inputs, texts))

    def watch(self, layers: Sequence[int]) -> None:
        """Refused: trained heads need the whole model's embedding and output head."""
        raise SapwoodError("a tensor-parallel model shows no hidden states; use another drafter")

    def close(self) -> None:
        """End the followers."""
        self.followers.close()


def own(session: Session) -> LeadSession:
    """The session as one of rank 0, which must be open."""
    if not isinstance(session, LeadSession):
        raise TypeError("a session is scored by the backend that opened it")
    if not session.finalizer.alive:
        raise ValueError("this session is closed; open a new one")
    return session


# ---------------------------------------------------------------------------------------- loading
def load_parallel(
    model: str,
    ranks: int,
    *,
    device: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    progress: Callable[[str], None],
) -> tuple[LeadBackend, Path]:
    """A model shared by `ranks` processes, and the folder that holds its tokenizer."""
    if dtype in QUANTISED:
        raise SapwoodError(f"dtype {dtype!r} cannot be shared by ranks; use float32 or bfloat16")
    check(model, dtype, threads)
    if dist.is_initialized():
        raise SapwoodError("one process can lead one tensor-parallel model; start another process")
    folder = find_folder(model, progress)
    check_divides(folder, model, ranks)
    place = find_device(device)
    if place.type == "cuda" and torch.cuda.device_count() < ranks:
        raise SapwoodError(
            f"{ranks} ranks need {ranks} GPUs and there are {torch.cuda.device_count()}; "
            "use fewer, or --device cpu"
        )
    each = threads or max(1, torch.get_num_threads() // ranks)
    options = {"model": model, "folder": str(folder), "device": place.type, "dtype": dtype}
    progress(f"loading {model} on {ranks} ranks")
    followers = Followers(ranks, {**options, "threads": each})
    try:
        inner = followers.run(
            lambda: load_shard(
                0, ranks, followers.port, model, str(folder), place.type, dtype, each
            )
        )
        lead = LeadBackend(inner, followers)
        check_tree(lead)
    except BaseException:
        followers.close()
        raise
    return lead, folder


def check_divides(folder: Path, model: str, ranks: int) -> None:
    """Refuse a model whose heads the ranks do not divide."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise SapwoodError(f"model {model!r} has no config.json that can be read") from error
    config = config.get("text_config") or config
    for name in DIVIDED:
        number = config.get(name)
        if isinstance(number, int) and number % ranks:
            raise SapwoodError(
                f"model {model!r} has {name}={number}, which {ranks} ranks do not divide; "
                "use another number of ranks"
            )


def load_shard(
    rank: int,
    ranks: int,
    port: int,
    model: str,
    folder: str,
    device: str,
    dtype: str | None,
    threads: int,
) -> TorchBackend:
    """The share of a model that this rank holds, once all ranks have met."""
    torch.set_num_threads(threads)
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    # transformers reads these
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    with quiet():
        read = read_model(Path(folder), model, place, find_dtype(dtype, place), ranks)
        return TorchBackend(read, model)


def free_port() -> int:
    """A port that is free now, for the ranks to meet at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port
