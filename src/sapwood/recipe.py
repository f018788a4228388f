"""A recipe is one part of each family; a combination that would change the law cannot be built.

Two rules decide. The verifier must accept the drafter's kind of draws. And where the verifier
reads q, a policy may cut whole sibling groups by what was known before they were drawn, but never
a sampled node by its own token: that would change the law the node was drawn from.
"""

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass
from typing import Any

from sapwood import methods
from sapwood.drafters.aided import Aided, aids_of
from sapwood.errors import SapwoodError, Unsound
from sapwood.part import Part, options, spell
from sapwood.policies.lawful import Lawful
from sapwood.protocols import Controller, Drafter, Estimator, Policy, Request, Setting, Verifier
from sapwood.records import Draw, Guarantee, Prune
from sapwood.sampling import Sampling
from sapwood.spelling import Call, read, read_all

SEAMS: dict[Any, str] = {
    Drafter: "drafter",
    Policy: "policy",
    Estimator: "estimator",
    Verifier: "verifier",
    Controller: "controller",
}
SLOTS = ("drafter", "policy", "verifier", "controller")


@dataclass(frozen=True)
class Recipe:
    """The four parts that make an engine; the estimator is an option of the policy."""

    drafter: Drafter
    policy: Policy
    verifier: Verifier
    controller: Controller

    def __post_init__(self) -> None:
        draws, accepts = self.drafter.draws, self.verifier.accepts
        if draws not in accepts:
            kinds = sorted(draw.value for draw in accepts)
            other = any(option.name == "draws" for option in options(self.drafter))  # type: ignore[arg-type]
            raise Unsound(
                f"{self.verifier} cannot judge {draws.value} drafts, it judges {', '.join(kinds)}; "
                f"use {judges_of(draws)}{f', or draws={kinds[0]} in the drafter' if other else ''}"
            )
        if self.policy.prunes is Prune.NODES and self.verifier.reads_q and draws is not Draw.TOPK:
            raise Unsound(
                f"{self.policy} cuts single nodes by their own token, which biases {draws.value} drafts under "
                f"{self.verifier}; use groups, static or chain as the policy, draws=topk, or match as the verifier"
            )

    @property
    def guarantee(self) -> Guarantee:
        """What the output keeps of plain decoding."""
        return self.verifier.guarantee

    def bind(self, setting: Setting) -> "Recipe":
        """A copy whose parts are loaded for this target."""
        bound = Recipe(*(part.fresh() for part in self.parts()))  # type: ignore[arg-type]
        for slot, part in zip(SLOTS, self.parts(), strict=True):
            missing: frozenset[str] = getattr(part, "needs", frozenset()) - setting.target.info.provides
            if missing:
                raise SapwoodError(
                    f"{part} needs {', '.join(sorted(missing))}, which the {setting.target.info.name} backend "
                    f"does not provide for {setting.target.info.model}; use another {slot}"
                )
        for part in bound.parts():
            part.bind(setting)
        return bound

    def fresh(self, request: Request) -> tuple[Drafter, Policy, Verifier, Controller]:
        """Copies of the parts, reset for one request."""
        parts = self.aided([part.fresh() for part in self.parts()], request.sampler.sampling)
        for part in parts:
            part.reset(request)
        return tuple(parts)  # type: ignore[return-value]

    def aided(self, parts: list[Part], sampling: Sampling) -> list[Part]:
        """Parts of one request with what it brings along: its grammar, and the answer that its caller expects."""
        drafter, policy, *others = parts
        aids, mixes = aids_of(sampling), self.takes_chosen(sampling)
        if aids and mixes:
            drafter = Aided(drafter, aids)  # type: ignore[arg-type]
        elif sampling.prediction:
            raise SapwoodError(
                f"a prediction cannot stand beside {self.drafter.draws.value} drafts under {self.verifier}; "
                "use the recipe auto, temperature 0, or no prediction"
            )
        if sampling.grammar is not None:
            spares_draws = self.verifier.reads_q and self.guarantee is not Guarantee.LOSSY
            policy = Lawful(policy, spares_draws, mixes)  # type: ignore[arg-type]
        return [drafter, policy, *others]

    def takes_chosen(self, sampling: Sampling) -> bool:
        """True where chosen nodes may join the drafter's own."""
        if sampling.greedy or not self.verifier.reads_q:
            return True
        beside = Draw.TOPK if self.drafter.draws is Draw.TOPK else Draw.MIXED
        return self.drafter.draws is not Draw.IID and beside in self.verifier.accepts

    def parts(self) -> tuple[Part, ...]:
        """The parts in the order of the loop."""
        return tuple(getattr(self, slot) for slot in SLOTS)

    def __str__(self) -> str:
        """The spelling that `parse` reads back."""
        return " + ".join(str(part) for part in self.parts())


