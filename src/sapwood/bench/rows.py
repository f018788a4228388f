"""A row of the report: one recipe, or one peer, on one category under one setting."""

from dataclasses import dataclass, field

from sapwood.bench.ties import Divergence
from sapwood.common.calibration import CalibrationBin

ALL = "all"  # the category of every prompt


@dataclass(frozen=True, slots=True)
class ReportRow:
    """Numbers of a row; None where something did not run or a peer does not report it."""

    recipe: str
    category: str
    prompts: int
    tokens: int | None = None
    seconds: float | None = None  # of decoding, without prefill
    tokens_per_second: float | None = None
    # the ceiling: the speedup if drafting were free and a tree cost one row
    tokens_per_pass: float | None = None
    passes: int | None = None
    nodes_per_pass: float | None = None  # roots not counted
    # share of nodes not accepted, of those checked and of those drafted ahead and thrown away
    waste: float | None = None
    speedup: float | None = None  # plain decoding's seconds per token / the recipe's, same prompts
    speedup_low: float | None = None
    speedup_high: float | None = None
    # outputs equal to plain decoding's; None where equality is not guaranteed
    identical: int | None = None
    guarantee: str = ""
    spelling: str = ""
    prefill_seconds: float | None = None
    draft_share: float | None = None  # of seconds, as are the next two
    verify_share: float | None = None
    other_share: float | None = None
    # accepted nodes / expected by the policy; None without estimates
    calibration: float | None = None
    # verified nodes (parent accepted) by estimated probability, with their acceptance rate
    reliability: list[CalibrationBin] | None = None
    ece: float | None = None  # expected calibration error: mean gap between the two
    # share of tokens that plain decoding would not have emitted there; None unless lossy
    departure: float | None = None
    divergences: list[Divergence] = field(default_factory=list)
    skipped: str | None = None  # why there are no numbers
    # ------------------------------------------------------------------------------ setting
    temperature: float = 0.0
    context: int | None = None  # tokens that prompts were filled up to; None: as they are
    batch: int = 1  # requests that shared a pass
    turns: int | None = None  # outputs; several for each prompt that is a conversation
    # -------------------------------------------------------------------- further intervals
    tokens_per_second_low: float | None = None
    tokens_per_second_high: float | None = None
    tokens_per_pass_low: float | None = None
    tokens_per_pass_high: float | None = None
    # -------------------------------------------------------------------------------- costs
    # of passes, spent on nodes that were not accepted; None without a measured cost model
    wasted_seconds: float | None = None
    # seconds per token beyond those of the best fixed recipe, as a share of them
    regret: float | None = None
    best_fixed: str | None = None  # that recipe, best on these very prompts
    # the same against a replay that knows the text; None if none was made
    oracle_regret: float | None = None
    peak_memory: int | None = None  # bytes, weights included
    joules: float | None = None  # of the whole machine; None if it is not measured
    energy_note: str | None = None  # why it is not
    # -------------------------------------------------------------------------------- peers
    peer: bool = False
    weights: str | None = None  # weights that a peer runs
    agreement: int | None = None  # of a peer: outputs equal to plain decoding's
    # of a peer: mean share of the output before the first difference from plain decoding's
    agreement_share: float | None = None
