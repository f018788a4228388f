"""Peers among the contenders: the same prompts as tokens, greedily, one at a time, each in its own process."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from sapwood.bench.measure import Run
from sapwood.bench.sweep import Point
from sapwood.bench.talks import Asked
from sapwood.errors import SapwoodError
from sapwood.peers.process import Peer, PeerError
from sapwood.peers.words import Ask, Order
from sapwood.records import BackendInfo
from sapwood.sampling import Sampling


@dataclass(frozen=True)
class Rival:
    """A peer that is ready."""

    peer: Peer

    def takes(self, point: Point) -> str | None:
        """Only greedy decoding is the same everywhere, and only one at a time is asked for."""
        if point.temperature:
            return f"peers decode greedily here; no row at temperature {point.temperature:g}"
        return f"peers are asked one prompt at a time; no row at batch {point.batch}" if point.batch > 1 else None

    def run(self, asked: Sequence[Asked], sampling: Sampling) -> list[Run]:
        """The peer's answer, timed by itself."""
        [one] = asked
        ask = Ask(one.tokens, sampling.max_tokens, list(sampling.stop_ids), one.text)
        try:
            answer = self.peer.ask(ask)
        except PeerError as error:
            raise SapwoodError(str(error)) from error
        return [
            Run(
                tokens=answer.tokens or [],
                said=answer.count if answer.tokens is None else None,
                timed=answer.timed,
                text=answer.text,
                prefill=answer.reading,
                verify=answer.seconds,
                memory=answer.memory,
            )
        ]

    def fresh(self) -> "Rival":
        """Peers are told to remember nothing."""
        return self


@dataclass
class Rivals:
    """All peers that were asked for, and why some of them do not run."""

    ready: dict[str, Rival] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # what each runs, with its version
    skipped: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def open(self, names: Iterable[str], model: str, info: BackendInfo, progress: Callable[[str], None]) -> None:
        """Start each one; a peer that is not there leaves its reason."""
        for name in names:
            progress(f"starting peer {name}")
            argument = name.partition(":")[2]
            device = "cuda" if info.device.startswith("cuda") else "cpu"
            try:
                peer = Peer(name, Order(model, argument, device, info.threads, info.context))
            except PeerError as error:
                self.skipped[name] = str(error)
                continue
            self._stack.callback(peer.close)
            self.ready[name] = Rival(peer)
            self.weights[name] = f"{peer.weights}; {peer.version}".rstrip("; ")

    def drop(self, name: str, error: SapwoodError) -> None:
        """Go on without a peer that failed."""
        del self.ready[name]
        self.skipped[name] = f"failed while decoding: {error}"

    def close(self) -> None:
        """End their processes."""
        self._stack.close()
