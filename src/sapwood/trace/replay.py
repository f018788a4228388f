"""Replay of recipes on recorded texts: their output and their time.

The real engine runs the real parts over a backend that looks the target's output up. With the
recorded recipe and the recorded seconds every round comes out as it was. Another recipe is verified
by the recorded text; its passes take the seconds of the cost model, its drafting is measured here.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.common.drafter_store import has
from sapwood.core.part import Part
from sapwood.core.protocols import TargetProbs
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import (
    BackendInfo,
    Draw,
    Guarantee,
    Outcome,
    StageClock,
    StageTimes,
    Verdict,
)
from sapwood.engine.cost_model import CostModel
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.registry import name_of
from sapwood.trace.part_names import drafters, parts
from sapwood.trace.recorded_backend import RecordedBackend
from sapwood.trace.rounds import Trace, TracedRound

if TYPE_CHECKING:
    from sapwood.llm import LLM

Tick = Callable[[], None]  # called after every prompt

# drafters that need only the text, or the top tokens of the target
TEXT_DRAFTERS = {
    "ngram",
    "suffix",
    "suffix-decoding",
    "llma",
    "anpd",
    "n-grammys",
    "sam",
    "rest",
    "aded",
    "recycling",
    "merge",
}
# drafters that use weights trained for the model, if there are any
TRAINED = {
    "auto-head": "eagle3",
    "auto-draft-model": "draft-model",
    "auto-boosted-model": "boosted-draft-model",
}
# parts that need data of the target that no trace holds
NOT_RECORDED = {
    "jacobi": "the target's outputs at rejected nodes",
    "lookahead": "the target's outputs at rejected nodes",
    "phrases": "the target's outputs at rejected nodes",
    "online": "whole distributions of the target",
    "self-skip": "the target's own layers at texts of its own",
    "quantized-self": "the target's own layers at texts of its own",
    "sparse-kv": "the target's own keys at texts of its own",
    "early-exit": "the target's own layers at rejected nodes",
    "dvi": "the target's own layers at rejected nodes",
    "propd": "the target's early layers at rejected nodes",
}


@dataclass
class RecordedVerifier(Part):
    """Follows the recorded text, as any lossless rule does when the target's token is known."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Follow the text while the tree holds it."""
        best = target.scores.argmax()  # type: ignore[attr-defined]
        path = [ROOT]
        while (child := tree.child(path[-1], int(best[path[-1]]))) is not None:
            path.append(child)
        # after the last recorded token any bonus is possible
        return Verdict(tuple(path), max(int(best[path[-1]]), 0))


class RecordedClock(StageClock):
    """A clock that gives each round its recorded seconds."""

    def __init__(self, rounds: Sequence[TracedRound]) -> None:
        super().__init__(float)  # a clock that stays at zero
        self.times = iter([one.times for one in rounds])

    def split(self) -> StageTimes:
        """Times of the next round."""
        return next(self.times, StageTimes())


class PredictedClock(StageClock):
    """A clock with measured drafting times and the cost model's time of a pass."""

    def __init__(self, clock: StageClock, scale: float) -> None:
        super().__init__(clock.now)
        self.stages = {stage: seconds * scale for stage, seconds in clock.stages.items()}
        self.scale = scale  # speed of drafting here over that of the recorded machine
        self.coming = 0.0  # seconds of the pass in flight

    def lap(self, stage: str) -> None:
        """Count the time since the last lap, or the predicted pass."""
        now = self.now()
        self.stages[stage] += self.coming if stage == "verify" else (now - self.last) * self.scale
        self.last = now


