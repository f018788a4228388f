"""Chains and settings that tests of trained policies share."""

import itertools

import numpy as np

from sapwood.backends.toy import ToyBackend
from sapwood.common.numpy_mlp import NumpyMlp
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import EngineContext, Policy, Verifier
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers.hidden_state_toy import Mindful, Stateful

EXACT = 1e-12
SMALL = Fixed(nodes=4, depth=2, width=2)
LONG = Fixed(nodes=3, depth=3, width=1)  # the first length at which a head has anything to say
SETTING = EngineContext(Mindful(), flat(), no_loader)
CHAINS: list[tuple[Draw, Verifier]] = [
    (Draw.TOPK, Match()),
    (Draw.IID, Speculative()),
    (Draw.SWOR, Rrs()),
    (Draw.IID, Mss()),
    (Draw.MIXED, Mixed()),
]


def bound(part: Part, setting: EngineContext = SETTING) -> Part:
    part.bind(setting)
    return part


def chain_of(policy: Policy, depth: int = 20) -> Tree:
    """The chain that a policy grows over a drafter that always goes on."""
    drafter = Stateful(model=ToyBackend("draft"))
    recipe = Recipe(drafter, policy, Match(), Fixed(nodes=depth, depth=depth, width=1))
    return next(Engine(ToyBackend(), recipe).rounds([0, 1, 2], Sampling(), KeyedRng(0))).grown


def played(
    recipe: Recipe,
    rounds: int,
    target: ToyBackend | None = None,
    prompt: tuple[int, ...] = (0, 1, 2),
) -> list[Outcome]:
    steps = Engine(target or ToyBackend(), recipe).rounds(
        prompt, Sampling(max_tokens=3000), KeyedRng(0)
    )
    return list(itertools.islice(steps, rounds))


def constant(widths: tuple[int, int], *outputs: float) -> NumpyMlp:
    zeros = np.zeros((widths[1], widths[0]), np.float32)
    return NumpyMlp([zeros], [np.array(outputs, np.float32)], zeros[0], zeros[0] + 1)


def text_of(verifier: Verifier, sampling: Sampling, target: ToyBackend | None = None) -> list[int]:
    recipe = Recipe(
        DraftModel(model=ToyBackend("draft")), Static(shape=[2, 1, 1]), verifier, Fixed()
    )
    steps = Engine(target or Mindful(), recipe).rounds([0, 1, 2], sampling, KeyedRng(sampling.seed))
    return [token for outcome in itertools.islice(steps, 12) for token in outcome.tokens][:20]
