"""Questions that every drafter with a trained head is asked: its text, its law, its files, its loss."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext
from sapwood.core.sampling import Sampling
from sapwood.drafters.propose import propose
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader
from sapwood.heads.cerberus import CerberusConfig, CerberusHeads
from sapwood.heads.falcon import FalconConfig, FalconHead
from sapwood.heads.files import load, save
from sapwood.heads.glide import GlideHead
from sapwood.heads.layers import LayerShape
from sapwood.heads.moa import MoaConfig, MoaHead
from sapwood.heads.owl import OwlConfig, OwlHead
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import rounds_until, tokens_of
from tests.helpers.head_training import corpus, short_loop

PROMPT = [5, 6, 7, 5, 6]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


def randomised(head: Any, std: float = 0.15, vocab: int = 61, draft_vocab: int = 40) -> Any:
    """The head with random weights and a random vocabulary."""
    torch.manual_seed(1)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=std)
    torch.manual_seed(2)
    if draft_vocab:
        head.use_vocabulary(torch.randperm(vocab)[:draft_vocab].sort().values)
    return head


def random_of(kind: str) -> Any:
    """A random head of this kind for the tiny Llama, over its whole vocabulary."""
    shape = LayerShape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)
    made: dict[str, Callable[[], Any]] = {
        "falcon": lambda: FalconHead(FalconConfig(shape, 32, 61, 61, 2)),
        "moa": lambda: MoaHead(MoaConfig(shape, 61, 61, (0, 1, 2))),
        "glide": lambda: GlideHead(MoaConfig(shape, 61, 61, (1,))),
        "cerberus": lambda: CerberusHeads(CerberusConfig(32, 61, 4, 2, 61)),
        "owl": lambda: OwlHead(OwlConfig(32, 61, 61, 2)),
    }
    return randomised(made[kind](), 0.2, 61, 61)


def check_text(drafter: Any, policy: Any, sampling: Sampling) -> None:
    """The text is plain decoding's, and something was drafted."""
    target = tiny_models.backend("llama")
    plain = Recipe(drafter, Chain(), Match(), Fixed(nodes=0))
    ours = Recipe(drafter, policy, Match(), Fixed(nodes=24, depth=4, width=6))
    wanted = tokens_of(rounds_until(target, plain, PROMPT, 30, sampling))[:30]
    rounds = rounds_until(target, ours, PROMPT, 30, sampling)
    assert tokens_of(rounds)[:30] == wanted
    assert max(len(outcome.grown) for outcome in rounds) > 3


def few_tokens(vocab: int) -> TorchBackend:
    """A tiny target in double precision: passes over trees and over texts agree to the last bits."""
    return TorchBackend(
        tiny_models.make("llama", torch.float64, vocab_size=vocab), f"{vocab} tokens"
    )


def misstated(tree: Any, node: int, probs: Any, *rest: Any) -> None:
    """A mutant of `propose`: it states other probs than it draws from."""
    propose(tree, node, probs, *rest)
    for key, stated in list(tree.proposals.items()):
        if key[0] == node:
            known = np.flatnonzero(stated)
            told = stated.copy()
            told[known] = stated[known[::-1]]
            tree.proposals[key] = told


def law_off(drafter: Any, policy: Any, verifier: Any, rounds: int, vocab: int = 3) -> float:
    """Error of the law of a recipe on a few tokens, enumerated in double precision."""
    target = few_tokens(vocab)
    recipe = Recipe(drafter, policy, verifier, Fixed(nodes=4, depth=3, width=2))
    sampling = Sampling(temperature=1.3, max_tokens=3)
    return law_error(recipe, target, sampling, rounds=rounds, horizon=2, prompt=[1, 0, 1])


def bound(drafter: Any) -> Any:
    """The drafter, bound to a tiny model."""
    drafter.bind(EngineContext(tiny_models.backend("llama"), flat(), no_loader))
    return drafter


def check_files(made: Any, head: Any, folder: Path) -> None:
    """A head survives its files, which leave out the target's tables."""
    net = bound(made(head=head.half().float())).net
    save(net, folder)
    found = load(folder)
    assert {name: tensor.tolist() for name, tensor in found.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in net.state_dict().items()
    }
    assert not {"embedding", "output"} & set(found.state_dict())
    assert torch.equal(bound(made(head=str(folder))).net.output, net.output)


def check_learns(objective: Any, folder: Path, least: float = 0.1) -> None:
    """The loss falls by a share, and agreement rises, in forty steps."""
    _, notes = short_loop(objective, corpus(), folder).run()
    first, last = notes.curve[0], notes.curve[-1]
    assert last.loss < first.loss * (1 - least)
    assert sum(last.agreement) > sum(first.agreement)
