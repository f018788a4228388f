"""Protocols of backends and of each family of parts.

The waist is Backend.open, Backend.score and Session.commit. A tree crosses it as tokens and
parents; masks, positions and sequence ids are made by the backend. A scheduler of many requests
opens sessions by Backend.start and prefills them in chunks, in the passes of other requests.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.device_rounds import RoundLauncher
from sapwood.core.lookahead import LookaheadModel, LookaheadRows
from sapwood.core.mtp_runner import MtpRunner
from sapwood.core.overlap import DraftStream
from sapwood.core.rng import Rng
from sapwood.core.root_batch import LaunchedRoots, RootBatch
from sapwood.core.sampling import Sampler
from sapwood.core.stage_runner import StageRunner
from sapwood.core.tree import Tree
from sapwood.core.types import (
    AcceptanceTable,
    BackendInfo,
    BatchLoad,
    Budget,
    Draw,
    Guarantee,
    Outcome,
    Prune,
    Verdict,
)
from sapwood.core.whole_tree import TreeBuilder
from sapwood.engine.cost_model import CostModel
from sapwood.errors import SapwoodError

Frontier = list[tuple[int, int]]  # (node, most children to propose there); empty stops the draft


# ------------------------------------------------------------------------------------ the waist
class Session(Protocol):
    """The committed text of one request inside a backend."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    def prefill_output(self, last: int) -> "TargetOutput | None":
        """Scores of at most `last` tokens at the end of the prefill; None when there was none.

        For drafters that learn from the prompt: computed on demand, dropped at the first commit,
        with the same best tokens as `score`, though not always the same logits.
        """

    def commit(self, path: Sequence[int]) -> None:
        """Keep these nodes (root first, a real path) of the last scored tree; drop the others."""

    def rewind(self, length: int) -> None:
        """Forget every committed token after the first `length`."""

    def fork(self) -> "Session":
        """An independent session with the same committed text."""

    def close(self) -> None:
        """Free what the session holds; it cannot be used again."""


class TargetOutput(Protocol):
    """The target's output for each node; rows stay on the device until they are requested."""

    # seconds that the host waited for a prelaunched pass; None for other passes
    host_wait: float | None = None
    # output of the tree's look-ahead rows, in their order; None when it has none
    lookahead: "TargetOutput | None" = None

    def argmax(self) -> IntArray:
        """Best next token of each node, [n]; the lowest id wins a tie."""

    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each node and their log-probabilities, both [n, count]."""

    def logits(self, row: int) -> FloatArray:
        """Raw logits after this row's node, [vocab]; row i is node `since + i`."""

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width], of watched layers."""

    def shared_features(self, layers: Sequence[int]) -> tuple[Any, int] | None:
        """States of all rows of a pass, and this root's row, if those of its trees lie together."""
        return None

    @property
    def overlaps_host(self) -> bool:
        """True when the pass runs asynchronously until the host requests scores."""
        return False

    def launch_follow(self, tree: Tree, temperature: float, key: Callable[[int], int]) -> bool:
        """Launch `follow` on the tree's device; True when the next draft can start from it."""
        return False

    def follow(
        self, tree: Tree, temperature: float, key: Callable[[int], int]
    ) -> tuple[tuple[int, ...], int] | None:
        """Path and bonus by the target's own tokens; None when the caller is to walk by itself.

        At temperature 0 the best ones, else keyed draws: `key` gives the noise key of a depth.
        """
        return None


