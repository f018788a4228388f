"""Drafting beside the target's pass: the same text, counted waste, and a rest where it does not pay."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.overlap import HOLD, LONGEST, TRIAL, DraftWay, OverlapGauge
from sapwood.core.protocols import Capabilities, Frontier, Policy, TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng, Rng
from sapwood.core.sampling import Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import Draw, Outcome, Verdict
from sapwood.drafters.compose import draft_model as draft_model_module
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine import overlap as overlap_module
from sapwood.engine.generate import stream
from sapwood.engine.loop import Engine
from sapwood.engine.overlap import OverlapDecoder, can_overlap, subtree
from sapwood.errors import SapwoodError
from sapwood.policies.amusd import Amusd
from sapwood.policies.chain import Chain
from sapwood.policies.pearl import Pearl
from sapwood.policies.specbranch import SpecBranch
from sapwood.recipe import Recipe
from sapwood.testing import law_error
from sapwood.verifiers.match import Match
from sapwood.verifiers.mss import Mss
from tests.helpers.covering import pairwise

POLICIES: list[Policy] = [
    Pearl(),
    Pearl(first=2),
    Amusd(),
    SpecBranch(confidence=0.5, most=3, first=1),
    SpecBranch(confidence=1.0, most=2),
]
each_policy = pytest.mark.parametrize("policy", POLICIES, ids=str)
PROMPT = [0, 1, 2]


@pytest.fixture(params=["beside", "measured"])
def gauged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with overlap in every round, once with all ways in turn."""
    if request.param == "beside":
        monkeypatch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def recipe(policy: Policy, draft: Any = "draft", nodes: int = 3) -> Recipe:
    model = ToyBackend(draft) if isinstance(draft, str) else draft
    return Recipe(DraftModel(model=model), policy, Match(), Fixed(nodes, nodes, 4))


def outcomes(made: Recipe, sampling: Sampling, seed: int = 0, target: str = "a") -> list[Outcome]:
    engine = Engine(ToyBackend(target, context=256), made)
    return list(engine.rounds(PROMPT, sampling, KeyedRng(seed)))


def text_of(made: Recipe, sampling: Sampling, seed: int = 0) -> list[int]:
    rounds = outcomes(made, sampling, seed)
    return [token for outcome in rounds for token in outcome.tokens][: sampling.max_tokens]


SAMPLINGS = [
    Sampling(max_tokens=60),
    Sampling(temperature=0.9, max_tokens=60),
    Sampling(temperature=1.0, repetition_penalty=1.4, max_tokens=60),
]


@pytest.mark.usefixtures("gauged")
@pytest.mark.parametrize(
    ("policy", "draft", "sampling"), pairwise(POLICIES, ["a", "draft"], SAMPLINGS)
)
def test_the_text_is_plain_decodings(policy: Policy, draft: str, sampling: Sampling) -> None:
    plain = Recipe(Ngram(), Chain(), Match(), Fixed(nodes=0))
    for seed in range(2):
        assert text_of(recipe(policy, draft), sampling, seed) == text_of(plain, sampling, seed)


class PassEnds:
    """A pass that is over before the drafter has looked, or only after it is done."""

    over = False

    def set(self) -> None:
        """The pass is over."""

    def is_set(self) -> bool:
        return self.over


