"""A replay gives the rounds that the target itself would give, and nothing that it cannot know."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.model import TorchBackend
from sapwood.backends.torch.replay import Replay, record
from sapwood.controllers.fixed import Fixed
from sapwood.drafters.eagle import Eagle
from sapwood.drafters.recycling import Recycling
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.heads.eagle3 import Eagle3, Eagle3Config
from sapwood.heads.layers import Shape
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.protocols import Backend, Work
from sapwood.recipe import Recipe
from sapwood.records import Outcome
from sapwood.rng import Keyed
from sapwood.sampling import Sampling
from sapwood.testing.waist import line
from sapwood.tree import Tree
from sapwood.verifiers.match import Match
from tests import tiny

LAYERS = (0, 1, 2)
LENGTH = 40  # tokens of each answer
PROMPTS = [[5, 6, 7, 8, 9, 10], [3], [11, 12]]
BUDGET = Fixed(nodes=16, depth=4, width=6)
# in double precision, lest a tie between two guesses be broken by the order of additions; masks are infinite there
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


@cache
def target() -> TorchBackend:
    return TorchBackend(tiny.make("llama").double(), "tiny")


@cache
def head() -> Eagle3:
    """A random head whose guesses are sometimes right: few tokens, and those of the answers."""
    torch.manual_seed(2)
    shape = Shape(width=32, heads=4, kv_heads=2, head_width=8, inner=48)
    made = Eagle3(Eagle3Config(shape, 32, 61, 24, LAYERS))
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    said = np.bincount(np.concatenate([plain(index) for index in range(len(PROMPTS))]), minlength=61)
    made.use_vocabulary(torch.from_numpy(np.sort(np.argsort(-said, kind="stable")[:24])))
    return made


def play(backend: Backend, recipe: Recipe, prompt: list[int], count: int = LENGTH, **options: Any) -> list[Outcome]:
    """Rounds until so many tokens are out."""
    found: list[Outcome] = []
    sampling = Sampling(**{"max_tokens": count, **options})
    for outcome in Engine(backend, recipe).rounds(prompt, sampling, Keyed(0)):
        found.append(outcome)
        if sum(len(one.tokens) for one in found) >= count:
            break
    return found


@cache
def plain(index: int) -> list[int]:
    """The target's greedy answer to a prompt."""
    recipe = Recipe(Recycling(), Chain(), Match(), Fixed(nodes=0))
    return [token for outcome in play(target(), recipe, PROMPTS[index]) for token in outcome.tokens]


@cache
def replay() -> Replay:
    return record(target(), PROMPTS, [plain(index) for index in range(len(PROMPTS))], LAYERS)


def story(rounds: Sequence[Outcome]) -> list[tuple[Any, ...]]:
    """All that a round decided."""
    return [
        (one.grown.tokens.tolist(), one.tree.tokens.tolist(), one.tree.parents.tolist(), one.verdict, one.context)
        for one in rounds
    ]


@pytest.mark.parametrize("index", range(len(PROMPTS)))
@pytest.mark.parametrize("policy", [Beam(beam=4), Best(), Best(stride=4), Chain()], ids=str)
def test_rounds_are_the_targets_own(policy: Any, index: int) -> None:
    recipe = Recipe(Eagle(head=head()), policy, Match(), BUDGET)
    real, ours = (play(backend, recipe, PROMPTS[index]) for backend in (target(), replay()))
    assert story(ours) == story(real)
    assert [token for one in ours for token in one.tokens] == plain(index)


def test_some_drafts_are_accepted() -> None:
    recipe = Recipe(Eagle(head=head()), Beam(beam=4), Match(), BUDGET)
    rounds = [one for prompt in PROMPTS for one in play(replay(), recipe, prompt)]
    assert sum(one.verdict.accepted for one in rounds) > 5


def test_the_target_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, recipe = replay(), Recipe(Eagle(head=head()), Beam(), Match(), BUDGET)
    monkeypatch.setattr(ready.model, "forward", None)
    monkeypatch.setattr(ready.model.base_model, "forward", None)
    assert play(ready, recipe, PROMPTS[0])
    assert ready.info.model == "tiny"
    assert (ready.info.vocab, ready.info.context) == (target().info.vocab, target().info.context)


def test_states_are_the_targets_on_the_text_and_zeros_off_it() -> None:
    session, text = replay().open(PROMPTS[0][:-1]), [*PROMPTS[0], *plain(0)]
    tree = line(text[5:8])
    wrong = tree.add(0, (text[6] + 1) % 61, 1.0)
    [scores] = replay().score([Work(session, tree)])
    assert scores.argmax().tolist() == [*text[6:9], -1]
    with torch.inference_mode():
        states = target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
    found = scores.hidden([2, wrong, 0], [2, 0])
    wanted = torch.cat([states[2][0, [7, 0, 5]], states[0][0, [7, 0, 5]]], -1)
    wanted[1] = 0
    assert torch.allclose(found, wanted, atol=1e-5)
    [part] = replay().score([Work(session, tree, 2)])
    assert part.argmax().tolist() == [text[8], -1]
    assert torch.equal(part.hidden([0], [2]), scores.hidden([2], [2]))


