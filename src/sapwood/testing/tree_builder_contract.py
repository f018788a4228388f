"""The contract of builders of whole trees, and the reference builder.

`StepTreeBuilder` runs the head level by level, as the policies `best` and `beam` do: `best` where
the shape holds a growth rule, `beam` where it does not. Any other builder must build the same trees
from the same text, however the text is split.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapwood.core.protocols import Policy
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Budget, Outcome, TreeShape
from sapwood.core.whole_tree import NewText, TreeBuilder
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.engine.request_decoder import grow_by_levels
from sapwood.estimators.binned import Binned
from sapwood.heads.kv_cache import HeadKvCache, prefill
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best

if TYPE_CHECKING:
    from torch import Tensor

ROWS = 32  # most rows of new text that the steps take at once
COLUMNS = ("tokens", "parents", "depths", "ranks", "sources", "expanded")


class StepTreeBuilder:
    """Builds trees by running the head level by level."""

    most_rows = ROWS
    accepts_seed = False

    def __init__(self, net: Any, embedding: "Tensor") -> None:
        self.drafter = Eagle3(head=net)
        self.drafter.net = net
        self.drafter.embedding = embedding
        self.drafter.tokens = net.vocabulary.cpu().numpy()
        self.drafter.builder = None

    def open(self, rows: int) -> HeadKvCache:
        """Room for the rows of one request."""
        return HeadKvCache(self.drafter.net.config.shape, self.drafter.embedding, rows)

    def fits(self, shape: TreeShape) -> bool:
        """True: steps can grow any shape."""
        return True

    def prepare(self, shapes: Sequence[TreeShape]) -> None:
        """Nothing to prepare."""

    def read(
        self, cache: HeadKvCache, features: "Tensor", tokens: Sequence[int], first: int
    ) -> None:
        """Make rows of a text."""
        prefill(self.drafter.net, self.drafter.embedding, cache, features, tokens, first)

    def build(
        self,
        root: int,
        shape: TreeShape,
        cache: HeadKvCache,
        text: Callable[[], NewText],
        committed: int,
        source: int = 0,
        seed: Tree | None = None,
    ) -> Tree:
        """Prefill the new text and run the head until the policy stops."""
        drafter = self.drafter.fresh()
        drafter.source = source
        drafter.sampler_ = Sampler(Sampling(), [root])
        drafter.correct_ = None
        drafter.cache_ = cache
        drafter.rows_, drafter.ups_ = {}, []
        drafter.unread_ = [text()]
        drafter.committed_ = committed
        return grow_by_levels(root, drafter, *steps_of(shape), KeyedRng(0))

    def prelaunch(
        self, shape: TreeShape, tree: Tree, cache: HeadKvCache, committed: int, source: int = 0
    ) -> None:
        """None: steps need the host."""

    def path_features(self, outcome: Outcome) -> None:
        """None: no features are kept on a device."""


def steps_of(shape: TreeShape) -> tuple[Policy, Budget]:
    """The policy and the budget whose steps a shape stands for."""
    rule = shape.terms
    if rule is None:
        return Beam(beam=shape.beam), Budget(shape.nodes, shape.depth, shape.width)
    estimator = Binned(coarse=rule.counts.coarse, fine=rule.counts.fine)
    estimator.hits, estimator.trials = rule.counts.hits, rule.counts.trials
    return Best(stride=rule.stride, estimator=estimator), rule.budget


class BuilderRun:
    """One request: a text that goes on, in pieces, and a tree after each."""

    def __init__(self, builder: TreeBuilder, features: "Tensor", tokens: Sequence[int]) -> None:
        self.builder = builder
        self.features = features  # [rows, features] of the whole text
        self.tokens = tokens  # that follow each row
        self.cache = builder.open(len(tokens))

    def build(self, stop: int, shape: TreeShape) -> Tree:
        """The tree after the first `stop` rows of the text; rows in the cache are not run again."""
        begin = self.cache.text
        late = max(begin, stop - self.builder.most_rows)
        if late > begin:
            self.builder.read(self.cache, self.features[begin:late], self.tokens[begin:late], begin)
        asked: list[int] = []

        def text() -> NewText:
            asked.append(stop)
            return self.features[late:stop], self.tokens[late:stop]

        tree = self.builder.build(self.tokens[stop - 1], shape, self.cache, text, stop)
        assert asked == [stop], "the text is asked for once, and only where the head has to run"
        assert self.cache.text == stop, f"{stop} rows of text, {self.cache.text} in the cache"
        return tree


def check_builder(
    builder: TreeBuilder,
    steps: TreeBuilder,
    shape: TreeShape,
    features: "Tensor",
    tokens: Sequence[int],
) -> None:
    """Compare a builder with the steps of the same head, over a text that comes in pieces."""
    assert builder.fits(shape), f"{shape} must fit the builder that is checked with it"
    builder.prepare([shape])
    ours, theirs = (BuilderRun(one, features, tokens) for one in (builder, steps))
    rows = len(tokens)
    for stop in (rows // 2, rows // 2 + 3, rows):
        tree = ours.build(stop, shape)
        check_same(tree, theirs.build(stop, shape))
        assert builder.prelaunch(shape, Tree(0), ours.cache, stop) is None, "not behind any tree"
    again = BuilderRun(builder, features, tokens)
    check_same(again.build(rows, shape), tree)  # however the text came
    for one in (ours, theirs, again):
        one.cache.close()


def check_same(ours: Tree, theirs: Tree) -> None:
    """Fail unless both have the same nodes in the same order, and probs up to rounding."""
    for column in COLUMNS:
        assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
    np.testing.assert_allclose(ours.probs, theirs.probs, rtol=1e-3)
