"""Every part of the table of methods, made the way a test can use it."""

from sapwood import methods
from sapwood.backends.toy import Toy
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.part import Part

# what cannot be made without an argument, or is dull without one
MADE: dict[str, Part] = {"drafter.draft-model": Model(model=Toy("draft"))}


def every_part() -> list[tuple[str, str]]:
    """Every (family, name) of the table."""
    return [(family, name) for family in methods.FAMILIES for name in methods.names(family)]


def make(family: str, name: str) -> Part:
    """One part with its defaults."""
    if (family, name) == ("drafter", "merge"):
        return methods.lookup(family, name)(drafters=[Ngram(), Model(model=Toy("draft"))])  # type: ignore[call-arg]
    return MADE.get(f"{family}.{name}") or methods.lookup(family, name)()