def test_the_prompt_can_be_read() -> None:
    session, text = replay().open(PROMPTS[0][:-1]), PROMPTS[0]
    read = session.reading(3)
    assert read is not None
    with torch.inference_mode():
        states = target().model(torch.tensor([text]), output_hidden_states=True).hidden_states
    assert torch.allclose(read.hidden(range(3), [1]), states[1][0, 2:5], atol=1e-5)
    with pytest.raises(SapwoodError, match="not what the target made of a prompt"):
        read.argmax()
    replay().score([Work(session, Tree(text[-1]))])
    session.commit([0])
    assert session.reading(3) is None
    assert replay().open([]).reading(3) is None


def test_a_branch_off_the_text_never_returns_to_it() -> None:
    text = [*PROMPTS[0], *plain(0)]
    session, tree = replay().open(text[:5]), Tree(text[5])
    wrong = tree.add(0, (text[6] + 1) % 61, 1.0)
    back = tree.add(wrong, text[7], 1.0)
    [scores] = replay().score([Work(session, tree)])
    assert scores.argmax()[[wrong, back]].tolist() == [-1, -1]
    with pytest.raises(ValueError, match="leaves the known text"):
        session.commit([0, wrong])


def test_nothing_matches_after_the_end_and_going_on_is_refused() -> None:
    recipe = Recipe(Eagle(head=head()), Beam(), Match(), BUDGET)
    engine = Engine(replay(), recipe).rounds(PROMPTS[1], Sampling(max_tokens=999), Keyed(0))
    tokens: list[int] = []
    with pytest.raises(SapwoodError, match=f"stop after the {LENGTH} tokens of the answer"):
        tokens.extend(token for outcome in engine for token in outcome.tokens)
    assert tokens[:LENGTH] == plain(1)
    assert len(tokens) <= LENGTH + 1
    session, last = replay().open(PROMPTS[1][:-1]), [*PROMPTS[1], *plain(1)]
    tree = line(last)
    for token in range(8):
        tree.add(LENGTH, token, 1.0)
    [scores] = replay().score([Work(session, tree)])
    assert scores.argmax()[LENGTH] == 8


@pytest.mark.parametrize("options", [{"temperature": 1.0}, {"repetition_penalty": 1.5}], ids=str)
def test_only_plain_greedy_decoding_can_be_replayed(options: dict[str, Any]) -> None:
    recipe = Recipe(Eagle(head=head()), Chain(), Match(), BUDGET)
    with pytest.raises(SapwoodError, match="temperature 0"):
        play(replay(), recipe, PROMPTS[0], **options)
    with pytest.raises(SapwoodError, match="temperature 0"):
        play(replay(), Recipe(Recycling(), Chain(), Match(), BUDGET), PROMPTS[0])


def test_what_was_not_recorded_is_refused() -> None:
    with pytest.raises(SapwoodError, match="prompt of 4 tokens was not recorded"):
        replay().open([1, 2, 3])
    thin = record(target(), PROMPTS[:1], [plain(0)], [1])
    with pytest.raises(SapwoodError, match=r"layers \[0, 2\] were not recorded"):
        thin.watch(LAYERS)
    with pytest.raises(SapwoodError, match="the same but for their last"):
        record(target(), [[1, 2], [1, 3]], [[4], [4]], LAYERS)
    for prompt, answer in (([], [1]), ([1], [])):
        with pytest.raises(SapwoodError, match="needs a prompt and an answer"):
            record(target(), [prompt], [answer], LAYERS)


def test_sessions_keep_the_contract_of_the_waist() -> None:
    text = [*PROMPTS[0], *plain(0)]
    session = replay().open(text[:5])
    with pytest.raises(ValueError, match="not a path"):
        session.commit([0])
    replay().score([Work(session, line(text[5:8]))])
    for wrong in ([0, 2], [1], [0, 7], []):
        with pytest.raises(ValueError, match="not a path"):
            session.commit(wrong)
    session.commit([0, 1, 2])
    fork = session.fork()
    assert (session.length, fork.length) == (8, 8)
    with pytest.raises(ValueError, match="cannot rewind"):
        session.rewind(9)
    session.rewind(6)
    [one], [two] = (replay().score([Work(one, Tree(text[one.length]))]) for one in (session, fork))
    assert (one.argmax()[0], two.argmax()[0]) == (text[7], text[9])
    fork.close()
    with pytest.raises(ValueError, match="closed"):
        replay().score([Work(fork, Tree(text[8]))])
    with pytest.raises(TypeError, match="opened"):
        replay().score([Work(target().open([1]), Tree(1))])
