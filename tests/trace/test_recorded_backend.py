"""A backend over recorded texts: what it knows, what stands in, what it refuses, and the model behind it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, probs_after
from sapwood.core.protocols import TreeInput
from sapwood.core.tree import Tree
from sapwood.engine.outputs import collect
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.trace.read import read
from sapwood.trace.record import opened, traced
from sapwood.trace.recorded_backend import RecordedBackend, RecordedText, line, provided
from sapwood.trace.rounds import Trace

TOY: Any = ToyBackend(vocab=6, context=80)
PROMPTS = ([0, 1, 2, 0, 1, 2], [3, 4, 5, 3])
TOP = 4


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("trace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPWOOD_CACHE", str(folder / "cache"))
        llm = LLM(TOY, "recycling")
        options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0}
        path: Path = folder / "t.jsonl"
        with opened(path, llm, "recycling", "toy", options, top=TOP) as book:
            for number, prompt in enumerate(PROMPTS):
                collect(traced(llm, prompt, book, f"p{number}", **options))
        return read(path)


@pytest.fixture
def replayed(trace: Trace) -> RecordedBackend:
    return RecordedBackend(trace)


def whole(trace: Trace, number: int = 0) -> list[int]:
    return [*PROMPTS[number], *trace.answer(number)]


# ------------------------------------------------------------------------------------------- texts
def test_nodes_are_placed_on_the_text_or_beside_it() -> None:
    known = RecordedText(0, [5, 6, 7, 8], 2)
    tree = Tree(6)
    for parent, token in ((0, 7), (0, 1), (1, 8), (2, 8), (3, 9)):
        tree.add(parent, token, 0.5)
    assert known.place(tree, 1) == [
        (1, ()),
        (2, ()),
        (1, (1,)),
        (3, ()),
        (1, (1, 8)),
        (3, (9,)),
    ]
    assert [known.last(key) for key in known.place(tree, 1)] == [6, 7, 1, 8, 8, 9]
    with pytest.raises(SapwoodError, match="token 6 at position 0 is not the recorded text's"):
        known.place(tree, 0)
    with pytest.raises(SapwoodError, match="at position 9"):
        known.place(tree, 9)


def test_the_next_token_on_the_text_is_known() -> None:
    known = RecordedText(0, [5, 6, 7], 2)
    assert known.best((0, ())) == 6
    assert known.best((2, ())) is None  # the text ends there
    assert known.best((0, (9,))) is None
    known.rows[0, (9,)] = (np.array([4, 3]), np.array([-0.1, -2.0]))
    assert known.best((0, (9,))) == 4


# ---------------------------------------------------------------------------------------- sessions
def test_a_replay_says_what_the_target_said(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    text = whole(trace)
    said: list[int] = []
    while len(said) < 12:
        token = text[session.length]
        [scores] = replayed.score([TreeInput(session, Tree(token))])
        said.append(int(scores.argmax()[0]))
        session.commit([0])
    assert said == trace.answer(0)
    session.close()


def test_recorded_rows_are_the_targets_own_laws(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[1][:-1])
    text = whole(trace, 1)
    [scores] = replayed.score([TreeInput(session, Tree(text[session.length]))])
    tokens, logps = scores.topk(TOP)
    probs = probs_after(TOY.salt, 6, tuple(text[: session.length + 1]))
    best = np.argsort(-probs, kind="stable")[:TOP]
    assert tokens[0].tolist() == best.tolist()
    np.testing.assert_allclose(logps[0], np.log(probs[best]), rtol=1e-6)
    assert replayed.substituted == 0


def test_only_recorded_prompts_can_be_opened(replayed: RecordedBackend) -> None:
    with pytest.raises(SapwoodError, match="a prompt of 4 tokens is not in the trace; record it"):
        replayed.open([9, 9, 9])
    assert replayed.start(PROMPTS[0][:-1], "tenant").length == len(PROMPTS[0]) - 1


def test_what_leaves_the_text_cannot_be_committed(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    text = whole(trace)
    tree = Tree(text[session.length])
    right = tree.add(0, text[session.length + 1], 0.5)
    wrong = tree.add(0, (text[session.length + 1] + 1) % 6, 0.5)
    with pytest.raises(ValueError, match="nothing was scored"):
        session.commit([0])
    replayed.score([TreeInput(session, tree)])
    with pytest.raises(ValueError, match="it leaves the recorded text"):
        session.commit([0, wrong])
    replayed.score([TreeInput(session, tree)])
    before = session.length
    session.commit([0, right])
    assert session.length == before + 2
    with pytest.raises(ValueError, match="nothing was scored"):
        session.commit([0])
    session.rewind(before)
    assert session.length == before


def test_the_prompts_own_rows_are_shown_once(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    read_back = session.prefill_output(3)
    assert read_back is not None
    assert read_back.argmax().tolist() == PROMPTS[0][-3:]  # the text's own next tokens
    replayed.score([TreeInput(session, Tree(PROMPTS[0][-1]))])
    session.commit([0])
    assert session.prefill_output(3) is None


def test_rows_from_some_node_on(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    text = whole(trace)
    tree = line(text[session.length : session.length + 4])
    [scores] = replayed.score([TreeInput(session, tree, since=2)])
    assert scores.argmax().tolist() == text[session.length + 3 : session.length + 5]
    assert tree.parents.tolist() == [-1, 0, 1, 2]


# ---------------------------------------------------------------------------------------- stand-ins
def test_an_unknown_row_borrows_from_the_same_token_before(trace: Trace) -> None:
    replayed = RecordedBackend(trace)
    known = replayed.known[0]
    token = 2
    key = (len(known.tokens) - 1, (token, token, token))
    rows = [
        (when, row) for when, row in replayed.spares[token] if when <= (0, len(known.tokens) - 1)
    ]
    found = replayed.row(known, key, 2)
    assert replayed.substituted == 1
    assert found[0].tolist() == rows[-1][1][0][:2].tolist()
    early = replayed.row(RecordedText(-1, [1], 1), (0, (token,)), 3)
    assert early[0].tolist() == [0, 1, 2]  # nothing was recorded before
    assert np.isneginf(early[1]).all()


def test_nobody_knows_what_follows_a_node_that_was_never_checked(
    trace: Trace, replayed: RecordedBackend
) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    tree = Tree(whole(trace)[session.length])
    first = tree.add(0, 0, 0.1)
    second = tree.add(first, 0, 0.1)
    tree.add(second, 0, 0.1)
    [scores] = replayed.score([TreeInput(session, tree)])
    assert int(scores.argmax()[-1]) == -1


def test_more_tokens_than_were_recorded_are_refused(
    trace: Trace, replayed: RecordedBackend
) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    [scores] = replayed.score([TreeInput(session, Tree(PROMPTS[0][-1]))])
    with pytest.raises(
        SapwoodError, match=f"the {TOP + 1} best tokens,.* record it again with --top"
    ):
        scores.topk(TOP + 1)


def test_what_no_trace_holds_is_refused(trace: Trace, replayed: RecordedBackend) -> None:
    session = replayed.open(PROMPTS[0][:-1])
    [scores] = replayed.score([TreeInput(session, Tree(PROMPTS[0][-1]))])
    with pytest.raises(SapwoodError, match=f"a trace holds {TOP} tokens of each; run it"):
        scores.logits(0)
    with pytest.raises(SapwoodError, match="asks the target about texts of its own"):
        session.fork()
    with pytest.raises(SapwoodError, match="holds no hidden states; replay this drafter with the"):
        replayed.watch([1])
    with pytest.raises(SapwoodError, match="a replay has no prefill in chunks"):
        replayed.score([], [None])  # type: ignore[list-item]
    assert replayed.capabilities.model is None


# ------------------------------------------------------------------------------- the model at hand
def test_with_the_model_at_hand_unknown_rows_are_asked_for(trace: Trace) -> None:
    replayed = RecordedBackend(trace, ToyBackend(vocab=6, context=80))
    session = replayed.open(PROMPTS[0][:-1])
    text = whole(trace)
    for _ in range(3):
        tree = Tree(text[session.length])
        other = next(token for token in range(6) if token != text[session.length + 1])
        far = tree.add(tree.add(0, other, 0.1), other, 0.1)
        [scores] = replayed.score([TreeInput(session, tree)])
        tokens, logps = scores.topk(TOP)
        context = (*text[: session.length + 1], other, other)
        probs = probs_after(TOY.salt, 6, context)
        assert tokens[far].tolist() == np.argsort(-probs, kind="stable")[:TOP].tolist()
        np.testing.assert_allclose(np.exp(logps[far]), np.sort(probs)[::-1][:TOP], rtol=1e-6)
        session.commit([0])
    assert replayed.substituted == 0
    session.close()


class Shown(ToyBackend):
    """A toy that shows one number per token as its state."""

    reads = 0

    @property
    def info(self) -> Any:
        return replace(super().info, provides=frozenset({"hidden", "layers"}))

    def watch(self, layers: Any) -> None:
        pass

    def open(self, tokens: Any, **options: Any) -> Any:
        self.reads += 1
        session = super().open(tokens, **options)
        states = np.array(tokens, np.float64)[:, None]

        class Output:
            def hidden(self, rows: Any, layers: Any) -> Any:
                return states[list(rows)] * sum(layers)

        session.prefill_output = lambda last: Output()  # type: ignore[method-assign, assignment, return-value]
        return session


def test_states_of_the_text_are_read_once_and_those_beside_it_never(trace: Trace) -> None:
    live = Shown(vocab=6, context=80)
    replayed = RecordedBackend(trace, live)
    assert replayed.info.provides == {"hidden"}
    replayed.watch([3])
    session = replayed.open(PROMPTS[0][:-1])
    replayed.open(PROMPTS[0][:-1])
    assert live.reads == 1
    text = whole(trace)
    tree = Tree(text[session.length])
    tree.add(0, text[session.length + 1], 0.5)
    tree.add(0, (text[session.length + 1] + 1) % 6, 0.5)
    [scores] = replayed.score([TreeInput(session, tree)])
    states = scores.hidden([1, 0], [3])
    assert states[:, 0].tolist() == [3.0 * text[session.length + 1], 3.0 * text[session.length]]
    with pytest.raises(SapwoodError, match="reads states of rejected nodes"):
        scores.hidden([2], [3])
    replayed.watch([5])  # another layer: the texts have to be read again
    replayed.open(PROMPTS[0][:-1])
    assert live.reads == 2


def test_what_a_replay_provides_is_what_the_model_does() -> None:
    assert provided(None) == frozenset()
    assert provided(ToyBackend()) == frozenset()
    assert provided(Shown()) == {"hidden"}
