"""Every part of the table of methods, made the way a test can use it."""

from sapwood import registry
from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part
from sapwood.core.types import Guarantee
from sapwood.drafters.compose.cas_spec import CasSpec
from sapwood.drafters.compose.cascade import Cascade
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.pard import Pard
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.recipe import Recipe
from sapwood.recipes import RECIPES, resolve

# what cannot be made without an argument, or is dull without one
MADE: dict[str, Part] = {
    "drafter.draft-model": DraftModel(model=ToyBackend("draft")),
    "drafter.pard": Pard(model=ToyBackend("draft"), rows=2, mask=2),
    "drafter.cascade": Cascade(drafter=DraftModel(model=ToyBackend("draft")), first=2),
    "drafter.cas-spec": CasSpec(
        drafters=[DraftModel(model=ToyBackend("draft")), Ngram()], costs=[0.2, 0.01]
    ),
}


# what needs weights or a target's hidden states; each is put to the same questions in a test file
# of its own
TRAINED = {
    *(
        f"drafter.{name}"
        for name in ("eagle3", "eagle", "medusa", "hydra", "early-exit", "parallel", "recurrent")
    ),
    *(
        f"drafter.{name}"
        for name in ("mtp", "medusa2", "mask-rows", "ppd", "gated-masks", "streams")
    ),
    *(f"drafter.{name}" for name in ("clover", "amphista", "hidden-transfer", "gumiho", "ctc")),
    *(f"drafter.{name}" for name in ("falcon", "cerberus", "owl", "moa", "glide")),
    "drafter.online",
    *(f"drafter.{name}" for name in ("translated", "universal")),  # and tokenizers
    *(f"policy.{name}" for name in ("specdec++", "c2t", "ltd")),
    "estimator.classified",
    "verifier.judge",
    "controller.ldlp",
    *(
        f"drafter.{name}"
        for name in (
            "self-skip",
            "draft-on-the-fly",
            "layer-exit",
            "dvi",
            "quantized-self",
            "sparse-kv",
        )
    ),  # layers, bits and keys to leave out
    "policy.propd",  # layers to stop between
}


def plain_names(family: str) -> list[str]:
    """The names of a family whose parts need no training."""
    return [name for name in registry.names(family) if f"{family}.{name}" not in TRAINED]


def toy_recipes() -> dict[str, Recipe]:
    """The named recipes that a target with nothing but laws can run as they are."""
    made = {name: resolve(name) for name, entry in RECIPES.items() if entry.training == "none"}
    return {
        name: recipe
        for name, recipe in made.items()
        if not any(part.needs for part in recipe.parts())
    }


def lossless_names() -> list[str]:
    """The verifiers that need no training and promise plain decoding's text or law."""
    made = {name: registry.lookup("verifier", name) for name in plain_names("verifier")}
    return [name for name, kind in made.items() if kind().guarantee is not Guarantee.LOSSY]  # type: ignore[attr-defined]


def plain_parts() -> list[tuple[str, str]]:
    """Every (family, name) that needs no training."""
    return [(family, name) for family, name in every_part() if f"{family}.{name}" not in TRAINED]


def every_part() -> list[tuple[str, str]]:
    """Every (family, name) of the table."""
    return [(family, name) for family in registry.FAMILIES for name in registry.names(family)]


def make(family: str, name: str) -> Part:
    """One part with its defaults."""
    if (family, name) == ("drafter", "merge"):
        return registry.lookup(family, name)(
            drafters=[Ngram(), DraftModel(model=ToyBackend("draft"))]
        )  # type: ignore[call-arg]
    return MADE.get(f"{family}.{name}") or registry.lookup(family, name)()
