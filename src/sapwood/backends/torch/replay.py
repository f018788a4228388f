"""Answer from texts that are known, instead of running the target: what a head is worth, at the cost of drafting only.

A greedy target says the same whatever is drafted, so one pass over a prompt and its answer holds all
that the rounds of any recipe would learn: the next token of each row of the text, and its states. A row
off the text has no answer, and none is needed: a greedy walk never gets there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from sapwood.arrays import IntArray
from sapwood.backends.torch.model import TorchBackend
from sapwood.blocks import Blocks
from sapwood.errors import SapwoodError
from sapwood.protocols import Chunk, Scores, Work
from sapwood.tree import ROOT, Tree

OFF = -1  # the answer, and the position, of a row that is not on the text
GREEDY_ONLY = "a replay knows the target's best tokens and no laws; decode with temperature 0 and no penalties"


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """A prompt with its answer, and what the target thought of it."""

    tokens: IntArray  # [n] prompt and answer
    prompt: int  # tokens of the prompt
    states: Mapping[int, torch.Tensor]  # layer -> [n, width], on the device


def record(
    target: TorchBackend, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], layers: Sequence[int]
) -> "Replay":
    """Run the target once over each prompt and its answer, and keep the inputs of these layers."""
    target.watch(layers)
    known = []
    for prompt, answer in zip(prompts, answers, strict=True):
        text = [*prompt, *answer]
        session = target.open(text)
        read = session.reading(len(text))
        if not prompt or not answer or read is None:
            raise SapwoodError(f"a replay needs a prompt and an answer, not {len(prompt)} and {len(answer)} tokens")
        states = {layer: read.hidden(range(len(text)), [layer]) for layer in layers}
        known.append(Known(np.array(text), len(prompt), states))
        session.close()
    return Replay(target, known)


class ReplayScores:
    """Best tokens and states of rows, as far as they lie on the text."""

    def __init__(self, known: Known, positions: IntArray, best: IntArray | None) -> None:
        self._known, self._positions, self._best = known, positions, best  # positions [n]: OFF off the text

    def argmax(self) -> IntArray:
        """The known next token of each row; OFF, which is no token, for rows off the text."""
        if self._best is None:
            raise SapwoodError("a replay knows the next tokens of an answer, not what the target made of a prompt")
        return self._best

    def topk(self, count: int) -> Any:
        """Refused: only the best token is known."""
        raise SapwoodError(GREEDY_ONLY)

    def logits(self, row: int) -> Any:
        """Refused: only the best token is known."""
        raise SapwoodError(GREEDY_ONLY)

    @torch.inference_mode()
    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width]; zeros off the text."""
        states = [self._known.states[layer] for layer in layers]
        positions = torch.from_numpy(self._positions[list(rows)]).to(states[0].device)
        found = torch.cat([layer[positions] for layer in states], -1)
        return found.masked_fill_(positions[:, None] == OFF, 0)


