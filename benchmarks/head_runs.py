"""Rows of several runs of benchmarks/heads.py in one record, each with its run.

Runs differ in texts and held-out prompts, so a score of one is not a score of the other. A kind
that both runs trained and scored is kept under `repeated`: it tells how far they are apart.
"""

from typing import Any

Record = dict[str, Any]
OF_A_RUN = ("command", "commit", "note", "machine", "settings", "texts", "prompts")


def merged(earlier: Record, later: Record) -> Record:
    """The earlier record with the rows that only the later run has."""
    before = runs_of(earlier)
    new = len(before)
    own = [{**row, "run": row.get("run", 0)} for row in earlier["rows"]]
    known = {row["kind"] for row in own}
    fresh = [{**row, "run": new} for row in later["rows"]]
    added = [row for row in fresh if row["kind"] not in known]
    passes = {**later["target_passes_per_round"], **earlier["target_passes_per_round"]}
    return {
        **earlier,
        "runs": [*before, {name: later[name] for name in OF_A_RUN if name in later}],
        "target_passes_per_round": passes,
        "rows": [*own, *added],
        "repeated": earlier.get("repeated", []) + [row for row in fresh if row["kind"] in known],
        "missing": {
            kind: reason
            for kind, reason in {**earlier["missing"], **later["missing"]}.items()
            if kind not in known and kind not in {row["kind"] for row in added}
        },
    }


def runs_of(record: Record) -> list[Record]:
    """The runs of a record: command, commit, machine, data."""
    single = {name: record[name] for name in OF_A_RUN if name in record}
    return list(record.get("runs", [single]))