@dataclass(frozen=True, slots=True)
class TreeInput:
    """One tree to score on one session."""

    session: Session
    tree: Tree
    # nodes below this index were scored by an earlier call of this round; rows start here
    since: int = 0
    # rows that are scored behind the nodes, and never committed
    lookahead: LookaheadRows | None = None

    @property
    def rows(self) -> int:
        """Rows of the whole tree in a pass."""
        return len(self.tree) + (0 if self.lookahead is None else len(self.lookahead))


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A chunk of a prompt in a pass: committed to its session after the pass, not scored."""

    session: Session
    tokens: Sequence[int]


class KvMemory(Protocol):
    """Memory of keys and values in blocks of tokens; a session takes whole blocks."""

    @property
    def block(self) -> int:
        """Tokens of a block."""

    @property
    def blocks(self) -> int | None:
        """Most blocks; None when unlimited."""

    @property
    def used(self) -> int:
        """Blocks that open sessions hold, each counted once."""

    @property
    def cached(self) -> int:
        """Blocks of the prefix cache: of closed sessions, kept until their memory is needed."""

    def fits(self, tokens: int) -> bool:
        """True when there is room for one more session of so many tokens."""

    def limit(self, tokens: int) -> None:
        """Limit the tokens of all sessions; from now on blocks of closed sessions are cached."""


class LayerSplit(Protocol):
    """A model that can stop before one of its layers and continue later."""

    def check_layer(self, layer: int) -> None:
        """Refuse a layer before which the model cannot stop."""

    def layer_input(self, work: TreeInput, layer: int) -> Any:
        """Run a tree through the layers before this one; its input at each node, [nodes, width].

        Only the nodes from `work.since` on, if those before it were entered in this round. The next
        `score` on the session runs the entered nodes of its tree through the other layers only:
        the same output at a lower cost.
        """

    def logits_of(self, states: Any) -> TargetOutput:
        """Scores of rows of the output head's input, [rows, width]."""


class HeadAdopter(Protocol):
    """A network that converts trained heads to its own number format."""

    def convert_head(self, net: Any) -> Any:
        """A trained head in the number format of this network, on its device."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Optional features of a backend; None for those that it lacks."""

    model: Any = None  # the transformers model, whose weights trained drafters use
    layers: int = 0  # decoder layers of that model
    # its input embedding, [vocab, width], to read rows of; by default the model's tensor
    embedding: Callable[[], Any] | None = None
    network: HeadAdopter | None = None  # runs the model
    # builder of whole trees for a trained head and this embedding; None when there is no gain
    tree_builder: Callable[[Any, Any], TreeBuilder | None] | None = None
    # copies a tree to the device, as if it had been drafted there
    place_tree: Callable[[Tree], Tree] | None = None
    # a backend of this name for the model that a function makes of the target's own layers
    run_derived: "Callable[[Callable[[Any], Any], str], Backend] | None" = None
    # runs look-ahead rows by a model made of the target's; the handle is `LookaheadRows.model`
    lookahead: Callable[[Callable[[Any], LookaheadModel]], Any] | None = None
    layer_split: LayerSplit | None = None
    # the layers in so many stages for the window of a session, the first of them ending before a
    # layer (0: anywhere); returns None when the model cannot be cut
    stages: Callable[[Session, int, int], StageRunner | None] | None = None
    # the same model made cheaper, by the keywords skip, bits, sinks and recent
    variant: "Callable[..., Backend] | None" = None
    # a session that continues the target's own; returns None when the KV cache is not shared
    share_session: Callable[[Session], Session | None] | None = None
    # opens the module for several tokens in the target's checkpoint
    open_mtp: "Callable[[], MtpRunner] | None" = None
    # prepares passes that this many requests may share, and reports its progress
    prepare_batches: Callable[[int, Callable[[str], None]], None] | None = None
    # tokens of KV cache that the free memory of the device has room for
    free_tokens: Callable[[], int] | None = None
    # launches a pass over roots, and chunks of prompts, without waiting for the pass before
    launch_roots: Callable[[RootBatch, Sequence[PrefillChunk]], LaunchedRoots] | None = None
    root_rows: int = 0  # most rows of such a pass
    # launcher of rounds that a device runs by itself, for trees of a builder; None: it cannot
    round_launcher: Callable[[TreeBuilder], RoundLauncher | None] | None = None
    # a stream of the device for a thread that drafts while this backend's passes run; None where
    # a pass ends before `score` returns, and a thread is enough
    draft_stream: Callable[[], DraftStream] | None = None

    def embedding_rows(self) -> Any:
        """The input embedding, [vocab, width], to read rows of."""
        if self.embedding is None:
            return self.model.get_input_embeddings().weight
        return self.embedding()


