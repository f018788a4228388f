"""Several drafters of which one grows whole trees: its tree is the round's, and the others read along."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree, FeatureRef, RoundBuffer
from sapwood.backends.torch.cuda.draft.draft_buffers import MAX_NEW_ROWS
from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.controllers.goodput import Goodput
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.target_probs import PathProbs
from sapwood.core.tree import Tree
from sapwood.core.types import Outcome, TreeShape, Verdict
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.heads.eagle3 import Eagle3
from sapwood.drafters.lookup.recycling import Recycling
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.policies.beam import Beam
from sapwood.policies.best import Best
from sapwood.policies.chain import Chain
from sapwood.recipe import Recipe
from sapwood.verifiers.greedy import Greedy
from sapwood.verifiers.match import Match
from tests.helpers.eagle_heads import beam_recipe, merged_with_lookup, tame_head
from tests.helpers.engine_rounds import first_rounds, make_text
from tests.helpers.whole_tree_targets import backends

HEAD = 2  # place of the head among the drafters


def auto(head: Any, **options: Any) -> Recipe:
    return Recipe(
        merged_with_lookup(head), Best(stride=4), Match(), Goodput(width=3, depth=6, **options)
    )


def text_of(found: list[Outcome]) -> list[int]:
    return [token for outcome in found for token in outcome.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_head_grows_the_tree_and_the_text_is_plain_decodings(temperature: float) -> None:
    steps, whole = backends()
    sampling = Sampling(max_tokens=50, temperature=temperature)
    prompt = make_text(20, 1)
    found = first_rounds(whole, auto(tame_head()), prompt, 50, sampling)
    plain = first_rounds(
        steps, Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0)), prompt, 50, sampling
    )
    assert text_of(found)[:50] == text_of(plain)[:50]
    grown = [outcome for outcome in found if isinstance(outcome.tree, DeviceTree)]
    assert len(grown) > 10
    for outcome in grown:
        assert set(outcome.grown.sources[1:].tolist()) == {1 << HEAD}
        assert set(outcome.tree.sources[1:].tolist()) == {1 << HEAD}


def test_whole_trees_teach_its_estimator_nothing() -> None:
    _, whole = backends()
    engine = Engine(whole, auto(tame_head()))
    running = engine.rounds(make_text(20, 1), Sampling(max_tokens=40), KeyedRng(0))
    for _ in range(5):
        next(running)
    running.close()
    policy: Any = engine.recipe.policy
    assert policy.ahead.rounds > 0
    assert policy.estimator.trials.sum() == 0  # they are valued without it


def test_where_the_head_must_be_asked_all_are() -> None:
    _, whole = backends()
    recipe = Recipe(
        merged_with_lookup(tame_head()), Best(stride=4), Match(), Fixed(nodes=20, depth=4, width=3)
    )
    found = first_rounds(
        whole, recipe, make_text(20, 1), 4, Sampling(max_tokens=40, repetition_penalty=1.3)
    )
    assert not any(isinstance(outcome.tree, DeviceTree) for outcome in found)
    sources = {int(source) for outcome in found for source in outcome.grown.sources}
    assert any(source & (1 << HEAD) for source in sources)
    assert any(source & 3 for source in sources)


def test_the_others_know_the_whole_text() -> None:
    _, whole = backends()
    engine = Engine(whole, auto(tame_head()))
    decoding = RequestDecoder(engine, make_text(20, 1), Sampling(max_tokens=40), KeyedRng(0))
    text = make_text(20, 1)
    for _ in range(4):
        [scores] = whole.score([decoding.draft()])
        text += decoding.finish_round(scores).tokens
    drafter: Any = decoding.drafter
    assert drafter.late_  # the last round waits for the device to be busy
    suffix: Any = drafter.drafters[0]
    [scores] = whole.score([decoding.draft()])
    assert drafter.late_
    decoding.prelaunch(PathProbs(decoding.tree, scores, decoding.sampler))  # while the pass runs
    assert not drafter.late_
    assert suffix.output_ == text[16:]
    recycling: Any = drafter.drafters[1]
    assert recycling.before_ == text[-2]
    assert recycling.committed_ == len(text) - 1
    decoding.close()


def test_a_prompt_is_looked_up_while_the_first_pass_runs() -> None:
    _, whole = backends()
    decoding = RequestDecoder(
        Engine(whole, auto(tame_head())), make_text(20, 1), Sampling(max_tokens=40), KeyedRng(0)
    )
    drafter: Any = decoding.drafter
    suffix: Any = drafter.drafters[0]
    work = decoding.draft()
    assert suffix.local_.size == 0
    assert isinstance(work.tree, DeviceTree)
    [scores] = whole.score([work])
    tokens = decoding.finish_round(scores).tokens
    assert suffix.local_.size == 20
    drafter._catch_up()
    assert suffix.local_.size == 20 + len(tokens)
    decoding.close()


# -------------------------------------------------------------------------- learning while it grows
def test_parts_learn_while_the_next_tree_grows_and_from_the_last_round_too() -> None:
    _, whole = backends()
    engine = Engine(whole, auto(tame_head()))
    seen: list[int] = []

    class Watched(Goodput):
        def observe(self, outcome: Outcome) -> None:
            seen.append(outcome.context)
            super().observe(outcome)

    decoding = RequestDecoder(engine, make_text(9, 1), Sampling(max_tokens=40), KeyedRng(0))
    decoding.controller.__class__ = Watched
    contexts = []
    for _ in range(3):
        [scores] = whole.score([decoding.draft()])
        contexts.append(decoding.finish_round(scores).context)
        assert seen == contexts[:-1]
    decoding.close()
    assert seen == contexts


def test_a_part_that_reads_scores_learns_before_the_next_pass_takes_their_place() -> None:
    _, whole = backends()

    @dataclasses.dataclass
    class Reader(Fixed):
        reads_scores = True

        def observe(self, outcome: Outcome) -> None:
            outcome.scores.logits(outcome.verdict.path[-1])
            self.read_ = outcome.context

    engine = Engine(whole, beam_recipe(tame_head(), 3, Reader(nodes=9, depth=3, width=3)))
    decoding = RequestDecoder(engine, make_text(9, 1), Sampling(max_tokens=40), KeyedRng(0))
    for _ in range(3):
        [scores] = whole.score([decoding.draft()])
        assert decoding.finish_round(scores).context == decoding.controller.read_  # type: ignore[attr-defined]
    decoding.close()


def test_rounds_without_a_device_are_learnt_at_once() -> None:
    steps, _ = backends()
    engine = Engine(steps, beam_recipe(tame_head(), 3, Fixed(nodes=9, depth=3, width=3)))
    decoding = RequestDecoder(engine, make_text(9, 1), Sampling(max_tokens=40), KeyedRng(0))
    [scores] = steps.score([decoding.draft()])
    decoding.finish_round(scores)
    assert decoding.pending_outcome is None
    decoding.close()


# ---------------------------------------------------------------------------------- the head's rows
def test_a_request_that_fails_leaves_no_seat_taken() -> None:
    _, whole = backends()
    head = tame_head()
    engine = Engine(
        whole, Recipe(Eagle3(head=head), Beam(beam=3), Greedy(), Fixed(nodes=9, depth=3, width=3))
    )
    drafter: Any = engine.recipe.drafter
    for _ in range(3):
        with pytest.raises(SapwoodError, match="temperature 0"):
            next(engine.rounds(make_text(9, 1), Sampling(temperature=0.5), KeyedRng(0)))
    running = engine.rounds(make_text(9, 1), Sampling(), KeyedRng(0))
    next(running)
    assert len(drafter.builder.pool.keys) == 1
    running.close()
    assert drafter.builder.pool.free == [0]


def test_thoughts_stay_where_the_verdict_left_them_until_the_place_is_needed() -> None:
    round_buffer = RoundBuffer(torch.device("cpu"))
    round_buffer.hidden_states = torch.arange(12.0).view(4, 3)
    claim = FeatureRef(round_buffer, 2)
    assert claim.tensor().data_ptr() == round_buffer.hidden_states.data_ptr()
    round_buffer.release_features()
    round_buffer.hidden_states.zero_()
    assert not claim.in_place
    assert claim.tensor().tolist() == [[0, 1, 2], [3, 4, 5]]
    other = FeatureRef(round_buffer, 1)
    del other  # nobody relies on it: nothing to copy
    round_buffer.release_features()
    assert round_buffer.features is None


def test_rounds_hand_their_thoughts_over_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = backends()
    engine = Engine(whole, beam_recipe(tame_head(), 3, Fixed(nodes=9, depth=3, width=3)))
    copies: list[FeatureRef] = []
    monkeypatch.setattr(FeatureRef, "copy_out", lambda claim: copies.append(claim))
    running = engine.rounds(make_text(9, 1), Sampling(max_tokens=40), KeyedRng(0))
    drafter: Any = engine.recipe.drafter
    asked: list[Any] = []
    monkeypatch.setattr(
        drafter.builder, "path_features", spied(drafter.builder.path_features, asked)
    )
    for _ in range(4):
        next(running)
    running.close()
    assert all(isinstance(claim, FeatureRef) and claim.rows <= MAX_NEW_ROWS for claim in asked)
    assert len(asked) == 4
    assert not copies


def spied(ask: Any, found: list[Any]) -> Any:
    """The same function, with its answers kept."""

    def asking(outcome: Outcome) -> Any:
        found.append(ask(outcome))
        return found[-1]

    return asking


def test_a_text_that_repeats_itself_is_recited() -> None:
    steps, whole = backends()
    sampling = Sampling(max_tokens=200)
    prompt = make_text(20, 1)
    recipe = Recipe(
        merged_with_lookup(tame_head()), Best(stride=4), Match(), Fixed(nodes=20, depth=6, width=3)
    )  # no clock decides
    found = first_rounds(whole, recipe, prompt, 200, sampling)
    plain = first_rounds(
        steps, Recipe(Suffix(), Chain(), Match(), Fixed(nodes=0)), prompt, 200, sampling
    )
    assert text_of(found)[:200] == text_of(plain)[:200]
    recited = [
        outcome
        for outcome in found
        if len(outcome.grown) > 1 and not isinstance(outcome.tree, DeviceTree)
    ]
    assert recited
    assert {int(source) for outcome in recited for source in outcome.tree.sources[1:]} == {1}
    assert any(outcome.verdict.accepted >= 4 for outcome in recited)


def test_what_promises_less_than_a_drafted_tree_is_not_recited() -> None:
    merge = Merge(drafters=[Suffix(), Recycling()])
    setting = EngineContext(ToyBackend("a", vocab=7), flat(), no_loader)
    prompt = [1, 2, 3, 4, 5, 6] * 4
    merge.bind(setting)
    merge.reset(
        RequestContext(
            prompt, Sampler(Sampling(), prompt), ToyBackend("a", vocab=7).open(prompt[:-1])
        )
    )
    merge.prelaunch(TreeShape(1, 1, 1, 1), Tree(prompt[-1]))  # as while the first pass runs
    able = TreeShape(20, 4, 4, 3, hope=1.0, longest=9)
    tree = merge.draft_tree(prompt[-1], able)
    assert tree is not None
    assert tree.tokens.tolist() == [6, *prompt[:9]]
    assert merge.draft_tree(prompt[-1], dataclasses.replace(able, hope=9.0)) is None
    assert merge.draft_tree(prompt[-1], dataclasses.replace(able, longest=1)) is None


def test_who_recited_wrongly_is_believed_less() -> None:
    merge = Merge(drafters=[Suffix(), Recycling()])
    setting = EngineContext(ToyBackend("a", vocab=7), flat(), no_loader)
    prompt = [1, 2, 3, 4, 5, 6] * 4
    merge.bind(setting)
    merge.reset(
        RequestContext(
            prompt, Sampler(Sampling(), prompt), ToyBackend("a", vocab=7).open(prompt[:-1])
        )
    )
    merge.prelaunch(TreeShape(1, 1, 1, 1), Tree(prompt[-1]))  # as while the first pass runs
    able = TreeShape(20, 4, 4, 3, hope=4.0, longest=9)
    for _ in range(6):
        tree = merge.draft_tree(prompt[-1], able)
        if tree is None:
            break
        merge._remember(
            Outcome(tree, tree, Verdict((0,), 1), ToyOutput(np.zeros((1, 7))), len(prompt))
        )
    assert tree is None
    for _ in range(200):  # rounds without it
        merge._remember(
            Outcome(Tree(6), Tree(6), Verdict((0,), 1), ToyOutput(np.zeros((1, 7))), len(prompt))
        )
    assert merge.draft_tree(prompt[-1], able) is not None
