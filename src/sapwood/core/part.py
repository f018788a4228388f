"""Base class of parts: lifecycle defaults, copies, and the spelling `name(key=value)`."""

import copy
import dataclasses
import enum
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Self

from sapwood.core.lookahead import LookaheadRows
from sapwood.core.protocols import EngineContext, PartProtocol, RequestContext, TargetProbs
from sapwood.core.tree import Tree
from sapwood.core.types import AcceptanceTable, BatchLoad, Budget, Outcome
from sapwood.errors import SapwoodError


class Part:
    """Base of all parts: a dataclass whose fields are its options, nested parts included."""

    name: ClassVar[str] = ""  # its registered name
    paper: ClassVar[str] = ""  # arXiv id or citation of the rule
    source: int = 0  # a drafter's bit in `Tree.sources`
    # of a policy: drafters store their whole probs in `Tree.proposals`
    reads_probs: bool = False
    # of a drafter: `expand` reads nothing of the target, and may run beside its pass
    stands_alone: bool = False
    # it observes a round's scores: they must be at hand, and the next pass may overwrite them
    reads_scores: bool = False
    # of a controller: it uses the machine's cost model, which must have been measured
    priced: ClassVar[bool] = False
    trained: ClassVar[str] = ""  # the kind of trained head that it loads

    def __init_subclass__(cls, **options: Any) -> None:
        """Name a part after its module until the registry does: no class has its parent's name."""
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            own = cls.__module__.startswith("sapwood.")
            cls.name = cls.__module__.rpartition(".")[2].replace("_", "-") if own else ""

    @property
    def needs(self) -> frozenset[str]:
        """Features that the target's backend must provide, of `BackendInfo.provides`."""
        return frozenset()

    @property
    def fan(self) -> int:
        """Number of drafters that expand at once: a node may get so many times its width."""
        return 1

    def bind(self, setting: EngineContext) -> None:
        """Bind nested parts; nothing else to load."""
        for part in self.nested():
            part.bind(setting)

    def reset(self, request: RequestContext) -> None:
        """Begin a request in nested parts."""
        for part in self.nested():
            part.reset(request)

    def observe(self, outcome: Outcome) -> None:
        """Let nested parts learn."""
        for part in self.nested():
            part.observe(outcome)

    def observe_roots(self, outcomes: Sequence[Outcome]) -> None:
        """Of a drafter: observe several rounds without a tree, in order."""
        for outcome in outcomes:
            self.observe(outcome)

    def close(self) -> None:
        """Free the request's memory."""
        for part in self.nested():
            part.close()

    def nested(self) -> Iterator["Part"]:
        """Parts that are options of this one."""
        kind: type = type(self)
        for name in part_options(kind):
            value = getattr(self, name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, Part):
                    yield item

    @property
    def stand_ins(self) -> list[str]:
        """Names of drafters that are used where no trained one exists, in nested parts too."""
        return [name for part in self.nested() for name in part.stand_ins]

    @property
    def substitutes(self) -> list[str]:
        """Sentences on drafters that replace trained ones, of nested parts too, once bound."""
        return [sentence for part in self.nested() for sentence in part.substitutes]

    @property
    def head_digests(self) -> dict[str, str]:
        """Digests of the trained heads that a bound drafter uses, by kind, in nested parts too."""
        return {
            kind: digest for part in self.nested() for kind, digest in part.head_digests.items()
        }

    @property
    def needs_scores_now(self) -> bool:
        """True when this part, or one inside it, must observe a round before the next pass."""
        return self.reads_scores or any(part.needs_scores_now for part in self.nested())

    @property
    def observes_roots(self) -> bool:
        """Of a drafter: it observes rounds without a tree by token and hidden states alone."""
        return False

    @property
    def largest(self) -> Budget | None:
        """A controller's largest budget, without prices; None when unknown."""
        return None

    @property
    def resting(self) -> int:
        """Of a controller: coming rounds that are known to have a budget without nodes."""
        return 0

    def join(self, load: BatchLoad) -> None:
        """Set the load of the coming pass, in nested controllers too."""
        for part in self.nested():
            part.join(load)

    def lookahead(self, tree: Tree) -> LookaheadRows | None:
        """A drafter's rows behind the nodes of a tree; most have none."""
        return None

    def follows(self, target: TargetProbs) -> bool:
        """True when a verifier's verdict is the walk along the target's own tokens."""
        return False

    def export_table(self) -> AcceptanceTable | None:
        """An estimator's table, for compiled or device code; None when it needs the tree."""
        return None

    def fresh(self) -> Self:
        """A copy for one request: nested parts are copied, options and shared memory are not."""
        clone = copy.copy(self)
        for option in options(self):
            value = getattr(self, option.name)
            if isinstance(value, Part):
                setattr(clone, option.name, value.fresh())
            elif isinstance(value, list):
                copies = [item.fresh() if isinstance(item, Part) else item for item in value]
                setattr(clone, option.name, copies)
        return clone

    def __str__(self) -> str:
        """The spelling that `recipe.parse` reads back; options at their default are left out."""
        changed = [
            f"{option.name}={spell(getattr(self, option.name))}"
            for option in options(self)
            if getattr(self, option.name) != default_of(option)
        ]
        name = self.name or type(self).__name__.lower()
        return f"{name}({', '.join(changed)})" if changed else name


def learns(part: object) -> bool:
    """True when a part, or one inside it, observes rounds."""
    if not isinstance(part, Part):
        return True
    return type(part).observe is not Part.observe or any(map(learns, part.nested()))


def adds_rows(part: object) -> bool:
    """True when a drafter may put look-ahead rows behind the nodes of a tree."""
    return not isinstance(part, Part) or type(part).lookahead is not Part.lookahead


def prices(part: object) -> bool:
    """True when a controller, or one inside it, uses the load of a pass."""
    if not isinstance(part, Part):
        return True
    return type(part).join is not Part.join or any(map(prices, part.nested()))


def at_least(least: int, /, **values: int) -> None:
    """Refuse option values below this minimum."""
    for name, value in values.items():
        if value < least:
            raise SapwoodError(f"{name}={value} must be at least {least}")


def between(low: float, high: float, /, **values: float) -> None:
    """Refuse option values outside of their range."""
    for name, value in values.items():
        if not low <= value <= high:
            raise SapwoodError(f"{name}={value} must be from {low:g} to {high:g}")


def options(part: Part) -> tuple["dataclasses.Field[Any]", ...]:
    """The option fields of a part."""
    return dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()


@cache
def option_names(kind: type) -> tuple[str, ...]:
    """Option names of a class of parts."""
    return (
        tuple(option.name for option in dataclasses.fields(kind))
        if dataclasses.is_dataclass(kind)
        else ()
    )


@cache
def part_options(kind: type) -> tuple[str, ...]:
    """Names of the options that may hold parts: all but plain numbers, texts and choices."""
    plain = (int, float, str, bool, Enum)
    return tuple(
        option.name
        for option in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        if not (isinstance(option.type, type) and issubclass(option.type, plain))
    )


def option_value(part: "Part | PartProtocol", name: str, default: Any) -> Any:
    """The value of this option; the default where the part has no option of that name."""
    return getattr(part, name) if name in option_names(type(part)) else default


def default_of(option: "dataclasses.Field[Any]") -> Any:
    """The default value of an option."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return option.default


def spell(value: Any) -> str:
    """One option value as text."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(spell(item) for item in value) + "]"
    if isinstance(value, str):
        # not escaped: `recipe.parse` has no escapes
        return f'"{value}"' if "'" in value else f"'{value}'"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
