"""The rows of peers: their pace against plain decoding, and how far their text agrees with it."""

from collections.abc import Sequence
from dataclasses import replace

from sapwood.bench.groups import Group
from sapwood.bench.measure import Run, Runs
from sapwood.bench.report import PLAINLY, View, by_category, intervals, named, taken
from sapwood.bench.rows import ALL, Row
from sapwood.bench.suites import Prompt
from sapwood.text import Text


def peer_rows(
    name: str,
    weights: str,
    prompts: Sequence[Prompt],
    runs: Runs,
    text: Text | None,
    view: View = PLAINLY,
) -> list[Row]:
    """A row for each category, and one over all."""

    def made(category: str, group: Group, _: list[int]) -> Row:
        seconds, paced = sum(run.seconds for run in group.runs), sum(run.paced for run in group.runs)
        shares = [agreement(one, plain, text) for one, plain in zip(group.runs, group.plain, strict=True)]
        labels = range(len(shares)) if group.talks is None else group.talks
        parted = {label for label, share in zip(labels, shares, strict=True) if share < 1}
        return Row(
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


def agreement(one: Run, plain: Run, text: Text | None) -> float:
    """Share of the longer output before the two part; 1 where they are the same."""
    if one.said is None:
        ends = frozenset(text.eos if text else ())
        return shared(bare(one.tokens, ends), bare(plain.tokens, ends))
    return shared((one.text or "").strip(), text.decode(plain.tokens).strip() if text else "")


def bare(tokens: Sequence[int], ends: frozenset[int]) -> Sequence[int]:
    """Tokens without the one that ended the text: not every engine shows it."""
    return tokens[:-1] if tokens and tokens[-1] in ends else tokens


def shared(one: Sequence[object], other: Sequence[object]) -> float:
    """Share of the longer one that both begin with."""
    both = min(len(one), len(other))
    common = next((place for place in range(both) if one[place] != other[place]), both)
    return common / max(len(one), len(other)) if one or other else 1.0


def missing(name: str, reason: str, view: View = PLAINLY) -> Row:
    """The row of a peer that did not run."""
    return replace(named(name, Row(name, ALL, 0, divergences=[], skipped=reason), view), peer=True)
