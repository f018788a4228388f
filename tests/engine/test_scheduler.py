"""The scheduler on the toy: every interleaving says what single requests say, and memory comes back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapwood.backends.toy import ToyBackend
from sapwood.core.part import Part
from sapwood.core.sampling import Sampling
from sapwood.core.types import Outcome
from sapwood.engine.cost_model import CostModel
from sapwood.engine.request import RequestState, RequestTimeout
from sapwood.errors import OutOfMemory, SapwoodError
from tests.helpers.scheduler_harness import Stage, Timed, alone, ended, failure, tokens_of

RECIPES = {
    "plain": "plain",
    "chain": "ngram + chain + match + fixed(nodes=3, depth=3, width=1)",
    "best": "suffix + best(stride=4) + match + goodput(nodes=12, depth=6, width=3)",
    "merged": "merge(drafters=[suffix, ngram]) + best + match + goodput(nodes=20, depth=6)",
}


def prompts(rng: np.random.Generator, count: int, longest: int = 40) -> list[list[int]]:
    """Random texts over three tokens, some of which begin alike."""
    made = [rng.integers(0, 3, int(rng.integers(1, longest))).tolist() for _ in range(count)]
    return [
        made[int(rng.integers(count))][:17] + one if rng.random() < 0.3 else one for one in made
    ]


def sampling_of(rng: np.random.Generator) -> Sampling:
    """Greedy or drawn, with or without penalties, of any length."""
    temperature = float(rng.choice([0.0, 0.0, 1.0, 0.7]))
    penalty = float(rng.choice([1.0, 1.0, 1.3]))
    return Sampling(
        temperature=temperature,
        repetition_penalty=penalty,
        max_tokens=int(rng.integers(1, 30)),
        stop_ids=(2,) if rng.random() < 0.2 else (),
        seed=int(rng.integers(100)),
    )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("memory", [None, 160, 4096])
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_any_interleaving_says_what_single_requests_say(
    recipe: str, memory: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    target = Timed("target", vocab=3, context=512)
    if memory is not None:
        target.memory.limit(memory)
    stage = Stage(target, RECIPES[recipe], max_requests=int(rng.integers(1, 9)))
    cancelled = []
    for prompt in prompts(rng, int(rng.integers(2, 9))):
        request = stage.ask(prompt, sampling_of(rng), tenant=str(rng.integers(2)))
        stage.run(int(rng.integers(0, 6)))
        if rng.random() < 0.2:
            request.cancel()
            cancelled.append(request)
    stage.run()
    for request in stage.requests:
        if request not in cancelled:
            assert tokens_of(stage.steps[request]) == alone(
                ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
            )
    assert target.memory.used == 0
    assert stage.pool.idle


DEAR = CostModel([1, 1024], [0], [[1.0, 1024.0]])  # rows of prompts cost as much as others


def test_requests_share_passes_and_prompts_ride_along() -> None:
    target = Timed()
    stage = Stage(target, cost=DEAR)
    stage.ask([0, 1] * 30)
    stage.run(3)
    stage.ask([1, 2] * 50)
    stage.run()
    assert target.shapes[0] == (0, 0, 59)
    assert (1, 1, 64) in target.shapes  # the second text is read beside the first answer, in chunks
    assert (1, 1, 35) in target.shapes
    assert (2, 2, 0) in target.shapes


def test_steps_are_numbered_and_counted() -> None:
    stage = Stage(Timed())
    stage.ask([0, 1, 2])
    stage.run()
    assert [told.number for told in stage.rounds] == list(range(1, len(stage.rounds) + 1))
    assert stage.scheduler.snapshot().rounds == len(stage.rounds)


def test_a_cancelled_request_is_free_before_the_next_round() -> None:
    target = Timed(context=512)
    target.memory.limit(1024)
    stage = Stage(target)
    stay = stage.ask([0] * 40)
    leave = stage.ask([1] * 40)
    stage.run(4)
    used = target.memory.used
    leave.cancel()
    stage.pool.sweep()
    assert target.memory.used < used
    stage.run()
    assert len(tokens_of(stage.steps[stay])) == 12
    assert len(stage.steps[leave]) < 12


# ------------------------------------------------------------------------------- several answers
def test_several_answers_read_their_prompt_once() -> None:
    target = Timed(context=512)
    target.memory.limit(2048)
    stage = Stage(target, RECIPES["best"])
    prompt = [0, 1, 2] * 20
    for seed in range(5):
        stage.ask(prompt, Sampling(temperature=1.0, max_tokens=20, seed=seed))
    stage.run()
    assert sum(read for _, _, read in target.shapes) == len(prompt) - 1
    for request in stage.requests:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), RECIPES["best"], prompt, request.sampling
        )
    assert len({tuple(tokens_of(stage.steps[request])) for request in stage.requests}) > 1
    assert target.memory.used == 0


def test_whoever_reads_for_others_may_leave() -> None:
    target = Timed(context=1024)
    stage = Stage(target, cost=DEAR)
    stage.ask([2] * 9)
    stage.run(2)
    first, second = (stage.ask([0, 1] * 100) for _ in range(2))
    stage.run(2)
    first.cancel()
    stage.run()
    assert tokens_of(stage.steps[second]) == alone(
        ToyBackend("target", 3, 1024), "plain", second.prompt, second.sampling
    )
    assert not [step for step in stage.steps[first] if not isinstance(step, Exception)]


# ----------------------------------------------------------------------------------------- memory
def test_the_youngest_gives_its_memory_up_and_the_oldest_goes_on() -> None:
    target = Timed(context=512)
    target.memory.limit(8 * 16)
    stage = Stage(target)
    for token in range(3):
        stage.ask([token] * 20, Sampling(max_tokens=60))
    done: list[int] = []
    while not stage.pool.idle:
        oldest = min((answer.number for answer in stage.pool.running), default=None)
        stage.run(1)
        done += [
            request.number
            for request in stage.requests
            if ended(stage.steps[request]) and request.number not in done
        ]
        assert oldest is None or oldest in {
            *done,
            *(answer.number for answer in stage.pool.running),
        }
    assert stage.pool.preemptions > 0
    assert done == [0, 1, 2]
    for request in stage.requests:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
        )
    assert target.memory.used == 0


def test_a_request_that_can_never_fit_is_refused() -> None:
    target = Timed(context=512)
    target.memory.limit(64)
    stage = Stage(target)
    request = stage.ask([0] * 64)
    assert isinstance(failure(stage.steps[request]), SapwoodError)
    assert "memory holds 64" in str(failure(stage.steps[request]))
    fits = stage.ask([0] * 60, Sampling(max_tokens=100))
    stage.run()
    assert (
        len(tokens_of(stage.steps[fits])) == 4
    )  # ended where memory ends, as at the end of a context
    assert target.memory.used == 0


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "holds no tokens"),
        ([0, 3], "token 3, but toy-target knows 3"),
        ([0] * 512, "toy-target holds 512"),
    ],
)
def test_a_prompt_that_the_model_cannot_read_is_refused_at_once(
    prompt: list[int], words: str
) -> None:
    stage = Stage(Timed(context=512))
    request = stage.ask(prompt)
    assert stage.pool.idle
    assert words in str(failure(stage.steps[request]))


@pytest.mark.parametrize(
    ("blocks", "state"), [(6, RequestState.RUNNING), (5, RequestState.WAITING)]
)
def test_a_request_is_admitted_where_each_can_have_one_more_block(
    blocks: int, state: RequestState
) -> None:
    target = Timed(context=512)
    target.memory.limit(16 * blocks)
    stage = Stage(target)
    stage.ask([0] * 20)
    stage.run(2)
    assert target.memory.used == 2
    second = stage.ask([1] * 20)  # two blocks, and one more for each of the two
    stage.run(2)
    assert second.state is state


def test_a_prefill_that_is_put_aside_gives_its_memory_back() -> None:
    target = Timed(context=1024)
    target.memory.limit(2048)
    stage = Stage(target)
    request = stage.ask([0, 1, 2] * 200)  # longer than one chunk
    stage.run(1)
    [prefill] = stage.pool.prefills
    assert target.memory.used > 0
    stage.pool.preempt(prefill)
    assert target.memory.used == 0
    stage.run()
    assert tokens_of(stage.steps[request]) == alone(
        ToyBackend("target", 3, 1024), "plain", request.prompt, request.sampling
    )
    assert target.memory.used == 0


def test_memory_for_trees_shrinks_before_requests_lose_theirs() -> None:
    target = Timed(context=512)
    target.memory.limit(16 * 6)
    stage = Stage(
        target, "ngram + static(shape=[2, 2, 2]) + match + fixed(nodes=14, depth=3, width=2)"
    )
    for token in range(2):
        stage.ask([token, token] * 8, Sampling(max_tokens=16))
    stage.run()
    assert stage.pool.preemptions == 0
    for request in stage.requests:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
        )


# ------------------------------------------------------------------------- deadlines and fairness
def test_deadlines_end_requests_wherever_they_are() -> None:
    target = Timed(context=4096)  # each pass takes a second
    stage = Stage(target, max_requests=1)
    slow = stage.ask([0] * 9, Sampling(max_tokens=400), timeout=20)
    queued = stage.ask([1] * 9, timeout=10)
    fine = stage.ask([2] * 9, timeout=500)
    stage.run()
    assert isinstance(failure(stage.steps[slow]), RequestTimeout)
    assert isinstance(failure(stage.steps[queued]), RequestTimeout)
    assert len(stage.steps[slow]) > 15
    assert len(tokens_of(stage.steps[fine])) == 12
    assert target.memory.used == 0


def test_a_deadline_counts_from_the_requests_own_beginning() -> None:
    target = Timed(time=[1000.0])
    stage = Stage(target)
    request = stage.ask([0] * 9, timeout=500)
    stage.run()
    assert len(tokens_of(stage.steps[request])) == 12


def test_tenants_take_turns() -> None:
    stage = Stage(Timed(), max_requests=1)
    for length in range(4):
        stage.ask([0, 1, 2] * (length + 1), tenant="many")
    stage.ask([1, 1], tenant="few")
    stage.run(14)
    assert ended(stage.steps[stage.requests[0]])
    stage.run(14)
    assert ended(
        stage.steps[stage.requests[4]]
    )  # before the texts that the others asked for earlier
    assert not any(ended(stage.steps[request]) for request in stage.requests[1:4])
    stage.run()
    assert all(ended(stage.steps[request]) for request in stage.requests)


# ---------------------------------------------------------------------------------------- failures
class Poison(Part):
    """Fails at a chosen place, for requests whose prompt begins with a two."""

    where = ""

    def reset(self, request: Any) -> None:
        super().reset(request)
        self.bad_ = request.prompt[0] == 2
        self.fail("reset")

    def fail(self, place: str) -> None:
        if self.bad_ and self.where == place:
            raise RuntimeError(f"poisoned at {place}")

    def observe(self, outcome: Outcome) -> None:
        self.fail("observe")
        super().observe(outcome)

    def close(self) -> None:
        self.fail("close")
        super().close()


@pytest.mark.parametrize("where", ["reset", "expand", "prune", "verify", "observe", "close"])
def test_a_failing_part_ends_its_own_request_alone(where: str) -> None:
    from sapwood.controllers.fixed import Fixed
    from sapwood.drafters.lookup.ngram import Ngram
    from sapwood.policies.chain import Chain
    from sapwood.recipe import Recipe
    from sapwood.verifiers.match import Match

    class Drafter(Poison, Ngram):
        def expand(self, *arguments: Any) -> None:
            self.fail("expand")
            Ngram.expand(self, *arguments)

        def reset(self, request: Any) -> None:
            Poison.reset(self, request)

        def observe(self, outcome: Outcome) -> None:
            Poison.observe(self, outcome)

    class Policy(Poison, Chain):
        def prune(self, *arguments: Any) -> Any:
            self.fail("prune")
            return Chain.prune(self, *arguments)

    class Verifier(Poison, Match):
        def verify(self, *arguments: Any) -> Any:
            self.fail("verify")
            return Match.verify(self, *arguments)

    Poison.where = where
    target = Timed(context=512)
    target.memory.limit(4096)
    stage = Stage(target, Recipe(Drafter(), Policy(), Verifier(), Fixed(4, 4, 1)))
    good = [stage.ask([token] * 9) for token in (0, 1)]
    bad = stage.ask([2] * 9)
    good += [stage.ask([token, 1, 2]) for token in (0, 1)]
    stage.run()
    for request in good:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
        )
    if where == "close":
        assert len(tokens_of(stage.steps[bad])) == 12  # its answer was complete before
    else:
        assert "poisoned" in str(failure(stage.steps[bad]))
    assert target.memory.used == 0


class Fragile(Timed):
    """A toy that cannot bear texts that begin with a two."""

    def score(self, work: Any, chunks: Any = ()) -> Any:
        sessions = [item.session for item in (*work, *chunks)]
        if any(session.length > 4 and session.tokens[0] == 2 for session in sessions):
            raise RuntimeError("a two")
        return super().score(work, chunks)


@pytest.mark.parametrize("recipe", ["plain", RECIPES["best"]])
def test_a_failing_pass_is_tried_again_one_by_one(recipe: str) -> None:
    target = Fragile(context=512)
    target.memory.limit(4096)
    stage = Stage(target, recipe)
    good = [stage.ask([token] * 9) for token in (0, 1)]
    stage.run(3)
    bad = [stage.ask([2] * 9), stage.ask([2, 1]), stage.ask([2, 0] * 80)]
    good += [stage.ask([0, 1] * 50)]
    stage.run()
    for request in good:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
        )
    for request in bad:
        assert str(failure(stage.steps[request])) == "a two"
    assert target.memory.used == 0


def test_a_draft_without_memory_waits_for_some() -> None:
    class Hungry(Timed):
        left = 3

        def score(self, work: Any, chunks: Any = ()) -> Any:
            if len(work) > 1 and self.left:
                self.left -= 1
                raise OutOfMemory("no room")
            return super().score(work, chunks)

    stage = Stage(Hungry(context=512))
    for token in range(3):
        stage.ask([token] * 9)
    stage.run()
    assert stage.pool.preemptions == 3
    for request in stage.requests:
        assert tokens_of(stage.steps[request]) == alone(
            ToyBackend("target", 3, 512), "plain", request.prompt, request.sampling
        )


# ---------------------------------------------------------------------------------------- tenants
def test_one_engine_for_each_tenant_and_recipe() -> None:
    stage = Stage(Timed(), RECIPES["best"])
    for tenant in ("", "a", "b", "a"):
        stage.ask([0, 1, 2], tenant=tenant)
    stage.ask([0, 1, 2], tenant="a", recipe="plain")
    stage.run()
    assert stage.built == 4
    wrong = stage.ask([0, 1], recipe="no-such-recipe")
    assert "unknown recipe" in str(failure(stage.steps[wrong]))


def test_what_one_tenant_said_is_not_drafted_for_another() -> None:
    stage = Stage(Timed(context=4096), "suffix + chain + match + fixed(nodes=6, depth=6, width=1)")
    for tenant in ("a", "a", "b"):
        stage.ask([0, 1, 2, 2, 1], Sampling(max_tokens=60), tenant=tenant)
        stage.run()
    passes = [len(stage.steps[request]) for request in stage.requests]
    assert passes[1] < passes[0]  # said before: known by heart
    assert passes[2] == passes[0]
