"""The core of guests: what became of trees, one budget, rests, and requests that come and go."""

import random

import numpy as np
import pytest

from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.guest import core
from sapwood.guest.core import ABSENT, TIMED_EVERY, Guest, HostRow, likeliest_path, part_of
from sapwood.recipes import lookups
from tests.helpers.guest_host import Clock, HostRequest, ReplayHost, ngram_tokens_per_step

INFO = BackendInfo("host", "model", 1000, 4096, max_nodes=9)
LOOP = list(range(20, 40))


def copying(name: str, length: int = 200) -> HostRequest:
    """A request that repeats its prompt."""
    return HostRequest(name, [7, 8, *LOOP], (LOOP * (length // len(LOOP) + 1))[:length])


def rambling(name: str, seed: int, length: int = 200, tokens: int = 6) -> HostRequest:
    """A request of random tokens, all of which occurred before in many contexts."""
    draw = random.Random(seed)
    text = [draw.randrange(tokens) for _ in range(64 + length)]
    return HostRequest(name, text[:64], text[64:])


def test_a_text_that_repeats_is_drafted_and_accepted() -> None:
    host = ReplayHost()
    request = copying("a")
    steps = host.run([request])
    assert request.text[2:] == (LOOP * 11)[:220]
    assert steps < 30, "about nine tokens a step, from the first one on"
    assert max(max(record.drafted, default=0) for record in host.log) == 8


# ------------------------------------------------------------------------- hosts that are unknown
def sentences(name: int, lines: int) -> HostRequest:
    """A request that repeats its prompt, lines with the same words around others."""
    draw = random.Random(name)
    text = [899]  # a heading
    for line in range(lines):
        who, what, where = (draw.randrange(100, 120) for _ in range(3))
        text += [1, 200 + line, 2, who, 3, draw.randrange(40, 60), what, 4, 5, 6, 7, where, 8, 9]
        text += [10, 11, draw.randrange(60, 70), 12]
    return HostRequest(str(name), [900, 901, 902, *text, 903, 904, 905], [*text, 903])


@pytest.mark.parametrize("scale", [0.01, 100.0])
@pytest.mark.parametrize("row", [0.0003, 0.004])
@pytest.mark.parametrize("lines", [1, 2, 4])
def test_copied_texts_are_drafted_as_by_ngram_or_better(
    lines: int, row: float, scale: float
) -> None:
    """On a host of which nothing is known, whatever its seconds, for short texts and long ones."""
    host = ReplayHost(lambda rows: scale * (0.08 + row * rows))
    ngram = ngram_tokens_per_step([sentences(name, lines) for name in range(24)], 8, 4)
    found = host.run_some([sentences(name, lines) for name in range(24)], 8)
    assert found > 1.02 * ngram if lines > 2 else found >= ngram
    without = sum(not any(record.drafted) for record in host.log)
    assert without <= 1 + len(host.log) // TIMED_EVERY


def test_a_step_without_drafts_is_timed_now_and_then() -> None:
    """Where lookups always find something, it is still learned what decoding without takes."""
    host = ReplayHost(lambda rows: 0.02 + 0.001 * rows)
    host.run([copying(str(number), 900) for number in range(3)])
    assert host.guest.cost.knows(3)
    assert sum(not any(record.drafted) for record in host.log[:-1]) in (2, 3, 4)


def test_drafting_does_not_rest_on_a_guess() -> None:
    """Ten steps of the same rows in which nothing is accepted: what they lost is not known."""
    guest = Guest(INFO, "suffix + best + match + goodput", now=(clock := Clock()))
    text = [*LOOP, *LOOP]
    for token in range(500, 510):
        [tree] = guest.step([HostRow("a", text, text[-1:])])
        assert tree is not None
        clock.seconds += 1.0
        text = [*text, token]
        assert not guest.stats[0].rest
        assert not guest.stats[0].lost


def test_throughput_is_not_compared_across_cost_curves() -> None:
    """A steeper curve than was guessed must not make all nodes too dear for a while."""
    host = ReplayHost(lambda rows: 0.08 + 0.004 * rows)
    host.run_some([sentences(name, 7) for name in range(24)], 8)
    timed = [place for place, record in enumerate(host.log) if not any(record.drafted)]
    assert len(timed) <= 1 + len(host.log) // TIMED_EVERY, f"without drafts: {timed}"


def test_the_text_of_a_session_is_that_of_the_host() -> None:
    host = ReplayHost()
    requests = [copying("a", 60), rambling("b", 1, 60), rambling("c", 2, 60)]
    for _ in range(20):
        host.step([request for request in requests if request.left])
        for request in requests:
            if request.left:
                assert host.guest.requests[request.name].session.text == request.text


def test_lengths_differ_between_requests_and_steps() -> None:
    host = ReplayHost(lambda rows: 0.01 + 0.001 * rows)
    host.run([copying("a"), rambling("b", 1), rambling("c", 2), copying("d")])
    assert sum(len(set(record.drafted)) > 1 for record in host.log) > 10
    assert len({length for record in host.log for length in record.drafted}) > 3


def nodes_per_row(price: float) -> float:
    """Nodes that a request gets in a step, where a row costs this many seconds."""
    host = ReplayHost(lambda rows: 0.01 + price * rows)
    host.run([copying("a", 120), rambling("b", 4, 120, tokens=4), rambling("c", 5, 120, tokens=4)])
    drafted = [length for record in host.log[15:] for length in record.drafted]
    return float(np.mean(drafted))


def test_the_dearer_a_row_the_fewer_nodes() -> None:
    assert nodes_per_row(1e-5) > 1.2 * nodes_per_row(5e-3)


def test_drafting_rests_where_nothing_is_accepted() -> None:
    host = ReplayHost(lambda rows: 0.002 + 0.004 * rows)
    requests = [rambling(str(number), number, 300) for number in range(4)]
    for _ in range(1 + 6):  # the prompts, and the steps in which the price of a row is learned
        host.step(requests)
    learned = host.clock.seconds
    left = max(len(request.left) for request in requests)
    host.run(requests)
    drafted = [length for record in host.log[100:] for length in record.drafted]
    assert np.mean(drafted) < 0.1
    assert sum(not any(record.drafted) for record in host.log) > 0.9 * len(host.log)
    # seconds against those of plain decoding, which has the same prefill: of the whole run, and of
    # the steps after the first six
    prefill = 0.002 + 0.004 * 4 * 64
    plain = 0.002 + 0.004 * 4
    assert host.clock.seconds - prefill < 1.12 * 299 * plain
    assert host.clock.seconds - learned < 1.06 * left * plain


@pytest.mark.parametrize("seed", range(3))
def test_a_host_whose_seconds_are_noise_is_drafted_for(seed: int) -> None:
    draw = np.random.default_rng(seed)
    host = ReplayHost(lambda rows: (0.2 + 0.006 * rows) * float(draw.lognormal(0, 0.6)))
    steps = host.run([copying(str(number), 120) for number in range(4)])
    assert steps < 60, "half of the steps of plain decoding, at most"


def test_drafting_begins_where_every_step_reads_prompts() -> None:
    host = ReplayHost()
    first = copying("a", 300)
    for number in range(40):
        host.step([first, copying(f"b{number}")])
    assert max(record.drafted[0] for record in host.log) == 8


def test_one_budget_serves_the_likely_requests_first() -> None:
    host = ReplayHost(lambda rows: 0.01 + 0.003 * rows)
    host.run([copying("a", 160), rambling("b", 3, 160)])
    both = [record.drafted for record in host.log if len(record.drafted) == 2][12:]
    assert sum(first for first, _ in both) > 3 * sum(second for _, second in both)


# ------------------------------------------------------------------- requests that come and go
def test_a_preempted_request_goes_on_where_it_was() -> None:
    host = ReplayHost()
    first, second = copying("a"), copying("b")
    for _ in range(15):
        host.step([first, second])
    session = host.guest.requests["b"].session
    for _ in range(5):
        host.step([first])
    # read again: its drafted tree is lost, and it says one token
    host.trees["b"] = None
    host.step([first, second])
    assert host.guest.requests["b"].session is session
    assert session.text == second.text


def test_a_request_of_another_text_begins_anew() -> None:
    guest = Guest(INFO)
    guest.step([HostRow("a", [1, 2, 3], [3])])
    session = guest.requests["a"].session
    guest.step([HostRow("a", [9, 9, 9, 9, 9, 4], [4])])
    assert guest.requests["a"].session is not session
    assert guest.requests["a"].session.text == [9, 9, 9, 9, 9, 4]


def test_tokens_that_no_tree_explains_begin_a_request_anew() -> None:
    guest = Guest(INFO)
    guest.step([HostRow("a", [1, 2, 3], [3])])
    session = guest.requests["a"].session
    guest.step([HostRow("a", [1, 2, 3, 77, 78, 79], [77, 78, 79])])
    assert guest.requests["a"].session is not session


def test_requests_that_end_or_stay_away_are_forgotten() -> None:
    guest = Guest(INFO)
    guest.step([HostRow("a", [1, 2, 3], [3]), HostRow("b", [1, 2, 4], [4])])
    guest.finish(["a", "unknown"])
    assert set(guest.requests) == {"b"}
    for _ in range(ABSENT + 1):
        guest.step([])
    assert not guest.requests


def test_a_prompt_in_prefill_has_no_tree() -> None:
    assert Guest(INFO).step([HostRow("a", [1, 2, 3], [])]) == [None]


def test_drafts_end_before_the_context_does() -> None:
    guest = Guest(BackendInfo("host", "model", 100, 44, max_nodes=9))
    for length in range(21, 44):
        text = (LOOP * 3)[:length]
        [tree] = guest.step([HostRow("a", text, text[-1:])])
        assert tree is not None
        assert length + tree.height < 44


# --------------------------------------------------------------------------------- what it learns
def test_nodes_that_the_host_left_out_count_as_not_verified() -> None:
    def trials(checked: int | None) -> float:
        guest = Guest(INFO, "suffix + best + match + fixed(nodes=8, depth=8, width=1)")
        text = LOOP * 3
        [tree] = guest.step([HostRow("a", text, text[-1:])])
        assert tree is not None
        assert len(tree) == 9
        # the host verified the first two, and its own token is another one
        said = [*tree.tokens[1:3].tolist(), 99] if checked is None else tree.tokens[1:4].tolist()
        guest.step([HostRow("a", text + said, said, checked)])
        return float(guest.recipe.policy.estimator.hits.sum())  # type: ignore[attr-defined]

    assert trials(None) == 2
    assert trials(2) == 3, "the token after the last verified node was the one that was drafted"


def test_the_host_is_timed_by_rows() -> None:
    host = ReplayHost(lambda rows: 0.02 + 0.001 * rows)
    host.run([copying(str(number), 240) for number in range(3)])
    for rows in (3, 24):
        assert host.guest.cost.seconds(rows, 100) == pytest.approx(0.02 + 0.001 * rows, rel=0.15)


def test_steps_with_prompts_do_not_teach_seconds() -> None:
    host = ReplayHost(lambda rows: 0.01 if rows < 20 else 5.0)
    first = copying("a", 400)
    for number in range(30):
        host.step([first, copying(f"b{number}")] if number % 3 == 2 else [first])
    assert host.guest.cost.seconds(9, 100) < 0.05


def test_steps_with_prompts_are_not_counted_as_throughput() -> None:
    host = ReplayHost(lambda rows: 0.08 + 0.004 * rows)
    host.run([copying("a", 300), rambling("b", 1, 60)])
    stats = host.guest.stats[0]
    assert host.guest.cost.measured
    before = (stats.plain, stats.seconds, max(stats.lost, 0.0))  # gains end with their text
    first = copying("c", 400)
    for number in range(10):
        host.step([first, copying(f"d{number}")])
    assert (stats.plain, stats.seconds, stats.lost) == before


# -------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("recipe", ["recycling", "lookahead", "stand", "medusa", "eagle3"])
def test_recipes_that_read_scores_are_refused_in_one_sentence(recipe: str) -> None:
    with pytest.raises(SapwoodError, match="which host does not hand to a plug-in") as caught:
        Guest(INFO, recipe)
    assert "\n" not in str(caught.value)


def test_every_lookup_is_refused_or_drafts_without_scores() -> None:
    works = []
    for name in [entry.name for entry in lookups.ENTRIES]:
        try:
            guest = Guest(INFO, name)
        except SapwoodError:
            continue
        text = LOOP * 3
        for _ in range(4):
            [tree] = guest.step([HostRow("a", text, text[-1:])])
            assert tree is not None
            assert len(tree) <= 9
            text = [*text, LOOP[(LOOP.index(text[-1]) + 1) % len(LOOP)]]
        assert not guest.failures, name
        works.append(name)
    assert {"pld", "suffix", "suffix-decoding", "llma", "anpd", "ngram-trie", "rest"} <= set(works)


@pytest.mark.parametrize(
    "recipe",
    ["pld", "sam(otherwise=ngram) + best + match + goodput", "ngram + chain + match + goodput"],
)
def test_other_lookups_draft_too(recipe: str) -> None:
    host = ReplayHost(recipe=recipe)
    assert host.run([copying("a")]) < 100


def test_a_draft_model_is_refused() -> None:
    with pytest.raises(SapwoodError, match="cannot be loaded here"):
        Guest(INFO, "draft-model(model='other') + chain + match + fixed")


def test_an_error_of_a_part_costs_drafts_but_not_the_host(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guest = Guest(INFO)

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(guest, "_draft", broken)
    for _ in range(core.MOST_FAILURES + 2):
        [tree, none] = guest.step([HostRow("a", [1, 2, 3], [3]), HostRow("b", [1, 2], [])])
        assert tree is not None
        assert (len(tree), none) == (1, None)
    assert len(caplog.records) == core.MOST_FAILURES
    assert "none from now on" in caplog.text


# ----------------------------------------------------------------------------------------- chains
def test_a_chain_is_the_likeliest_path_and_remembers_its_nodes() -> None:
    tree = Tree(5)
    low = tree.add(0, 1, 0.3)
    high = tree.add(0, 2, 0.6)
    tree.add(low, 3, 0.9)
    end = tree.add(high, 4, 0.5)
    tree.reach[1:] = [0.3, 0.6, 0.27, 0.3]
    kept = tree.keep([high, low, end])
    chain = part_of(kept, likeliest_path(kept))
    assert chain.tokens.tolist() == [5, 2, 4]
    assert chain.kept is not None
    assert chain.kept.tolist() == [0, high, end]


def test_a_tree_of_a_static_shape_becomes_a_chain() -> None:
    guest = Guest(INFO, "suffix + static(shape=[2, 2, 1]) + match + fixed(nodes=8, depth=3)")
    text = [1, 2, 3, 1, 2, 4, 1, 2]
    [tree] = guest.step([HostRow("a", text, [2])])
    assert tree is not None
    assert 1 < len(tree) == tree.height + 1
