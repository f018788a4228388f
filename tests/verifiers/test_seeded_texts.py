"""The text of a seed, pinned for every lossless rule.

A seed's text is a promise to users: a change of the noise keys, of their order or of a rule shows
here. Where a change is meant, print `text_of(name, draws)` and write the new text down.
"""

from collections.abc import Sequence

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from tests.helpers.legal_recipes import part
from tests.helpers.part_factory import lossless_names

LENGTH = 40
PINNED: dict[str, tuple[Draw, str]] = {
    "match": (Draw.TOPK, "0011250244031243210121320441423155054213"),
    "naive": (Draw.TOPK, "3254534154041222405313431242121002321513"),
    "speculative": (Draw.IID, "3021322534243144214524145112050351005245"),
    "mss": (Draw.IID, "3414513402111524304225435112410155030145"),
    "rrs": (Draw.SWOR, "2501254344233234212005215545023132020503"),
    "mixed": (Draw.MIXED, "0011353244443213213125455041203114501325"),
    "kseq": (Draw.IID, "1124131241022321325143314145020254522013"),
    "spechub": (Draw.MIXED, "1101105320102312305443055544342145214505"),
    "block": (Draw.IID, "0301134532030024203123305312040054134210"),
    "traversal": (Draw.SWOR, "2501255502511541241255151434313431001133"),
    "traversal-iid": (Draw.IID, "3215402020420433415522300530401153214235"),
    "optimal-iid": (Draw.IID, "3414513402151204310220101441111153022305"),
    "optimal": (Draw.MIXED, "3440305043055203013223531042222125354125"),
    "khisti": (Draw.IID, "3414513402033545532310455413023240002415"),
}
# where a plan foresees a second draw that never comes
MADE_UP = {
    "optimal": "2415004405551032004445403111015043434045",
    "optimal-iid": "3420202341451441154131553112025151133104",
    "khisti": "3414235144010551214103320531033440252223",
}


def text_of(name: str, draws: Draw, shape: Sequence[int] = (2, 2, 1)) -> str:
    """Forty tokens of the toy target at temperature 1, by the rule of this name."""
    verifier = part("verifier", name)
    drafter = DraftModel(model=ToyBackend("draft", vocab=6), draws=draws)
    recipe = Recipe(drafter, Static(shape=list(shape)), verifier, Fixed(nodes=12, depth=3, width=2))  # type: ignore[arg-type]
    target = ToyBackend("target", vocab=6)
    found: list[int] = []
    sampling = Sampling(temperature=1.0, max_tokens=LENGTH)
    for outcome in Engine(target, recipe).rounds([0, 1, 2], sampling, KeyedRng(11)):
        found += outcome.tokens
        if len(found) >= LENGTH:
            break
    return "".join(map(str, found))


@pytest.mark.parametrize("name", [name for name in lossless_names() if name != "greedy"])
def test_a_seed_gives_the_text_it_always_gave(name: str) -> None:
    draws, text = PINNED[name]
    assert text_of(name, draws) == text


@pytest.mark.parametrize("name", MADE_UP)
def test_draws_that_are_made_up_have_places_of_their_own(name: str) -> None:
    draws = Draw.SWOR if name == "optimal" else Draw.IID
    assert text_of(name, draws, shape=[1, 1]) == MADE_UP[name]
