"""A causal language model in PyTorch behind the waist.

A network (transformers, int8 or CUDA) runs the rows of a pass; sessions and trees are the same for
all networks.
"""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sapwood.backends.prefill import prefill
from sapwood.backends.torch.hf.support import context_of, vocab_of
from sapwood.backends.torch.kv_pool import KvPool, reserve_all
from sapwood.backends.torch.lazy_model import LazyMatrix, whole
from sapwood.backends.torch.network import (
    BoundedNetwork,
    LookaheadNetwork,
    MixedNetwork,
    Network,
    PartialNetwork,
    PassInput,
    joined,
)
from sapwood.backends.torch.output import TorchOutput
from sapwood.backends.torch.session import PartialTree, PromptStates, TorchSession
from sapwood.core.lookahead import LookaheadModel
from sapwood.core.overlap import DraftStream
from sapwood.core.protocols import (
    Capabilities,
    KvMemory,
    PrefillChunk,
    Session,
    TargetOutput,
    TreeInput,
)
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.core.whole_tree import TreeBuilder
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from sapwood.backends.torch.mtp_module import MtpBackend
    from sapwood.backends.torch.self_draft import SelfDraftBackend
    from sapwood.backends.torch.stages import TorchStages

CHUNK = 512  # prompt tokens per pass of a prefill


FOREIGN = "a session is scored by the backend that opened it"


