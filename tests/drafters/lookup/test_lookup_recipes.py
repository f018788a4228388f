"""Every recipe of the lookup papers: lossless, equal to plain decoding, mergeable."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Drafter
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw
from sapwood.drafters.compose.gsd import Gsd
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.compose.rasd import Rasd
from sapwood.drafters.lookup.aded import Aded
from sapwood.drafters.lookup.anpd import Anpd
from sapwood.drafters.lookup.llma import Llma
from sapwood.drafters.lookup.n_grammys import NGrammys
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.rest import Rest
from sapwood.drafters.lookup.sam import Sam
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.loop import Engine
from sapwood.errors import Unsound
from sapwood.policies.best import Best
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.testing import law_error
from sapwood.verifiers.match import Match

NAMES = ["llma", "anpd", "n-grammys", "sam", "rest", "rasd", "aded", "gsd"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("salt", "ab")
def test_each_recipe_is_lossless(name: str, salt: str) -> None:
    assert (
        law_error(resolve(name), ToyBackend(salt), prompt=(0, 1, 2, 0, 1), rounds=2, horizon=2)
        <= 1e-12
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_recipe_says_what_plain_decoding_says(name: str, temperature: float) -> None:
    def text(recipe: str) -> Iterator[int]:
        sampling = Sampling(temperature=temperature, max_tokens=60)
        for outcome in Engine(ToyBackend(), resolve(recipe)).rounds(
            [0, 1, 2, 0, 1], sampling, KeyedRng(3)
        ):
            yield from outcome.tokens

    ours, plain = (
        [token for token, _ in zip(text(recipe), range(40), strict=False)]
        for recipe in (name, "plain")
    )
    assert ours == plain


@pytest.mark.parametrize("part", [NGrammys(), Sam(), Rasd(), Gsd()], ids=str)
def test_drawn_guesses_cannot_be_selected_by_token(part: Any) -> None:
    option = next(
        name for name in ("bigrams", "otherwise", "drafters", "drafter") if hasattr(part, name)
    )
    inner = Recycling(draws=Draw.SWOR)
    made = replace(part, **{option: [inner, Ngram()] if option == "drafters" else inner})
    with pytest.raises(
        Unsound, match=r"biases drawn ones; use draws=topk in recycling\(draws=swor\)"
    ):
        Recipe(made, Best(), Match(), Fixed())


@pytest.mark.parametrize(
    "part", [Llma(), Anpd(), NGrammys(), Sam(), Rest(), Rasd(), Aded(), Gsd()], ids=str
)
def test_they_share_a_tree_with_others(part: Drafter) -> None:
    recipe = Recipe(
        Merge([Suffix(), part, Ngram()]), Best(), Match(), Fixed(nodes=12, depth=4, width=3)
    )
    assert law_error(recipe, ToyBackend("a"), prompt=(0, 1, 2, 0, 1), horizon=2) <= 1e-12
