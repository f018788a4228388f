"""A causal language model in PyTorch behind the waist.

A network runs the rows of a pass, one of several that a model may have; sessions, trees and what
is asked about them are the same for all.
"""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.cache import Slots
from sapwood.backends.torch.mask import Block
from sapwood.backends.torch.network import Divisible, Kept, Network, Rows
from sapwood.backends.torch.scores import TorchScores
from sapwood.backends.torch.session import Entered, Reading, TorchSession
from sapwood.backends.torch.stock import Stock
from sapwood.backends.torch.support import context_of
from sapwood.errors import SapwoodError
from sapwood.protocols import Scores, Work
from sapwood.records import BackendInfo

if TYPE_CHECKING:
    from sapwood.backends.torch.variant import Variant

CHUNK = 512  # prompt tokens per pass of a prefill


class TorchBackend:
    """Scores token trees with a transformers model on its device."""

    def __init__(self, model: Any, name: str = "", network: Network | None = None) -> None:
        self.model = model.eval()
        self.network = network or Stock(model)
        self._watched: set[int] = set()  # layers whose inputs each pass keeps
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        if self.device.type == "cuda":
            # cuDNN prepares each new number of keys anew: measured 65 ms a pass against 25 without it
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.info = self._describe(name or type(model).__name__)

    def _describe(self, name: str) -> BackendInfo:
        config = self.model.config.get_text_config()
        return BackendInfo(
            name="torch",
            model=name,
            vocab=self.model.get_output_embeddings().weight.shape[0],
            context=context_of(config),
            provides=frozenset({"hidden", "variants"} | ({"layers"} if isinstance(self.network, Divisible) else set())),
            device=str(self.device),
            dtype=self.network.precision,
            threads=torch.get_num_threads(),
        )

    # ------------------------------------------------------------------------------- the waist
    @torch.inference_mode()
    def open(self, tokens: Sequence[int]) -> TorchSession:
        """A session with these tokens committed; nothing is scored."""
        if len(tokens) > self.info.context:
            raise SapwoodError(
                f"a text of {len(tokens)} tokens does not fit the model's context of {self.info.context}"
            )
        session = self._session(len(tokens))
        parts = [
            self._prefill(session, np.asarray(tokens[start : start + CHUNK], np.int64))
            for start in range(0, len(tokens), CHUNK)
        ]
        if parts:
            hidden = {layer: torch.cat([kept[layer] for _, kept in parts]) for layer in parts[0][1]}
            states = torch.cat([last for last, _ in parts])
            session.read = Reading(self.network.speak, states, hidden)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # so that the prompt's time is not booked on the first round
        return session

    def _session(self, tokens: int) -> TorchSession:
        """An empty session with room for so many tokens."""
        return TorchSession(Slots(self.network.layout, tokens))

    @torch.inference_mode()
    def score(self, work: Sequence[Work]) -> list[Scores]:
        """One pass over all trees; row i of a result is node `since + i`. Commits nothing.

        A tree cut from one that has entered is run through the other layers alone.
        """
        self._sessions(work)
        resumed = [self._resume(job) for job in work]
        fresh = iter(self._pass([job for job, found in zip(work, resumed, strict=True) if found is None]))
        return [next(fresh) if found is None else found for found in resumed]

    def _pass(self, work: Sequence[Work]) -> list[Scores]:
        """One pass over whole trees."""
        if not work:
            return []
        sessions = self._sessions(work)
        begun = [session.begin(job.tree, job.since) for session, job in zip(sessions, work, strict=True)]
        blocks, spans = [block for block, _ in begun], [span for _, span in begun]
        tokens = np.concatenate([job.tree.tokens[job.since :] for job in work])
        self._check_room(blocks)
        logits, hidden = self.network.score(Rows(tokens, blocks, spans), self._watched)
        for session, job in zip(sessions, work, strict=True):
            session.scored(job.tree)
        return _split(logits, hidden, blocks)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on; the last layer's number plus one is what the head reads."""
        unknown = [layer for layer in layers if not 0 <= layer <= self.layers]
        if unknown:
            raise SapwoodError(f"{self.info.model} has {self.layers} layers; it cannot show the inputs of {unknown}")
        self._watched.update(layers)

    # ------------------------------------------------------------------------- the model in part
    @property
    def layers(self) -> int:
        """How many layers the model has."""
        depth: int = self.model.config.get_text_config().num_hidden_layers
        return depth

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
        block, span = session.begin(work.tree, 0)
        self._check_room([block])
        states, kept = self._divisible.enter(Rows(work.tree.tokens, [block], [span]), self._watched, layer)
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
        logits, late = self._divisible.resume(rows, self._watched, entered.layer, entered.states[index])
        session.scored(job.tree)
        return TorchScores(logits, {**{layer: states[index] for layer, states in entered.kept.items()}, **late})

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
            return None
        from sapwood.backends.torch.fused.grow import Grower

        return Grower(head, embedding)

    def _sessions(self, work: Sequence[Work]) -> list[TorchSession]:
        """The sessions of a pass, each of them ours and there once."""
        sessions = [self._own(job) for job in work]
        if len({id(session) for session in sessions}) < len(sessions):
            raise ValueError("one pass scores one tree per session")
        return sessions

    def _own(self, job: Work) -> TorchSession:
        session = job.session
        if not isinstance(session, TorchSession) or session.slots.layout is not self.network.layout:
            raise TypeError("a session is scored by the backend that opened it")
        return session

    # --------------------------------------------------------------------------------- a pass
    def _prefill(self, session: TorchSession, tokens: IntArray) -> tuple[torch.Tensor, Kept]:
        """Commit a piece of a prompt; its last states [rows, width] and those of watched layers."""
        rows = np.arange(len(tokens))
        block, span = Block(session.length, rows - 1, rows), session.extend(len(tokens))
        found = self.network.read(Rows(tokens, [block], [span]), self._watched)
        session.advance(len(tokens))
        return found

    def _check_room(self, blocks: Sequence[Block]) -> None:
        need = max(int(block.positions.max()) + 1 for block in blocks)
        if need > self.info.context:
            raise SapwoodError(f"a tree that ends at token {need} does not fit the context of {self.info.context}")


def _split(logits: torch.Tensor, hidden: Mapping[int, torch.Tensor], blocks: Sequence[Block]) -> list[Scores]:
    ends = np.cumsum([block.rows for block in blocks]).tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return [TorchScores(logits[span], {layer: states[span] for layer, states in hidden.items()}) for span in spans]
