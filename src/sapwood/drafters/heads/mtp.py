"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437): a module trained with the model drafts.

Row t of the module joins the target's final hidden state at position t with the token at t + 1 and
predicts the token at t + 2; its own normed output stands for the hidden state of the next drafted
row. Rows of the text are always made of the target's states, never of the module's, and stay in its
KV cache; rows of a tree lie behind them and are dropped. A checkpoint with several modules is
drafted with the first alone, used again at every depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sapwood.core.mtp_runner import MtpRunner
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import (
    EngineContext,
    Frontier,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import Rng
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import CATCH_UP, DraftModel, chain
from sapwood.drafters.heads.head_base import first_missing

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class MtpRows(DraftModel):
    """The module as a draft model whose rows pair tokens with hidden states."""

    window: int = 4096

    stands_alone = False

    def use(self, runner: MtpRunner, layer: int) -> None:
        """Draft with this module over the target's input of this layer."""
        self.runner = runner
        self.backend = runner  # type: ignore[assignment]
        self.layer = layer

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Make rows of all nodes above the frontier first, parents before children."""
        if self.scratch_ is None and self._room(len(self.unread_)):
            self._begin(tree)
        above = [int(tree.parents[node]) for node, _ in frontier if node != ROOT]
        while self.scratch_ is not None and (missing := first_missing(tree, above, self.inner_)):
            if not self.scored_:
                self._score()
            for node in missing:
                self._place(tree, node)
            self._score()
        super().expand(tree, frontier, rng)

    def reset(self, request: RequestContext) -> None:
        """Take the prompt's final states; the module runs over them at its first draft."""
        self.sampler_ = request.sampler
        self.session_ = self.runner.open([])
        self._drop_scratch()
        count = min(self.window, len(request.prompt) - 1)
        read = request.session.prefill_output(count)
        # tokens whose rows are to be made, and the target's states before them
        self.unread_: list[int] = list(request.prompt[-count:]) if read is not None else []
        self.features_: list[Tensor] = []  # [tokens, width] in all
        if read is not None:
            self.features_.append(read.hidden(range(count), [self.layer]))
        self.before_ = len(request.prompt) - len(self.unread_)  # tokens without a row

    def _room(self, rows: int) -> bool:
        """True while there is text, and this many more rows fit the module's context."""
        return bool(self.unread_) and super()._room(rows)

    def _begin(self, tree: Tree) -> None:
        """Make rows of new text; the last of them, the root's among them, head the scratch tree."""
        import torch

        states = torch.cat(self.features_)
        done = 0
        while len(self.unread_) - done > CATCH_UP:
            self._commit_rows(self.unread_[done : done + CATCH_UP], states[done : done + CATCH_UP])
            done += CATCH_UP
        del self.unread_[:done]
        self.features_ = [states[done:]]
        self.root_position_ = self.before_ + self.session_.length + len(self.unread_) - 1
        self.scratch_ = chain(self.unread_)
        self.inner_ = {0: len(self.scratch_) - 1}
        self.since_ = self.scored_ = 0

    def _score(self) -> TargetOutput:
        """Score new rows: of the text with the target's states, others with their parents'."""
        import torch

        assert self.scratch_ is not None
        self.since_ = self.scored_
        self.scored_ = len(self.scratch_)
        states = self.features_[0]
        if self.since_:
            parents = torch.from_numpy(self.scratch_.parents[self.since_ :])
            states = self.outputs_[parents.to(states.device)]
        self.runner.pair(states)
        [scores] = self.runner.score([TreeInput(self.session_, self.scratch_, self.since_)])
        made = scores.hidden(range(self.scored_ - self.since_), [self.runner.layers])
        self.outputs_: Tensor = torch.cat((self.outputs_, made)) if self.since_ else made
        return scores

    def _commit_rows(self, tokens: Sequence[int], states: "Tensor") -> None:
        line = chain(tokens)
        self.runner.pair(states)
        self.runner.score([TreeInput(self.session_, line)])
        self.session_.commit(range(len(line)))

    def observe(self, outcome: Outcome) -> None:
        """Keep the rows of the text; the accepted path's are made anew from the target's states."""
        if self.scratch_ is not None and self.scored_:
            self.session_.commit(range(len(self.unread_)))
            self.unread_ = []
            self.features_ = []
        self.unread_ += outcome.tokens
        self.features_.append(outcome.scores.hidden(outcome.verdict.path, [self.layer]))
        self.scratch_ = None


@dataclass
class Mtp(Part):
    """The module for several tokens that was trained with the model and is in its checkpoint."""

    draws: Draw = Draw.TOPK
    window: int = 4096  # last prompt tokens the module reads, >= 1

    paper: ClassVar[str] = "2412.19437"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden", "mtp"})
    reads_scores = True

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def bind(self, setting: EngineContext) -> None:
        """Open the module and have the target keep its final states."""
        able = setting.target.capabilities
        assert able.open_mtp is not None  # it provides mtp
        self.rows = MtpRows(draws=self.draws, window=self.window)
        self.rows.use(able.open_mtp(), able.layers)
        setting.target.watch([able.layers])

    def reset(self, request: RequestContext) -> None:
        """Take the prompt's final states; the module runs over them at its first draft."""
        self.rows_ = self.rows.fresh()
        self.rows_.source = self.source
        self.rows_.reset(request)

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Expand the frontier by the module."""
        self.rows_.expand(tree, frontier, rng)

    def observe(self, outcome: Outcome) -> None:
        """Take the target's states of the accepted path."""
        self.rows_.observe(outcome)

    def close(self) -> None:
        """Free the module's session."""
        self.rows_.close()
