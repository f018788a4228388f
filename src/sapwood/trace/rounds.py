"""The lines of a trace: a header, then for each prompt its tokens, its rounds and its end.

A trace is JSONL. Every line names its `kind`. Tokens are ids; the text of each is in the first line
that uses it, under `words`, so that a trace can be read without the model.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapwood.common.fingerprint import Fingerprint
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.tree import HINT_NAMES, Tree
from sapwood.core.types import BackendInfo, Budget, StageTimes, Verdict
from sapwood.engine.cost_model import CostModel

VERSION = 1
Json = dict[str, Any]


@dataclass(frozen=True)
class TraceHeader:
    """Recipe, model, options and cost model of a trace."""

    recipe: str  # as given by the user
    spelling: str
    guarantee: str
    model: str  # as given by the user
    info: BackendInfo
    sampling: Json  # options of every request, those at their default left out
    curve: CostModel  # before the first round
    measured: bool  # False: the machine was not measured, and the cost model is flat
    drafters: list[str]  # by their bit in a node's sources
    provenance: Json = field(default_factory=dict)  # machine, command, commit

    def to_json(self) -> Json:
        """The first line."""
        info = dataclasses.asdict(dataclasses.replace(self.info, weights=None))
        info["weights"] = self.info.weights and self.info.weights.to_json()
        info["provides"] = sorted(self.info.provides)
        plain = {
            name: getattr(self, name)
            for name in ("recipe", "spelling", "guarantee", "model", "sampling")
        }
        known = {
            "info": info,
            "curve": self.curve.to_json(),
            "measured": self.measured,
            "drafters": self.drafters,
        }
        return {
            "kind": "header",
            "version": VERSION,
            **plain,
            **known,
            "provenance": self.provenance,
        }

    @classmethod
    def from_json(cls, line: Json) -> "TraceHeader":
        """Parse the line."""
        known = {
            name: line["info"][name]
            for name in (part.name for part in dataclasses.fields(BackendInfo))
            if name in line["info"] and name != "weights"
        }
        weights = Fingerprint.from_json(line["info"].get("weights"))
        info = BackendInfo(
            **{**known, "provides": frozenset(known["provides"]), "weights": weights}
        )
        plain = {
            name: line[name]
            for name in ("recipe", "spelling", "guarantee", "model", "sampling", "measured")
        }
        rest = {"drafters": line["drafters"], "provenance": line["provenance"]}
        return cls(**plain, info=info, curve=CostModel.from_json(line["curve"]), **rest)


@dataclass(frozen=True)
class TracedProbs:
    """The target's top next tokens after some rows, and their log probs."""

    tokens: IntArray  # [rows, top]
    logps: FloatArray  # [rows, top]

    def to_json(self) -> Json:
        """The line; nine digits are enough for single precision."""
        return {"tokens": self.tokens.tolist(), "logps": [numbers(row, 9) for row in self.logps]}

    @classmethod
    def from_json(cls, line: Json) -> "TracedProbs":
        """Parse the record."""
        return cls(np.array(line["tokens"], np.int64), read_numbers(line["logps"]))


@dataclass(frozen=True)
class TracedRound:
    """One round: the grown tree, its checked nodes, the target's output and the verdict."""

    prompt: int
    context: int  # committed tokens before the round
    budget: Json  # nodes, depth, width
    asked: bool  # the budget had room for a tree
    grown: Tree
    checked: list[int]  # nodes of `grown` that the target checked, the root first
    probs: TracedProbs  # after each checked node, before any sampling option
    # of each checked node's token under the target's probs at its parent, best = 0; the root's is 0
    ranks: list[int]
    logps: list[float]  # of the same tokens; the root's is 0
    verdict: Verdict  # nodes count within those checked
    tokens: list[int]  # emitted: the path and the bonus
    kept: int  # of these, before the text ended
    times: StageTimes
    beside: bool = False  # the pass overlapped the host, and parts learned a round later

    @property
    def tree(self) -> Tree:
        """The checked tree."""
        return self.grown if len(self.checked) == len(self.grown) else self.grown.keep(self.checked)

    def to_json(self) -> Json:
        """One line."""
        grown = self.grown
        tree = {
            name: getattr(grown, name).tolist()
            for name in ("tokens", "parents", "ranks", "sources")
        }
        valued = grown.valued >= len(grown)
        shares = {
            "probs": numbers(grown.probs, 9),
            "reach": numbers(grown.reach, 9) if valued else None,
        }
        target = {"ranks": self.ranks, "logps": numbers(self.logps, 6)}
        return {
            "kind": "round",
            "prompt": self.prompt,
            "context": self.context,
            "budget": self.budget,
            "asked": self.asked,
            "tree": {**tree, **shares},
            "checked": self.checked,
            "law": self.probs.to_json(),
            "target": target,
            "verdict": {"path": list(self.verdict.path), "bonus": self.verdict.bonus},
            "tokens": self.tokens,
            "kept": self.kept,
            "times": dataclasses.asdict(self.times),  # all digits: controllers depend on them
            "beside": self.beside,
        }

    @classmethod
    def from_json(cls, line: Json) -> "TracedRound":
        """Parse the line."""
        plain = {
            name: line[name]
            for name in ("prompt", "context", "budget", "asked", "checked", "tokens", "kept")
        }
        verdict = Verdict(tuple(line["verdict"]["path"]), line["verdict"]["bonus"])
        facts_line = line["target"]
        probs = TracedProbs.from_json(line["law"])
        facts = {"ranks": facts_line["ranks"], "logps": read_numbers(facts_line["logps"]).tolist()}
        facts["beside"] = line.get("beside", False)
        return cls(
            **plain,
            grown=read_tree(line["tree"]),
            probs=probs,
            verdict=verdict,
            times=StageTimes(**line["times"]),
            **facts,
        )


