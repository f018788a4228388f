"""Under a grammar every rule keeps its guarantee: the law is plain decoding's own under the same grammar."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput, probs_after
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import RequestContext
from sapwood.core.rng import KeyedRng, NoiseKey
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.types import Draw, Guarantee, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.compose.request_hints import RequestHints
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.loop import Engine
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.grammar_prune import GrammarPrune
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.structured_output.compiled import CompiledGrammar
from sapwood.structured_output.compiled import GrammarState as State
from sapwood.structured_output.grammar_matcher import GrammarMatcher
from sapwood.testing import law_error
from tests.helpers import letter_grammar
from tests.helpers.legal_recipes import LEGAL, part

EXACT = 1e-12
ORIGINAL = ToyBackend.scores
SMALL = Fixed(nodes=4, depth=2, width=2)
WIDE = Fixed(nodes=2, depth=1, width=2)
DEEP = Fixed(nodes=2, depth=2, width=1)
WORDS = "(a(b|ca)*c|b[abc]?)"
DYCK = 'start: "a" start "b" | "c"'  # as many b as a
PLAIN = (
    "match",
    "naive",
)  # read no q: draws would only multiply the ways that a round can come out
RULES = [
    row
    for row in LEGAL
    if row[1] == ("chain" if row[2] == "block" else "static")
    and (row[2] not in PLAIN or row[0] is Draw.TOPK)
]


def under(grammar: CompiledGrammar, temperature: float = 1.0, **options: Any) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=5, grammar=grammar, **options)


def toy(draws: Draw, salt: str = "draft") -> DraftModel:
    return DraftModel(model=ToyBackend(salt, vocab=letter_grammar.SIZE), draws=draws)


def combine(draws: Draw, policy: str, verifier: str, controller: Fixed = SMALL) -> Recipe:
    return Recipe(toy(draws), part("policy", policy), part("verifier", verifier), controller)  # type: ignore[arg-type]


def spelled(row: tuple[Draw, str, str]) -> str:
    return f"{row[0].value}-{row[2]}"


@pytest.mark.parametrize("row", RULES, ids=spelled)
def test_every_rule_has_plain_decodings_law_under_the_grammar(row: tuple[Draw, str, str]) -> None:
    grammar = letter_grammar.pattern(WORDS)
    assert (
        law_error(combine(*row), ToyBackend("a", vocab=letter_grammar.SIZE), under(grammar))
        <= EXACT
    )


# ---------------------------------------------------------------------------- several rules, closer
SIX = [
    (Draw.TOPK, "static", "match"),
    (Draw.IID, "static", "mss"),
    (Draw.SWOR, "static", "rrs"),
    (Draw.MIXED, "static", "mixed"),
    (Draw.SWOR, "static", "traversal"),
    (Draw.IID, "chain", "block"),
]


@pytest.mark.parametrize("row", SIX, ids=spelled)
@pytest.mark.parametrize("rounds", [1, 2])
def test_the_law_holds_for_rules_that_nest(row: tuple[Draw, str, str], rounds: int) -> None:
    recipe = combine(*row, DEEP)
    error = law_error(
        recipe,
        ToyBackend("b", vocab=letter_grammar.SIZE),
        under(letter_grammar.rules(DYCK)),
        rounds=rounds,
    )
    assert error <= EXACT


@pytest.mark.parametrize("row", SIX, ids=spelled)
@pytest.mark.parametrize(
    "options", [{"top_p": 0.8}, {"repetition_penalty": 1.6, "min_tokens": 3, "stop_ids": [3]}]
)
def test_the_other_options_apply_with_it(
    row: tuple[Draw, str, str], options: dict[str, Any]
) -> None:
    assert (
        law_error(
            combine(*row),
            ToyBackend("c", vocab=letter_grammar.SIZE),
            under(letter_grammar.pattern(WORDS), **options),
        )
        <= EXACT
    )


@dataclasses.dataclass
class Blind(DraftModel):
    """A draft model that does not know of the grammar, so that it draws what is forbidden."""

    def reset(self, request: RequestContext) -> None:
        free = dataclasses.replace(request.sampler.sampling, grammar=None)
        super().reset(dataclasses.replace(request, sampler=Sampler(free, request.prompt)))

    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        self.sampler_.commit(outcome.tokens)


def blind(row: tuple[Draw, str, str], controller: Fixed) -> Recipe:
    made = combine(*row, controller)
    return dataclasses.replace(
        made, drafter=Blind(model=ToyBackend("draft", vocab=letter_grammar.SIZE), draws=row[0])
    )


@pytest.mark.parametrize("controller", [WIDE, DEEP], ids=["wide", "deep"])
@pytest.mark.parametrize("row", SIX, ids=spelled)
def test_drafts_against_the_grammar_change_nothing(
    row: tuple[Draw, str, str], controller: Fixed
) -> None:
    recipe = blind(row, controller)
    target = ToyBackend("a", vocab=letter_grammar.SIZE)
    assert law_error(recipe, target, under(letter_grammar.pattern(WORDS)), horizon=2) <= EXACT


@pytest.mark.parametrize("row", [SIX[1], SIX[2], SIX[3]], ids=spelled)
def test_cutting_forbidden_draws_would_bias_rules_that_read_q(
    row: tuple[Draw, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GrammarPrune.__init__
    monkeypatch.setattr(
        GrammarPrune,
        "__init__",
        lambda self, policy, spares, forces: original(self, policy, False, forces),
    )
    recipe = blind(row, WIDE)
    target = ToyBackend("b", vocab=letter_grammar.SIZE)
    assert law_error(recipe, target, under(letter_grammar.pattern(WORDS)), horizon=2) > 1e-3


def test_lookups_beside_draws_keep_the_law() -> None:
    drafter = Merge(drafters=[Ngram(), toy(Draw.SWOR)])
    recipe = Recipe(drafter, Static(shape=[1, 1]), part("verifier", "mixed"), SMALL)  # type: ignore[arg-type]
    error = law_error(
        recipe,
        ToyBackend("a", vocab=letter_grammar.SIZE),
        under(letter_grammar.pattern(WORDS)),
        prompt=(0, 1, 2, 0, 1),
    )
    assert error <= EXACT


# --------------------------------------------------------------------------------------- texts
def play(recipe: Recipe, sampling: Sampling, seed: int, salt: str = "target") -> list[Outcome]:
    """Rounds of a recipe until the text ends."""
    found: list[Outcome] = []
    for outcome in Engine(ToyBackend(salt, vocab=letter_grammar.SIZE, context=256), recipe).rounds(
        [0, 1, 2], sampling, KeyedRng(seed)
    ):
        found.append(outcome)
        if letter_grammar.END in outcome.tokens or len(found) > 60:
            break
    return found


def said(outcomes: list[Outcome]) -> list[int]:
    tokens = [token for outcome in outcomes for token in outcome.tokens]
    return tokens[: tokens.index(letter_grammar.END)] if letter_grammar.END in tokens else tokens


def plain(sampling: Sampling, seed: int, salt: str = "target") -> list[int]:
    """Plain decoding by its definition: the law without what the grammar forbids, no engine, no guide, no tree."""
    assert isinstance(sampling.grammar, CompiledGrammar)
    prompt = [0, 1, 2]
    text = list[int]()
    state = sampling.grammar.begin()
    free = dataclasses.replace(sampling, grammar=None)
    while len(text) < 60:
        logits = np.where(
            state.allowed(),
            np.log(probs_after(salt, letter_grammar.SIZE, (*prompt, *text))),
            -np.inf,
        )
        probs = Sampler(free, prompt).probs(logits, text)
        token = (
            int(np.argmax(probs))
            if sampling.greedy
            else KeyedRng(seed).pick(probs, NoiseKey(len(prompt) + len(text)))
        )
        if token == letter_grammar.END:
            break
        text.append(token)
        state = state.after(token)  # type: ignore[assignment]
    return text


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_same_seed_same_text(temperature: float, seed: int) -> None:
    sampling = Sampling(
        temperature=temperature, max_tokens=80, grammar=letter_grammar.pattern("(ab|c(a|b)c)*bb?")
    )
    recipe = combine(Draw.TOPK, "best", "match")
    outcomes = play(recipe, sampling, seed, salt=f"t{seed}")
    assert said(outcomes) == plain(sampling, seed, salt=f"t{seed}")
    assert re.fullmatch(
        "(ab|c(a|b)c)*bb?", "".join(letter_grammar.LETTERS[token] for token in said(outcomes))
    )


LOSSY = ["typical", "threshold", "bild", "specdec", "consultant", "adasd"]


@pytest.mark.parametrize("verifier", LOSSY)
def test_a_rule_that_departs_departs_within_the_grammar(verifier: str) -> None:
    made = part("verifier", verifier)
    assert made.guarantee is Guarantee.LOSSY  # type: ignore[attr-defined]
    draws = Draw.TOPK if Draw.TOPK in made.accepts else Draw.IID  # type: ignore[attr-defined]
    drafter = Blind(model=ToyBackend("draft", vocab=letter_grammar.SIZE), draws=draws)
    recipe = Recipe(drafter, Chain(), made, Fixed(nodes=4, depth=4, width=1))  # type: ignore[arg-type]
    for seed in range(12):
        sampling = Sampling(
            temperature=1.0, max_tokens=80, grammar=letter_grammar.pattern("((ab|ca)c)*b")
        )
        text = "".join(
            letter_grammar.LETTERS[token]
            for token in said(play(recipe, sampling, seed, salt=f"l{seed}"))
        )
        assert re.fullmatch("((ab|ca)c)*b", text)


# ------------------------------------------------------------------------------------- the tree
def test_forbidden_guesses_are_not_sent() -> None:
    drafter = Blind(model=ToyBackend("draft", vocab=letter_grammar.SIZE), draws=Draw.TOPK)
    recipe = Recipe(
        drafter,
        Static(shape=[2, 2, 2]),
        part("verifier", "match"),  # type: ignore[arg-type]
        Fixed(nodes=14, depth=3, width=2),
    )
    sampling = Sampling(
        temperature=1.0, max_tokens=80, grammar=letter_grammar.pattern("(ab|c(a|b)c)*bb?")
    )
    grown = sent = 0
    for seed in range(6):
        text: list[int] = []
        for outcome in play(recipe, sampling, seed):
            grown = grown + len(outcome.grown)
            sent = sent + len(outcome.tree)
            guide = GrammarMatcher(letter_grammar.pattern("(ab|c(a|b)c)*bb?"))
            guide.commit(text)
            for node in range(1, len(outcome.tree)):
                assert guide.allows(outcome.tree.spell(node)[1:])
            text += outcome.tokens
    assert sent < grown


def test_forced_tokens_are_drafted_for_nothing() -> None:
    recipe = Recipe(Ngram(), Chain(), part("verifier", "match"), Fixed(nodes=12, depth=12, width=1))  # type: ignore[arg-type]
    sampling = Sampling(
        temperature=1.0, max_tokens=80, grammar=letter_grammar.pattern("[ac]abcabcabcabc[ab]")
    )
    outcomes = play(recipe, sampling, 0)
    assert (
        len(outcomes) <= 3
    )  # the choice, everything forced and the last choice, and at most the end
    assert len(said(outcomes)) == 14
    lone = [outcome for outcome in outcomes if outcome.verdict.accepted == 12]
    assert lone, "the forced tokens come in one round"


def test_nothing_is_drafted_beside_a_forced_token() -> None:
    asked: list[int] = []

    class Counting(DraftModel):
        def expand(self, tree: Any, frontier: Any, rng: Any) -> None:
            asked.extend(node for node, _ in frontier)
            super().expand(tree, frontier, rng)

    recipe = Recipe(
        Counting(model=ToyBackend("draft", vocab=letter_grammar.SIZE)),
        Chain(),
        part("verifier", "match"),  # type: ignore[arg-type]
        Fixed(nodes=6, depth=6, width=1),
    )
    play(
        recipe,
        Sampling(temperature=1.0, max_tokens=80, grammar=letter_grammar.pattern("abcabcabcabc")),
        0,
    )
    assert not asked


@pytest.mark.parametrize(
    ("draws", "verifier", "aided"), [(Draw.TOPK, "mixed", True), (Draw.SWOR, "rrs", False)]
)
def test_aids_join_where_chosen_nodes_may(draws: Draw, verifier: str, aided: bool) -> None:
    recipe = combine(draws, "static", verifier)
    sampling = under(letter_grammar.pattern(WORDS))
    parts = recipe.with_hints(list(recipe.parts()), sampling)
    assert isinstance(parts[0], RequestHints) is aided
    assert isinstance(parts[1], GrammarPrune)
    assert recipe.with_hints(list(recipe.parts()), Sampling()) == list(recipe.parts())


class Quick(ToyOutput):
    """Scores that would walk the tree by themselves, from raw logits."""

    def follow(self, *_: Any) -> tuple[tuple[int, ...], int]:
        raise AssertionError("raw logits know of no grammar")


def test_walks_on_a_device_give_way_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ToyBackend, "scores", lambda self, contexts: Quick(ORIGINAL(self, contexts).rows)
    )
    recipe = combine(Draw.TOPK, "best", "match")
    with pytest.raises(AssertionError, match="know of no grammar"):
        play(recipe, Sampling(max_tokens=9), 0)
    assert said(play(recipe, Sampling(max_tokens=9, grammar=letter_grammar.pattern("abc")), 0)) == [
        0,
        1,
        2,
    ]


# --------------------------------------------------------------------------------------- mutants
def mask_forgotten_below(patch: pytest.MonkeyPatch) -> None:
    original = GrammarMatcher.state
    patch.setattr(
        GrammarMatcher, "state", lambda self, path: None if len(path) >= 1 else original(self, path)
    )


def mask_forgotten_at_depth_two(patch: pytest.MonkeyPatch) -> None:
    original = GrammarMatcher.state
    patch.setattr(
        GrammarMatcher, "state", lambda self, path: None if len(path) == 2 else original(self, path)
    )


def mask_of_the_root(patch: pytest.MonkeyPatch) -> None:
    original = GrammarMatcher.state
    patch.setattr(GrammarMatcher, "state", lambda self, path: original(self, ()))


def rollback_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What one branch tried is still there when the next is looked at."""

    def after(self: State, token: int) -> State | None:
        if self.done or not self._matcher.consume_token(token):
            return None
        return State(self._rules, self._matcher)

    patch.setattr(State, "after", after)


