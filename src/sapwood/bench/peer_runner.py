"""Peers as contenders: the same prompts as tokens, greedily, one at a time, in own processes."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from sapwood.bench.conversations import ConversationTurn
from sapwood.bench.measure import BenchRun
from sapwood.bench.sweep import SweepPoint
from sapwood.core.sampling import Sampling
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.peers.messages import LoadMessage, PromptMessage
from sapwood.peers.process import Peer, PeerError


@dataclass(frozen=True)
class PeerContender:
    """A peer that is loaded."""

    peer: Peer

    def takes(self, point: SweepPoint) -> str | None:
        """Reason to skip a setting: peers run greedily and one prompt at a time."""
        if point.temperature:
            return f"peers decode greedily here; no row at temperature {point.temperature:g}"
        return (
            f"peers are asked one prompt at a time; no row at batch {point.batch}"
            if point.batch > 1
            else None
        )

    def run(self, asked: Sequence[ConversationTurn], sampling: Sampling) -> list[BenchRun]:
        """The peer's output, timed by itself."""
        [one] = asked
        prompt = PromptMessage(one.tokens, sampling.max_tokens, list(sampling.stop_ids), one.text)
        try:
            answer = self.peer.ask(prompt)
        except PeerError as error:
            raise SapwoodError(str(error)) from error
        return [
            BenchRun(
                tokens=answer.tokens or [],
                said=answer.count if answer.tokens is None else None,
                timed=answer.timed,
                text=answer.text,
                prefill=answer.reading,
                verify=answer.seconds,
                memory=answer.memory,
            )
        ]

    def fresh(self) -> "PeerContender":
        """The same peer: peers keep nothing between prompts."""
        return self


@dataclass
class PeerSet:
    """All requested peers, with the reason for each that does not run."""

    ready: dict[str, PeerContender] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)  # weights of each, with its version
    skipped: dict[str, str] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def open(
        self, names: Iterable[str], model: str, info: BackendInfo, progress: Callable[[str], None]
    ) -> None:
        """Start each one; a peer that is not available is skipped with a reason."""
        for name in names:
            progress(f"starting peer {name}")
            argument = name.partition(":")[2]
            device = "cuda" if info.device.startswith("cuda") else "cpu"
            try:
                peer = Peer(name, LoadMessage(model, argument, device, info.threads, info.context))
            except PeerError as error:
                self.skipped[name] = str(error)
                continue
            self._stack.callback(peer.close)
            self.ready[name] = PeerContender(peer)
            self.weights[name] = f"{peer.weights}; {peer.version}".rstrip("; ")

    def drop(self, name: str, error: SapwoodError) -> None:
        """Remove a peer that failed."""
        del self.ready[name]
        self.skipped[name] = f"failed while decoding: {error}"

    def close(self) -> None:
        """End the processes."""
        self._stack.close()