def judges_of(draws: Draw) -> str:
    """Names of the lossless verifiers that may judge this kind of draws."""
    rules: list[tuple[str, Any]] = [(name, methods.lookup("verifier", name)()) for name in methods.names("verifier")]
    fit = [name for name, rule in rules if draws in rule.accepts and rule.guarantee is not Guarantee.LOSSY]
    return " or ".join(fit)


def parse(text: str, **overrides: str | None) -> Recipe:
    """Read `drafter + policy + verifier + controller`, in any order; overrides replace single slots."""
    found: dict[str, Part] = {}
    for call in read_all(text):
        family = methods.family_of(call.name)
        if family not in SLOTS:
            raise SapwoodError(f"{call.name!r} is an {family}: give it to a policy, as in best(estimator={call.name})")
        if family in found:
            raise SapwoodError(
                f"{text!r} names two parts of the family {family}: {found[family]} and {call.name}; keep one"
            )
        found[family] = build(family, call)
    for family, spelling in overrides.items():
        if spelling is not None:
            found[family] = build(family, read(spelling))
    missing = [slot for slot in SLOTS if slot not in found]
    if missing:
        raise SapwoodError(f"recipe {text!r} lacks a {' and a '.join(missing)}; `sapwood methods` lists them")
    return Recipe(**found)  # type: ignore[arg-type]


def build(family: str, call: Call) -> Part:
    """Make a part from its spelling; unknown options and wrong types are errors."""
    made = methods.lookup(family, call.name)
    hints = typing.get_type_hints(made)
    known = [option.name for option in dataclasses.fields(made)]  # type: ignore[arg-type]
    values = {}
    for key, value in call.options.items():
        if key not in known:
            raise SapwoodError(f"{call.name} has no option {key!r}; it has: {', '.join(known) or 'none'}")
        values[key] = fit(value, hints[key], f"{key} of {call.name}")
    return made(**values)


def fit(value: Any, hint: Any, what: str) -> Any:
    """A value as the option's type wants it."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, Call):  # an optional part
        hint = next((kind for kind in kinds if kind in SEAMS), hint)
    if hint in SEAMS:
        if not isinstance(value, Call):
            raise SapwoodError(f"{what} must name a part of the family {SEAMS[hint]}, not {value!r}")
        return build(SEAMS[hint], value)
    if typing.get_origin(hint) is list:
        if not isinstance(value, list):
            raise SapwoodError(f"{what} must be a list in brackets, not {say(value)}")
        return [fit(item, typing.get_args(hint)[0], what) for item in value]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        word, known = say(value), [item.value for item in hint]
        if word not in known:
            raise SapwoodError(f"{what} must be one of {', '.join(known)}, not {word}")
        return hint(word)
    if str in kinds and isinstance(value, Call) and not value.options:
        return value.name
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not any(isinstance(kind, type) and type(value) is kind for kind in kinds):
        names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise SapwoodError(f"{what} must be {names}, not {say(value)}")
    return value


def say(value: Any) -> str:
    """A value as the user spelled it."""
    return value.name if isinstance(value, Call) else spell(value)