def output_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrammarMatcher, "commit", lambda self, tokens: None)


def q_without_the_mask(patch: pytest.MonkeyPatch) -> None:
    """Draws are made under the grammar, but judged by a q that does not know it."""
    from sapwood.core.tree import Tree

    original = Tree.proposal

    def probs(self: Tree, node: int, child: int) -> Any:
        masked = original(self, node, child)
        return (masked + probs_after("draft", letter_grammar.SIZE, (0, 1, *self.spell(node)))) / 2

    patch.setattr(Tree, "proposal", probs)


def errors(row: tuple[Draw, str, str], controller: Fixed, rounds: int) -> float:
    """How far the law departs; a guide that loses its way altogether departs as far as can be."""
    sampling = under(letter_grammar.pattern("(ab|ba|cc)(c|ab)a"))
    try:
        return law_error(
            combine(*row, controller),
            ToyBackend("a", vocab=letter_grammar.SIZE),
            sampling,
            rounds=rounds,
        )
    except SapwoodError:
        return 1.0


MUTANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], tuple[Draw, str, str], Fixed, int]] = [
    (mask_forgotten_below, SIX[0], SMALL, 1),
    (mask_forgotten_below, SIX[2], DEEP, 1),
    (mask_forgotten_at_depth_two, SIX[0], SMALL, 1),
    (mask_forgotten_at_depth_two, SIX[3], DEEP, 1),
    (mask_of_the_root, SIX[0], SMALL, 1),
    (mask_of_the_root, SIX[4], DEEP, 1),
    (rollback_forgotten, SIX[0], SMALL, 1),
    (rollback_forgotten, SIX[3], SMALL, 1),
    (output_not_committed, SIX[0], SMALL, 2),
    (q_without_the_mask, SIX[2], DEEP, 1),
    (q_without_the_mask, SIX[1], DEEP, 1),
]


def named(value: Any) -> str:
    return (
        spelled(value) if isinstance(value, tuple) else getattr(value, "__name__", "") or str(value)
    )


@pytest.mark.parametrize(("mutant", "row", "controller", "rounds"), MUTANTS, ids=named)
def test_the_mutant_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None],
    row: tuple[Draw, str, str],
    controller: Fixed,
    rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert errors(row, controller, rounds) <= EXACT
    mutant(monkeypatch)
    assert errors(row, controller, rounds) > 1e-3
