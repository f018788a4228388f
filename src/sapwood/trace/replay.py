"""What a recipe would have emitted and taken on recorded texts.

The real engine runs the real parts over a backend that looks the target up. With the recorded recipe and the recorded
seconds every round comes out as it was. Another recipe is judged by the recorded text; its passes take what the cost
curve says, its drafting what it really takes here.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from sapwood.cost import CostCurve
from sapwood.engine import Clock, Decoding, Engine
from sapwood.errors import SapwoodError
from sapwood.part import Part
from sapwood.protocols import Laws
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.records import Draw, Guarantee, Outcome, Times, Verdict
from sapwood.rng import Keyed, Rng
from sapwood.sampling import Sampling
from sapwood.trace.known import Texts
from sapwood.trace.names import called, drafters, parts
from sapwood.trace.rounds import Round, Trace
from sapwood.trained import has
from sapwood.tree import ROOT, Tree

if TYPE_CHECKING:
    from sapwood.api import LLM

Tick = Callable[[], None]  # told after every prompt

# drafters that need nothing but the text, or the best tokens of laws
ALONE = {"ngram", "suffix", "llma", "anpd", "n-grammys", "sam", "rest", "aded", "recycling", "merge"}
TRAINED = {
    "head": "eagle3",
    "small": "draft-model",
}  # drafters that use what was trained for the model, if anything was
# what asks the target things that no trace holds, and what that is
BEYOND = {
    "jacobi": "the target's answers at refused nodes",
    "lookahead": "the target's answers at refused nodes",
    "phrases": "the target's answers at refused nodes",
    "online": "whole laws of the target",
    "self-skip": "the target's own layers at texts of its own",
    "quantized-self": "the target's own layers at texts of its own",
    "sparse-kv": "the target's own keys at texts of its own",
    "early-exit": "the target's own layers at refused nodes",
    "propd": "the target's early layers at refused nodes",
}


@dataclass
class Recited(Part):
    """Follows the recorded text: what any lossless rule does where the target's own token is known."""

    accepts: ClassVar[frozenset[Draw]] = frozenset(Draw)
    guarantee: ClassVar[Guarantee] = Guarantee.TEXT
    reads_q: ClassVar[bool] = False

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk along the text while the tree holds it."""
        best, path = laws.scores.argmax(), [ROOT]  # type: ignore[attr-defined]
        while (child := tree.child(path[-1], int(best[path[-1]]))) is not None:
            path.append(child)
        return Verdict(tuple(path), max(int(best[path[-1]]), 0))  # after the last recorded token anything may follow


class Recorded(Clock):
    """Gives each round the seconds that it took when it was recorded."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        super().__init__(float)  # a clock that stands still
        self.times = iter([one.times for one in rounds])

    def split(self) -> Times:
        """The next round's."""
        return next(self.times, Times())


class Predicted(Clock):
    """Books what drafting really takes, and for a pass what the curve says."""

    def __init__(self, clock: Clock, scale: float) -> None:
        super().__init__(clock.now)
        self.stages = {stage: seconds * scale for stage, seconds in clock.stages.items()}
        self.scale = scale  # how much faster or slower the recorded machine drafts
        self.coming = 0.0  # seconds of the pass that is under way

    def lap(self, stage: str) -> None:
        """Book the time since the last lap, or the pass."""
        now = self.now()
        self.stages[stage] += self.coming if stage == "verify" else (now - self.last) * self.scale
        self.last = now


@dataclass
class Run:
    """One recipe on all texts."""

    recipe: str
    guarantee: str
    outcomes: list[list[Outcome]]  # by prompt
    said: list[int]  # tokens of each answer that stayed
    near: bool = False  # rows that were not recorded had others stand in for them

    @property
    def passes(self) -> int:
        """Of the target."""
        return sum(map(len, self.outcomes))

    @property
    def tokens(self) -> int:
        """That stayed."""
        return sum(self.said)

    @property
    def nodes(self) -> int:
        """Checked, roots left out."""
        return sum(len(one.tree) - 1 for rounds in self.outcomes for one in rounds)

    @property
    def accepted(self) -> int:
        """Checked nodes that became output."""
        return (
            self.tokens
            - self.passes
            + sum(len(rounds) > 0 and self._over(at) for at, rounds in enumerate(self.outcomes))
        )

    def _over(self, prompt: int) -> bool:
        """True where the answer ended inside a path, so that the last round has no bonus."""
        return sum(len(one.tokens) for one in self.outcomes[prompt]) > self.said[prompt]

    def seconds(self, stage: str = "total") -> float:
        """Of decoding, prompts left out."""
        return float(sum(getattr(one.times, stage) for rounds in self.outcomes for one in rounds))

    def row(self, plain: "Run | None" = None) -> dict[str, Any]:
        """The numbers by name; `plain` is what the speedup is over."""
        seconds, pace = self.seconds(), self.seconds() / self.tokens
        waste = 1 - self.accepted / self.nodes if self.nodes else 0.0
        return {
            "recipe": self.recipe,
            "guarantee": self.guarantee,
            "prompts": len(self.said),
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
            "speedup": plain.seconds() / plain.tokens / pace if plain is not None and pace else None,
        }


