"""Learning while serving: the same text and law, better guesses, a bound on time, and a way back to nothing."""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.controllers.fixed import Fixed
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.auto_head import AutoHead
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.heads.online import (
    MARGIN,
    RECENT,
    HeadGuess,
    LogitCorrection,
    Online,
    TimeAllowance,
)
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe, build
from sapwood.recipes import resolve
from sapwood.spec_parser import read
from sapwood.testing import law_error
from sapwood.testing.contracts import check_copies
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from sapwood.verifiers.speculative import Speculative
from tests.helpers import tiny_models
from tests.helpers.covering import pairwise
from tests.helpers.eagle_heads import make_head
from tests.helpers.engine_rounds import make_text, tokens_of
from tests.helpers.head_checks import few_tokens

SEVEN = Fixed(nodes=7, depth=4, width=3)
AMPLE = 60.0  # seconds: steps alone decide


def make_engine(drafter: Any, policy: Any = None, controller: Any = SEVEN) -> Engine:
    return Engine(
        tiny_models.backend("llama"), Recipe(drafter, policy or Beam(beam=3), Match(), controller)
    )


def make_online(**options: Any) -> Online:
    return Online(
        **{"drafter": Eagle3(head=make_head(draft_vocab=61)), "seconds": AMPLE, **options}
    )


def correction_of(engine: Engine) -> LogitCorrection:
    drafter: Any = engine.recipe.drafter
    found: LogitCorrection = drafter.correction
    return found


def decode(
    engine: Engine, prompt: list[int], count: int = 40, sampling: Sampling | None = None
) -> list[Outcome]:
    """Rounds until so many tokens are out."""
    found: list[Outcome] = []
    for outcome in engine.rounds(prompt, sampling or Sampling(max_tokens=64), KeyedRng(3)):
        found.append(outcome)
        if len(tokens_of(found)) >= count:
            break
    return found


def trees(rounds: list[Outcome]) -> list[tuple[list[int], list[float]]]:
    """What was proposed, and with what probability."""
    return [(outcome.grown.tokens.tolist(), outcome.grown.probs.tolist()) for outcome in rounds]


