"""The lines of a trace: a header, then for each prompt its tokens, its rounds and how it ended.

A trace is JSONL. Every line names its `kind`. Tokens are ids; the text of each stands in the first line that uses it,
under `words`, so that a trace can be read without the model.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.arrays import FloatArray, IntArray
from sapwood.cost import CostCurve
from sapwood.records import BackendInfo, Budget, Times, Verdict
from sapwood.tree import AID_NAMES, Tree

VERSION = 1
Json = dict[str, Any]


@dataclass(frozen=True)
class Header:
    """What ran, on what, and what a pass cost there."""

    recipe: str  # as it was asked for
    spelling: str
    guarantee: str
    model: str  # as it was asked for
    info: BackendInfo
    sampling: Json  # options of every request, those at their default left out
    curve: CostCurve  # before the first round
    measured: bool  # False: nobody measured the machine, and the curve is flat
    drafters: list[str]  # by their bit in a node's sources
    provenance: Json = field(default_factory=dict)  # machine, command, commit

    def to_json(self) -> Json:
        """The first line."""
        info = dataclasses.asdict(self.info)
        info["provides"] = sorted(self.info.provides)
        plain = {name: getattr(self, name) for name in ("recipe", "spelling", "guarantee", "model", "sampling")}
        known = {"info": info, "curve": self.curve.to_json(), "measured": self.measured, "drafters": self.drafters}
        return {"kind": "header", "version": VERSION, **plain, **known, "provenance": self.provenance}

    @classmethod
    def from_json(cls, line: Json) -> "Header":
        """Read it back."""
        known = {name: line["info"][name] for name in (part.name for part in dataclasses.fields(BackendInfo))}
        info = BackendInfo(**{**known, "provides": frozenset(known["provides"])})
        plain = {name: line[name] for name in ("recipe", "spelling", "guarantee", "model", "sampling", "measured")}
        rest = {"drafters": line["drafters"], "provenance": line["provenance"]}
        return cls(**plain, info=info, curve=CostCurve.from_json(line["curve"]), **rest)


@dataclass(frozen=True)
class Law:
    """The target's best next tokens after some rows, and their log-probabilities."""

    tokens: IntArray  # [rows, top]
    logps: FloatArray  # [rows, top]

    def to_json(self) -> Json:
        """Digits enough to read single precision back as it was."""
        return {"tokens": self.tokens.tolist(), "logps": [numbers(row, 9) for row in self.logps]}

    @classmethod
    def from_json(cls, line: Json) -> "Law":
        """Read it back."""
        return cls(np.array(line["tokens"], np.int64), unnumbered(line["logps"]))


@dataclass(frozen=True)
class Round:
    """One round: what was grown, what of it was checked, what the target said, and what became of it."""

    prompt: int
    context: int  # committed tokens before the round
    budget: Json  # nodes, depth, width
    asked: bool  # the budget had room for a tree
    grown: Tree
    checked: list[int]  # nodes of `grown` that the target checked, the root first
    law: Law  # after each checked node, before any sampling option
    ranks: list[int]  # of each checked node's token under the target's law at its parent, best = 0; the root's is 0
    logps: list[float]  # of the same tokens; the root's is 0
    verdict: Verdict  # nodes count within those checked
    tokens: list[int]  # emitted: the path and the bonus
    kept: int  # of these, before the text ended
    times: Times
    beside: bool = False  # the pass ran beside the host, where the other parts then learned a round later

    @property
    def tree(self) -> Tree:
        """What the target checked."""
        return self.grown if len(self.checked) == len(self.grown) else self.grown.keep(self.checked)

    def to_json(self) -> Json:
        """One line."""
        grown = self.grown
        tree = {name: getattr(grown, name).tolist() for name in ("tokens", "parents", "ranks", "sources")}
        valued = grown.valued >= len(grown)
        shares = {"probs": numbers(grown.probs, 9), "reach": numbers(grown.reach, 9) if valued else None}
        target = {"ranks": self.ranks, "logps": numbers(self.logps, 6)}
        return {
            "kind": "round",
            "prompt": self.prompt,
            "context": self.context,
            "budget": self.budget,
            "asked": self.asked,
            "tree": {**tree, **shares},
            "checked": self.checked,
            "law": self.law.to_json(),
            "target": target,
            "verdict": {"path": list(self.verdict.path), "bonus": self.verdict.bonus},
            "tokens": self.tokens,
            "kept": self.kept,
            "times": dataclasses.asdict(self.times),  # to the last digit: controllers live by them
            "beside": self.beside,
        }

    @classmethod
    def from_json(cls, line: Json) -> "Round":
        """Read it back."""
        plain = {name: line[name] for name in ("prompt", "context", "budget", "asked", "checked", "tokens", "kept")}
        verdict = Verdict(tuple(line["verdict"]["path"]), line["verdict"]["bonus"])
        target, law = line["target"], Law.from_json(line["law"])
        facts = {"ranks": target["ranks"], "logps": unnumbered(target["logps"]).tolist()}
        facts["beside"] = line.get("beside", False)
        return cls(
            **plain, grown=planted(line["tree"]), law=law, verdict=verdict, times=Times(**line["times"]), **facts
        )