class Player:
    """Replays recipes on a trace."""

    def __init__(self, trace: Trace, llm: "LLM | None" = None, curve: CostCurve | None = None) -> None:
        header = trace.header
        self.trace, self.llm = trace, llm
        self.texts = Texts(trace, None if llm is None else llm.target)
        self.curve = curve or header.curve
        self.scale = 1.0  # of drafting seconds; see `settle`
        options = {name: value for name, value in header.sampling.items() if name not in ("stop", "max_tokens", "seed")}
        self.sampling = Sampling(**options)

    def engine(self, recipe: Recipe, curve: CostCurve) -> Engine:
        """The recipe over the texts; what loads further models is the model's own."""
        judged = replace(recipe, verifier=Recited())
        if self.llm is None:
            return Engine(self.texts, judged, curve)
        other = copy.copy(self.llm)
        other.target = self.texts
        other.profile = replace(self.llm.profile, curve=curve)
        return other.bind(judged)

    def play(self, name: str, recipe: Recipe | None = None, tick: Tick = lambda: None) -> Run:
        """A recipe at predicted seconds."""
        made = self.check(resolve(name) if recipe is None else recipe, name)
        curve = CostCurve.from_json(self.curve.to_json())  # controllers refine their own
        return self._run(self.engine(made, curve), name, made, self._predicted, tick)

    def again(self, tick: Tick = lambda: None) -> Run:
        """The recorded recipe at the recorded seconds."""
        header = self.trace.header
        made = self.check(resolve(header.spelling), header.recipe)
        curve = CostCurve.from_json(header.curve.to_json())
        return self._run(self.engine(made, curve), header.recipe, made, self._recorded, tick)

    def settle(self) -> None:
        """Compare what the recorded recipe's drafting takes here with what it took there, and predict by the ratio."""
        before = sum(one.times.draft + one.times.other for one in self.trace.rounds)
        run = self.play("recorded", resolve(self.trace.header.spelling))
        now = run.seconds("draft") + run.seconds("other")
        self.scale *= before / now if before and now else 1.0

    def check(self, recipe: Recipe, name: str) -> Recipe:
        """Refuse a recipe of which the recorded text says too little."""
        if recipe.guarantee is Guarantee.LOSSY:
            raise SapwoodError(f"recipe {name!r} is lossy: it would say another text than the recorded one; run it")
        if recipe.guarantee is Guarantee.LAW and not self.sampling.greedy:
            raise SapwoodError(
                f"recipe {name!r} keeps the law, not the text: at temperature {self.sampling.temperature:g} it would "
                "say another one than was recorded; replay a recipe that keeps the text, or record at temperature 0"
            )
        for word in map(called, parts(recipe)):
            if word in BEYOND:
                raise SapwoodError(
                    f"recipe {name!r} cannot be replayed: {word} reads {BEYOND[word]}, "
                    "which no trace holds; run it with `sapwood bench`"
                )
        if self.llm is None and not stands_alone(recipe, self.trace.header.info.model):
            raise SapwoodError(f"recipe {name!r} drafts with trained weights; replay it with the model at hand")
        return recipe

    def _run(self, engine: Engine, name: str, recipe: Recipe, clock: Any, tick: Tick) -> Run:
        played, said, guessed = [], [], self.texts.guessed
        for asked in self.trace.asked:
            kept = self.trace.said(asked.prompt)
            if kept:
                played.append(self._answer(engine, asked.prompt, kept, clock))
                said.append(kept)
            tick()
        if not played:
            raise SapwoodError("the trace holds no rounds; record it again")
        return Run(name, recipe.guarantee.value, played, said, near=self.texts.guessed > guessed)

    def _answer(self, engine: Engine, prompt: int, kept: int, clock: Any) -> list[Outcome]:
        """The rounds of one prompt."""
        asked, found, out = self.trace.asked[prompt], list[Outcome](), 0
        sampling = replace(self.sampling, max_tokens=asked.most, seed=asked.seed)
        decoding = Decoding(engine, asked.tokens, sampling, Keyed(asked.seed))
        decoding.clock = clock(decoding, prompt)
        try:
            while out < kept:
                work = decoding.draft()
                if isinstance(decoding.clock, Predicted):
                    decoding.clock.coming = self.curve.seconds(len(work.tree), decoding.session.length)
                [scores] = self.texts.score([work])
                found.append(decoding.judge(scores))
                out += len(found[-1].tokens)
        finally:
            decoding.close()
        return found

    def _predicted(self, decoding: Decoding, prompt: int) -> Clock:
        return Predicted(decoding.clock, self.scale)

    def _recorded(self, decoding: Decoding, prompt: int) -> Clock:
        return Recorded(self.trace.of(prompt))


def stands_alone(recipe: Recipe, model: str) -> bool:
    """True where a replay needs no model: the drafters read the text and the best tokens of laws."""
    found = {word for word in drafters(recipe) if word not in TRAINED or has(TRAINED[word], model)}
    return found <= ALONE and not any(getattr(part, "needs", ()) for part in parts(recipe))


def differences(trace: Trace, run: Run) -> list[str]:
    """Where a replay of the recorded recipe is not what was recorded; empty where it is the same."""
    found = []
    prompts = [asked.prompt for asked in trace.asked if trace.said(asked.prompt)]
    for prompt, outcomes in zip(prompts, run.outcomes, strict=True):
        rounds = trace.of(prompt)
        if len(rounds) != len(outcomes):
            found.append(f"prompt {prompt}: {len(rounds)} rounds were recorded, {len(outcomes)} replayed")
        for number, (one, other) in enumerate(zip(rounds, outcomes, strict=False)):
            tree = one.tree
            same = (
                tree.tokens.tolist() == other.tree.tokens.tolist()
                and tree.parents.tolist() == other.tree.parents.tolist()
            )
            if not same or one.tokens != other.tokens or one.verdict != other.verdict:
                found.append(f"prompt {prompt}, round {number}: another {'verdict' if same else 'tree'}")
                break
    return found
