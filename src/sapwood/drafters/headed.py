"""What drafters share that speak with a trained head: its loading, and the proposals from its laws."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.drafters.draw import draft_law, kind, propose, ranks_do
from sapwood.drafters.rows import best
from sapwood.errors import SapwoodError
from sapwood.part import Part
from sapwood.protocols import Frontier, Setting
from sapwood.records import Draw
from sapwood.rng import Rng
from sapwood.sampling import Sampler
from sapwood.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


class Spoken(Protocol):
    """A trained head that borrows the target's output rows."""

    kind: ClassVar[str]
    config: Any


@dataclass
class Headed(Part):
    """A drafter with a trained head that speaks through the target's own output head."""

    head: str | Spoken = ""  # folder of a trained head, or the head itself; empty takes the one trained for the model
    draws: Draw = Draw.TOPK

    trained: ClassVar[str] = ""  # the kind of head it drafts with

    def __str__(self) -> str:
        """The spelling; a head that was handed over is named by its class."""
        named = self if isinstance(self.head, str) else dataclasses.replace(self, head=type(self.head).__name__)
        return super(Headed, named).__str__()

    def bind(self, setting: Setting) -> None:
        """Load the head and lend it the target's output rows."""
        target: Any = setting.target
        if not hasattr(target, "model"):
            raise SapwoodError(
                f"{self} uses the weights of a torch model, which the {target.info.name} backend has not; "
                "use another drafter"
            )
        self.embedding: Tensor = target.model.get_input_embeddings().weight
        self.net = self._load(target)
        self.net.attach(self.embedding, target.model.get_output_embeddings().weight)
        self.vocab = target.info.vocab
        self.tokens: IntArray = self.net.vocabulary.cpu().numpy()  # [draft vocab] target ids

    def _load(self, target: Any) -> Any:
        """The head on the target's device and in its number format; one that was handed over is left as it is."""
        device, dtype = self.embedding.device, self.embedding.dtype
        if isinstance(self.head, str):
            from sapwood.heads.open import head_for

            net, _ = head_for(target, self.head, self.trained)
        else:
            given: Any = copy.deepcopy(self.head)
            net = given.to(device=device, dtype=dtype).eval()
        if net.kind != self.trained:
            raise SapwoodError(f"{self} got a head of the kind {net.kind}; it drafts with {self.trained} heads")
        return net

    def _speak(
        self, tree: Tree, frontier: Frontier, logits: "Tensor", rng: Rng, sampler: Sampler, committed: int
    ) -> None:
        """Propose children of each node from its row of logits [rows, draft vocab]; the root stands at `committed`."""
        draws = kind(self.draws, sampler)
        if ranks_do(tree, self.draws, sampler):
            tokens, chances = best(logits, max(width for _, width in frontier), self.tokens)
            for (node, width), row, probs in zip(frontier, tokens.tolist(), chances.tolist(), strict=True):
                tree.extend(node, row[:width], probs[:width], source=self.source)
            return
        for (node, width), row in zip(frontier, logits.float().cpu().numpy(), strict=True):
            law = self._law(row, tree.spell(node)[1:], sampler)
            if law is not None:
                propose(tree, node, law, width, draws, committed + int(tree.depths[node]) + 1, rng, self.source)

    def _law(self, row: FloatArray, path: list[int], sampler: Sampler) -> FloatArray | None:
        """The law over the whole vocabulary after the request's own sampling; None where it bans all the head knows."""
        whole = np.full(self.vocab, -np.inf, np.float32)
        whole[self.tokens] = row
        return None if np.isneginf(sampler.adjust(whole, path)).all() else draft_law(sampler, whole, path)


def first_missing(tree: Tree, nodes: Sequence[int], made: dict[int, int]) -> list[int]:
    """The first node on the path to each of these that is not made yet: itself, or one that others drafted above."""
    paths = [tree.path(node) for node in nodes if node not in made]
    return list(dict.fromkeys(next(node for node in path if node not in made) for path in paths))
