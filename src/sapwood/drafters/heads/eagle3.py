"""The head of EAGLE-3 (arXiv 2503.01840): one decoder layer over the target's hidden states.

Row t of the head pairs the target's hidden states at position t with the token at t + 1; its
output predicts the token at t + 2, and is the hidden state of the next drafted row. Rows of the
text are always made of the target's features, never of the head's outputs, and stay; rows of a
tree lie behind them, attend to the text and their own ancestors, and are overwritten in the next
round.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sapwood.common.drafter_store import head_digest
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Backend, EngineContext, Frontier, RequestContext
from sapwood.core.rng import Rng
from sapwood.core.sampling import draft_probs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, TreeShape
from sapwood.core.whole_tree import (
    BatchShapes,
    DraftLaunch,
    FeatureSource,
    HeadCache,
    NewText,
    TreeBuilder,
    TreeJob,
    WholeTreeDrafter,
    builds_batches,
)
from sapwood.drafters.heads.head_kv_cache import (
    RootFeatures,
    best,
    check,
    joined_text,
    leading,
    lineage,
    tensor,
)
from sapwood.drafters.propose import kind, propose, ranks_do
from sapwood.errors import SapwoodError
from sapwood.heads.kv_cache import HeadKvCache, prefill, write_rows

if TYPE_CHECKING:
    from torch import Tensor

# pieces of new text before they are joined: each may hold the features of a whole pass in memory;
# where drafting rests, most requests end before that
PIECES = 96
LATE_PIECES = 4  # the same of rounds without a tree, of which one piece holds many
# nodes, the head's outputs there [nodes, width] and its logits [nodes, draft vocab] -> the logits
# to draft from
Correct = Callable[[Sequence[int], "Tensor", "Tensor"], "Tensor"]


class FeatureHead(Protocol):
    """Interface of a trained head."""

    kind: ClassVar[str]
    config: Any  # features, vocab, target_width and shape
    # project(embeds, states, positions), self_attn.attend(query, key, value, mask), finish(states,
    # read)
    midlayer: Any

    @property
    def vocabulary(self) -> "Tensor":
        """Target id of each draft token, [draft vocab]."""

    def begin(self, features: "Tensor") -> "Tensor":
        """States of the first step from the target's features."""

    def logits(self, outputs: "Tensor") -> "Tensor":
        """Logits over the draft vocabulary."""

    def best(self, outputs: "Tensor", count: int) -> tuple[IntArray, FloatArray] | None:
        """Best tokens of each row and their probabilities, [rows, count]; None if unsupported."""