@pytest.fixture
def always_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts follow the correction, good or bad."""
    monkeypatch.setattr(LogitCorrection, "trusted", property(lambda _: True))


# ----------------------------------------------------------------------------- never a wrong output
SAMPLINGS = {
    "greedy": Sampling(max_tokens=64),
    "penalised": Sampling(max_tokens=64, repetition_penalty=1.3),
    "sampled": Sampling(max_tokens=64, temperature=0.8, top_p=0.9),
}


@pytest.mark.usefixtures("always_trusted")
@pytest.mark.parametrize(
    ("sampling", "policy", "merged"),
    pairwise(SAMPLINGS, [Chain(), Beam(beam=3), Best()], [False, True]),
    ids=str,
)
def test_the_text_is_plain_decodings(merged: bool, policy: Any, sampling: str) -> None:
    online = make_online(rate=20.0, memory=4)  # overconfident and forgetful
    engine = make_engine(Merge(drafters=[Suffix(), online]) if merged else online, policy)
    plain = make_engine(Suffix(), Chain(), Fixed(nodes=0))
    for seed in range(2):
        prompt = make_text(6, seed)
        wanted = tokens_of(decode(plain, prompt, 24, SAMPLINGS[sampling]))
        assert tokens_of(decode(engine, prompt, 24, SAMPLINGS[sampling]))[:24] == wanted[:24]
    drafter: Any = engine.recipe.drafter
    assert (drafter.drafters[1] if merged else drafter).correction.learned > 0


@pytest.mark.usefixtures("always_trusted")
@pytest.mark.parametrize(
    ("draws", "policy", "verifier", "draft_vocab"),
    [
        (Draw.IID, Chain(), Speculative(), 3),
        (Draw.IID, Chain(), Speculative(), 2),
        (Draw.IID, Static(shape=[2]), Mss(), 2),
        (Draw.SWOR, Static(shape=[2]), Rrs(), 2),
        (Draw.MIXED, Static(shape=[2]), Mixed(), 3),
        (Draw.TOPK, Best(), Match(), 3),
    ],
    ids=str,
)
def test_the_law_is_the_targets_while_it_learns(
    draws: Draw, policy: Any, verifier: Any, draft_vocab: int
) -> None:
    target = few_tokens(3)
    eagle = Eagle3(head=make_head(vocab=3, draft_vocab=draft_vocab), draws=draws)
    learned = []

    @dataclasses.dataclass
    class Noted(Online):
        def close(self) -> None:
            learned.append(self.correction.learned)
            super().close()

    recipe = Recipe(
        Noted(drafter=eagle, seconds=AMPLE), policy, verifier, Fixed(nodes=2, depth=1, width=2)
    )
    sampling = Sampling(temperature=1.3, max_tokens=4)
    assert law_error(recipe, target, sampling, rounds=2, horizon=3) <= 1e-12
    assert max(learned) > 0


# ---------------------------------------------------------------------------------------- it learns
def test_a_bad_head_guesses_better_after_some_requests() -> None:
    engine = make_engine(make_online())
    alone = make_engine(Eagle3(head=make_head(draft_vocab=61)))
    prompts = [make_text(6, seed) for seed in (0, 1)]
    counts: dict[str, list[int]] = {"alone": [], "first": [], "last": []}
    for turn in range(4):
        for prompt in prompts:
            rounds = len(decode(engine, prompt))
            counts["first"] += [rounds] * (turn == 0)
            counts["last"] += [rounds] * (turn == 3)
    counts["alone"] = [len(decode(alone, prompt)) for prompt in prompts]
    assert sum(counts["last"]) < 0.7 * sum(counts["alone"])
    assert sum(counts["last"]) < sum(counts["first"])
    assert correction_of(engine).record > 0


def test_an_empty_correction_proposes_exactly_what_the_head_does() -> None:
    eagle = make_engine(Eagle3(head=make_head()))
    engine = make_engine(make_online(drafter=Eagle3(head=make_head())))
    prompt = make_text(6, 1)
    first = decode(engine, prompt, 1)
    assert trees(first) == trees(decode(eagle, prompt, 1))
    correction_of(engine).forget()
    assert trees(decode(engine, prompt, 1)) == trees(first)


def test_drafts_follow_the_correction_only_while_it_is_the_better_of_the_two() -> None:
    engine = learned_engine()
    prompt = make_text(6, 0)
    alone = trees(decode(make_engine(Eagle3(head=make_head(draft_vocab=61))), prompt, 1))
    correction = correction_of(engine)
    for record, same in ((-0.01, True), (0.0, True), (0.01, False)):
        correction.record = record
        assert (trees(decode(engine, prompt, 1)) == alone) is same


def test_the_head_itself_does_not_change() -> None:
    head = make_head(draft_vocab=61)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    engine = make_engine(make_online(drafter=Eagle3(head=head)))
    decode(engine, make_text(6, 0))
    assert correction_of(engine).learned > 0
    assert all(torch.equal(before[name], value) for name, value in head.state_dict().items())


def test_a_step_lowers_the_loss_at_its_state_and_leaves_far_ones_alone() -> None:
    torch.manual_seed(0)
    correction = LogitCorrection(4, 1.0, 32, torch.zeros(1))
    state = torch.randn(32)
    logits = torch.randn(40)
    full_probs = torch.randn(40).softmax(-1)

    def loss(states: torch.Tensor) -> float:
        return -float(
            (full_probs * correction.apply(states[None], logits[None])[0].log_softmax(-1)).sum()
        )

    before = loss(state)
    correction.learn(HeadGuess(state, logits, logits, 0, 0), full_probs)
    assert loss(3.0 * state) < before  # the length of a state says nothing
    assert loss(-state) == pytest.approx(before, abs=1e-6)
    slope = full_probs - logits.softmax(-1)
    step = correction.apply(state[None], logits[None])[0] - logits
    largest = slope.abs().topk(16).indices
    assert step[largest].numpy() == pytest.approx(slope[largest].numpy(), abs=1e-6)
    assert int((step != 0).sum()) == 16


def test_the_oldest_guess_is_forgotten_first() -> None:
    correction = LogitCorrection(2, 1.0, 4, torch.zeros(1))
    logits = torch.zeros(20)
    for axis in range(3):
        full_probs = torch.zeros(20)
        full_probs[axis] = 1.0
        correction.learn(HeadGuess(torch.eye(4)[axis], logits, logits, 0, 0), full_probs)
    best = correction.apply(torch.eye(4)[:3], logits.expand(3, -1))
    assert best[:, :3].diagonal().tolist() == pytest.approx([0.0, 0.95, 0.95], abs=1e-6)


def test_only_wrong_first_choices_are_learned_from() -> None:
    engine = make_engine(make_online(), Chain(), Fixed(nodes=4, depth=4, width=1))
    learned = 0
    for outcome in decode(engine, make_text(6, 0)):
        asked = (
            outcome.verdict.path[-1] in outcome.grown.states
        )  # a chain is right up to its last node
        learned += asked
    assert correction_of(engine).learned == learned > 0


def test_the_correction_stays_the_same_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Online._correct

    def noted(self: Online, *args: Any) -> torch.Tensor:
        seen.append(self.correction.learned)
        return real(self, *args)

    monkeypatch.setattr(Online, "_correct", noted)
    engine = make_engine(make_online())
    per_round = []
    for _ in engine.rounds(make_text(6, 0), Sampling(max_tokens=30), KeyedRng(0)):
        per_round.append(set(seen))
        seen.clear()
        if len(per_round) == 6:
            break
    assert all(len(counts) == 1 for counts in per_round)
    assert len(set().union(*per_round)) > 1


# --------------------------------------------------------------------------- shared, and not shared
def test_requests_of_an_engine_share_and_engines_do_not() -> None:
    online = make_online()
    one = make_engine(online)
    other = make_engine(online)
    decode(one, make_text(6, 0))
    learned = correction_of(one).learned
    assert learned > 0
    assert correction_of(other).learned == 0
    decode(one, make_text(6, 1))
    assert correction_of(one).learned > learned
    assert not hasattr(online, "correction")


def test_steps_alone_make_trees_repeat() -> None:
    runs = []
    for _ in range(2):
        engine = make_engine(make_online(steps=1))
        runs.append([trees(decode(engine, make_text(6, seed))) for seed in range(2)])
    assert runs[0] == runs[1]


# ------------------------------------------------------------------------------------ bound in time
class Ticks:
    """A clock that says how long each step takes."""

    def __init__(self, *durations: float) -> None:
        self.time = 0.0
        self.durations = iter(durations)

    def now(self) -> float:
        return self.time

    def step(self) -> None:
        self.time += next(self.durations)


def test_a_step_begins_only_where_one_like_the_last_fits() -> None:
    ticks = Ticks(*[2.0] * 9)
    allowance = TimeAllowance(5.0, ticks.now)
    for total in (4.0, 8.0):  # two steps a round; a third would end at 6
        allowance.spend([ticks.step] * 4)
        assert ticks.time == total


def test_an_overrun_is_paid_off_by_resting() -> None:
    ticks = Ticks(*[17.0] * 99)
    allowance = TimeAllowance(5.0, ticks.now)
    times = []
    for _ in range(9):
        allowance.spend([ticks.step] * 3)
        times.append(ticks.time)
    assert times == [17.0] * 4 + [34.0] * 4 + [51.0]  # 17 seconds are the allowance of four rounds


def test_a_slow_machine_learns_less_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = make_text(6, 0)
    free = make_engine(make_online())
    wanted = tokens_of(decode(free, prompt))
    slow = itertools.count(0.0, 1.0)  # every look at the clock takes a second
    monkeypatch.setattr(Online, "now", staticmethod(lambda: next(slow)))
    engine = make_engine(make_online(seconds=0.1))
    rounds = decode(engine, prompt)
    assert tokens_of(rounds)[:40] == wanted[:40]
    assert 1 <= correction_of(engine).learned <= math.ceil(len(rounds) / 10)


def test_most_steps_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []
    real = TimeAllowance.spend

    def noted(self: TimeAllowance, steps: Any) -> None:
        batches.append(len(steps))
        real(self, steps)

    engine = make_engine(make_online(steps=1), Best(), Fixed(nodes=24, depth=4, width=12))
    monkeypatch.setattr(TimeAllowance, "spend", noted)
    decode(engine, make_text(6, 0))
    assert max(batches) == 1


# --------------------------------------------------------------------------------------------
# accidents
def learned_engine() -> Engine:
    engine = make_engine(make_online())
    decode(engine, make_text(6, 0))
    assert correction_of(engine).learned > 0
    return engine


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_correction_is_not_used_and_forgotten(broken: float) -> None:
    engine = learned_engine()
    prompt = make_text(6, 1)
    wanted = trees(decode(make_engine(Eagle3(head=make_head(draft_vocab=61))), prompt, 1))
    correction = correction_of(engine)
    correction.steps.fill_(broken)
    correction.states.fill_(1.0)
    correction.record = 1.0
    assert trees(decode(engine, prompt, 1)) == wanted  # the head's own
    decode(engine, prompt)
    assert bool(correction.steps.isfinite().all())


@pytest.mark.parametrize("what", ["state", "law"])
def test_a_guess_that_is_no_number_resets(what: str) -> None:
    correction = LogitCorrection(4, 1.0, 8, torch.zeros(1))
    logits = torch.zeros(20)
    state = torch.ones(8)
    full_probs = torch.full((20,), 0.05)
    correction.learn(HeadGuess(state, logits, logits, 0, 0), full_probs)
    assert correction.learned == 1
    (state if what == "state" else full_probs)[3] = math.nan
    correction.learn(HeadGuess(state, logits, logits, 0, 0), full_probs)
    assert correction.learned == 0
    assert not correction.steps.any()


@pytest.mark.parametrize(
    ("gain", "kept"), [(-2.5 * MARGIN, False), (-0.9 * MARGIN, True), (math.nan, False)]
)
def test_doing_worse_than_the_head_alone_resets(gain: float, kept: bool) -> None:
    correction = LogitCorrection(4, 1.0, 8, torch.zeros(1))
    logits = torch.zeros(20)
    correction.learn(HeadGuess(torch.ones(8), logits, logits, 0, 0), torch.eye(20)[1])
    correction.judge([gain] * RECENT)
    assert bool(correction.steps.any()) == kept
    assert correction.learned == kept


@pytest.mark.parametrize("trusted", [False, True])
def test_a_harmful_correction_is_dropped_while_serving(
    trusted: bool, request: pytest.FixtureRequest
) -> None:
    if trusted:
        request.getfixturevalue("always_trusted")
    engine = make_engine(make_online(rate=1e-9))  # learns next to nothing of its own
    correction = correction_of(engine)
    decode(engine, make_text(6, 0))
    correction.steps[:] = torch.from_numpy(
        np.random.default_rng(0).normal(0, 20, correction.steps.shape)
    )
    correction.learned = len(correction.steps)
    for seed in range(4):
        decode(engine, make_text(6, seed))
    assert float(correction.steps.abs().max()) < 1e-6


# ---------------------------------------------------------------------------------------------
# spelling
def test_the_spelling_reads_back() -> None:
    spelled = "online(drafter=eagle3(window=64), rate=2.0, memory=16, steps=2, seconds=0.01)"
    made = build("drafter", read(spelled))
    assert str(made) == spelled
    check_copies(made)
    assert resolve("online") == resolve(str(resolve("online")))
    assert isinstance(resolve("online").drafter, Online)


def misfits() -> Iterator[tuple[Any, str]]:
    yield partial(Online, drafter=AutoHead()), "cannot teach .*; give it eagle3 or eagle"
    yield partial(Online, rate=0.0), "rate=0.0 of online must be above 0"
    yield partial(Online, seconds=-1.0), "seconds=-1.0 of online must be above 0"
    yield partial(Online, memory=0), "memory=0 must be at least 1"
    yield partial(Online, steps=0), "steps=0 must be at least 1"


@pytest.mark.parametrize(
    ("make", "words"), misfits(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_cannot_work_is_refused(make: Any, words: str) -> None:
    with pytest.raises(SapwoodError, match=words.replace("(", r"\(")):
        make()


def test_closing_frees_what_was_said() -> None:
    engine = make_engine(make_online())
    running = engine.rounds(make_text(6, 0), Sampling(), KeyedRng(0))
    next(running)
    running.close()
    assert not hasattr(engine.recipe.drafter, "said_")
