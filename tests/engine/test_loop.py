"""The round loop: what it asks for, where it stops, what it frees, and that a draft model keeps step."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sapwood.backends.toy import ToyBackend, ToySession
from sapwood.controllers.fixed import Fixed
from sapwood.core.part import Part
from sapwood.core.protocols import (
    Drafter,
    EngineContext,
    PrefillChunk,
    RequestContext,
    TargetOutput,
    TreeInput,
)
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.core.types import NO_NODES, Budget, Draw, Outcome, StageClock, StageTimes, Verdict
from sapwood.drafters.compose.draft_model import CATCH_UP, DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.verifiers.match import Match
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs

PROMPT = [0, 1, 2, 1]
LONG = Sampling(max_tokens=10_000)


@dataclass
class Watched(ToyBackend):
    """A toy that remembers its sessions and the rows of each pass."""

    sessions: list[ToySession] = field(default_factory=list, compare=False)
    rows: list[int] = field(default_factory=list, compare=False)

    def open(self, tokens: Sequence[int]) -> ToySession:
        self.sessions.append(super().open(tokens))
        return self.sessions[-1]

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        for item in work:
            session, tree = item.session, item.tree
            self.rows.append(len(tree) - item.since)
            assert session.length + tree.height + 1 <= self.context, "a pass beyond the context"
        return super().score(work, chunks)


@dataclass
class Bursts(Part):
    """So many plain rounds, then one that speculates, and so on."""

    plain: int = 3
    nodes: int = 40
    depth: int = 3
    width: int = 2

    def reset(self, request: RequestContext) -> None:
        self.round_ = 0

    def budget(self) -> Budget:
        resting = self.round_ % (self.plain + 1) != self.plain
        return NO_NODES if resting else Budget(self.nodes, self.depth, self.width)

    def observe(self, outcome: Outcome) -> None:
        self.round_ += 1


def engine(
    drafter: Any = None,
    policy: Any = None,
    verifier: Any = None,
    controller: Any = None,
    **options: Any,
) -> Engine:
    """An engine whose draft model is the target itself, unless told otherwise."""
    target = options.pop("target", None) or Watched(context=128)
    recipe = Recipe(
        drafter or DraftModel(model=Watched(target.salt, context=target.context)),
        policy or Chain(),
        verifier or Match(),
        controller or Fixed(nodes=5, depth=5, width=1),
    )
    return Engine(target, recipe, **options)


def rounds(made: Engine, sampling: Sampling = LONG, most: int = 12, seed: int = 3) -> list[Outcome]:
    return list(itertools.islice(made.rounds(PROMPT, sampling, KeyedRng(seed)), most))


# ------------------------------------------------------------------------------ what is asked for
def test_plain_decoding_is_one_row_per_pass() -> None:
    made = engine(controller=Fixed(nodes=0))
    found = rounds(made)
    assert isinstance(made.target, Watched)
    assert made.target.rows == [1] * len(found)
    assert [len(outcome.tokens) for outcome in found] == [1] * len(found)
    assert made.recipe.drafter.backend.rows == []  # type: ignore[attr-defined]
    assert [outcome.context for outcome in found] == list(
        range(len(PROMPT) - 1, len(PROMPT) - 1 + len(found))
    )


def test_a_round_is_one_pass_of_the_target() -> None:
    made = engine(policy=Static(shape=[2, 2]), controller=Fixed(nodes=6, depth=2, width=2))
    found = rounds(made)
    assert isinstance(made.target, Watched)
    assert made.target.rows == [7] * len(found)


def test_outcomes_follow_each_other() -> None:
    context = len(PROMPT) - 1
    root = PROMPT[-1]
    for outcome in rounds(
        engine(
            drafter=DraftModel(model=ToyBackend("draft")), policy=Best(), controller=Fixed(6, 3, 2)
        )
    ):
        assert outcome.context == context
        assert outcome.tree.tokens[0] == root
        context = context + len(outcome.tokens)
        root = outcome.tokens[-1]


@pytest.mark.parametrize("max_tokens", [1, 2, 5, 6, 7, 13])
def test_max_tokens_is_met_exactly_inside_a_path(max_tokens: int) -> None:
    emitted = 0
    for outcome in engine().rounds(PROMPT, Sampling(max_tokens=max_tokens), KeyedRng(0)):
        emitted += len(outcome.tokens)
        assert emitted <= max_tokens
        if emitted == max_tokens:
            return


def test_of_a_verdict_no_more_is_taken_than_is_wanted() -> None:
    tree = Tree(5)
    path = [ROOT]
    for token in (6, 7, 8):
        path.append(tree.add(path[-1], token, 1.0))
    verdict = Verdict(tuple(path), 9)
    assert [verdict.within(tokens, tree) for tokens in (4, 5)] == [verdict, verdict]
    assert [verdict.within(tokens, tree) for tokens in (3, 1)] == [
        Verdict((0, 1, 2), 8),
        Verdict((0,), 6),
    ]


@pytest.mark.parametrize("context", [5, 6, 7, 12, 23])
@pytest.mark.parametrize("nodes", [0, 5])
def test_the_context_is_filled_and_never_passed(context: int, nodes: int) -> None:
    made = engine(target=Watched(context=context), controller=Fixed(nodes=nodes, depth=5, width=1))
    emitted = sum(len(outcome.tokens) for outcome in made.rounds(PROMPT, LONG, KeyedRng(0)))
    assert len(PROMPT) + emitted == context


def test_a_full_context_yields_nothing() -> None:
    assert rounds(engine(target=Watched(context=len(PROMPT)))) == []


def test_backends_cap_the_tree() -> None:
    class Narrow(Watched):
        @property
        def info(self) -> Any:
            return super().info.__class__(
                name="toy", model="narrow", vocab=3, context=128, max_nodes=4
            )

    made = engine(target=Narrow(context=128))
    assert {len(outcome.tree) for outcome in rounds(made)} == {4}


def test_a_scheduler_may_ask_for_less() -> None:
    made = engine()
    decoding = RequestDecoder(made, PROMPT, LONG, KeyedRng(0))
    for most in (0, 2, 99):
        work = decoding.draft(most)
        assert len(work.tree) - 1 == min(most, 5)
        [scores] = made.target.score([work])
        decoding.finish_round(scores)
    decoding.close()


def test_interleaved_requests_do_not_disturb_each_other() -> None:
    made = engine(
        drafter=Merge(drafters=[Ngram(), DraftModel(model=ToyBackend("draft"))]),
        policy=Static(shape=[2, 1]),
    )
    alone = [
        [token for outcome in rounds(made, seed=seed) for token in outcome.tokens]
        for seed in (1, 1)
    ]
    assert alone[0] == alone[1]
    pair = [made.rounds(PROMPT, LONG, KeyedRng(1)), made.rounds([2, 2, 0], LONG, KeyedRng(1))]
    texts: list[list[int]] = [[], []]
    for _ in range(12):
        for text, running in zip(texts, pair, strict=True):
            text += next(running).tokens
    assert texts[0] == alone[0]


# --------------------------------------------------------------------------------------- the clock
def test_every_moment_of_a_round_belongs_to_one_stage() -> None:
    ticks = itertools.count()
    found = rounds(engine(now=lambda: float(next(ticks))))  # each look at the clock is one second
    # the prompt is read in the first round; what a round learns is booked with the next
    assert found[0].times == StageTimes(draft=2, verify=1, other=0)
    assert {outcome.times for outcome in found[1:]} == {StageTimes(draft=2, verify=1, other=1)}


def test_the_callers_own_time_is_not_booked() -> None:
    time = [0.0]
    running = engine(now=lambda: time[0]).rounds(PROMPT, LONG, KeyedRng(0))
    next(running)
    time[0] += 5.0
    assert next(running).times.total == 0.0


def test_a_clock_books_every_moment_once() -> None:
    time = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    clock = StageClock(lambda: next(time))
    for stage in ("other", "draft", "draft", "verify"):
        clock.lap(stage)
    assert clock.split().total == 15.0
    assert clock.split().total == 0.0


def test_parts_are_given_the_engines_clock() -> None:
    clocks: list[Any] = []

    class Clocked(Chain):
        def bind(self, setting: EngineContext) -> None:
            clocks.append(setting.now)

    def clock() -> float:
        return 0.0

    engine(policy=Clocked(), now=clock)
    assert clocks == [clock]


# ------------------------------------------------------------------------------------- closing
def sessions(made: Engine) -> list[ToySession]:
    assert isinstance(made.target, Watched)
    return made.target.sessions + made.recipe.drafter.backend.sessions  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("most", [1, 4])
def test_sessions_are_closed_when_the_caller_leaves_early(most: int) -> None:
    made = engine()
    running = made.rounds(PROMPT, LONG, KeyedRng(0))
    for _ in range(most):
        next(running)
    assert not any(session.closed for session in sessions(made))
    running.close()
    assert [session.closed for session in sessions(made)] == [True, True]


def test_sessions_are_closed_at_the_end_and_after_an_error() -> None:
    made = engine(target=Watched(context=12))
    assert list(made.rounds(PROMPT, LONG, KeyedRng(0)))
    assert [session.closed for session in sessions(made)] == [True, True]

    class Failing(Match):
        def verify(self, *arguments: Any) -> Any:
            raise RuntimeError("no")

    made = engine(verifier=Failing())
    with pytest.raises(RuntimeError):
        rounds(made)
    assert [session.closed for session in sessions(made)] == [True, True]


# ------------------------------------------------------------------- the draft model keeps in step
CONTROLLERS = [
    Fixed(40, 3, 2),
    Bursts(plain=1),
    Bursts(plain=4),
    Bursts(plain=CATCH_UP + 9),
    Bursts(plain=2 * CATCH_UP + 1),
]
SAMPLED = Sampling(temperature=1.0, max_tokens=10_000)


def to_full_depth(found: list[Outcome], depth: int) -> bool:
    """Every round that speculated was accepted to its last level."""
    speculating = [outcome for outcome in found if len(outcome.tree) > 1]
    assert speculating
    return all(outcome.verdict.accepted == outcome.tree.height == depth for outcome in speculating)


@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
@pytest.mark.parametrize("policy", [Chain(), Static(shape=[2, 1, 2]), Best()], ids=str)
def test_a_draft_equal_to_the_target_is_always_right(policy: Part, controller: Part) -> None:
    made = engine(policy=policy, controller=controller, target=Watched("same", context=512))
    # the very best nodes may leave the deepest path out; the other policies keep whole levels
    found = rounds(made, most=150)
    if isinstance(policy, Best):
        assert all(outcome.verdict.accepted >= 1 for outcome in found if len(outcome.tree) > 1)
    else:
        assert to_full_depth(found, depth=3)


@pytest.mark.parametrize("controller", CONTROLLERS, ids=str)
def test_foreign_nodes_of_a_merged_tree_do_not_disturb_it(controller: Part) -> None:
    target = Watched("same", context=512)
    pairs: list[list[Drafter]] = [
        [Ngram(), DraftModel(model=ToyBackend("same"))],
        [DraftModel(model=ToyBackend("draft")), DraftModel(model=ToyBackend("same"))],
    ]
    for drafters in pairs:
        made = engine(
            drafter=Merge(drafters=drafters),
            policy=Static(shape=[2, 1, 1]),
            controller=controller,
            target=target,
        )
        assert to_full_depth(rounds(made, most=150), depth=3)


@pytest.mark.parametrize(("draws", "verifier"), [(Draw.IID, Mss()), (Draw.SWOR, Rrs())], ids=str)
@pytest.mark.parametrize("controller", CONTROLLERS[:4], ids=str)
def test_draws_from_the_targets_own_law_are_never_refused(
    draws: Draw, verifier: Part, controller: Part
) -> None:
    model = DraftModel(model=ToyBackend("same"), draws=draws)
    made = engine(
        model, Static(shape=[2, 2, 1]), verifier, controller, target=Watched("same", context=512)
    )
    found = rounds(made, SAMPLED, most=100)
    assert to_full_depth(found, depth=3)  # q = p: the first draw is accepted with certainty


@pytest.mark.parametrize("controller", CONTROLLERS[:3], ids=str)
def test_the_draft_session_holds_the_committed_text_and_no_more(controller: Part) -> None:
    made = engine(
        DraftModel(model=Watched("draft", context=256)), Static(shape=[2, 1]), controller=controller
    )
    text = list(PROMPT)
    running = made.rounds(PROMPT, SAMPLED, KeyedRng(2))
    for _ in range(20):
        text += next(running).tokens
        draft = made.recipe.drafter.backend.sessions[-1]  # type: ignore[attr-defined]
        assert draft.tokens == text[: len(draft.tokens)]
        assert len(draft.tokens) < len(text)
    assert len(draft.tokens) > len(text) - 10


def test_models_are_loaded_by_name_once() -> None:
    asked: list[str] = []

    def load(name: str) -> ToyBackend:
        asked.append(name)
        return ToyBackend("draft")

    made = engine(DraftModel(model="small"), load=load)
    rounds(made)
    rounds(made)
    assert asked == ["small"]
    with pytest.raises(SapwoodError, match="hand the drafter a backend"):
        engine(DraftModel(model="small"))
