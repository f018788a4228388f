"""Two torch models at once: the text of a draft beside the pass is plain decoding's."""

import pytest

from sapwood.backends.torch.load import build
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import OverlapGauge
from sapwood.core.protocols import Policy
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.engine.loop import Engine
from sapwood.policies.pearl import Pearl
from sapwood.policies.specbranch import SpecBranch
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.self_draft_targets import PLAIN, TEXT, target


@pytest.mark.parametrize("policy", [Pearl(first=2), SpecBranch(confidence=0.01)], ids=str)
@pytest.mark.parametrize("kind", ["stock", "packed"])
def test_the_text_is_plain_decodings(
    kind: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)
    backend = target(kind)
    small = tiny_models.make("llama", num_hidden_layers=1)
    draft = build(small, "small", "int8" if kind == "packed" else "float32", lambda _: None)
    recipe = Recipe(DraftModel(model=draft), policy, Match(), Fixed(nodes=3, depth=3, width=4))
    for temperature in (0.0, 0.9):
        sampling = Sampling(temperature=temperature, max_tokens=24)
        texts = []
        for made in (recipe, PLAIN):
            rounds = Engine(backend, made).rounds(TEXT[:12], sampling, KeyedRng(5))
            text = list[int]()
            for outcome in rounds:
                text += outcome.tokens
                if len(text) >= 24:
                    break
            rounds.close()
            texts.append(text[:24])
        assert texts[0] == texts[1]
