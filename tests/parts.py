"""Every part of the table of methods, made the way a test can use it."""

from sapwood import methods
from sapwood.backends.toy import Toy
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.part import Part

# what cannot be made without an argument, or is dull without one
MADE: dict[str, Part] = {"drafter.draft-model": Model(model=Toy("draft"))}


# what needs weights or a target's hidden states; each is put to the same questions in a test file of its own
TRAINED = {
    *(f"drafter.{name}" for name in ("eagle3", "eagle", "medusa", "hydra", "early-exit", "parallel", "recurrent")),
    "drafter.online",
    *(f"policy.{name}" for name in ("specdec++", "c2t", "ltd")),
    "estimator.classified",
    "verifier.judge",
    "controller.ldlp",
}


def plain_names(family: str) -> list[str]:
    """The names of a family whose parts need no training."""
    return [name for name in methods.names(family) if f"{family}.{name}" not in TRAINED]


def plain_parts() -> list[tuple[str, str]]:
    """Every (family, name) that needs no training."""
    return [(family, name) for family, name in every_part() if f"{family}.{name}" not in TRAINED]


def every_part() -> list[tuple[str, str]]:
    """Every (family, name) of the table."""
    return [(family, name) for family in methods.FAMILIES for name in methods.names(family)]


def make(family: str, name: str) -> Part:
    """One part with its defaults."""
    if (family, name) == ("drafter", "merge"):
        return methods.lookup(family, name)(drafters=[Ngram(), Model(model=Toy("draft"))])  # type: ignore[call-arg]
    return MADE.get(f"{family}.{name}") or methods.lookup(family, name)()
