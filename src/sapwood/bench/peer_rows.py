"""The rows of peers: their speed against plain decoding, and their agreement with its text."""

from collections.abc import Sequence
from dataclasses import replace

from sapwood.bench.groups import RunGroup
from sapwood.bench.measure import BenchRun, Runs
from sapwood.bench.report import (
    DEFAULT_OPTIONS,
    ReportOptions,
    by_category,
    intervals,
    named,
    taken,
)
from sapwood.bench.rows import ALL, ReportRow
from sapwood.bench.suites import BenchPrompt
from sapwood.tokenizer.tokenizer import Tokenizer


def peer_rows(
    name: str,
    weights: str,
    prompts: Sequence[BenchPrompt],
    runs: Runs,
    text: Tokenizer | None,
    view: ReportOptions = DEFAULT_OPTIONS,
) -> list[ReportRow]:
    """A row for each category, and one over all."""

    def made(category: str, group: RunGroup, _: list[int]) -> ReportRow:
        seconds = sum(run.seconds for run in group.runs)
        paced = sum(run.paced for run in group.runs)
        shares = [
            agreement(one, plain, text) for one, plain in zip(group.runs, group.plain, strict=True)
        ]
        labels = range(len(shares)) if group.talks is None else group.talks
        parted = {label for label, share in zip(labels, shares, strict=True) if share < 1}
        return ReportRow(
            recipe="",
            category=category,
            prompts=group.prompts,
            tokens=sum(run.length for run in group.runs),
            seconds=seconds,
            tokens_per_second=paced / seconds if seconds else None,
            prefill_seconds=sum(run.prefill for run in group.runs),
            divergences=[],
            turns=len(group.runs),
            peer=True,
            weights=weights,
            agreement=len({*labels} - parted),
            agreement_share=sum(shares) / len(shares),
            **intervals(group),
            **taken(group.runs),
        )

    return by_category(name, prompts, runs, view, made)


def agreement(one: BenchRun, plain: BenchRun, text: Tokenizer | None) -> float:
    """Share of the longer output before the first difference; 1 if they are equal."""
    if one.said is None:
        ends = frozenset(text.eos if text else ())
        return shared(bare(one.tokens, ends), bare(plain.tokens, ends))
    return shared((one.text or "").strip(), text.decode(plain.tokens).strip() if text else "")


def bare(tokens: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    """Tokens without the end-of-text token, which not every engine returns."""
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


def shared(one: Sequence[object], other: Sequence[object]) -> float:
    """Length of the common prefix as a share of the longer sequence."""
    both = min(len(one), len(other))
    common = next((place for place in range(both) if one[place] != other[place]), both)
    return common / max(len(one), len(other)) if one or other else 1.0


def missing(name: str, reason: str, view: ReportOptions = DEFAULT_OPTIONS) -> ReportRow:
    """The row of a peer that did not run."""
    return replace(
        named(name, ReportRow(name, ALL, 0, divergences=[], skipped=reason), view), peer=True
    )
