"""Base of drafters with a trained head: loading it, and proposing tokens from its logits."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sapwood.common.drafter_store import head_digest
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.part import Part
from sapwood.core.protocols import Backend, EngineContext, Frontier
from sapwood.core.rng import Rng
from sapwood.core.sampling import Sampler, draft_probs
from sapwood.core.tree import Tree
from sapwood.core.types import Draw
from sapwood.drafters.heads.head_kv_cache import best
from sapwood.drafters.propose import kind, propose, ranks_do
from sapwood.errors import SapwoodError

if TYPE_CHECKING:
    from torch import Tensor


class TiedHead(Protocol):
    """A trained head that uses the target's output head."""

    kind: ClassVar[str]
    config: Any


@dataclass
class HeadBase(Part):
    """A drafter with a trained head on top of which the target's output head runs."""

    # folder of a trained head, or the head itself; empty takes the one trained for the model
    head: str | TiedHead = ""
    draws: Draw = Draw.TOPK

    digest = ""  # of the head's file, once bound

    def __str__(self) -> str:
        """The spelling; a head given as an object is named by its class."""
        named = (
            self
            if isinstance(self.head, str)
            else dataclasses.replace(self, head=type(self.head).__name__)
        )
        return super(HeadBase, named).__str__()

    def bind(self, setting: EngineContext) -> None:
        """Load the head and attach the target's output head."""
        target = setting.target
        model = target.capabilities.model
        if model is None:
            raise SapwoodError(
                f"{self} uses the weights of a torch model, which the {target.info.name} "
                "backend has not; use another drafter"
            )
        self.embedding: Tensor = model.get_input_embeddings().weight
        self.net = self._load(target)
        self.digest = head_digest(self.head, self.trained, target.info)
        self.net.attach(self.embedding, model.get_output_embeddings().weight)
        self.vocab = target.info.vocab
        self.tokens: IntArray = self.net.vocabulary.cpu().numpy()  # [draft vocab] target ids

    @property
    def head_digests(self) -> dict[str, str]:
        """The digest of its head; none of one that was given as an object."""
        return {self.trained: self.digest} if self.digest else {}

    def _load(self, target: Backend) -> Any:
        """The head on the target's device, in its number format; a given object is not changed."""
        device, dtype = self.embedding.device, self.embedding.dtype
        if isinstance(self.head, str):
            from sapwood.heads.load_head import head_for

            net, _ = head_for(target, self.head, self.trained)
        else:
            given: Any = copy.deepcopy(self.head)
            net = given.to(device=device, dtype=dtype).eval()
        if net.kind != self.trained:
            raise SapwoodError(
                f"{self} got a head of the kind {net.kind}; it drafts with {self.trained} heads"
            )
        return net

    def _add_children(
        self,
        tree: Tree,
        frontier: Frontier,
        logits: "Tensor",
        rng: Rng,
        sampler: Sampler,
        committed: int,
    ) -> None:
        """Add children of each node from logits [rows, draft vocab]; the root is at `committed`."""
        draws = kind(self.draws, sampler)
        if ranks_do(tree, self.draws, sampler):
            tokens, chances = best(logits, max(width for _, width in frontier), self.tokens)
            for (node, width), row, probs in zip(
                frontier, tokens.tolist(), chances.tolist(), strict=True
            ):
                tree.extend(node, row[:width], probs[:width], source=self.source)
            return
        for (node, width), row in zip(frontier, logits.float().cpu().numpy(), strict=True):
            full_probs = self._law(row, tree.spell(node)[1:], sampler)
            if full_probs is not None:
                propose(
                    tree,
                    node,
                    full_probs,
                    width,
                    draws,
                    committed + int(tree.depths[node]) + 1,
                    rng,
                    self.source,
                )

    def _law(self, row: FloatArray, path: list[int], sampler: Sampler) -> FloatArray | None:
        """Probs over the whole vocabulary after sampling; None if all draft tokens are banned."""
        whole = np.full(self.vocab, -np.inf, np.float32)
        whole[self.tokens] = row
        return (
            None
            if np.isneginf(sampler.adjust(whole, path)).all()
            else draft_probs(sampler, whole, path)
        )


def first_missing(tree: Tree, nodes: Sequence[int], made: Mapping[int, object]) -> list[int]:
    """The first node without a state on the path to each of these; most often the node itself."""
    paths = [tree.path(node) for node in nodes if node not in made]
    return list(dict.fromkeys(next(node for node in path if node not in made) for path in paths))
