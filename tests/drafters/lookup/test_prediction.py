"""Predicted outputs: few passes where the prediction is right, little lost where it is not, never another text."""

import copy
import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import PrefillChunk, RequestContext, TargetOutput, TreeInput
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.types import Draw, Outcome, TreeShape
from sapwood.core.whole_tree import WholeTreeDrafter
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.request_hints import RequestHints
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.drafters.lookup.prediction import (
    LONGEST,
    SCAN,
    Prediction,
    PredictionPosition,
    followed,
)
from sapwood.engine.cost_model import CostModel
from sapwood.engine.input_processor import read_sampling
from sapwood.engine.loop import Engine
from sapwood.engine.request_decoder import RequestDecoder
from sapwood.errors import SapwoodError
from sapwood.policies.static import Static
from sapwood.recipe import Recipe, parse
from sapwood.recipes import resolve
from sapwood.testing import law_error
from tests.helpers import byte_tokenizer
from tests.helpers.legal_recipes import LEGAL, part

CURVE = CostModel([1, 33], [0], [[1.0, 3.0]])  # seconds of a pass by rows, as on a CPU
OLD = """def area(width, height):
    \"\"\"The area of a rectangle.\"\"\"
    if width < 0 or height < 0:
        raise ValueError("sides must not be negative")
    return width * height


def volume(width, height, depth):
    \"\"\"The volume of a box.\"\"\"
    return area(width, height) * depth
"""
NEW = (
    OLD.replace("width", "breadth", 3)
    .replace("not be negative", "be positive")
    .replace("a box", "a cuboid")
)


@dataclasses.dataclass
class Scripted(ToyBackend):
    """A target that says one text, and then ends it."""

    vocab: int = byte_tokenizer.SIZE
    script: tuple[int, ...] = ()
    begins: int = 1  # length of the prompt
    time: float = 0.0  # that its passes have taken

    def score(
        self, work: Sequence[TreeInput], chunks: Sequence[PrefillChunk] = ()
    ) -> list[TargetOutput]:
        self.time += CURVE.seconds(sum(len(item.tree) for item in work), 0)
        return super().score(work, chunks)

    def scores(self, contexts: Sequence[tuple[int, ...]]) -> ToyOutput:
        rows = np.full((len(contexts), self.vocab), -12.0)
        for row, context in zip(rows, contexts, strict=True):
            place = len(context) - self.begins
            row[self.script[place] if 0 <= place < len(self.script) else byte_tokenizer.EOS] = 0.0
        return ToyOutput(rows)


def tokens(text: str) -> tuple[int, ...]:
    return tuple(byte_tokenizer.text().encode(text, whole=False))


def play(recipe: Recipe, said: str, prediction: str) -> list[Outcome]:
    """Rounds until the text has ended."""
    target = Scripted(script=tokens(said))
    sampling = Sampling(max_tokens=4000, prediction=tokens(prediction))
    engine = Engine(target, recipe, copy.deepcopy(CURVE), now=lambda: target.time)
    found: list[Outcome] = []
    for outcome in engine.rounds([5], sampling, KeyedRng(0)):
        found.append(outcome)
        if byte_tokenizer.EOS in outcome.tokens:
            break
    return found


def seconds(outcomes: list[Outcome]) -> float:
    """What the passes of some rounds take."""
    return sum(CURVE.seconds(len(outcome.tree), 0) for outcome in outcomes)


def said(outcomes: list[Outcome]) -> str:
    return byte_tokenizer.text().decode([token for outcome in outcomes for token in outcome.tokens])


LOOKUP = "ngram + best(stride=8, estimator=raw) + match + fixed(nodes=32, depth=16, width=3)"


def test_an_edit_takes_few_passes() -> None:
    with_it, without = (play(parse(LOOKUP), NEW, prediction) for prediction in (OLD, ""))
    assert said(with_it) == said(without) == NEW
    assert (
        len(with_it) <= len(tokens(NEW)) / 7
    )  # single bytes: an edit of a word is several of them
    assert len(with_it) < len(without) / 2


def test_a_prediction_that_is_right_is_read_off() -> None:
    outcomes = play(parse(LOOKUP), OLD, OLD)
    assert said(outcomes) == OLD
    assert len(outcomes) <= len(tokens(OLD)) / 16 + 2