class Backend(Protocol):
    """Runs a model. The toy backend is the reference implementation."""

    @property
    def info(self) -> BackendInfo:
        """Model, sizes, features and device."""

    @property
    def capabilities(self) -> Capabilities:
        """Optional features of this backend."""

    @property
    def memory(self) -> KvMemory:
        """Memory of the keys and values of all sessions."""

    def open(self, tokens: Sequence[int]) -> Session:
        """A session with these tokens committed; nothing is scored."""

    def start(self, tokens: Sequence[int], tenant: str = "") -> Session:
        """A session for these tokens; those in the tenant's prefix cache are committed.

        `length` is their number; the others are to be prefilled in chunks.
        """

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        """One pass over all trees and chunks; row i of an output is node `since + i`.

        Commits the chunks, not the trees. Raises OutOfMemory, with nothing changed, when memory
        has no room for all of it.
        """

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the inputs of these layers from now on: 0 the embedding, the last the head's input.

        For drafters that use hidden states; only if "hidden" is in info.provides.
        """


# ------------------------------------------------------------------------------------ the parts
def no_tokenizer(text: str) -> list[int]:
    """Refuse to tokenize: the default of `EngineContext.encode`."""
    raise SapwoodError(
        f"{text[:20]!r} cannot be read without the target's tokenizer; give the engine its `encode`"
    )


class TokenizerLike(Protocol):
    """A model's tokenizer."""

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        """Tokens of a text; `whole` adds the beginning-of-text token if the model has one."""

    def show(self, tokens: Sequence[int]) -> str:
        """Text of these tokens, including special ones."""


def no_words(name: str) -> TokenizerLike:
    """Refuse to load a tokenizer: the default of `EngineContext.words`."""
    raise SapwoodError(
        f"the tokenizer of {name or 'the target'} cannot be found here; give the engine its `words`"
    )


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Objects that an engine passes to its parts at `bind`."""

    target: Backend
    cost: CostModel
    load: Callable[[str], Backend]  # a backend for a model's name
    encode: Callable[[str], list[int]] = no_tokenizer  # by the target's tokenizer
    # the tokenizer of a model's name; empty is the target
    words: Callable[[str], TokenizerLike] = no_words
    # digests of the trained heads that the recipe's drafter uses, by kind; set once it is bound
    heads: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], float] = time.perf_counter  # seconds; the engine's clock


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Objects that a part receives when a request starts."""

    prompt: Sequence[int]
    sampler: Sampler  # kept up to date by the loop; applied to q as to p
    # the target's, holding all but the last prompt token; to read or to fork, never to commit
    session: Session


class PartProtocol(Protocol):
    """Methods of all families of parts: options are fields, state of a request ends in `_`."""

    @property
    def name(self) -> str:
        """Its registered name; empty for the name of the class."""

    def bind(self, setting: EngineContext) -> None:
        """Load models and check options, once; memory made here is shared by requests."""

    def fresh(self) -> Self:
        """A copy for one request; nested parts are copies too."""

    def reset(self, request: RequestContext) -> None:
        """Begin a request on a fresh copy of the part."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished round."""

    def close(self) -> None:
        """Free what the request held."""

    @property
    def needs(self) -> frozenset[str]:
        """Features that the target's backend must provide."""

    @property
    def stand_ins(self) -> list[str]:
        """Names of drafters that are used where no trained one exists."""

    @property
    def substitutes(self) -> list[str]:
        """Sentences on drafters that replace trained ones, once the part is bound."""

    @property
    def head_digests(self) -> dict[str, str]:
        """Digests of the trained heads that it uses, by kind, once it is bound."""

    @property
    def needs_scores_now(self) -> bool:
        """True when the part must observe a round before the next pass."""