@dataclass
class ReplayRun:
    """One recipe on all texts."""

    recipe: str
    guarantee: str
    outcomes: list[list[Outcome]]  # by prompt
    kept: list[int]  # tokens of each answer that were kept
    near: bool = False  # rows that were not recorded were replaced by others

    @property
    def passes(self) -> int:
        """Number of passes of the target."""
        return sum(map(len, self.outcomes))

    @property
    def tokens(self) -> int:
        """Number of tokens that were kept."""
        return sum(self.kept)

    @property
    def nodes(self) -> int:
        """Number of checked nodes, without roots."""
        return sum(len(one.tree) - 1 for rounds in self.outcomes for one in rounds)

    @property
    def accepted(self) -> int:
        """Number of checked nodes that became output."""
        return (
            self.tokens
            - self.passes
            + sum(len(rounds) > 0 and self._over(at) for at, rounds in enumerate(self.outcomes))
        )

    def _over(self, prompt: int) -> bool:
        """True if the answer ended inside a path, so that the last round has no bonus."""
        return sum(len(one.tokens) for one in self.outcomes[prompt]) > self.kept[prompt]

    def seconds(self, stage: str = "total") -> float:
        """Seconds of decoding, without prefill."""
        return float(sum(getattr(one.times, stage) for rounds in self.outcomes for one in rounds))

    def row(self, plain: "ReplayRun | None" = None) -> dict[str, Any]:
        """The numbers by name; the speedup is over `plain`."""
        seconds = self.seconds()
        pace = self.seconds() / self.tokens
        waste = 1 - self.accepted / self.nodes if self.nodes else 0.0
        return {
            "recipe": self.recipe,
            "guarantee": self.guarantee,
            "prompts": len(self.kept),
            "tokens": self.tokens,
            "passes": self.passes,
            "tokens_per_pass": self.tokens / self.passes,
            "nodes_per_pass": self.nodes / self.passes,
            "waste": waste,
            "seconds": seconds,
            "draft_s": self.seconds("draft"),
            "verify_s": self.seconds("verify"),
            "other_s": self.seconds("other"),
            "tokens_per_second": 1 / pace if pace else None,
            "speedup": plain.seconds() / plain.tokens / pace
            if plain is not None and pace
            else None,
        }