@dataclass(frozen=True)
class TracedPrompt:
    """A prompt as tokens."""

    prompt: int
    name: str
    tokens: list[int]
    seed: int
    most: int  # tokens of the longest answer
    # the target's output over its last tokens, the very last left out
    reading: TracedProbs | None = None

    def to_json(self) -> Json:
        """One line."""
        read = None if self.reading is None else self.reading.to_json()
        return {"kind": "prompt", **vars(self), "reading": read}

    @classmethod
    def from_json(cls, line: Json) -> "TracedPrompt":
        """Parse the line."""
        plain = {name: line[name] for name in ("prompt", "name", "tokens", "seed", "most")}
        return cls(**plain, reading=line["reading"] and TracedProbs.from_json(line["reading"]))


@dataclass(frozen=True)
class TracedEnd:
    """End of an answer."""

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

    header: TraceHeader
    asked: list[TracedPrompt] = field(default_factory=list)
    rounds: list[TracedRound] = field(default_factory=list)
    # by prompt; missing for one that was interrupted
    ended: dict[int, TracedEnd] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)  # text of each token

    @property
    def source_names(self) -> dict[int, str]:
        """Sources of nodes by bit: drafters, and hints of the request itself."""
        return {**dict(enumerate(self.header.drafters)), **HINT_NAMES}

    def of(self, prompt: int) -> list[TracedRound]:
        """The rounds of one prompt."""
        return [one for one in self.rounds if one.prompt == prompt]

    def answer(self, prompt: int) -> list[int]:
        """Every token that the rounds of a prompt emitted, those after its end included."""
        return [token for one in self.of(prompt) for token in one.tokens]

    def kept_tokens(self, prompt: int) -> int:
        """Number of emitted tokens that were kept."""
        return sum(one.kept for one in self.of(prompt))

    def spell(self, token: int) -> str:
        """The text of a token; its number if none was recorded."""
        return self.words.get(token, f"<{token}>")


def read_tree(columns: Json) -> Tree:
    """A tree from its recorded columns; depths follow from the parents."""
    tokens, parents = (np.array(columns[name], np.int64) for name in ("tokens", "parents"))
    depths = np.zeros(len(tokens), np.int64)
    for node in range(1, len(tokens)):
        depths[node] = depths[parents[node]] + 1
    reach = None if columns["reach"] is None else read_numbers(columns["reach"])
    ranks, sources = (np.array(columns[name], np.int64) for name in ("ranks", "sources"))
    probs = read_numbers(columns["probs"])
    return Tree.from_columns(
        tokens, parents, depths, probs, reach=reach, ranks=ranks, sources=sources
    )


def budgeted(budget: Budget) -> Json:
    """The caps of a budget; its prices follow from the cost model."""
    return {"nodes": budget.nodes, "depth": budget.depth, "width": budget.width}


def numbers(values: Any, digits: int) -> list[float | None]:
    """Numbers for JSON, with None for those that are not finite."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in values]


def read_numbers(values: Any) -> FloatArray:
    """The same numbers, with minus infinity for None."""
    return np.array(values, np.float64) if not holes(values) else filled(values)


def holes(values: Any) -> bool:
    """True if a number is missing."""
    return any(holes(value) if isinstance(value, list) else value is None for value in values)


def filled(values: Any) -> FloatArray:
    """Numbers with minus infinity where one is missing."""
    return np.array(
        [
            filled(value) if isinstance(value, list) else -np.inf if value is None else value
            for value in values
        ],
        np.float64,
    )