@dataclass
class Eagle3(Part, WholeTreeDrafter):
    """A trained layer that reads the target's hidden states and drafts from its own."""

    # folder of a trained head, or the head itself; empty takes the one trained for the model
    head: str | FeatureHead = ""
    window: int = 4096  # last prompt tokens the head reads, >= 1
    draws: Draw = Draw.TOPK

    name: ClassVar[str] = "eagle3"
    paper: ClassVar[str] = "2503.01840"
    reads_scores = True
    observes_roots: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "eagle3"  # the kind of head it drafts with
    digest = ""  # of the head's file, once bound

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def __str__(self) -> str:
        """The spelling; a head given as an object is named by its class."""
        named = (
            self
            if isinstance(self.head, str)
            else dataclasses.replace(self, head=type(self.head).__name__)
        )
        return super(Eagle3, named).__str__()

    @property
    def head_digests(self) -> dict[str, str]:
        """The digest of its head; none of one that was given as an object."""
        return {self.trained: self.digest} if self.digest else {}

    # ------------------------------------------------------------------------------ once per engine
    def bind(self, setting: EngineContext) -> None:
        """Load the head, check it against the target, and watch the layers that it uses."""
        target = setting.target
        able = target.capabilities
        if able.model is None:
            raise SapwoodError(
                f"{self} reads the embeddings of a torch model, which the {target.info.name} "
                "backend has not; use another drafter"
            )
        self.embedding: Any = able.embedding_rows()
        self.net = self._load(target)
        self.digest = head_digest(self.head, self.trained, target.info)
        self.vocab = target.info.vocab
        check(self.net, target, self.embedding.shape[1])
        self.tokens: IntArray = self.net.vocabulary.cpu().numpy()  # [draft vocab] target ids
        target.watch(self.net.config.features)
        self.builder: TreeBuilder | None = None  # of whole trees
        if able.tree_builder is not None and self.trained == Eagle3.trained:
            self.builder = able.tree_builder(self.net, self.embedding)

    def _load(self, target: Backend) -> FeatureHead:
        """The head on the target's device, in its number format; a given object is not changed."""
        device, dtype = self.embedding.device, self.embedding.dtype
        if isinstance(self.head, str):
            from sapwood.heads.load_head import head_for

            net: Any
            net, own = head_for(target, self.head, self.trained, convert=True)
            self.embedding = self.embedding if own is None else own
        else:
            net = self.head
            if any(weight.device != device or weight.dtype != dtype for weight in net.parameters()):
                net = copy.deepcopy(net).to(device=device, dtype=dtype)
        if net.kind != self.trained:
            raise SapwoodError(
                f"{self} got a head of the kind {net.kind}; it drafts with {self.trained} heads"
            )
        head: FeatureHead = net
        return head

    # ----------------------------------------------------------------------------- once per request
    def reset(self, request: RequestContext) -> None:
        """Take the prompt's hidden states; the head runs over them at its first draft."""
        self.sampler_ = request.sampler
        chosen = kind(self.draws, self.sampler_) is Draw.TOPK
        # children are the best tokens of the head's own logits
        self.ranked_ = chosen and not self.sampler_.sampling.touches_logits
        self.correct_: Correct | None = None  # set by a drafter around this one
        self.agreed_: TreeShape | None = None  # of the next tree, if a device can grow it
        self.committed_ = len(request.prompt) - 1  # position of the root
        count = min(self.window, self.committed_)
        self.cache_: HeadCache = (
            HeadKvCache(self.net.config.shape, self.embedding, count)
            if self.builder is None
            else self.builder.open(count)
        )
        # node -> its row among those of the current tree; the root's is 0
        self.rows_: dict[int, int] = {}
        self.ups_: list[int] = []  # row -> row of its parent; the root's is its own
        # features of the text, and the tokens that follow each
        self.unread_: list[tuple[Tensor | FeatureSource, Sequence[int]]] = []
        read = request.session.prefill_output(count)
        if read is not None:
            features = read.hidden(range(count), self.net.config.features)
            self.unread_.append((features, request.prompt[-count:]))
        self.joined_ = len(self.unread_)  # first pieces of `unread_` that are long

    def observe(self, outcome: Outcome) -> None:
        """Take the hidden states of the accepted path; drop the rows of the tree."""
        path = outcome.verdict.path
        left = None if self.builder is None else self.builder.path_features(outcome)
        features = outcome.scores.hidden(path, self.net.config.features) if left is None else left
        self.unread_.append((features, outcome.tokens))
        if len(self.unread_) - self.joined_ > PIECES:  # not the long ones before them once more
            self.unread_[self.joined_ :] = [joined_text(self.unread_[self.joined_ :])]
            self.joined_ += 1
        self.committed_ = outcome.context + len(path)
        self.rows_ = {}

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Take the hidden states of rounds without a tree, gathered when they are needed."""
        tokens = [outcome.verdict.bonus for outcome in outcomes]
        scores = [outcome.scores for outcome in outcomes]
        self.unread_.append((RootFeatures(scores, self.net.config.features), tokens))
        if len(self.unread_) > LATE_PIECES:
            self.unread_ = [self._unread()]
        self.committed_ = outcomes[-1].context + 1
        self.rows_ = {}

    def close(self) -> None:
        """Free the rows."""
        self.cache_.close()
        del self.cache_, self.unread_

    # -------------------------------------------------------------------------------- a whole tree
    def accepts_seed(self) -> bool:
        """True when a whole tree may start from other drafters' nodes."""
        return self.builder is not None and self.builder.accepts_seed

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Prepare the builder for trees of these shapes."""
        if self.builder is not None:
            self.builder.prepare(shapes)

    def draft_tree(self, root: int, shape: TreeShape, seed: Tree | None = None) -> Tree | None:
        """A tree of this shape in one call; None when it must go level by level."""
        builder = self.builder
        if builder is None or not self.unread_:
            return None
        if shape is not self.agreed_ and not self._builds(builder, shape):
            return None
        text = partial(self._new_text, builder)
        return builder.build(root, shape, self.cache_, text, self.committed_, self.source, seed)

    def tree_job(self, root: int, shape: TreeShape) -> TreeJob | None:
        """A tree of this shape, to be built together with those of other requests."""
        builder = self.builder
        if not self.unread_ or not builds_batches(builder) or not self._builds(builder, shape):
            return None
        if sum(len(tokens) for _, tokens in self.unread_) > builder.most_rows:
            self.unread_ = [self._new_text(builder)]
        return TreeJob(builder, self.cache_, self.unread_, self.committed_, shape, self.source)

    def joins_rounds(self) -> bool:
        """True when a device can draft, verify and commit the trees of this request by itself."""
        return self.ranked_ and self.correct_ is None and builds_batches(self.builder)

    def round_job(self, shape: TreeShape) -> TreeJob | None:
        """Its next tree and the text that the head has not read; None if there is no text."""
        return self.tree_job(ROOT, shape)

    def observe_rounds(self, tokens: Sequence[int], last: Outcome | None) -> None:
        """Go on after rounds on the device: the head has read all text but that of the last."""
        if last is not None:
            self.observe(last)

    def prepare_batches(self, shapes: BatchShapes, requests: int) -> None:
        """Prepare the builder for trees of these shapes of several requests."""
        if builds_batches(self.builder):
            self.builder.prepare_batches(shapes, requests)

    def _new_text(self, builder: TreeBuilder) -> NewText:
        """The new text; if it is too long for one build, its beginning is prefilled now."""
        features, tokens = self._unread()
        if spare := max(len(tokens) - builder.most_rows, 0):
            early, features = tensor(features).tensor_split([spare])
            builder.read(self.cache_, early, tokens[:spare], self.committed_ - len(tokens))
        return features, tokens[spare:]

    def prelaunch(self, shape: TreeShape, tree: Tree) -> DraftLaunch | None:
        """Prepare the next tree behind the verification of this one, if the builder can."""
        builder = self.builder
        if builder is None or self.unread_ or not self._builds(builder, shape):
            return None
        self.agreed_ = shape
        return builder.prelaunch(shape, tree, self.cache_, self.committed_, self.source)

    def _builds(self, builder: TreeBuilder, shape: TreeShape) -> bool:
        """True when trees of this shape can be built whole for this request."""
        return self.ranked_ and self.correct_ is None and builder.fits(shape)

    def _unread(self) -> tuple["Tensor | FeatureSource", list[int]]:
        """Features of the new text and the token after each; it counts as prefilled from now on."""
        parts = self.unread_
        self.unread_ = []
        self.joined_ = 0
        if len(parts) == 1:
            features, tokens = parts[0]
            return features, list(tokens)
        return joined_text(parts)

    # ------------------------------------------------------------------------------- once per level
    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Run the head on the frontier in one call and propose children of each of its nodes."""
        import torch

        with torch.inference_mode():
            if not self.rows_ and not self._read(tree):
                return
            nodes = [node for node, _ in frontier]
            while missing := self._missing(tree, nodes):
                self._grow(tree, missing)
            outputs = self.cache_.take([self.rows_[node] for node in nodes])
            ranked = ranks_do(tree, self.draws, self.sampler_)
            wide = max(width for _, width in frontier)
            if ranked and self.correct_ is None:
                self._choose(tree, frontier, *leading(self.net, outputs, wide, self.tokens))
                return
            logits = self.net.logits(outputs)
            if self.correct_ is not None:
                logits = self.correct_(nodes, outputs, logits)
            if ranked:
                self._choose(tree, frontier, *best(logits, wide, self.tokens))
            else:
                self._draw(tree, frontier, logits, rng)

    def _read(self, tree: Tree) -> bool:
        """Make rows of the new text, the root's last; False when there is no text yet."""
        if not self.unread_:
            return False
        features, tokens = self._unread()
        cache = self.cache_
        first = self.committed_ - len(tokens)
        states, query = prefill(self.net, self.embedding, cache, tensor(features), tokens, first)
        # one layer: of the text's rows only the last, the root's, needs more than its key and value
        output = self._finish(states[:, -1:], query[:, :, -1:], cache.text, None)
        cache.outputs[:1] = output
        tree.states[ROOT] = output[0]
        self.rows_ = {ROOT: 0}
        self.ups_ = [0]
        return True

    def _missing(self, tree: Tree, nodes: Sequence[int]) -> list[int]:
        """The first node without a row on the path to each of these; most often the node itself."""
        paths = [tree.path(node) for node in nodes if node not in self.rows_]
        return list(
            dict.fromkeys(next(node for node in path if node not in self.rows_) for path in paths)
        )

    def _grow(self, tree: Tree, nodes: list[int]) -> None:
        """Make rows of these nodes, whose parents have theirs."""
        import torch

        first = len(self.rows_)
        cache = self.cache_
        ups = [self.rows_[int(parent)] for parent in tree.parents[nodes]]
        self.ups_ += ups
        self.rows_.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        packed = np.stack(
            (tree.tokens[nodes], tree.depths[nodes] + self.committed_ - 1, np.array(ups))
        )
        # one transfer
        tokens, positions, above = torch.from_numpy(packed).to(self.embedding.device)
        seen = lineage(self.ups_, first)
        mask = None
        if not seen.all():
            text = np.ones((len(nodes), cache.text - 1), bool)
            mask = torch.from_numpy(np.concatenate((text, seen), 1)).to(self.embedding.device)
        start = cache.text - 1 + first  # the root's row is the last one of the text
        states, query = self._write_keys(cache.outputs[above], tokens, positions, start)
        outputs = self._finish(states, query, start + len(nodes), mask)
        cache.outputs[first : first + len(nodes)] = outputs
        tree.states.update(zip(nodes, outputs, strict=True))

    def _write_keys(
        self, states: "Tensor", tokens: "Tensor", positions: "Tensor", start: int
    ) -> tuple["Tensor", "Tensor"]:
        """Write keys and values of rows [rows, width] from slot `start` on."""
        return write_rows(self.net, self.embedding, self.cache_, states, tokens, positions, start)

    def _finish(
        self, states: "Tensor", query: "Tensor", stop: int, mask: "Tensor | None"
    ) -> "Tensor":
        """Outputs [rows, width] of rows that attend before slot `stop`, by a mask [rows, stop]."""
        layer, cache = self.net.midlayer, self.cache_
        read = layer.self_attn.attend(
            query, cache.keys[:, :, :stop], cache.values[:, :, :stop], mask
        )
        outputs: Tensor = layer.finish(states, read)[0]
        return outputs

    # ------------------------------------------------------------------------------------ proposals
    def _choose(self, tree: Tree, frontier: Frontier, tokens: IntArray, probs: FloatArray) -> None:
        """The best tokens of each row; the lowest id first in a tie."""
        for (node, width), row, chances in zip(
            frontier, tokens.tolist(), probs.tolist(), strict=True
        ):
            tree.extend(node, row[:width], chances[:width], source=self.source)

    def _draw(self, tree: Tree, frontier: Frontier, logits: "Tensor", rng: Rng) -> None:
        """Children from the probs over the whole vocabulary, after the request's sampling."""
        draws = kind(self.draws, self.sampler_)
        for (node, width), row in zip(frontier, logits.float().cpu().numpy(), strict=True):
            whole = np.full(self.vocab, -np.inf, np.float32)
            whole[self.tokens] = row
            path = tree.spell(node)[1:]
            if np.isneginf(
                self.sampler_.adjust(whole, path)
            ).all():  # the request bans all that the head knows
                continue
            full_probs: FloatArray = draft_probs(self.sampler_, whole, path)
            position = self.committed_ + int(tree.depths[node]) + 1
            propose(tree, node, full_probs, width, draws, position, rng, self.source)
