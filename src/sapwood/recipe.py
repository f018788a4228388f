"""Recipe: one part of each family; unsound combinations cannot be built.

Two rules decide. The verifier must accept the drafter's kind of draws. And if the verifier reads q,
a policy may prune whole sibling groups by what was known before they were drawn, but never a
sampled node by its own token: that would change the distribution that it was drawn from.
"""

import dataclasses
import enum
import logging
import types
import typing
from dataclasses import dataclass
from typing import Any

from sapwood import registry
from sapwood.common.suggest import suggestion
from sapwood.core.part import Part, options, spell
from sapwood.core.protocols import (
    Controller,
    Drafter,
    EngineContext,
    Estimator,
    Policy,
    RequestContext,
    Verifier,
)
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Guarantee, Prune
from sapwood.drafters.compose.request_hints import RequestHints, hints_of
from sapwood.errors import SapwoodError, Unsound
from sapwood.policies.grammar_prune import GrammarPrune
from sapwood.spec_parser import PartSpec, read, read_all

FAMILY_OF: dict[Any, str] = {  # protocol -> family
    Drafter: "drafter",
    Policy: "policy",
    Estimator: "estimator",
    Verifier: "verifier",
    Controller: "controller",
}
SLOTS = ("drafter", "policy", "verifier", "controller")
LOG = logging.getLogger("sapwood.recipe")  # without a handler, warnings go to standard error
REPORTED: set[str] = set()  # sentences that were logged in this process


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
                f"{self.verifier} cannot verify {draws.value} drafts, it verifies "
                f"{', '.join(kinds)}; use {verifiers_of(draws)}"
                f"{f', or draws={kinds[0]} in the drafter' if other else ''}"
            )
        if self.policy.prunes is Prune.NODES and self.verifier.reads_q and draws is not Draw.TOPK:
            raise Unsound(
                f"{self.policy} prunes single nodes by their own token, which biases "
                f"{draws.value} drafts under {self.verifier}; use groups, static or chain as the "
                "policy, draws=topk, or match as the verifier"
            )

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the verifier."""
        return self.verifier.guarantee

    def bind(self, context: EngineContext) -> "Recipe":
        """A copy whose parts are bound to this target."""
        bound = Recipe(*(part.fresh() for part in self.parts()))  # type: ignore[arg-type]
        for slot, part in zip(SLOTS, self.parts(), strict=True):
            info = context.target.info
            missing = part.needs - info.provides
            if missing:
                raise SapwoodError(
                    f"{part} needs {', '.join(sorted(missing))}, which the {info.name} backend "
                    f"does not provide for {info.model}; use another {slot}"
                )
        bound.drafter.bind(context)
        # predictors are fitted to a head: the other parts are told which one is in use
        context = dataclasses.replace(context, heads=bound.drafter.head_digests)
        for part in bound.parts()[1:]:
            part.bind(context)
        for sentence in bound.substitutes:
            if sentence not in REPORTED:
                REPORTED.add(sentence)
                LOG.warning("sapwood: %s", sentence)
        return bound

    @property
    def substitutes(self) -> list[str]:
        """Sentences on drafters that replace trained ones; empty before the recipe is bound."""
        found = [sentence for part in self.parts() for sentence in part.substitutes]
        return list(dict.fromkeys(found))

    def fresh(self, request: RequestContext) -> tuple[Drafter, Policy, Verifier, Controller]:
        """Copies of the parts, reset for one request."""
        sampling = request.sampler.sampling
        parts = self.with_hints([part.fresh() for part in self.parts()], sampling)
        for part in parts:
            part.reset(request)
        return tuple(parts)  # type: ignore[return-value]

    def with_hints(self, parts: list[Part], sampling: Sampling) -> list[Part]:
        """Parts of one request, extended by its grammar and its predicted output."""
        drafter, policy, *others = parts
        hints = hints_of(sampling)
        mixes = self.takes_chosen(sampling)
        if hints and mixes:
            drafter = RequestHints(drafter, hints)  # type: ignore[arg-type]
        elif sampling.prediction:
            raise SapwoodError(
                f"a prediction cannot stand beside {self.drafter.draws.value} drafts under "
                f"{self.verifier}; use the recipe auto, temperature 0, or no prediction"
            )
        if sampling.grammar is not None:
            spares_draws = self.verifier.reads_q and self.guarantee is not Guarantee.LOSSY
            policy = GrammarPrune(policy, spares_draws, mixes)  # type: ignore[arg-type]
        return [drafter, policy, *others]

    def takes_chosen(self, sampling: Sampling) -> bool:
        """True when chosen nodes may be added to the drafter's own."""
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