USELESS = (
    "The quick brown fox jumps over the lazy dog, again and again, until the sun goes down. " * 3,
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 3,
    "0123456789 " * 20,
    "SELECT name, age FROM people WHERE age > 30 ORDER BY name;\n" * 4,
    "the rain in spain stays mainly in the plain and the width of it is great\n" * 3,
)


def test_a_useless_prediction_costs_little() -> None:
    with_it = [seconds(play(resolve("auto"), NEW, other)) for other in USELESS]
    without = seconds(play(resolve("auto"), NEW, ""))
    plain = seconds(play(resolve("plain"), NEW, ""))
    assert max(with_it) <= 1.02 * plain  # what tries cost is bounded, whatever was predicted
    assert sum(with_it) / len(with_it) <= 1.16 * without < plain


def test_auto_is_faster_with_a_good_prediction() -> None:
    with_it, without = (seconds(play(resolve("auto"), NEW, prediction)) for prediction in (OLD, ""))
    assert with_it < without / 2


# --------------------------------------------------------------------------------------- the walk
def lines(prediction: str, output: str) -> list[int]:
    """Where the likeliest lines stand after an output."""
    walk = PredictionPosition(tokens(prediction))
    found = walk.start()
    tail = tuple[int, ...]()
    for token in tokens(output):
        tail = (*tail, token)[-LONGEST:]
        found = walk.step(found, tail)
    return [place for place, _ in found]


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("", 0),
        ("the cat", 7),
        ("the bat", 7),  # one replaced
        ("the fat cat", 7),  # some put in
        ("cat sat", 11),  # some left out
        ("the cat sat on the mat and ", 27),
        ("nothing of it: the cat sat", 11),
    ],
)
def test_the_walk_finds_its_place_again(output: str, place: int) -> None:
    assert lines("the cat sat on the mat and slept", output)[0] == place


def test_several_places_are_followed_at_once() -> None:
    found = lines("one cat, two cats, six cat toys", "no cat")
    assert {7, 16} <= set(found)


def test_a_walk_beyond_the_end_proposes_nothing() -> None:
    assert len(play(parse(LOOKUP), "abc" * 5 + "tail without any match", "abc" * 5)) > 3


@pytest.mark.parametrize(
    ("output", "accepted"),
    [
        (OLD, len(tokens(OLD))),
        ("", 0),
        ("zzz", 0),
        (OLD[:100], 100),
        (OLD + "more", len(tokens(OLD))),
    ],
)
def test_counts(output: str, accepted: int) -> None:
    found = followed(tokens(OLD), tokens(output))
    assert (found.accepted, found.rejected) == (accepted, len(tokens(OLD)) - accepted)


def test_counts_of_an_edit() -> None:
    found = followed(tokens(OLD), tokens(NEW))
    assert found.accepted + found.rejected == len(tokens(OLD))
    assert 0.8 * len(tokens(OLD)) < found.accepted < len(tokens(OLD))
    assert followed((), tokens(NEW)) == followed((), ())


def test_a_request_that_was_interrupted_goes_on_where_it_was() -> None:
    target = Scripted(script=tokens(OLD))
    engine = Engine(target, parse(LOOKUP))
    sampling = Sampling(max_tokens=4000, prediction=tokens(OLD))
    decoding = RequestDecoder(engine, [5], sampling, KeyedRng(0), emitted=tokens(OLD)[:50])
    tree = decoding.draft().tree
    line = tokens(OLD)[50 : 50 + tree.height]
    assert tree.height == 16
    assert any(tree.spell(node)[1:] == list(line) for node in range(len(tree)))


# --------------------------------------------------------------------------------------- guarantees
@pytest.mark.parametrize(
    "row", [row for row in LEGAL if row[1] == "static"], ids=lambda row: f"{row[0].value}-{row[2]}"
)
def test_a_prediction_keeps_the_law_or_is_refused(row: tuple[Draw, str, str]) -> None:
    controller = Fixed(nodes=3, depth=2, width=1)
    drafter = DraftModel(model=ToyBackend("draft"), draws=row[0])
    recipe = Recipe(drafter, Static(shape=[1, 1]), part("verifier", row[2]), controller)  # type: ignore[arg-type]
    sampling = Sampling(temperature=1.0, max_tokens=4, prediction=(1, 2, 1, 0))
    mixes = row[0] is Draw.TOPK or (
        row[0] is not Draw.IID and Draw.MIXED in recipe.verifier.accepts
    )
    if recipe.verifier.reads_q and not mixes:
        with pytest.raises(SapwoodError, match="use the recipe auto"):
            law_error(recipe, sampling=sampling)
        return
    assert law_error(recipe, ToyBackend("a"), sampling) <= 1e-12