@pytest.fixture
def slow_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter always drafts to its depth."""
    monkeypatch.setattr(overlap_module, "Event", PassEnds)


@pytest.mark.usefixtures("gauged", "slow_pass")
@pytest.mark.parametrize(
    ("policy", "over", "gauged"),
    pairwise(POLICIES, [False, True], ["beside", "measured"]),
    ids=str,
    indirect=["gauged"],
)
def test_the_law_is_exact_over_several_rounds(
    policy: Policy, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PassEnds, "over", over)
    made = recipe(policy, nodes=1)
    assert law_error(made, ToyBackend("a"), rounds=4, horizon=3) <= 1e-12


class RowCounter(ToyBackend):
    """A toy that counts the rows that it scores."""

    rows = 0

    def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> list[TargetOutput]:
        self.rows += sum(len(job.tree) - job.since for job in work)
        return super().score(work, chunks)


@pytest.mark.usefixtures("slow_pass")
@pytest.mark.parametrize("draft", ["a", "draft"])
def test_what_was_drafted_ahead_is_not_scored_again(
    draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays(monkeypatch)
    counter = RowCounter(draft)
    sampling = Sampling(max_tokens=60)
    rounds = outcomes(recipe(Pearl(), counter), sampling)
    text = [token for outcome in rounds for token in outcome.tokens]
    if draft == "a":  # the draft is always right: no row but those of the text and the last draft
        assert all(outcome.verdict.accepted == len(outcome.tree) - 1 for outcome in rounds)
        assert counter.rows <= len(text) + 8
    else:  # a wrong token is scored, and those behind it; the text once
        in_vain = sum(outcome.discarded + len(outcome.tree) for outcome in rounds)
        assert counter.rows <= len(text) + in_vain


@pytest.mark.usefixtures("slow_pass")
@each_policy
def test_a_kept_draft_is_what_a_new_one_would_be(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays(monkeypatch)
    sampling = Sampling(max_tokens=60)

    def drafts() -> list[list[int]]:
        rounds = outcomes(recipe(policy), sampling)
        return [outcome.tree.tokens.tolist() for outcome in rounds]

    kept = drafts()
    monkeypatch.setattr(draft_model_module, "KEPT", 0)
    assert drafts() == kept


def stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OverlapGauge, "add", lambda self, tokens, seconds: None)


def test_a_lookahead_kept_after_a_mismatch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(tree: Tree, outcome: Outcome, sent: set[int]) -> tuple[Tree | None, int]:
        children = tree.children(ROOT)
        return (subtree(tree, children[0]), 0) if children else (None, 0)

    stays(monkeypatch)
    monkeypatch.setattr(overlap_module, "advance", kept)
    plain = Recipe(Ngram(), Chain(), Match(), Fixed(nodes=0))
    sampling = Sampling(temperature=1.0, max_tokens=40)
    assert any(
        text_of(recipe(Pearl()), sampling, seed) != text_of(plain, sampling, seed)
        for seed in range(4)
    )


@each_policy
@pytest.mark.parametrize("draft", ["a", "draft"])
def test_what_is_drafted_is_checked_emitted_kept_or_discarded(
    policy: Policy, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays(monkeypatch)
    left = 0  # nodes of the lookahead at the beginning of a round, besides the root
    for outcome in outcomes(recipe(policy, draft), Sampling(max_tokens=80)):
        tree, grown = outcome.tree, outcome.grown
        if not outcome.asked:  # the text ends: nothing is drafted any more
            assert outcome.discarded == left
            break
        assert len(grown) - 1 >= max(left, len(tree) - 1)
        below = grown_below(grown, outcome.tokens)
        bonus = below is not None and outcome.verdict.accepted == len(tree) - 1
        kept = 0 if below is None else below
        in_vain = len(grown) - len(tree) - kept - int(below is not None and drafted_ahead(outcome))
        assert outcome.discarded == in_vain >= 0
        assert bonus or below is None or not kept or draft == "draft"
        left = 0 if below is None else kept


def grown_below(tree: Tree, tokens: list[int]) -> int | None:
    """Nodes below the end of this text; None where the text leaves the tree."""
    node = ROOT
    for token in tokens:
        found = tree.child(node, token)
        if found is None:
            return None
        node = found
    return sum(node in tree.path(other)[:-1] for other in range(len(tree)))


def drafted_ahead(outcome: Outcome) -> bool:
    """True when the last emitted token was a node that had not been sent."""
    kept = outcome.tree.kept
    end = ROOT
    for token in outcome.tokens:
        end = outcome.grown.child(end, token) or ROOT
    return end not in (() if kept is None else kept.tolist())


@pytest.mark.usefixtures("slow_pass")
def test_a_perfect_draft_is_never_thrown_away_and_the_target_always_has_something_to_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays(monkeypatch)
    rounds = outcomes(recipe(Pearl(), "a"), Sampling(max_tokens=100))
    assert sum(outcome.discarded for outcome in rounds[:15]) == 0
    assert all(outcome.verdict.accepted == len(outcome.tree) - 1 for outcome in rounds[:15])
    assert all(len(outcome.tree) > 1 for outcome in rounds[1:15])


def test_discarded_nodes_are_waste_in_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    stays(monkeypatch)
    engine = Engine(ToyBackend("a"), recipe(Pearl()))
    steps = list(stream(engine, PROMPT, Sampling(max_tokens=60)))
    stats = steps[-1].stats
    assert stats is not None
    assert stats.discarded == sum(step.outcome.discarded for step in steps) > 0
    drafted = stats.drafted + stats.discarded
    assert stats.waste == pytest.approx((drafted - stats.accepted) / drafted)


# ------------------------------------------------------------------------------- when it overlaps
def test_it_overlaps_only_where_nothing_is_shared() -> None:
    sampled, greedy = Sampling(temperature=1.0), Sampling()

    def able(made: Recipe, sampling: Sampling) -> bool:
        return can_overlap(Engine(ToyBackend("a"), made).recipe, sampling)

    assert able(recipe(Pearl()), sampled)
    assert not able(recipe(Chain()), sampled)
    drawn = DraftModel(model=ToyBackend("b"), draws=Draw.IID)
    reads = Recipe(drawn, Pearl(), Mss(), Fixed(3, 3, 1))
    assert not able(reads, sampled)
    assert able(reads, greedy)
    assert not able(recipe(Pearl()), Sampling(prediction=[1, 2]))
    assert not able(Recipe(Ngram(), Pearl(), Match(), Fixed(3, 3, 1)), greedy)


class Failing(DraftModel):
    """Fails after a while."""

    name = "draft-model"
    calls = 0

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        Failing.calls += 1
        if Failing.calls > 5:
            raise SapwoodError("the draft model is gone")
        super().expand(tree, frontier, rng)


def test_an_error_of_the_drafter_reaches_the_caller() -> None:
    made = Recipe(Failing(model=ToyBackend("b")), Pearl(), Match(), Fixed(3, 3, 1))
    with pytest.raises(SapwoodError, match="is gone"):
        list(Engine(ToyBackend("a"), made).rounds(PROMPT, Sampling(max_tokens=60), KeyedRng(0)))


class Broken(ToyBackend):
    """A target whose pass fails after a while."""

    def score(self, work: Sequence[TreeInput], chunks: Any = ()) -> Any:
        if self.passes > 3:
            raise SapwoodError("the target is gone")
        return super().score(work, chunks)


def test_an_error_of_the_target_ends_the_draft_as_well() -> None:
    engine = Engine(Broken("a"), recipe(Pearl()))
    with pytest.raises(SapwoodError, match="target is gone"):
        list(engine.rounds(PROMPT, Sampling(max_tokens=60), KeyedRng(0)))


def test_a_request_may_be_left_in_the_middle() -> None:
    target = ToyBackend("a")
    rounds = Engine(target, recipe(Pearl())).rounds(PROMPT, Sampling(max_tokens=60), KeyedRng(0))
    next(rounds)
    assert target.memory.used > 0
    rounds.close()
    assert target.memory.used == 0


# ------------------------------------------------------------------------------- which way pays
def ways(seconds: dict[DraftWay, float], rounds: int) -> list[DraftWay]:
    """Ways of rounds that emit two tokens each in these seconds."""
    gauge = OverlapGauge()
    found = list[DraftWay]()
    for _ in range(rounds):
        found.append(gauge.way)
        gauge.add(1 if gauge.way is DraftWay.NONE else 2, seconds[gauge.way])
    return found


@pytest.mark.parametrize("best", DraftWay)
def test_the_fastest_way_is_found_and_mostly_used(best: DraftWay) -> None:
    seconds = {way: 2.0 if way is not DraftWay.NONE else 1.0 for way in DraftWay}
    seconds[best] *= 0.5
    found = ways(seconds, 400)
    assert set(found[: 3 * TRIAL]) == set(DraftWay)
    assert found[3 * TRIAL] is best
    assert found.count(best) > 300


def test_every_way_has_a_whole_trial_and_the_best_one_is_held() -> None:
    found = ways(dict.fromkeys(DraftWay, 1.0), 3 * TRIAL + HOLD + 1)
    assert [found[index * TRIAL] for index in range(3)] == list(DraftWay)
    assert all(len(set(found[index * TRIAL : (index + 1) * TRIAL])) == 1 for index in range(3))
    held = found[3 * TRIAL : 3 * TRIAL + HOLD]
    assert len(set(held)) == 1
    assert found[3 * TRIAL + HOLD] is not held[0]


@pytest.mark.parametrize("best", DraftWay)
def test_trials_that_change_nothing_come_ever_less_often(best: DraftWay) -> None:
    seconds = {way: 2.0 if way is not DraftWay.NONE else 1.0 for way in DraftWay}
    seconds[best] *= 0.5
    found = ways(seconds, 3 * TRIAL + 4 * LONGEST)[3 * TRIAL :]
    holds = [len(list(run)) for way, run in itertools.groupby(found) if way is best]
    assert holds[:6] == [HOLD, 2 * HOLD, 4 * HOLD, 8 * HOLD, LONGEST, LONGEST]


def test_another_best_way_is_held_for_as_long_as_the_first() -> None:
    gauge = OverlapGauge()
    found = list[DraftWay]()
    for index in range(3 * TRIAL + 4 * HOLD + 6 * TRIAL):
        quick = DraftWay.BESIDE if index < 3 * TRIAL + HOLD else DraftWay.BEFORE
        found.append(gauge.way)
        gauge.add(2, 1.0 if gauge.way is quick else 3.0)
    assert gauge.hold in (HOLD, 2 * HOLD)
    runs = [(way, len(list(run))) for way, run in itertools.groupby(found)]
    assert (DraftWay.BEFORE, HOLD) in runs


class Recorder:
    """A stream of a device that only notes what is called, in order."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def release(self) -> None:
        self.calls.append("release")

    @contextmanager
    def running(self) -> Iterator[None]:
        self.calls.append("draft")
        yield

    def join(self) -> None:
        self.calls.append("join")