class TracePlayer:
    """Replays recipes on a trace."""

    def __init__(
        self, trace: Trace, llm: "LLM | None" = None, curve: CostModel | None = None
    ) -> None:
        header = trace.header
        self.trace = trace
        self.llm = llm
        self.texts = RecordedBackend(trace, None if llm is None else llm.target)
        self.curve = curve or header.curve
        self.scale = 1.0  # of drafting seconds; see `calibrate`
        options = {
            name: value
            for name, value in header.sampling.items()
            if name not in ("stop", "max_tokens", "seed")
        }
        self.sampling = Sampling(**options)

    def engine(self, recipe: Recipe, curve: CostModel) -> Engine:
        """An engine of the recipe over the recorded texts."""
        adapted = replace(recipe, verifier=RecordedVerifier())
        if self.llm is None:
            return Engine(self.texts, adapted, curve)
        other = copy.copy(self.llm)
        other.target = self.texts
        other.profile = replace(self.llm.profile, curve=curve)
        return other.bind(adapted)

    def play(self, name: str, recipe: Recipe | None = None, tick: Tick = lambda: None) -> ReplayRun:
        """Replay a recipe at predicted seconds."""
        made = self.check(resolve(name) if recipe is None else recipe, name)
        curve = CostModel.from_json(self.curve.to_json())  # controllers refine their own
        return self._run(self.engine(made, curve), name, made, self._predicted, tick)

    def replay_recorded(self, tick: Tick = lambda: None) -> ReplayRun:
        """Replay the recorded recipe at the recorded seconds."""
        header = self.trace.header
        made = self.check(resolve(header.spelling), header.recipe)
        curve = CostModel.from_json(header.curve.to_json())
        return self._run(self.engine(made, curve), header.recipe, made, self._recorded, tick)

    def calibrate(self) -> None:
        """Scale drafting times by the recorded recipe's drafting time there over that here."""
        before = sum(one.times.draft + one.times.other for one in self.trace.rounds)
        run = self.play("recorded", resolve(self.trace.header.spelling))
        now = run.seconds("draft") + run.seconds("other")
        self.scale *= before / now if before and now else 1.0

    def check(self, recipe: Recipe, name: str) -> Recipe:
        """Raise for a recipe that the recorded text cannot replay."""
        if recipe.guarantee is Guarantee.LOSSY:
            raise SapwoodError(
                f"recipe {name!r} is lossy: its text would differ from the recorded one; run it"
            )
        if recipe.guarantee is Guarantee.LAW and not self.sampling.greedy:
            raise SapwoodError(
                f"recipe {name!r} keeps the distribution, not the text: at temperature "
                f"{self.sampling.temperature:g} its text would differ from the recorded one; "
                "replay a recipe that keeps the text, or record at temperature 0"
            )
        for word in map(name_of, parts(recipe)):
            if word in NOT_RECORDED:
                raise SapwoodError(
                    f"recipe {name!r} cannot be replayed: {word} reads {NOT_RECORDED[word]}, "
                    "which no trace holds; run it with `sapwood bench`"
                )
        if self.llm is None and not replays_without_model(recipe, self.trace.header.info):
            raise SapwoodError(
                f"recipe {name!r} drafts with trained weights; replay it with the model loaded"
            )
        return recipe

    def _run(self, engine: Engine, name: str, recipe: Recipe, clock: Any, tick: Tick) -> ReplayRun:
        played = []
        counts = []
        substituted = self.texts.substituted
        for asked in self.trace.asked:
            kept = self.trace.kept_tokens(asked.prompt)
            if kept:
                played.append(self._answer(engine, asked.prompt, kept, clock))
                counts.append(kept)
            tick()
        if not played:
            raise SapwoodError("the trace holds no rounds; record it again")
        return ReplayRun(
            name, recipe.guarantee.value, played, counts, near=self.texts.substituted > substituted
        )

    def _answer(self, engine: Engine, prompt: int, kept: int, clock: Any) -> list[Outcome]:
        """The rounds of one prompt."""
        asked = self.trace.asked[prompt]
        found = list[Outcome]()
        out = 0
        sampling = replace(self.sampling, max_tokens=asked.most, seed=asked.seed)
        decoding = RequestDecoder(engine, asked.tokens, sampling, KeyedRng(asked.seed))
        decoding.clock = clock(decoding, prompt)
        try:
            while out < kept:
                work = decoding.draft()
                if isinstance(decoding.clock, PredictedClock):
                    decoding.clock.coming = self.curve.seconds(
                        len(work.tree), decoding.session.length
                    )
                [scores] = self.texts.score([work])
                found.append(decoding.finish_round(scores))
                out += len(found[-1].tokens)
        finally:
            decoding.close()
        return found

    def _predicted(self, decoding: RequestDecoder, prompt: int) -> StageClock:
        return PredictedClock(decoding.clock, self.scale)

    def _recorded(self, decoding: RequestDecoder, prompt: int) -> StageClock:
        return RecordedClock(self.trace.of(prompt))


def replays_without_model(recipe: Recipe, info: BackendInfo) -> bool:
    """True if a replay needs no model: the drafters read the text and top tokens only."""
    found = {
        word
        for word in drafters(recipe)
        if word not in TRAINED or has(TRAINED[word], info.model, info.weights)
    }
    return found <= TEXT_DRAFTERS and not any(part.needs for part in parts(recipe))


def differences(trace: Trace, run: ReplayRun) -> list[str]:
    """Differences of a replay of the recorded recipe from the record; empty if there are none."""
    found = []
    prompts = [asked.prompt for asked in trace.asked if trace.kept_tokens(asked.prompt)]
    for prompt, outcomes in zip(prompts, run.outcomes, strict=True):
        rounds = trace.of(prompt)
        if len(rounds) != len(outcomes):
            found.append(
                f"prompt {prompt}: {len(rounds)} rounds were recorded, {len(outcomes)} replayed"
            )
        for number, (one, other) in enumerate(zip(rounds, outcomes, strict=False)):
            tree = one.tree
            same = (
                tree.tokens.tolist() == other.tree.tokens.tolist()
                and tree.parents.tolist() == other.tree.parents.tolist()
            )
            if not same or one.tokens != other.tokens or one.verdict != other.verdict:
                found.append(
                    f"prompt {prompt}, round {number}: another {'verdict' if same else 'tree'}"
                )
                break
    return found
