"""Tokens per pass, many texts side by side, are what the engine's own rounds give for each."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import Backend
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.engine.loop import Engine
from sapwood.estimators.raw import Raw
from sapwood.heads.eagle3 import Eagle3Head
from sapwood.policies.beam import Beam
from sapwood.recipe import Recipe
from sapwood.train.corpus import Corpus
from sapwood.train.decode_state import TextToContinue
from sapwood.train.eagle3 import Eagle3Objective
from sapwood.train.evaluate import CHAIN6, LARGE, SMALL, TOGETHER, TreeLimits, tokens_per_pass
from sapwood.train.generate import Generator
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.teacher import Teacher
from sapwood.verifiers.match import Match
from tests.helpers import tiny_models

# most tokens of a text
EOS = 2
LIMIT = 44
SOME = slice(1, None, 6)  # texts that the engine decodes as well, a prompt of one token among them
COURSE = Eagle3Objective(unroll=4, vocabulary=40, rate=1e-2, matrix_rate=2e-2)
# in double precision, lest a tie between two guesses be broken by the order of additions; masks are
# infinite there
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")


@cache
def teacher(dtype: torch.dtype = torch.float64) -> Teacher:
    return Teacher(TorchBackend(tiny_models.make("llama").to(dtype), "tiny"))


@cache
def texts() -> list[tuple[list[int], int]]:
    """Prompts of one to twelve tokens with greedy answers, and where these begin."""
    rng = np.random.default_rng(5)
    prompts = [
        rng.integers(3, 61, size).tolist() for size in (7, 1, 12, 3, 2, 9, 5, 4, 6, 8, 11, 10)
    ]
    asks = [TextToContinue(prompt, LIMIT - len(prompt)) for prompt in prompts]
    answers = Generator(teacher().backend).run(asks, [EOS])
    return [
        ([*prompt, *answer], len(prompt)) for prompt, answer in zip(prompts, answers, strict=True)
    ]


def corpus() -> Corpus:
    tokens = [np.array(tokens, np.int32) for tokens, _ in texts()]
    starts = np.cumsum([0, *map(len, tokens)])
    return Corpus(
        np.concatenate(tokens), starts, np.array([start for _, start in texts()], np.int32)
    )


@cache
def random_head() -> Eagle3Head:
    """A head that knows nothing but a few words, so that some guesses are right."""
    torch.manual_seed(3)
    head = (
        replace(COURSE, vocabulary=24).build(teacher(torch.float32), corpus().counts(61)).double()
    )
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return head.eval()


@pytest.fixture(scope="module")
def trained_head(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    """A head that has seen a few batches."""
    state: Path = tmp_path_factory.mktemp("run") / "state"
    head, _ = TrainingLoop(
        COURSE, teacher(torch.float32), corpus(), LoopSettings(steps=25, tokens=256), state
    ).run()
    assert isinstance(head, Eagle3Head)
    return head.double()


def rate(backend: Backend, recipe: Recipe, text: tuple[list[int], int]) -> float:
    """Tokens per pass of the engine's own rounds, whose trees are not made smaller towards the end."""
    tokens, start = text
    left = len(tokens) - start
    rounds = Engine(backend, recipe).rounds(
        tokens[:start], Sampling(max_tokens=4 * LIMIT), KeyedRng(0)
    )
    for passes, outcome in enumerate(rounds, 1):
        said = len(tokens) - left
        assert outcome.tokens[:left] == tokens[said : said + len(outcome.tokens)]
        left -= len(outcome.tokens)
        if left <= 0:
            return (len(tokens) - start) / passes
    raise AssertionError("the context ended before the answer")


def rates(head: Eagle3Head, shape: TreeLimits) -> list[float]:
    policy = Beam(beam=shape.beam, estimator=Raw())
    recipe = Recipe(Eagle3(head=head), policy, Match(), Fixed(shape.nodes, shape.depth, shape.beam))
    return [rate(teacher().backend, recipe, text) for text in texts()[SOME]]


def test_the_texts_are_of_all_kinds() -> None:
    ended = [tokens[-1] == EOS for tokens, _ in texts()]
    assert 3 <= sum(ended) <= len(ended) - 3
    assert len({len(tokens) for tokens, _ in texts()}) > 3
    assert len(texts()) > TOGETHER["cpu"]


@pytest.mark.parametrize("shape", [CHAIN6, TreeLimits(3, 3, 2), SMALL, LARGE], ids=str)
@pytest.mark.parametrize("kind", ["random", "trained"])
def test_each_text_has_the_rate_of_the_engine(
    kind: str, shape: TreeLimits, trained_head: Eagle3Head
) -> None:
    head = trained_head if kind == "trained" else random_head()
    found = tokens_per_pass(head, teacher(), texts(), shape)
    assert found[SOME] == pytest.approx(rates(head, shape))


def test_the_rates_say_something(trained_head: Eagle3Head) -> None:
    knows_little = np.mean(tokens_per_pass(random_head(), teacher(), texts(), SMALL))
    knows_more = np.mean(tokens_per_pass(trained_head, teacher(), texts(), SMALL))
    assert 1.05 < knows_little < knows_more
    assert knows_more < np.mean(tokens_per_pass(trained_head, teacher(), texts(), LARGE))


def test_nothing_is_drafted_before_the_head_has_read_a_token() -> None:
    everything = TreeLimits(
        61, 1, 61
    )  # every word is drafted, so that a pass gives two tokens wherever the head speaks
    head = (
        replace(COURSE, vocabulary=61)
        .build(teacher(torch.float32), corpus().counts(61))
        .double()
        .eval()
    )
    both = texts() + [
        (tokens[:-1], start) for tokens, start in texts() if len(tokens) > start + 1
    ]  # odd and even
    for (tokens, start), found in zip(
        both, tokens_per_pass(head, teacher(), both, everything), strict=True
    ):
        said = len(tokens) - start
        silent = int(start == 1)
        assert found == pytest.approx(said / (silent + np.ceil((said - silent) / 2)))


def test_order_and_company_do_not_matter(trained_head: Eagle3Head) -> None:
    found = tokens_per_pass(trained_head, teacher(), texts(), SMALL)
    assert tokens_per_pass(trained_head, teacher(), texts()[::-1], SMALL) == found[::-1]
    assert [tokens_per_pass(trained_head, teacher(), [text], SMALL)[0] for text in texts()] == found
