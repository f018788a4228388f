"""A causal language model in PyTorch behind the waist.

A network runs the rows of a pass, one of several that a model may have; sessions, trees and what
is asked about them are the same for all.
"""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sapwood.backends.torch.network import Divisible, Mixing, Network, Rows, joined
from sapwood.backends.torch.pool import Pool, reserve_all
from sapwood.backends.torch.scores import TorchScores
from sapwood.backends.torch.session import Entered, Reading, TorchSession
from sapwood.backends.torch.support import context_of, vocab_of
from sapwood.errors import OutOfMemory, SapwoodError
from sapwood.protocols import Chunk, Memory, Scores, Work
from sapwood.records import BackendInfo

if TYPE_CHECKING:
    from sapwood.backends.torch.variant import Variant

CHUNK = 512  # prompt tokens per pass of a prefill


class TorchBackend:
    """Scores token trees with a transformers model on its device."""

    def __init__(self, model: Any, name: str = "", network: Network | None = None) -> None:
        self.model = model.eval()
        self.network = network or stock(model)
        self._mixing = self.network if isinstance(self.network, Mixing) else None
        self.pool = Pool(self.network.layout)
        self._watched: set[int] = set()  # layers whose inputs each pass keeps
        self.layers: int = model.config.get_text_config().num_hidden_layers
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        if self.device.type == "cuda":
            # cuDNN prepares each new number of keys anew: measured 65 ms a pass against 25 without it
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.info = self._describe(name or type(model).__name__)

    @property
    def memory(self) -> Memory:
        """Where the keys and values of all sessions lie."""
        return self.pool.memory

    def _describe(self, name: str) -> BackendInfo:
        config = self.model.config.get_text_config()
        return BackendInfo(
            name="torch",
            model=name,
            vocab=vocab_of(self.model),
            context=context_of(config),
            provides=frozenset({"hidden", "variants"} | ({"layers"} if isinstance(self.network, Divisible) else set())),
            device=str(self.device),
            dtype=self.network.precision,
            threads=torch.get_num_threads(),
        )

    # ------------------------------------------------------------------------------- the waist
    def open(self, tokens: Sequence[int]) -> TorchSession:
        """A session with these tokens committed; nothing is scored."""
        session = self.start(tokens)
        try:
            while rest := tokens[session.length : session.length + CHUNK]:
                self.score((), [Chunk(session, rest)])
        except OutOfMemory:
            session.close()
            raise
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so that the prompt's time is not booked on the first round
        return session

    @torch.inference_mode()
    def start(self, tokens: Sequence[int], tenant: str = "") -> TorchSession:
        """A session meant for these tokens, with those committed that memory still knows of this tenant."""
        if len(tokens) > self.info.context:
            raise SapwoodError(
                f"a text of {len(tokens)} tokens does not fit the model's context of {self.info.context}"
            )
        return self._session(tokens, tenant)

    def _session(self, tokens: Sequence[int], tenant: str) -> TorchSession:
        """A session for these tokens that holds what is known of them."""
        slots = self.pool.start(tokens, tenant)
        session = TorchSession(slots, slots.found)
        if session.length:
            session.read = Reading(self.network.speak, [slots.states()])
        return session

    @torch.inference_mode()
    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """One pass over all trees and chunks; row i of a result is node `since + i`. Commits the chunks alone.

        A tree cut from one that has entered is run through the other layers alone.
        """
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._prepare(work, chunks)
        if self._mixing is None:
            for chunk in chunks:
                self._read(chunk)
            chunks = ()
        resumed = [self._resume(job) for job in work]
        fresh = iter(self._pass([job for job, found in zip(work, resumed, strict=True) if found is None], chunks))
        return [next(fresh) if found is None else found for found in resumed]

    def _prepare(self, work: Sequence[Work], chunks: Sequence[Chunk]) -> None:
        """Refuse what cannot be run, and have memory for the rest, before anything is changed."""
        trees, texts = self._sessions(work), self._sessions(chunks)
        check_apart([*trees, *texts])
        for session, job in zip(trees, work, strict=True):
            session.check(job.tree, job.since)
            self._check_room(session.length + job.tree.height + 1)
        for session, chunk in zip(texts, chunks, strict=True):
            self._check_room(session.length + len(chunk.tokens))
        if chunks or len(work) > 1:  # a tree alone has its places reserved when it begins
            reserve_all(
                [session.place(len(job.tree), job.since) for session, job in zip(trees, work, strict=True)]
                + [session.place(len(chunk.tokens)) for session, chunk in zip(texts, chunks, strict=True)]
            )

    def _read(self, chunk: Chunk) -> None:
        """Commit a piece of a prompt by a pass of its own."""
        session = self._own(chunk)
        block, span = session.extend(len(chunk.tokens))
        states, kept = self.network.read(Rows(np.asarray(chunk.tokens, np.int64), [block], [span]), self._watched)
        session.learn(chunk.tokens, {**kept, self.layers: states}, self.network.speak)

    def _pass(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """One pass over whole trees and, where the network can have them in company, chunks."""
        if not work and not chunks:
            return []
        trees, texts = self._sessions(work), self._sessions(chunks)
        begun = [session.begin(job.tree, job.since) for session, job in zip(trees, work, strict=True)]
        begun += [session.extend(len(chunk.tokens)) for session, chunk in zip(texts, chunks, strict=True)]
        tokens = [job.tree.tokens[job.since :] for job in work]
        tokens += [np.asarray(chunk.tokens, np.int64) for chunk in chunks]
        rows = Rows(joined(tokens), [block for block, _ in begun], [span for _, span in begun])
        spoken = sum(block.rows for block in rows.blocks[: len(work)])
        if self._mixing is not None:
            logits, hidden = self._mixing.mix(rows, self._kept(chunks), spoken)
        else:
            logits, hidden = self.network.score(rows, self._kept())
        spans, settle = spans_of(rows), rows.spans[0].slots.settle
        states = [hidden] if len(spans) == 1 else [{n: found[span] for n, found in hidden.items()} for span in spans]
        for session, job, own in zip(trees, work, states, strict=False):
            session.scored(job.tree, own)
        for session, chunk, own in zip(texts, chunks, states[len(work) :], strict=True):
            session.learn(chunk.tokens, own, self.network.speak)
        mine = zip(spans, states, work, strict=False)
        return [TorchScores(logits if len(spans) == 1 else logits[span], own, settle=settle) for span, own, _ in mine]

    def _kept(self, chunks: Sequence[Chunk] = ()) -> set[int]:
        """Layers whose inputs a pass keeps: what the head reads too where the text may be asked about later."""
        return self._watched | ({self.layers} if chunks or self.pool.memory.keeps else set())

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on; the last layer's number plus one is what the head reads."""
        unknown = [layer for layer in layers if not 0 <= layer <= self.layers]
        if unknown:
            raise SapwoodError(f"{self.info.model} has {self.layers} layers; it cannot show the inputs of {unknown}")
        if not self._kept().issuperset(layers):
            self.pool.memory.forget()  # what is kept of earlier texts lacks these layers
        self._watched.update(layers)

    # ------------------------------------------------------------------------- the model in part
    def check_layer(self, layer: int) -> None:
        """Refuse a model that cannot stop before this layer and go on later; only if "layers" is in info.provides."""
        self._divisible.check_layer(layer)

    @torch.inference_mode()
    def enter(self, work: Work, layer: int) -> torch.Tensor:
        """Run a tree through the layers before this one; its input at each node, [nodes, width].

        The next `score` on the session goes on from there where it is asked about this tree or about one that
        was cut from the same tree and holds no other nodes: the same answer, for less.
        """
        session = self._own(work)
        session.check(work.tree, 0)
        self._check_room(session.length + work.tree.height + 1)
        block, span = session.begin(work.tree, 0)
        states, kept = self._divisible.enter(Rows(work.tree.tokens, [block], [span]), self._kept(), layer)
        session.entered = Entered(work.tree, layer, states, kept)
        return states

    def _resume(self, job: Work) -> Scores | None:
        """Run a tree that has entered through the other layers; None where none has."""
        session = self._own(job)
        entered = session.entered
        nodes = None if entered is None or job.since else entered.rows_of(job.tree)
        if entered is None or nodes is None:
            return None
        session.slots.move((session.length + nodes).tolist(), session.length)
        block, span = session.begin(job.tree, 0)
        rows, index = Rows(job.tree.tokens, [block], [span]), torch.from_numpy(nodes).to(self.device)
        logits, late = self._divisible.resume(rows, self._kept(), entered.layer, entered.states[index])
        hidden = {**{layer: states[index] for layer, states in entered.kept.items()}, **late}
        session.scored(job.tree, hidden)
        return TorchScores(logits, hidden)

    @torch.inference_mode()
    def speak(self, states: Any) -> Scores:
        """Scores of rows that stand for what the output head reads, [rows, width]."""
        rows = torch.as_tensor(states, dtype=self.dtype, device=self.device)
        return TorchScores(self.network.speak(rows))

    def variant(self, *, skip: Collection[int] = (), bits: int = 0, sinks: int = 0, recent: int = 0) -> "Variant":
        """The same model made cheaper; it can draft over the target's own keys and values.

        Without the sublayers in `skip` (2 i is the attention of layer i, 2 i + 1 its MLP), in fewer bits, or with
        the keys of the first `sinks` and the last `recent` tokens alone; 0 leaves things as they are.
        """
        from sapwood.backends.torch.variant import Variant

        return Variant(self, skip=skip, bits=bits, sinks=sinks, recent=recent)

    @property
    def _divisible(self) -> Divisible:
        if not isinstance(self.network, Divisible):
            raise SapwoodError(f"the {self.info.name} backend cannot run {self.info.model} in part")
        return self.network

    def grower(self, head: Any, embedding: torch.Tensor) -> Any:
        """What grows whole trees of an EAGLE-3 head without the host in between; None where that gains nothing."""
        if self.device.type != "cuda" or find_spec("triton") is None:
            own = getattr(head, "grower", None)  # of a packed head
            return None if own is None else own(embedding)
        from sapwood.backends.torch.fused.grow import Grower

        return Grower(head, embedding)

    def _sessions(self, work: Sequence[Work] | Sequence[Chunk]) -> list[TorchSession]:
        """The sessions of a pass, each of them ours."""
        return [self._own(job) for job in work]

    def _own(self, job: Work | Chunk) -> TorchSession:
        session = job.session
        if not isinstance(session, TorchSession) or session.slots.layout is not self.network.layout:
            raise TypeError("a session is scored by the backend that opened it")
        return session

    def _check_room(self, need: int) -> None:
        if need > self.info.context:
            raise SapwoodError(f"a tree that ends at token {need} does not fit the context of {self.info.context}")


def stock(model: Any) -> Network:
    """The model's own code as a network; transformers, which takes seconds to start, is needed for no other."""
    from sapwood.backends.torch.on_disk import whole
    from sapwood.backends.torch.stock import Stock

    return Stock(whole(model))


def spans_of(rows: Rows) -> list[slice]:
    """Where each session's rows of a pass are."""
    ends = list(accumulate(block.rows for block in rows.blocks))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def check_apart(sessions: Sequence[TorchSession]) -> None:
    """Refuse a session that is twice in a pass."""
    if len({id(session) for session in sessions}) < len(sessions):
        raise ValueError("one pass scores one tree per session, or reads one chunk")
