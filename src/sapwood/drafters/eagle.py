"""Draft with one decoder layer that continues the target's own thoughts.

EAGLE-3 (arXiv 2503.01840). Row t of the head pairs what the target thought at position t with the
token at t + 1; its output speaks for the token at t + 2, and is the thought of the next drafted row.
Rows of the text are always made of the target's features, never of the head's outputs, and stay; rows
of a tree lie behind them, see the text and their own ancestors, and are overwritten in the next round.
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.drafters.draw import draft_law, kind, propose, ranks_do
from sapwood.drafters.rows import Cache, best, check, joined, leading, lineage, tensor
from sapwood.errors import SapwoodError
from sapwood.part import Part, at_least
from sapwood.protocols import Frontier, Request, Setting
from sapwood.records import Draw, Levels, Outcome
from sapwood.rng import Rng
from sapwood.tree import ROOT, Tree

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 512  # rows of a text that the head reads at once
# nodes, the head's outputs there [nodes, width] and its logits [nodes, draft vocab] -> the logits to draft from
Correct = Callable[[Sequence[int], "Tensor", "Tensor"], "Tensor"]


class Head(Protocol):
    """What the drafter asks of a trained head."""

    kind: ClassVar[str]
    config: Any  # features, vocab, target_width and shape
    midlayer: Any  # project(embeds, states, positions), self_attn.attend(query, key, value, mask), finish(states, read)

    @property
    def vocabulary(self) -> "Tensor":
        """Target id of each draft token, [draft vocab]."""

    def begin(self, features: "Tensor") -> "Tensor":
        """States of the first step from the target's features."""

    def logits(self, outputs: "Tensor") -> "Tensor":
        """Logits over the draft vocabulary."""