class Streamed(ToyBackend):
    """A toy with such a stream."""

    stream: Any = None

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, draft_stream=lambda: self.stream)

    def score(self, work: Sequence[TreeInput], chunks: Sequence[Any] = ()) -> list[TargetOutput]:
        self.stream.calls.append("pass")
        return super().score(work, chunks)


def test_a_draft_waits_for_what_was_launched_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays(monkeypatch)
    target = Streamed("a", context=256)
    target.stream = Recorder()
    engine = Engine(target, recipe(Pearl()))
    running = engine.rounds([0, 1, 2], Sampling(max_tokens=60), KeyedRng(0))
    for _ in range(4):
        next(running)
    running.close()
    assert target.stream.calls == 4 * ["release", "pass", "draft", "join"]


def test_a_way_that_becomes_better_is_found() -> None:
    gauge = OverlapGauge()
    for index in range(1200):
        quick = DraftWay.BEFORE if index < 300 else DraftWay.BESIDE
        gauge.add(2, 1.0 if gauge.way is quick else 3.0)
    assert gauge.way is DraftWay.BESIDE


def test_an_interrupted_round_does_not_decide() -> None:
    gauge = OverlapGauge()
    for _ in range(5):
        gauge.add(2, 1.0)
    gauge.add(2, 1000.0)
    assert gauge.records[DraftWay.BESIDE].speed == pytest.approx(2.0)


