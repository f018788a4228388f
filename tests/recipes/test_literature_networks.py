"""Lossless recipes that need a network: law, greedy text, and a mutant of each.

They run on a tiny model (`network_recipes.py`), with heads of random weights.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sapwood.common.numpy_mlp import MlpBundle
from sapwood.core.sampling import Sampling
from sapwood.core.types import Guarantee
from sapwood.recipe import Recipe
from sapwood.recipes import resolve
from sapwood.verifiers.bild import Bild
from tests.helpers.engine_rounds import make_text, plain_tokens, rounds_until, same_on_24_prompts
from tests.helpers.hidden_state_toy import random_net
from tests.helpers.network_recipes import (
    LAYERS,
    SMALL,
    law_on_network,
    on_network,
    random_head,
    target,
)
from tests.helpers.table_recipes import unseen

# recipe -> kind of its head in the training registry; empty for those that need none
KINDS = {
    "blockwise": "medusa",
    "medusa2": "medusa2",
    "hass": "eagle",
    "dvi": "",
    "amphista": "amphista",
    "clover": "clover",
    "gumiho": "gumiho",
    "ctc": "ctc",
    "hidden-transfer": "hidden-transfer",
    "draft-on-the-fly": "",
    "three-model": "",
    "ppsd": "",
    "predictive": "",
    "early-exit": "early-exit",
    "eesd": "early-exit",
    "medusa": "medusa",
    "hydra": "hydra",
    "eagle": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "parallel": "parallel",
    "recurrent": "recurrent",
    "propd": "medusa",
    "cas-spec": "",
    "self-skip": "",
    "swift": "",
    "draft-verify": "",
    "quantized-self": "",
    "sparse-kv": "",
    "triforce": "",
    "online": "eagle3",
}
# their driver follows the target along the runs itself: engine/test_pipeline.py breaks that
PIPELINES = {"ppsd", "predictive"}


@pytest.mark.parametrize("name", KINDS)
def test_the_law_is_the_targets(name: str) -> None:
    assert resolve(name).guarantee in (Guarantee.TEXT, Guarantee.LAW)
    assert law_on_network(on_network(name, 2, KINDS[name])) <= 1e-12


@pytest.mark.parametrize("name", KINDS)
def test_greedy_text_is_plain_decodings_on_24_prompts(name: str) -> None:
    same_on_24_prompts(target(5), on_network(name, 5, KINDS[name]), count=4, vocab=5)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in PIPELINES])
def test_a_verifier_that_takes_a_drafted_token_unseen_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(resolve(name).verifier)
    monkeypatch.setattr(kind, "verify", unseen(kind.verify, accepted=1))
    assert law_on_network(on_network(name, 2, KINDS[name])) > 1e-3


# --------------------------------------------------------------------------------------- predictors
WIDE = 32  # numbers in a state of the tiny model
FACTS = {"base": 0.3, "layer": LAYERS, "sizes": [1, 2, 4], "deepest": 4}
# recipe -> its head, and the kind and the widths of its predictor
PREDICTORS: dict[str, tuple[str, str, dict[str, list[int]]]] = {
    "specdec++": ("eagle3", "specdec++", {"head": [WIDE, WIDE, 1]}),
    "c2t": ("eagle3", "c2t", {"classifier": [3, 8, 1]}),
    "ltd": ("eagle3", "ltd", {"depth": [12, 8, 1], "size": [5, 8, 3]}),
    "adaeagle": ("eagle", "ldlp", {"length": [2 * WIDE, 8, 1]}),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_any_predictor_leaves_law_and_text(name: str, tmp_path: Path) -> None:
    head, kind, widths = PREDICTORS[name]
    nets = {net: random_net(sizes, 0) for net, sizes in widths.items()}
    MlpBundle(kind, nets, FACTS).save(tmp_path)

    def made(vocab: int) -> Recipe:
        found = on_network(name, vocab, head, resolve(name).controller)
        policy: Any = found.policy
        controller: Any = found.controller
        if name == "adaeagle":
            return dataclasses.replace(
                found, controller=dataclasses.replace(controller, most=2, weights=str(tmp_path))
            )
        return dataclasses.replace(
            found, policy=dataclasses.replace(policy, weights=str(tmp_path)), controller=SMALL
        )

    assert law_on_network(made(2)) <= 1e-12
    same_on_24_prompts(target(5), made(5), count=4, vocab=5)


# --------------------------------------------------------------------------------------------- free
def free(rollback: float) -> Recipe:
    """FREE's recipe with a random exit, which refuses tokens from this distance on."""
    found = resolve("free")
    drafter: Any = found.drafter
    return Recipe(
        dataclasses.replace(drafter, head=random_head("early-exit", 5, 2.0)),
        found.policy,
        Bild(rollback=rollback),
        found.controller,
    )


def texts(recipe: Recipe) -> list[list[int]]:
    prompts = [make_text(3 + seed % 7, seed, 5) for seed in range(24)]
    return [
        [token for outcome in rounds for token in outcome.tokens][:4]
        for rounds in (rounds_until(target(5), recipe, one, 4, Sampling()) for one in prompts)
    ]


def test_free_is_declared_lossy_and_departs_by_its_distance_alone() -> None:
    assert resolve("free").guarantee is Guarantee.LOSSY
    plain = [plain_tokens(target(5), make_text(3 + seed % 7, seed, 5), 4, ()) for seed in range(24)]
    assert texts(free(1e-9)) == plain  # every token but the target's best is too far from it
    assert texts(free(100.0)) != plain
