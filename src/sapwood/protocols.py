"""The seams: what a backend must do, and what each family of parts must do.

The waist is Backend.open, Backend.score and Session.commit. A tree crosses it as tokens and
parents; masks, positions and sequence ids are the backend's own business. Who serves many texts at
once opens them by Backend.start and reads them piece by piece, in the passes of others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sapwood.arrays import FloatArray, IntArray
from sapwood.cost import CostCurve
from sapwood.errors import SapwoodError
from sapwood.records import BackendInfo, Budget, Draw, Guarantee, Outcome, Prune, Verdict
from sapwood.rng import Rng
from sapwood.sampling import Sampler
from sapwood.tree import Tree

Frontier = list[tuple[int, int]]  # (node, most children to propose there); empty stops the draft


# ------------------------------------------------------------------------------------ the waist
class Session(Protocol):
    """The committed text of one request inside a backend."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    def reading(self, last: int) -> "Scores | None":
        """Scores of the last tokens that were read, fewer where fewer are known; None where nothing was read.

        For drafters that learn from the prompt: computed when asked, gone with the first commit, and
        the same best tokens as `score`, though not always the same logits.
        """

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`."""

    def fork(self) -> "Session":
        """An independent session with the same committed text."""

    def close(self) -> None:
        """Free what the session holds; it cannot be used again."""


class Scores(Protocol):
    """A handle on the target's answer for each node; rows stay on the device until asked for."""

    def argmax(self) -> IntArray:
        """Best next token of each node, [n]; the lowest id wins a tie."""

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each node and their log-probabilities, both [n, count]."""

    def logits(self, row: int) -> FloatArray:
        """Raw logits after this row's node, [vocab]; row i is node `since + i`."""

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width]; only of layers the backend watches."""


@dataclass(frozen=True, slots=True)
class Work:
    """One tree to score on one session."""

    session: Session
    tree: Tree
    since: int = 0  # nodes below this index were scored by an earlier call of this round; rows start here


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of prompt that joins a pass: committed to its session when the pass is over, not scored."""

    session: Session
    tokens: Sequence[int]


class Memory(Protocol):
    """Room for keys and values, in blocks of so many tokens; a text takes whole blocks."""

    @property
    def block(self) -> int:
        """Tokens of a block."""

    @property
    def blocks(self) -> int | None:
        """Most blocks there may be; None where nothing limits them."""

    @property
    def used(self) -> int:
        """Blocks that open sessions hold, each counted once."""

    @property
    def cached(self) -> int:
        """Blocks of closed sessions, kept until somebody needs the room or begins with the same text."""

    def fits(self, tokens: int) -> bool:
        """True when one more text of so many tokens has room."""

    def limit(self, tokens: int) -> None:
        """Set how many tokens there is room for, in all; from now on the blocks of closed sessions are kept."""


class Backend(Protocol):
    """Runs a model. The toy backend is its living definition."""

    @property
    def info(self) -> BackendInfo:
        """What this backend can do and where it runs."""

    @property
    def memory(self) -> Memory:
        """Where the keys and values of all sessions lie."""

    def open(self, tokens: Sequence[int]) -> Session:
        """A session with these tokens committed; nothing is scored."""

    def start(self, tokens: Sequence[int], tenant: str = "") -> Session:
        """A session meant for these tokens, with those committed whose blocks memory still knows of this tenant.

        `length` says how many; the others are to be read as chunks.
        """

    def score(self, work: Sequence[Work], chunks: Sequence[Chunk] = ()) -> list[Scores]:
        """One pass over all trees and chunks; row i of a result is node `since + i`. Commits the chunks alone.

        Raises OutOfMemory, with nothing changed, where memory has no room for all of it.
        """

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on; 0 is the embedding, the last what the output head reads.

        For drafters that read the target's mind; only if "hidden" is in info.provides.
        """


# ------------------------------------------------------------------------------------ the parts
def no_tokenizer(text: str) -> list[int]:
    """Stands in where an engine was given no tokenizer."""
    raise SapwoodError(f"{text[:20]!r} cannot be read without the target's tokenizer; give the engine its `encode`")


class Words(Protocol):
    """A model's tokenizer."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Tokens of a text; `whole` lets the tokenizer mark its beginning where the model wants that."""

    def show(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, special ones shown."""


def no_words(name: str) -> Words:
    """Stands in where an engine was given no way to find tokenizers."""
    raise SapwoodError(f"the tokenizer of {name or 'the target'} cannot be found here; give the engine its `words`")


@dataclass(frozen=True, slots=True)
class Setting:
    """What an engine offers its parts, once."""

    target: Backend
    cost: CostCurve
    load: Callable[[str], Backend]  # a backend for a model's name
    encode: Callable[[str], list[int]] = no_tokenizer  # tokens of a text, as the target reads it
    words: Callable[[str], Words] = no_words  # the tokenizer of a model's name; of the target where it is empty


@dataclass(frozen=True, slots=True)
class Request:
    """What a part may know when a request starts."""

    prompt: Sequence[int]
    sampler: Sampler  # kept up to date by the loop; gives q the same processing as p
    session: Session  # the target's, holding all but the last prompt token; to read or to fork, never to commit


class Part(Protocol):
    """Common to all families: options are fields, state of a request ends in `_`."""

    def bind(self, setting: Setting) -> None:
        """Load what is heavy, refuse what cannot work; called once, memory made here is shared by requests."""

    def reset(self, request: Request) -> None:
        """Begin a request on a fresh copy of the part."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished round."""

    def close(self) -> None:
        """Free what the request held."""


class Drafter(Part, Protocol):
    """Proposes children of a node."""

    source: int  # the drafter's bit in `Tree.sources`; 0 unless several drafters share a tree

    @property
    def fan(self) -> int:
        """How many drafters answer at once: a node may get so many times the children asked for."""

    @property
    def draws(self) -> Draw:
        """How siblings are chosen."""

    @property
    def needs(self) -> frozenset[str]:
        """What the target's backend must provide."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children to these nodes, at most `fan` times the given number each; leave all others alone."""


class Policy(Part, Protocol):
    """Chooses which nodes to grow and which to keep."""

    @property
    def prunes(self) -> Prune:
        """What `prune` may cut."""

    @property
    def reads_laws(self) -> bool:
        """True when growing reads whole draft laws in `Tree.laws`, not only the tokens proposed from them."""

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """Unexpanded nodes to grow next, in order; empty when the tree is done."""

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The part of the tree worth checking: closed under parents, at most budget.nodes besides the root."""


class Estimator(Part, Protocol):
    """Says how likely a node is to be accepted; an option of a policy."""

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Chance of each node from `start` on to be accepted, given that its parent is."""


class Laws(Protocol):
    """The target's law at each node of the checked tree, after the request's sampling along its path."""

    @property
    def greedy(self) -> bool:
        """True at temperature 0, where the law is one-hot and every rule is the greedy walk."""

    def law(self, node: int) -> FloatArray:
        """Law of the next token, [vocab]."""

    def soft(self, node: int) -> FloatArray:
        """The same law; at temperature 0 not one-hot but the whole softmax, for rules that weigh other tokens too."""

    def draw(self, node: int, position: int, rng: Rng) -> int:
        """The target's own next token: what plain decoding says at this position."""

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> Any:
        """The target's hidden states at these nodes on the device, [nodes, layers * width]; only of watched layers."""


class Verifier(Part, Protocol):
    """Turns a tree and the target's law into an accepted path and one more token."""

    @property
    def accepts(self) -> frozenset[Draw]:
        """Kinds of draws it may judge."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises about the output."""

    @property
    def reads_q(self) -> bool:
        """True when the draft law enters the rule; then sampled nodes may not be cut one by one."""

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Judge the tree; `position` is the absolute position of its root."""


class Controller(Part, Protocol):
    """Sets the next round's budget from what happened."""

    def budget(self) -> Budget:
        """What the next round may spend; no nodes is plain decoding."""