@dataclass
class Eagle(Part):
    """A trained layer that reads the target's hidden states and drafts from its own."""

    head: str | Head = ""  # folder of a trained head, or the head itself; empty takes the one trained for the model
    window: int = 4096  # last prompt tokens the head reads, >= 1
    draws: Draw = Draw.TOPK

    name: ClassVar[str] = "eagle3"
    paper: ClassVar[str] = "2503.01840"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})
    trained: ClassVar[str] = "eagle3"  # the kind of head it drafts with

    def __post_init__(self) -> None:
        at_least(1, window=self.window)

    def __str__(self) -> str:
        """The spelling; a head that was handed over is named by its class."""
        named = self if isinstance(self.head, str) else dataclasses.replace(self, head=type(self.head).__name__)
        return super(Eagle, named).__str__()

    # ------------------------------------------------------------------------------ once per engine
    def bind(self, setting: Setting) -> None:
        """Load the head, compare it with the target, and have the target keep what the head reads."""
        target: Any = setting.target
        if not hasattr(target, "model"):
            raise SapwoodError(
                f"{self} reads the embeddings of a torch model, which the {target.info.name} backend has not; "
                "use another drafter"
            )
        self.embedding: Tensor = target.model.get_input_embeddings().weight
        self.net = self._load(target)
        self.vocab = target.info.vocab
        check(self.net, target, self.embedding.shape[1])
        self.tokens: IntArray = self.net.vocabulary.cpu().numpy()  # [draft vocab] target ids
        target.watch(self.net.config.features)
        maker = getattr(target, "grower", None) if self.trained == Eagle.trained else None
        self.grower: Any = maker(self.net, self.embedding) if maker is not None else None  # of whole trees; or None

    def _load(self, target: Any) -> Head:
        """The head on the target's device and in its number format; one that was handed over is left as it is."""
        device, dtype = self.embedding.device, self.embedding.dtype
        if isinstance(self.head, str):
            from sapwood.heads.open import head_for

            net: Any
            net, own = head_for(target, self.head, self.trained, adopt=True)
            self.embedding = self.embedding if own is None else own
        else:
            net = self.head
            if any(weight.device != device or weight.dtype != dtype for weight in net.parameters()):
                net = copy.deepcopy(net).to(device=device, dtype=dtype)
        if net.kind != self.trained:
            raise SapwoodError(f"{self} got a head of the kind {net.kind}; it drafts with {self.trained} heads")
        head: Head = net
        return head

    # ----------------------------------------------------------------------------- once per request
    def reset(self, request: Request) -> None:
        """Take what the target thought of the prompt; the head reads it when it is first asked."""
        self.sampler_ = request.sampler
        self.correct_: Correct | None = None  # whoever wraps this drafter may set it
        self.agreed_: Levels | None = None  # of the next tree, which a device can grow
        self.committed_ = len(request.prompt) - 1  # tokens the target has read: the position of the root
        count = min(self.window, self.committed_)
        seat = getattr(self.grower, "seat", None)  # where rows lie in one pool on a device
        self.cache_: Any = Cache(self.net.config.shape, self.embedding, count) if seat is None else seat(count)
        self.rows_: dict[int, int] = {}  # node -> its row among those of the tree in flight; the root's is 0
        self.ups_: list[int] = []  # row -> row of its parent; the root's is its own
        # features of the text or a claim on them, and the tokens that follow each
        self.unread_: list[tuple[Any, Sequence[int]]] = []
        read = request.session.reading(count)
        if read is not None:
            features = read.hidden(range(count), self.net.config.features)
            self.unread_.append((features, request.prompt[-count:]))

    def observe(self, outcome: Outcome) -> None:
        """Take what the target thought of the accepted path; forget the rows of the tree."""
        path = outcome.verdict.path
        claim = None if self.grower is None else self.grower.claim(outcome)
        features = outcome.scores.hidden(path, self.net.config.features) if claim is None else claim
        self.unread_.append((features, outcome.tokens))
        self.committed_ = outcome.context + len(path)
        self.rows_ = {}

    def close(self) -> None:
        """Free the rows."""
        self.cache_.close()
        del self.cache_, self.unread_

    # -------------------------------------------------------------------------------- a whole tree
    @property
    def seeded(self) -> bool:
        """True where a whole tree may begin with what others have proposed."""
        return hasattr(self.grower, "begin")

    def grow(self, root: int, levels: Levels, seed: Tree | None = None) -> Tree | None:
        """The tree of these levels without questions in between; None where the head must be asked step by step."""
        if not self.unread_ or (levels is not self.agreed_ and not self._grows(levels)):
            return None
        if self.seeded:
            growth = self.grower.begin(root, levels, seed, self.source)
            if growth.goes_on:
                growth.run(self.cache_, *self._news(), self.committed_)
            tree: Tree = growth.tree()
        else:
            tree = self.grower.grow(self.cache_, *self._news(), self.committed_, levels, self.source)
        return tree

    def _news(self) -> tuple[Any, list[int]]:
        """What is unread, less the beginning of a text that is too long for a growth: that is read now."""
        features, tokens = self._unread()
        if spare := max(len(tokens) - self.grower.text, 0):
            early, features = tensor(features).tensor_split([spare])
            ask = getattr(self.grower, "read", None)  # where rows lie in one pool on a device
            read = self._read_text if ask is None else partial(ask, self.cache_)
            read(early, tokens[:spare], self.committed_ - len(tokens))
        return features, tokens[spare:]

    def foresee(self, levels: Levels) -> float:
        """Have a device grow the next tree as soon as it knows the verdict; the seconds that it goes on, or none."""
        if self.seeded or self.unread_ or not self._grows(levels):
            return 0.0
        self.agreed_ = levels
        seconds: float = self.grower.foresee(self.cache_, self.committed_, levels, self.source)
        return seconds

    def _grows(self, levels: Levels) -> bool:
        """True where a device can grow trees of these levels for this request."""
        able = self.grower is not None and self.correct_ is None and not self.sampler_.sampling.touches_logits
        return able and kind(self.draws, self.sampler_) is Draw.TOPK and self.grower.form(levels) is not None

    def _unread(self) -> tuple[Any, list[int]]:
        """Features of the text that is new, or a claim on them, and the token after each; from now on it is read."""
        parts, self.unread_ = self.unread_, []
        return joined([features for features, _ in parts]), [token for _, tokens in parts for token in tokens]

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
            ranked, wide = ranks_do(tree, self.draws, self.sampler_), max(width for _, width in frontier)
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
        """Make rows of the text that is new; the last one is the root's. False where there is no text yet."""
        if not self.unread_:
            return False
        features, tokens = self._unread()
        cache = self.cache_
        states, query = self._read_text(tensor(features), tokens, self.committed_ - len(tokens))
        # one layer: of the text's rows only the last, the root's, needs more than its key and value
        output = self._finish(states[:, -1:], query[:, :, -1:], cache.text, None)
        cache.outputs[:1] = output
        tree.states[ROOT] = output[0]
        self.rows_, self.ups_ = {ROOT: 0}, [0]
        return True

    def _read_text(self, features: "Tensor", text: Sequence[int], first: int) -> tuple["Tensor", "Tensor"]:
        """Make rows of a text that begins at position `first`; what `_finish` needs of the last ones."""
        import torch

        with torch.inference_mode():
            tokens = torch.tensor(text, device=features.device)
            positions = torch.arange(first, first + len(tokens), device=features.device)
            for start in range(0, len(tokens), CHUNK):
                rows = slice(start, start + CHUNK)
                begun = self.net.begin(features[rows])
                states, query = self._enter(begun, tokens[rows], positions[rows], self.cache_.text)
                self.cache_.text += states.shape[1]
        return states, query

    def _missing(self, tree: Tree, nodes: Sequence[int]) -> list[int]:
        """The first node without a row on the path to each of these; most often the node itself."""
        paths = [tree.path(node) for node in nodes if node not in self.rows_]
        return list(dict.fromkeys(next(node for node in path if node not in self.rows_) for path in paths))

    def _grow(self, tree: Tree, nodes: list[int]) -> None:
        """Make rows of these nodes, whose parents have theirs."""
        import torch

        first, cache = len(self.rows_), self.cache_
        ups = [self.rows_[int(parent)] for parent in tree.parents[nodes]]
        self.ups_ += ups
        self.rows_.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        packed = np.stack((tree.tokens[nodes], tree.depths[nodes] + self.committed_ - 1, np.array(ups)))
        tokens, positions, above = torch.from_numpy(packed).to(self.embedding.device)  # one transfer
        seen = lineage(self.ups_, first)
        mask = None
        if not seen.all():
            text = np.ones((len(nodes), cache.text - 1), bool)
            mask = torch.from_numpy(np.concatenate((text, seen), 1)).to(self.embedding.device)
        start = cache.text - 1 + first  # the root's row is the last one of the text
        states, query = self._enter(cache.outputs[above], tokens, positions, start)
        outputs = self._finish(states, query, start + len(nodes), mask)
        cache.outputs[first : first + len(nodes)] = outputs
        tree.states.update(zip(nodes, outputs, strict=True))

    def _enter(self, states: "Tensor", tokens: "Tensor", positions: "Tensor", start: int) -> tuple["Tensor", "Tensor"]:
        """Keep keys and values of rows [rows, width] from slot `start` on; what `_finish` needs of them."""
        embeds = self.embedding[tokens]
        query, key, value = self.net.midlayer.project(embeds[None], states[None], positions[None])
        self.cache_.write(key, value, start)
        return states[None], query

    def _finish(self, states: "Tensor", query: "Tensor", stop: int, mask: "Tensor | None") -> "Tensor":
        """Outputs [rows, width] of rows that see the slots before `stop`, all or those of a mask [rows, stop]."""
        layer, cache = self.net.midlayer, self.cache_
        read = layer.self_attn.attend(query, cache.keys[:, :, :stop], cache.values[:, :, :stop], mask)
        outputs: Tensor = layer.finish(states, read)[0]
        return outputs

    # ------------------------------------------------------------------------------------ proposals
    def _choose(self, tree: Tree, frontier: Frontier, tokens: IntArray, probs: FloatArray) -> None:
        """The best tokens of each row, of equals the lowest id first."""
        for (node, width), row, chances in zip(frontier, tokens.tolist(), probs.tolist(), strict=True):
            tree.extend(node, row[:width], chances[:width], source=self.source)

    def _draw(self, tree: Tree, frontier: Frontier, logits: "Tensor", rng: Rng) -> None:
        """Children from the law over the whole vocabulary, after the request's own sampling."""
        draws = kind(self.draws, self.sampler_)
        for (node, width), row in zip(frontier, logits.float().cpu().numpy(), strict=True):
            whole = np.full(self.vocab, -np.inf, np.float32)
            whole[self.tokens] = row
            path = tree.spell(node)[1:]
            if np.isneginf(self.sampler_.adjust(whole, path)).all():  # the request bans all that the head knows
                continue
            law: FloatArray = draft_law(self.sampler_, whole, path)
            position = self.committed_ + int(tree.depths[node]) + 1
            propose(tree, node, law, width, draws, position, rng, self.source)