class TorchBackend:
    """Scores token trees with a transformers model on its device."""

    def __init__(self, model: Any, name: str = "", network: Network | None = None) -> None:
        self.model = model.eval()
        self.network = network or stock(model)
        self._mixing = self.network if isinstance(self.network, MixedNetwork) else None
        self.pool = KvPool(self.network.layout)
        self._watched: set[int] = set()  # layers whose inputs each pass keeps
        self.checkpoint: Path | None = None  # folder of its weights, if it has an MTP module
        self.layers: int = model.config.get_text_config().num_hidden_layers
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        if self.device.type == "cuda":
            # cuDNN plans anew for each number of keys: 65 ms a pass, against 25 without it
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.info = self._describe(name or type(model).__name__)

    @property
    def memory(self) -> KvMemory:
        """KV memory of all sessions."""
        return self.pool.memory

    @property
    def capabilities(self) -> Capabilities:
        """The model and the ways to run it, whole and in part."""
        return Capabilities(
            model=self.model,
            layers=self.layers,
            embedding=self.embedding_rows,
            network=self.network,
            tree_builder=self.tree_builder,
            run_derived=self.run_derived,
            lookahead=self.lookahead if isinstance(self.network, LookaheadNetwork) else None,
            layer_split=self if isinstance(self.network, PartialNetwork) else None,
            variant=self.variant,
            stages=self.stages if isinstance(self.network, PartialNetwork) else None,
            open_mtp=None if self.checkpoint is None else self.open_mtp,
            draft_stream=self.draft_stream if self.device.type == "cuda" else None,
        )

    def embedding_rows(self) -> Any:
        """The input embedding, [vocab, width]; a table of blocks where it stays in its file."""
        found = self.model.get_input_embeddings()
        return found.rows if isinstance(found, LazyMatrix) else found.weight

    def stages(self, session: Session, stages: int, cut: int) -> "TorchStages | None":
        """The layers in stages for one session; None if this model cannot be cut."""
        from sapwood.backends.torch.stages import torch_stages

        return torch_stages(self, session, stages, cut)

    def draft_stream(self) -> DraftStream:
        """A stream beside the one that its passes run on."""
        from sapwood.backends.torch.side_stream import SideStream

        return SideStream(self.device)

    def open_mtp(self) -> "MtpBackend":
        """A backend for the MTP module of its checkpoint."""
        from sapwood.backends.torch.mtp_module import open_mtp

        assert self.checkpoint is not None
        return open_mtp(self.checkpoint, self)

    def run_derived(self, derive: Callable[[Any], Any], name: str) -> "TorchBackend":
        """A backend for the model that `derive` makes of the transformers model."""
        return TorchBackend(derive(whole(self.model)), name)

    def lookahead(self, derive: Callable[[Any], LookaheadModel]) -> Any:
        """A network that runs look-ahead rows beside the nodes, over the same sessions."""
        assert isinstance(self.network, LookaheadNetwork)
        return self.network.lookahead(derive)

    def _describe(self, name: str) -> BackendInfo:
        context = context_of(self.model.config.get_text_config())
        if isinstance(self.network, BoundedNetwork):
            context = min(context, self.network.longest)
        return BackendInfo(
            name="torch",
            model=name,
            vocab=vocab_of(self.model),
            context=context,
            provides=frozenset(
                {"hidden", "variants"}
                | ({"layers"} if isinstance(self.network, PartialNetwork) else set())
                | ({"lookahead"} if isinstance(self.network, LookaheadNetwork) else set())
            ),
            device=str(self.device),
            dtype=self.network.precision,
            threads=torch.get_num_threads(),
        )

    # ------------------------------------------------------------------------------- the waist
    def open(self, tokens: Sequence[int]) -> TorchSession:
        """A session with these tokens committed; nothing is scored."""
        session = self.start(tokens)
        prefill(self, session, tokens, CHUNK)
        if self.device.type == "cuda":
            # so that the prefill is not counted in the first round's time
            torch.cuda.synchronize(self.device)
        return session

    @torch.inference_mode()
    def start(self, tokens: Sequence[int], tenant: str = "") -> TorchSession:
        """A session for these tokens, with the tenant's cached prefix committed."""
        if len(tokens) > self.info.context:
            raise SapwoodError(
                f"a text of {len(tokens)} tokens does not fit the model's context of "
                f"{self.info.context}"
            )
        return self._session(tokens, tenant)

    def _session(self, tokens: Sequence[int], tenant: str) -> TorchSession:
        """A session with the cached prefix of these tokens."""
        slots = self.pool.start(tokens, tenant)
        session = TorchSession(slots, slots.found)
        if session.length:
            session.read = PromptStates(self.network.compute_logits, [slots.states()])
        return session

    @torch.inference_mode()
    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass over all trees and chunks; row i of a result is node `since + i`.

        Chunks are committed, trees are not. Nodes that `layer_input` has run go through the other
        layers only.
        """
        chunks = [chunk for chunk in chunks if len(chunk.tokens)]
        self._prepare(work, chunks)
        if self._mixing is None:
            for chunk in chunks:
                self._read(chunk)
            chunks = ()
        resumed = [self._resume(job) for job in work]
        fresh = iter(
            self._pass(
                [job for job, found in zip(work, resumed, strict=True) if found is None], chunks
            )
        )
        return [next(fresh) if found is None else found for found in resumed]

    def _prepare(self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk]) -> None:
        """Refuse invalid work and reserve memory, before anything is changed."""
        trees = self._sessions(work)
        texts = self._sessions(chunks)
        check_apart([*trees, *texts])
        for session, job in zip(trees, work, strict=True):
            session.check(job.tree, job.since)
            self._check_room(session.length + whole_tree(job).height + 1)
        for session, chunk in zip(texts, chunks, strict=True):
            self._check_room(session.length + len(chunk.tokens))
        if chunks or len(work) > 1:  # for a single tree, `begin` reserves
            reserve_all(
                [
                    session.place(job.rows, job.since)
                    for session, job in zip(trees, work, strict=True)
                ]
                + [
                    session.place(len(chunk.tokens))
                    for session, chunk in zip(texts, chunks, strict=True)
                ]
            )

    def _read(self, chunk: PrefillChunk) -> None:
        """Prefill a chunk in a pass of its own."""
        session = self._own(chunk)
        block, span = session.extend(len(chunk.tokens))
        states, kept = self.network.read(
            PassInput(np.asarray(chunk.tokens, np.int64), [block], [span]), self._watched
        )
        session.learn(chunk.tokens, {**kept, self.layers: states}, self.network.compute_logits)

    def _pass(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass over whole trees, and over chunks if the network can mix them."""
        if not work and not chunks:
            return []
        trees = self._sessions(work)
        texts = self._sessions(chunks)
        whole = [whole_tree(job) for job in work]
        begun = [
            session.begin(tree, job.since)
            for session, tree, job in zip(trees, whole, work, strict=True)
        ]
        begun += [
            session.extend(len(chunk.tokens)) for session, chunk in zip(texts, chunks, strict=True)
        ]
        tokens = [tree.tokens[job.since :] for tree, job in zip(whole, work, strict=True)]
        tokens += [np.asarray(chunk.tokens, np.int64) for chunk in chunks]
        rows = PassInput(joined(tokens), [block for block, _ in begun], [span for _, span in begun])
        logit_rows = sum(block.rows for block in rows.blocks[: len(work)])
        if any(job.lookahead for job in work):
            logits, hidden = self._score_lookahead(work, rows)
        elif self._mixing is not None:
            logits, hidden = self._mixing.mix(rows, self._kept(chunks), logit_rows)
        else:
            logits, hidden = self.network.score(rows, self._kept())
        spans = spans_of(rows)
        settle = rows.spans[0].slots.settle
        states = (
            [hidden]
            if len(spans) == 1
            else [{n: found[span] for n, found in hidden.items()} for span in spans]
        )
        for session, job, own in zip(trees, work, states, strict=False):
            session.scored(job.tree, own if job.lookahead is None else nodes_of(job, own))
        for session, chunk, own in zip(texts, chunks, states[len(work) :], strict=True):
            session.learn(chunk.tokens, own, self.network.compute_logits)
        mine = zip(spans, states, work, strict=False)
        return [
            split_output(
                TorchOutput(logits if len(spans) == 1 else logits[span], own, settle=settle), job
            )
            for span, own, job in mine
        ]

    def _score_lookahead(
        self, work: Sequence[TreeInput], rows: PassInput
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Run a pass with look-ahead rows, by the network that knows them."""
        models = {id(job.lookahead.model): job.lookahead.model for job in work if job.lookahead}
        if len(models) > 1:
            raise ValueError("the look-ahead rows of one pass belong to one drafter")
        [network] = models.values()
        ends = np.cumsum([0, *(block.rows for block in rows.blocks)])
        found = [
            (start + len(job.tree) - job.since, start - job.since, job.lookahead)
            for start, job in zip(ends.tolist(), work, strict=False)
            if job.lookahead
        ]
        index = np.concatenate([first + np.arange(len(ahead)) for first, _, ahead in found])
        anchors = np.concatenate([base + ahead.anchors for _, base, ahead in found])
        assert isinstance(network, LookaheadNetwork)
        return network.score_lookahead(rows, self._kept(), index, anchors)

    def _kept(self, chunks: Sequence[PrefillChunk] = ()) -> set[int]:
        """Layers whose inputs a pass keeps; the final states too, for prompts and cached text."""
        return self._watched | ({self.layers} if chunks or self.pool.memory.keeps else set())

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on; layer `layers` is the output head."""
        unknown = [layer for layer in layers if not 0 <= layer <= self.layers]
        if unknown:
            raise SapwoodError(
                f"{self.info.model} has {self.layers} layers; "
                f"it cannot show the inputs of {unknown}"
            )
        if not self._kept().issuperset(layers):
            self.pool.memory.forget()  # cached texts lack these layers
        self._watched.update(layers)

    # ------------------------------------------------------------------------- the model in part
    def check_layer(self, layer: int) -> None:
        """Refuse a model that cannot be split here; only with "layers" in info.provides."""
        self._divisible.check_layer(layer)

    @torch.inference_mode()
    def layer_input(self, work: TreeInput, layer: int) -> torch.Tensor:
        """Run a tree through the layers before this one; its input at each node, [nodes, width].

        The nodes from `work.since` on are run, and returned, if those before it were entered in
        this round. The next `score` of the session continues from there: the same output, with
        fewer layers for the nodes that were entered.
        """
        session = self._own(work)
        session.check(work.tree, 0)
        self._check_room(session.length + work.tree.height + 1)
        before = session.entered
        if before is None or not before.begins(work.tree, work.since, layer):
            before = None  # another drafter has overwritten the nodes: all are run
        since = 0 if before is None else work.since
        block, span = session.begin(work.tree, since)
        states, kept = self._divisible.layer_input(
            PassInput(work.tree.tokens[since:], [block], [span]), self._kept(), layer
        )
        session.entered = (
            PartialTree(work.tree, layer, states, kept)
            if before is None
            else before.extended(work.tree, states, kept)
        )
        return states[work.since - since :]

    def _resume(self, job: TreeInput) -> TargetOutput | None:
        """Run the other layers of a tree that `layer_input` has begun; None if there is none."""
        session = self._own(job)
        entered = session.entered
        fresh = job.since > 0 or job.lookahead is not None
        nodes = None if entered is None or fresh else entered.rows_of(job.tree)
        if entered is None or nodes is None:
            return None
        if (nodes < 0).any():  # the leaves, which no drafter has expanded
            whole, nodes = entered.grown(job.tree, nodes)
            self.layer_input(TreeInput(session, whole, len(entered.states)), entered.layer)
            entered = session.entered
            assert entered is not None
        session.slots.move((session.length + nodes).tolist(), session.length)
        block, span = session.begin(job.tree, 0)
        rows = PassInput(job.tree.tokens, [block], [span])
        index = torch.from_numpy(nodes).to(self.device)
        logits, late = self._divisible.resume(
            rows, self._kept(), entered.layer, entered.states[index]
        )
        hidden = {**{layer: states[index] for layer, states in entered.kept.items()}, **late}
        session.scored(job.tree, hidden)
        return TorchOutput(logits, hidden)

    @torch.inference_mode()
    def logits_of(self, states: Any) -> TargetOutput:
        """Output of final hidden states [rows, width]."""
        rows = torch.as_tensor(states, dtype=self.dtype, device=self.device)
        return TorchOutput(self.network.compute_logits(rows))

    @cached_property
    def transformers_network(self) -> Network:
        """The model in transformers' own code; all variants that run it share its KV layout."""
        return stock(self.model)

    def variant(
        self,
        *,
        skip: Collection[int] = (),
        bits: int = 0,
        sinks: int = 0,
        recent: int = 0,
        chosen: int = 0,
        chunk: int = 1,
    ) -> "SelfDraftBackend":
        """The same model made cheaper; it can draft over the target's own keys and values.

        It skips the sublayers in `skip` (2 i is the attention of layer i, 2 i + 1 its MLP), has
        fewer bits, or sees the keys of the first `sinks` and the last `recent` tokens only, and
        between them `chosen` ones, in chunks, that the last queries attend to; 0 changes nothing.
        """
        from sapwood.backends.torch.self_draft import KeyBudget, SelfDraftBackend

        keys = KeyBudget(sinks, recent, chosen, chunk)
        return SelfDraftBackend(self, skip=skip, bits=bits, keys=keys)

    @property
    def _divisible(self) -> PartialNetwork:
        if not isinstance(self.network, PartialNetwork):
            raise SapwoodError(f"the {self.info.name} backend cannot run {self.info.model} in part")
        return self.network

    def tree_builder(self, head: Any, embedding: torch.Tensor) -> TreeBuilder | None:
        """A builder of whole trees of an EAGLE-3 head; None if that is not faster here."""
        if self.device.type != "cuda" or find_spec("triton") is None:
            own: TreeBuilder | None = head.tree_builder(embedding)  # of an int8 head
            return own
        from sapwood.backends.torch.cuda.draft.tree_builder import CudaTreeBuilder

        return CudaTreeBuilder(head, embedding)

    def _sessions(self, work: Sequence[TreeInput] | Sequence[PrefillChunk]) -> list[TorchSession]:
        """Sessions of a pass, which must belong to this backend."""
        return [self._own(job) for job in work]

    def _own(self, job: TreeInput | PrefillChunk) -> TorchSession:
        session = job.session
        if not isinstance(session, TorchSession) or session.slots.layout is not self.network.layout:
            raise TypeError(FOREIGN)
        return session

    def _check_room(self, need: int) -> None:
        if need > self.info.context:
            raise SapwoodError(
                f"a tree that ends at token {need} does not fit the context of {self.info.context}"
            )


def stock(model: Any) -> Network:
    """The model's transformers code as a network; imported here, since it takes seconds."""
    from sapwood.backends.torch.hf.hf_network import HfNetwork

    return HfNetwork(whole(model))


def whole_tree(job: TreeInput) -> Tree:
    """The tree with its look-ahead rows as further nodes."""
    return job.tree if job.lookahead is None else job.lookahead.added_to(job.tree)


def nodes_of(job: TreeInput, states: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The states of the tree's own nodes."""
    nodes = len(job.tree) - job.since
    return {layer: found[:nodes] for layer, found in states.items()}


def split_output(output: TorchOutput, job: TreeInput) -> TorchOutput:
    """The output of the nodes, with that of their look-ahead rows apart."""
    if job.lookahead is None:
        return output
    nodes = len(job.tree) - job.since
    found = output.before(nodes)
    found.lookahead = output.after(nodes)
    return found


def spans_of(rows: PassInput) -> list[slice]:
    """Slices of each session's rows of a pass."""
    ends = list(accumulate(block.rows for block in rows.blocks))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def check_apart(sessions: Sequence[TorchSession]) -> None:
    """Refuse a pass with a session twice."""
    if len({id(session) for session in sessions}) < len(sessions):
        raise ValueError("one pass scores one tree per session, or reads one chunk")