def test_greedy_requests_take_a_prediction_with_any_recipe() -> None:
    drafter = DraftModel(model=ToyBackend("draft"), draws=Draw.IID)
    recipe = Recipe(drafter, Static(shape=[1, 1]), part("verifier", "mss"), Fixed())  # type: ignore[arg-type]
    assert law_error(recipe, sampling=Sampling(max_tokens=4, prediction=(1, 2))) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_seed_same_text(temperature: float) -> None:
    texts = []
    for prediction in ((), (1, 2, 0, 2, 1) * 4):
        sampling = Sampling(temperature=temperature, max_tokens=64, prediction=prediction)
        rounds = Engine(ToyBackend(context=128), parse(LOOKUP)).rounds(
            [0, 1, 2], sampling, KeyedRng(3)
        )
        texts.append(
            [token for outcome in itertools.islice(rounds, 60) for token in outcome.tokens][:50]
        )
    assert texts[0] == texts[1]


# --------------------------------------------------------------------------------------- whole
# trees
class WholeTrees(Ngram, WholeTreeDrafter):
    """A drafter of whole trees, as one on a device is."""

    def draft_tree(self, root: int, shape: TreeShape, seed: Any = None) -> Any:
        return "its own tree"


def grown(hope: float, prediction: tuple[int, ...]) -> Any:
    engine = Engine(ToyBackend(), parse(LOOKUP))
    decoding = RequestDecoder(engine, [0, 1], Sampling(prediction=prediction), KeyedRng(0))
    drafter = RequestHints(WholeTrees(), [Prediction()])
    drafter.reset(RequestContext([0, 1], decoding.sampler, decoding.session))
    return drafter.draft_tree(1, TreeShape(nodes=8, depth=4, beam=2, width=2, hope=hope, longest=5))


def test_a_prediction_is_the_tree_where_that_promises_more() -> None:
    prediction = (2, 0, 1, 2, 0, 1, 2)
    assert grown(1.5, prediction).tokens.tolist() == [1, 2, 0, 1, 2, 0]
    assert grown(9.0, prediction) == "its own tree"
    assert grown(1.5, ()) == "its own tree"


# --------------------------------------------------------------------------------------- reading it
def test_a_prediction_is_read_from_text_or_tokens() -> None:
    info = ToyBackend(vocab=byte_tokenizer.SIZE).info
    text = byte_tokenizer.text()
    assert read_sampling({"prediction": "ab"}, info, text).prediction == tokens("ab")
    assert read_sampling({"prediction": [3, 4]}, info, text).prediction == [3, 4]
    for wrong in ([byte_tokenizer.SIZE], [-1], ["a"], 5):
        with pytest.raises(SapwoodError, match="prediction"):
            read_sampling({"prediction": wrong}, info, text)
    with pytest.raises(SapwoodError, match="needs a tokenizer"):
        read_sampling({"prediction": "ab"}, info, None)


def test_places_of_a_repetitive_prediction_are_those_nearest_ahead_then_behind() -> None:
    walk = PredictionPosition([1, 2] * 40)
    found = [place for place, size in walk._anew(((41, 3),), (2,)) if size == 1]
    every = range(2, 81, 2)
    assert found == sorted(every, key=lambda place: (place < 41, abs(place - 41)))[:SCAN]
    assert [place for place, _ in walk._anew(((80, 3),), (2,))] == [80, 78, 76, 74, 72, 70, 68, 66]


def test_a_long_repetitive_prediction_is_followed_in_little_time() -> None:
    start = time.process_time()
    followed([7] * 20_000, [7, 8] * 500)
    assert (
        time.process_time() - start < 5
    )  # not each place looked at for each token: that is quadratic
