"""A row of the report: one recipe, or one peer, on one category under one setting."""

from dataclasses import dataclass, field

from sapwood.bench.ties import Divergence
from sapwood.reliability import Bin

ALL = "all"  # the category of every prompt


@dataclass(frozen=True, slots=True)
class Row:
    """Numbers are None where there are none: of what could not run, and of what a peer does not tell."""

    recipe: str
    category: str
    prompts: int
    tokens: int | None = None
    seconds: float | None = None  # of decoding, prompts left out
    tokens_per_second: float | None = None
    tokens_per_pass: float | None = None  # the ceiling: the speedup if drafting were free and a tree cost one row
    passes: int | None = None
    nodes_per_pass: float | None = None  # roots not counted
    waste: float | None = None  # share of checked nodes thrown away
    speedup: float | None = None  # plain decoding's seconds per token / the recipe's, same prompts
    speedup_low: float | None = None
    speedup_high: float | None = None
    identical: int | None = None  # outputs equal to plain decoding's; None where equality is not promised
    guarantee: str = ""
    spelling: str = ""
    prefill_seconds: float | None = None
    draft_share: float | None = None  # of seconds, as are the next two
    verify_share: float | None = None
    other_share: float | None = None
    calibration: float | None = None  # accepted nodes / expected by the policy; None where it expects nothing
    reliability: list[Bin] | None = None  # chances of nodes put to the question, and how often they stood
    ece: float | None = None  # mean gap between the two
    departure: float | None = None  # share of tokens that plain decoding would not have said there; None unless lossy
    divergences: list[Divergence] = field(default_factory=list)
    skipped: str | None = None  # why there are no numbers
    # ---------------------------------------------------------------- the setting
    temperature: float = 0.0
    context: int | None = None  # tokens that prompts were filled up to; None: as they are
    batch: int = 1  # requests that shared a pass
    turns: int | None = None  # answers; several for each prompt that is a conversation
    # ---------------------------------------------------------------- further intervals
    tokens_per_second_low: float | None = None
    tokens_per_second_high: float | None = None
    tokens_per_pass_low: float | None = None
    tokens_per_pass_high: float | None = None
    # ---------------------------------------------------------------- what it cost
    wasted_seconds: float | None = None  # of passes, spent on nodes that were thrown away; None without a cost curve
    regret: float | None = None  # seconds per token beyond those of the best fixed recipe, as a share of them
    best_fixed: str | None = None  # that recipe, best on these very prompts
    oracle_regret: float | None = None  # the same against a replay that knew the text; None where none was made
    peak_memory: int | None = None  # bytes, weights included
    joules: float | None = None  # of the whole machine; None where it does not tell
    energy_note: str | None = None  # why it does not
    # ---------------------------------------------------------------- peers
    peer: bool = False
    weights: str | None = None  # what a peer runs
    agreement: int | None = None  # of a peer: outputs equal to plain decoding's
    agreement_share: float | None = None  # of a peer: mean share of the output before it leaves plain decoding's
