"""Models with a running state, such as Mamba: plain decoding through copies of the state.

A state can be copied, but not rewound or shared by the branches of a tree, so each node of a tree
would be a pass of its own. Trees of one node are all that is asked for, which is plain decoding.
"""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sapwood.backends.torch.hf.support import LEAK, context_of, vocab_of
from sapwood.backends.torch.output import TorchOutput
from sapwood.core.protocols import Capabilities, PrefillChunk, Session, TargetOutput, TreeInput
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.kv_cache.block_allocator import BlockAllocator
from sapwood.kv_cache.block_table import BlockTable, reserve

NOTE = "plain decoding: its running state cannot be shared by the branches of a tree"
PROBE = (1, 2, 3, 4, 5)  # tokens that compare steps with one pass


@dataclass
class RecurrentSession:
    """Committed tokens, and the state after those that were run."""

    model: "RecurrentBackend"
    table: BlockTable
    tokens: list[int] = field(default_factory=list)
    state: Any = None  # None: no token was run
    tree: Tree | None = None
    states: list[Any] = field(default_factory=list)  # after each node of the last tree
    fresh: bool = False  # nothing was committed from a tree since the prefill
    closed: bool = False

    @property
    def length(self) -> int:
        """Committed tokens."""
        return len(self.tokens)

    def prefill_output(self, last: int) -> TargetOutput | None:
        """Scores of the last tokens of the prompt, by a pass of their own."""
        return self.model.read_out(self.tokens, last) if self.fresh and self.tokens else None

    def commit(self, path: Sequence[int]) -> None:
        """Keep the state after this path of the last scored tree."""
        tree = self.tree
        if (
            tree is None
            or path[0] != ROOT
            or any(tree.parents[child] != node for node, child in pairwise(path))
        ):
            raise ValueError(f"{list(path)} is not a path from the root of the last scored tree")
        self.add(tree.tokens[list(path)].tolist(), self.states[path[-1]])
        self.fresh = False

    def add(self, tokens: Sequence[int], state: Any) -> None:
        """Commit tokens with the state after them."""
        self.tokens += tokens
        self.table.commit(tokens)
        self._settle(state)

    def _settle(self, state: Any) -> None:
        self.table.truncate(self.length)
        self.state = state
        self.tree = None
        self.states = []

    def rewind(self, length: int) -> None:
        """Drop committed tokens after the first `length`; the others are run again."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind to {length}: the session holds {self.length} tokens")
        if length < self.length:
            del self.tokens[length:]
            self._settle(None)
        self.fresh = False

    def fork(self) -> "RecurrentSession":
        """An independent copy."""
        table, _ = self.table.fork(self.length)
        state = copy.deepcopy(self.state)
        return RecurrentSession(self.model, table, list(self.tokens), state, fresh=self.fresh)

    def close(self) -> None:
        """Free the state."""
        self.closed = True
        self.table.close()
        self._drop()

    def _drop(self) -> None:
        self.state = None
        self.states = []


class RecurrentBackend:
    """A transformers model with a running state, one token at a time."""

    def __init__(self, model: Any, name: str) -> None:
        self.model = model.eval()
        self.memory = BlockAllocator()
        taken = inspect.signature(model.forward).parameters
        self._argument = "cache_params" if "cache_params" in taken else "past_key_values"
        self.info = BackendInfo(
            name="torch",
            model=name,
            vocab=vocab_of(model),
            context=context_of(model.config.get_text_config()),
            max_nodes=1,
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            note=NOTE,
        )
        self._check()

    @property
    def capabilities(self) -> Capabilities:
        """None: trees of several nodes are not for this model."""
        return Capabilities()

    def open(self, tokens: Sequence[int]) -> RecurrentSession:
        """A session with these tokens committed."""
        session = self.start(tokens)
        self._read([PrefillChunk(session, tokens)])
        return session

    def start(self, tokens: Sequence[int], tenant: str = "") -> RecurrentSession:
        """A session without tokens: states of other texts are not kept."""
        self._fit(len(tokens))
        return RecurrentSession(self, BlockTable(self.memory, tenant))

    def watch(self, layers: Sequence[int]) -> None:
        """Hidden states are not given."""
        raise SapwoodError(f"model {self.info.model!r} gives no hidden states here")

    @torch.inference_mode()
    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """Run the nodes of each tree after copies of their parents' states; commit the chunks."""
        trees = [own(job.session) for job in work]
        texts = [own(chunk.session) for chunk in chunks]
        if len({id(session) for session in (*trees, *texts)}) < len(work) + len(chunks):
            raise ValueError("one pass scores one tree, or reads one chunk, per session")
        tails = [len(job.tree) for job in work] + [len(chunk.tokens) for chunk in chunks]
        both = list(zip((*trees, *texts), tails, strict=True))
        for session, chunk in zip(texts, chunks, strict=True):
            self._fit(session.length + len(chunk.tokens))
        reserve([(session.table, session.length, session.length + tail) for session, tail in both])
        self._read(chunks)
        return [self._score(job) for job in work]

    def _fit(self, length: int) -> None:
        """Refuse a text that is longer than the context."""
        if length > self.info.context:
            raise SapwoodError(
                f"a text of {length} tokens does not fit the model's context of {self.info.context}"
            )

    def _read(self, chunks: Sequence[PrefillChunk]) -> None:
        """Commit tokens; they are run, all at once, before the next root."""
        for chunk in chunks:
            session = own(chunk.session)
            reserve([(session.table, session.length, session.length + len(chunk.tokens))])
            session.add(chunk.tokens, None)
            session.fresh = True

    @torch.inference_mode()
    def read_out(self, tokens: Sequence[int], last: int) -> TorchOutput:
        """Scores after each of the last tokens of a text."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return TorchOutput(self.model(input_ids=ids, use_cache=False).logits[0, -last:])

    def _score(self, work: TreeInput) -> TorchOutput:
        session = own(work.session)
        tree = work.tree
        if work.since == 0:
            session.states = []
        session.tree = tree
        rows = []
        for node in range(work.since, len(tree)):
            token = int(tree.tokens[node])
            if node == ROOT and session.state is None:
                row, state = self._run([*session.tokens, token], None)
            else:
                before = session.state if node == ROOT else session.states[tree.parents[node]]
                row, state = self._run([token], copy.deepcopy(before))
            session.states.append(state)
            rows.append(row)
        return TorchOutput(torch.stack(rows))

    def _run(self, tokens: Sequence[int], state: Any) -> tuple[Tensor, Any]:
        """Logits after the last of these tokens, [vocab], and the state; `state` is changed."""
        ids = torch.tensor([list(tokens)], device=self.model.device)
        out = self.model(input_ids=ids, use_cache=True, **{self._argument: state})
        return out.logits[0, -1], out[self._argument]

    @torch.inference_mode()
    def _check(self) -> None:
        """Refuse a model whose steps differ from one pass over the same tokens."""
        try:
            _, state = self._run(PROBE[:2], None)
            for token in PROBE[2:]:
                stepped, state = self._run([token], copy.deepcopy(state))
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SapwoodError(
                f"model {self.info.model!r} keeps a running state that cannot be copied; "
                "use another model"
            ) from error
        whole, _ = self._run(PROBE, None)
        if not (stepped - whole).abs().max() <= LEAK * whole.std():
            raise SapwoodError(
                f"model {self.info.model!r} gives other logits step by step than at once; "
                "use another model"
            )


def own(session: Session) -> RecurrentSession:
    """The session as a `RecurrentSession`, which must be open."""
    assert isinstance(session, RecurrentSession)
    if session.closed:
        raise ValueError("the session is closed")
    return session