class Drafter(PartProtocol, Protocol):
    """Proposes children of a node."""

    source: int  # the drafter's bit in `Tree.sources`; 0 unless several drafters share a tree

    @property
    def fan(self) -> int:
        """Number of drafters that expand at once: a node may get so many times its width."""

    @property
    def stands_alone(self) -> bool:
        """True when `expand` reads nothing of the target and may run beside its pass."""

    @property
    def draws(self) -> Draw:
        """Kind of draws by which siblings are chosen."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        """Add children to these nodes only, at most `fan` times the given number each."""

    @property
    def observes_roots(self) -> bool:
        """True when it observes rounds without a tree by token and hidden states alone."""

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Observe several rounds without a tree, in order."""

    def lookahead(self, tree: Tree) -> LookaheadRows | None:
        """Rows of its own behind the nodes of the tree that will be verified; None for none."""


class Policy(PartProtocol, Protocol):
    """Chooses which nodes to grow and which to keep."""

    @property
    def prunes(self) -> Prune:
        """Kind of pruning that `prune` does."""

    @property
    def reads_probs(self) -> bool:
        """True when growing uses the whole draft probs in `Tree.proposals`."""

    def frontier(self, tree: Tree, budget: Budget) -> Frontier:
        """Unexpanded nodes to grow next, in order; empty when the tree is done."""

    def prune(self, tree: Tree, budget: Budget) -> Tree:
        """The subtree to verify: closed under parents, at most budget.nodes besides the root."""


class Estimator(PartProtocol, Protocol):
    """Estimates the probability that a node is accepted; an option of a policy."""

    def chance(self, tree: Tree, start: int) -> FloatArray:
        """Probability that each node from `start` on is accepted, given that its parent is."""

    def export_table(self) -> AcceptanceTable | None:
        """The table behind `chance`, for compiled or device code; None when it needs the tree."""


class TargetProbs(Protocol):
    """The target's probs at each node of a tree, after the request's sampling on its path."""

    @property
    def greedy(self) -> bool:
        """True at temperature 0, where probs are one-hot and every rule is the greedy walk."""

    def probs(self, node: int) -> FloatArray:
        """Distribution of the next token, [vocab]."""

    def soft(self, node: int) -> FloatArray:
        """The same as `probs`, but at temperature 0 the whole softmax instead of one-hot."""

    def draw(self, node: int, position: int, rng: Rng) -> int:
        """The target's own next token: the one that plain decoding emits at this position."""

    def hidden(self, nodes: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these nodes on the device, [nodes, layers * width]."""

    def launch_follow(self, position: int, rng: Rng) -> bool:
        """Launch `follow` on a device; True when the next draft can start from its result."""
        return False

    def follow(self, position: int, rng: Rng) -> Verdict | None:
        """The walk along the target's own tokens in one call; None when it goes token by token."""
        return None


class Verifier(PartProtocol, Protocol):
    """Turns a tree and the target's probs into an accepted path and a bonus token."""

    @property
    def accepts(self) -> frozenset[Draw]:
        """Kinds of draws that it can verify."""

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee about the output."""

    @property
    def reads_q(self) -> bool:
        """True when the rule uses q; then sampled nodes must not be pruned one by one."""

    def follows(self, target: TargetProbs) -> bool:
        """True when the verdict is the walk along the target's own tokens."""

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Verify the tree; `position` is the absolute position of its root."""


class Controller(PartProtocol, Protocol):
    """Sets the next round's budget from observed rounds."""

    @property
    def priced(self) -> bool:
        """True when it uses the machine's cost model, which must have been measured."""

    @property
    def largest(self) -> Budget | None:
        """The largest budget that it may set, without prices; None when unknown."""

    def join(self, load: BatchLoad) -> None:
        """Set the load of the coming pass."""

    def budget(self) -> Budget:
        """The budget of the next round; one without nodes is plain decoding."""

    @property
    def resting(self) -> int:
        """Number of coming rounds that are known to have a budget without nodes."""
