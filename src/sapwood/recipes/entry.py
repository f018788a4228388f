"""What the table of recipes says about each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedRecipe:
    """A system of the literature, from parts."""

    name: str
    system: str  # as its authors call it
    paper: str  # arXiv id, empty where there is none
    recipe: str  # its spelling
    training: str = "none"  # what must be trained before it can run