def verifiers_of(draws: Draw) -> str:
    """Names of the lossless verifiers that accept this kind of draws."""
    rules: list[tuple[str, Any]] = [
        (name, registry.lookup("verifier", name)()) for name in registry.names("verifier")
    ]
    fit = [
        name
        for name, rule in rules
        if draws in rule.accepts and rule.guarantee is not Guarantee.LOSSY
    ]
    return " or ".join(fit)


def parse(text: str, **overrides: str | None) -> Recipe:
    """Parse `drafter + policy + verifier + controller`, in any order; overrides replace parts."""
    found: dict[str, Part] = {}
    for call in read_all(text):
        family = registry.family_of(call.name)
        if family not in SLOTS:
            raise SapwoodError(
                f"{call.name!r} is an {family}: "
                f"give it to a policy, as in best(estimator={call.name})"
            )
        if family in found:
            raise SapwoodError(
                f"{text!r} names two parts of the family {family}: "
                f"{found[family]} and {call.name}; keep one"
            )
        found[family] = build(family, call)
    for family, given in overrides.items():
        if given is not None:
            found[family] = build(family, read(given))
    missing = [slot for slot in SLOTS if slot not in found]
    if missing:
        raise SapwoodError(
            f"recipe {text!r} lacks a {' and a '.join(missing)}; `sapwood methods` lists them"
        )
    return Recipe(**found)  # type: ignore[arg-type]


def build(family: str, call: PartSpec) -> Part:
    """Make a part from its spelling; unknown options and wrong types are errors."""
    made = registry.lookup(family, call.name)
    hints = typing.get_type_hints(made)
    known = [option.name for option in dataclasses.fields(made)]  # type: ignore[arg-type]
    values = {}
    for key, value in call.options.items():
        if key not in known:
            end = suggestion(key, known, f"it has: {', '.join(known) or 'none'}")
            raise SapwoodError(f"{call.name} has no option {key!r}; {end}")
        values[key] = convert(value, hints[key], f"{key} of {call.name}")
    return made(**values)


def convert(value: Any, hint: Any, what: str) -> Any:
    """A parsed value converted to the type of its option."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, PartSpec):  # an optional part
        hint = next((kind for kind in kinds if kind in FAMILY_OF), hint)
    if hint in FAMILY_OF:
        if not isinstance(value, PartSpec):
            raise SapwoodError(
                f"{what} must name a part of the family {FAMILY_OF[hint]}, not {value!r}"
            )
        return build(FAMILY_OF[hint], value)
    if typing.get_origin(hint) is list:
        if not isinstance(value, list):
            raise SapwoodError(f"{what} must be a list in brackets, not {spelling(value)}")
        return [convert(item, typing.get_args(hint)[0], what) for item in value]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        name = spelling(value)
        known = [item.value for item in hint]
        if name not in known:
            raise SapwoodError(f"{what} must be one of {', '.join(known)}, not {name}")
        return hint(name)
    if str in kinds and isinstance(value, PartSpec) and not value.options:
        return value.name
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not any(isinstance(kind, type) and type(value) is kind for kind in kinds):
        names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise SapwoodError(f"{what} must be {names}, not {spelling(value)}")
    return value


def spelling(value: Any) -> str:
    """A value as the user spelled it."""
    return value.name if isinstance(value, PartSpec) else spell(value)