# ------------------------------------------------------------------------------- the policies
def test_branches_begin_at_the_first_doubtful_token() -> None:
    policy = SpecBranch(confidence=0.5, most=4)
    tree = Tree(0)
    sure = tree.add(ROOT, 1, 0.9)
    doubtful = tree.add(sure, 2, 0.3)
    budget = Fixed(4, 4, 4).budget()
    assert policy.sent(tree, budget) == [sure]
    tree.close(ROOT)
    tree.extend(sure, [1, 0], [0.25, 0.2])
    tree.close(sure)
    ends = [end for end, _ in policy.ahead(tree, sure, 9)]
    assert ends == tree.children(sure)[:2]  # floor(4 * 0.7) = 2 branches
    assert doubtful in ends
    assert policy.ahead(tree, sure, 2) == []


def test_a_subtree_keeps_what_was_drafted() -> None:
    tree = Tree(5)
    first, other = tree.extend(ROOT, [1, 2], [0.6, 0.3])
    low = tree.add(other, 3, 0.5)
    tree.add(first, 4, 0.5)
    tree.close(ROOT)
    tree.close(other)
    below = subtree(tree, other)
    assert below.tokens.tolist() == [2, 3]
    assert below.probs[1] == tree.probs[low]
    assert below.expanded.tolist() == [True, False]


@pytest.mark.usefixtures("slow_pass")
def test_amusd_checks_all_that_a_pass_had_time_for_and_never_an_empty_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays(monkeypatch)
    rounds = outcomes(recipe(Amusd(), nodes=12), Sampling(max_tokens=80))
    lengths = [len(outcome.tree) - 1 for outcome in rounds if outcome.asked]
    assert min(lengths) >= 1
    assert max(lengths) > Pearl().first + 4  # no draft length, but the time of a pass
    assert sum(outcome.discarded for outcome in rounds) > 0  # the run-ahead behind a mismatch


def test_the_unfinished_level_of_a_draft_does_not_delay_the_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stays(monkeypatch)
    order = list[str]()
    joined, verified = OverlapDecoder._join_draft, OverlapDecoder.verify

    def join(self: OverlapDecoder) -> None:
        order.append("join")
        joined(self)

    def verify(self: OverlapDecoder, probs: PathProbs) -> Verdict:
        order.append("verify")
        return verified(self, probs)

    monkeypatch.setattr(OverlapDecoder, "_join_draft", join)
    monkeypatch.setattr(OverlapDecoder, "verify", verify)
    outcomes(recipe(Pearl()), Sampling(max_tokens=10))
    assert order[:4] == ["verify", "join", "verify", "join"]