@dataclass(frozen=True)
class Asked:
    """A prompt, as the model read it."""

    prompt: int
    name: str
    tokens: list[int]
    seed: int
    most: int  # tokens of the longest answer
    reading: Law | None = None  # what the target made of its last tokens, the very last left out

    def to_json(self) -> Json:
        """One line."""
        read = None if self.reading is None else self.reading.to_json()
        return {"kind": "prompt", **vars(self), "reading": read}

    @classmethod
    def from_json(cls, line: Json) -> "Asked":
        """Read it back."""
        plain = {name: line[name] for name in ("prompt", "name", "tokens", "seed", "most")}
        return cls(**plain, reading=line["reading"] and Law.from_json(line["reading"]))


@dataclass(frozen=True)
class Ended:
    """How an answer ended."""

    prompt: int
    finish: str
    text: str
    stats: Json

    def to_json(self) -> Json:
        """One line."""
        return {"kind": "end", **vars(self)}


@dataclass
class Trace:
    """A whole trace."""

    header: Header
    asked: list[Asked] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)  # by prompt; one that was interrupted has no end
    words: dict[int, str] = field(default_factory=dict)  # text of each token

    @property
    def voices(self) -> dict[int, str]:
        """Who may have proposed a node, by the bit in its sources: drafters, and what a request itself knows."""
        return {**dict(enumerate(self.header.drafters)), **AID_NAMES}

    def of(self, prompt: int) -> list[Round]:
        """The rounds of one prompt."""
        return [one for one in self.rounds if one.prompt == prompt]

    def answer(self, prompt: int) -> list[int]:
        """Every token that the rounds of a prompt emitted, those after its end included."""
        return [token for one in self.of(prompt) for token in one.tokens]

    def said(self, prompt: int) -> int:
        """How many of them stayed."""
        return sum(one.kept for one in self.of(prompt))

    def spell(self, token: int) -> str:
        """The text of a token; its number where none was recorded."""
        return self.words.get(token, f"<{token}>")


def planted(columns: Json) -> Tree:
    """A tree from its recorded columns; depths follow from the parents."""
    tokens, parents = (np.array(columns[name], np.int64) for name in ("tokens", "parents"))
    depths = np.zeros(len(tokens), np.int64)
    for node in range(1, len(tokens)):
        depths[node] = depths[parents[node]] + 1
    reach = None if columns["reach"] is None else unnumbered(columns["reach"])
    ranks, sources = (np.array(columns[name], np.int64) for name in ("ranks", "sources"))
    probs = unnumbered(columns["probs"])
    return Tree.from_columns(tokens, parents, depths, probs, reach=reach, ranks=ranks, sources=sources)


def budgeted(budget: Budget) -> Json:
    """The caps of a budget; its prices follow from the curve."""
    return {"nodes": budget.nodes, "depth": budget.depth, "width": budget.width}


def numbers(values: Any, digits: int) -> list[float | None]:
    """Numbers for JSON, which has no infinity: None stands for one that is not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def unnumbered(values: Any) -> FloatArray:
    """The same numbers again; None is minus infinity."""
    return np.array(values, np.float64) if not holes(values) else filled(values)


def holes(values: Any) -> bool:
    """True where a number is missing."""
    return any(holes(value) if isinstance(value, list) else value is None for value in values)


def filled(values: Any) -> FloatArray:
    """Numbers with minus infinity where one is missing."""
    return np.array(
        [filled(value) if isinstance(value, list) else -np.inf if value is None else value for value in values],
        np.float64,
    )