class ReplaySession:
    """How much of a known text is committed."""

    def __init__(self, known: Known, length: int, fresh: bool = True) -> None:
        self.known, self._length = known, length
        self._read = length if fresh else 0  # tokens that `reading` may show
        self._scored: tuple[Tree, IntArray] | None = None  # the tree that may be committed, and where its nodes stand
        self._closed = False

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    def reading(self, last: int) -> Scores | None:
        """States of the last tokens the session was opened with; None after the first commit."""
        rows = np.arange(max(self._read - last, 0), self._read)
        return ReplayScores(self.known, rows, None) if len(rows) else None

    def score(self, tree: Tree, since: int) -> ReplayScores:
        """The rows of a tree from `since` on."""
        if self._closed:
            raise ValueError("this session is closed; open a new one")
        positions = self._place(tree)
        self._scored = tree, positions
        text = self.known.tokens
        best = np.full(len(tree), OFF)
        for node in np.flatnonzero(positions != OFF).tolist():
            after = positions[node] + 1
            best[node] = text[after] if after < len(text) else stranger(tree, node)
        return ReplayScores(self.known, positions[since:], best[since:])

    def _place(self, tree: Tree) -> IntArray:
        """Position of each node that is on the text."""
        text, length = self.known.tokens.tolist(), self._length
        if text[length : length + 1] != [int(tree.tokens[ROOT])]:
            raise SapwoodError(
                f"token {tree.tokens[ROOT]} at position {length} is not the known text's; "
                f"stop after the {len(text) - self.known.prompt} tokens of the answer"
            )
        positions = np.full(len(tree), OFF)
        positions[ROOT] = length
        for node in range(1, len(tree)):
            above = int(positions[tree.parents[node]])
            if above != OFF and text[above + 1 : above + 2] == [int(tree.tokens[node])]:
                positions[node] = above + 1
        return positions

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; all must be on the text."""
        tree, positions = self._scored or (None, np.empty(0))
        if tree is None or not path or not 0 <= path[-1] < len(tree) or list(path) != tree.path(path[-1]):
            raise ValueError(f"cannot commit {list(path)}: it is not a path of a tree scored since the last commit")
        if positions[path[-1]] == OFF:
            raise ValueError(f"cannot commit {list(path)}: it leaves the known text")
        self._move(self._length + len(path))

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`."""
        if not 0 <= length <= self._length:
            raise ValueError(f"cannot rewind a session of {self._length} tokens to {length}")
        self._move(length)

    def _move(self, length: int) -> None:
        self._length, self._read, self._scored = length, 0, None

    def fork(self) -> "ReplaySession":
        """An independent session with the same committed text."""
        return ReplaySession(self.known, self._length, fresh=False)

    def close(self) -> None:
        """Nothing is held; only marked, so that use after close is an error."""
        self._closed = True


class Replay:
    """A target's greedy answers to known prompts, as a backend."""

    runner = TorchBackend  # what runs a model that a drafter makes of the target's own layers

    def __init__(self, target: TorchBackend, known: Sequence[Known]) -> None:
        self.model, self.device, self.dtype = target.model, target.device, target.dtype  # for what heads borrow
        self.info = dataclasses.replace(target.info, name="replay")
        self.known, self.memory = known, Blocks()  # nothing lies in it
        self._opened: dict[tuple[int, ...], Known] = {}  # all but the last token of a prompt -> its text
        for text in known:
            key = tuple(text.tokens[: text.prompt - 1].tolist())
            if key in self._opened:
                raise SapwoodError(f"two prompts of {text.prompt} tokens are the same but for their last; give one")
            self._opened[key] = text

    def open(self, tokens: Sequence[int]) -> ReplaySession:
        """A session on a known prompt, of which all but the last token are given."""
        known = self._opened.get(tuple(tokens))
        if known is None:
            raise SapwoodError(f"a prompt of {len(tokens) + 1} tokens was not recorded; give it to `record` first")
        return ReplaySession(known, len(tokens))

    def start(self, tokens: Sequence[int], tenant: str = "") -> ReplaySession:
        """The same: all of a prompt is known."""
        return self.open(tokens)

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """Look the rows of all trees up; there is nothing left to read, and nothing is committed."""
        if chunks:
            raise SapwoodError("a replay knows its prompts whole; it reads no chunks")
        found: list[Scores] = []
        for job in work:
            if not isinstance(job.session, ReplaySession):
                raise TypeError("a session is scored by the backend that opened it")
            found.append(job.session.score(job.tree, job.since))
        return found

    def watch(self, layers: Sequence[int]) -> None:
        """Nothing to keep: the layers were chosen when the texts were recorded."""
        missing = sorted({layer for layer in layers for text in self.known if layer not in text.states})
        if missing:
            raise SapwoodError(f"the inputs of layers {missing} were not recorded; give them to `record`")


def stranger(tree: Tree, node: int) -> int:
    """A token that no child of this node carries: what follows the end of a known text must match nothing."""
    taken = set(tree.tokens[tree.children(node)].tolist())
    return next(token for token in range(len(taken) + 1) if token not in taken)
