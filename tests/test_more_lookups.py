"""Look-up drafters against brute force, the rules of their papers, and what they keep on disk."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.backends.toy import Toy
from sapwood.controllers.fixed import Fixed
from sapwood.cost import flat
from sapwood.drafters import corpus as corpora
from sapwood.drafters.aded import Aded
from sapwood.drafters.anpd import Anpd
from sapwood.drafters.automaton import Automaton
from sapwood.drafters.corpus import open_corpus
from sapwood.drafters.counts import Counts
from sapwood.drafters.gsd import Graph, Gsd
from sapwood.drafters.llma import Copy, Llma
from sapwood.drafters.merge import Merge
from sapwood.drafters.model import Model
from sapwood.drafters.ngram import Ngram
from sapwood.drafters.ngrammys import NGrammys
from sapwood.drafters.rasd import Rasd
from sapwood.drafters.recycling import Recycling
from sapwood.drafters.rest import Outputs, Rest
from sapwood.drafters.sam import Sam
from sapwood.drafters.suffix import Suffix
from sapwood.drafters.suffixes import DEPTH, Suffixes
from sapwood.engine import Engine, no_loader
from sapwood.errors import SapwoodError, Unsound
from sapwood.part import Part
from sapwood.policies.best import Best
from sapwood.policies.static import Static
from sapwood.protocols import Drafter, Frontier, Request, Setting
from sapwood.recipe import Recipe, parse
from sapwood.recipes import resolve
from sapwood.records import Draw, Outcome, Verdict
from sapwood.rng import Keyed, Rng
from sapwood.sampling import Sampler, Sampling
from sapwood.testing import law_error
from sapwood.tree import ROOT, Tree
from sapwood.verifiers.match import Match

VOCAB = 60
RNG = Keyed(0)
NAMES = ["llma", "anpd", "n-grammys", "sam", "rest", "rasd", "aded", "gsd"]
texts = st.lists(st.integers(0, 2), max_size=60)


def letters(text: str) -> list[int]:
    """A tokenizer: one token per letter, blanks left out."""
    return [ord(mark) - ord("a") for mark in text if mark.isalpha()]


SETTING = Setting(Toy(vocab=VOCAB), flat(), no_loader, letters)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))


def begin(part: Part, prompt: list[int], *, setting: Setting | None = SETTING) -> Any:
    """A copy of the part at the start of a request; without a setting the part is bound already."""
    if setting is not None:
        part.bind(setting)
    copy = part.fresh()
    copy.reset(Request(prompt, Sampler(Sampling(), prompt), Toy(vocab=VOCAB).open([])))
    return copy


def say(drafter: Drafter, *tokens: int) -> None:
    """Rounds without a draft that emit these tokens."""
    for token in tokens:
        tree = Tree(0)
        scores = Toy(vocab=VOCAB).scores([(token,)])
        drafter.observe(Outcome(tree, tree, Verdict((ROOT,), token), scores, 1, asked=False))


def answer(drafter: Drafter, root: int, *drafted: int, width: int = 9) -> dict[int, float]:
    """Children proposed after a chain of tokens that others drafted."""
    tree, node = Tree(root), ROOT
    for token in drafted:
        node = tree.add(node, token, 1.0)
    before = len(tree)
    drafter.expand(tree, [(node, width)], RNG)
    return dict(zip(tree.tokens[before:].tolist(), tree.probs[before:].tolist(), strict=True))


def spelled(drafter: Drafter, root: int, most: int = 50) -> list[int]:
    """The chain of first children."""
    tree, node = Tree(root), ROOT
    tokens: list[int] = []
    while len(tokens) < most:
        drafter.expand(tree, [(node, 1)], RNG)
        if not (children := tree.children(node)):
            break
        node = children[0]
        tokens.append(int(tree.tokens[node]))
    return tokens


def grown(drafter: Drafter, root: int, width: int, depth: int) -> Tree:
    """Everything a drafter knows, level by level."""
    tree = Tree(root)
    for level in range(depth):
        drafter.expand(tree, [(node, width) for node in tree.level(level)], RNG)
    return tree


def strings(tree: Tree) -> list[tuple[int, ...]]:
    """Each node as what it says after the root."""
    return [tuple(tree.spell(node)[1:]) for node in range(1, len(tree))]


# -------------------------------------------------------------------------------- suffix arrays
@given(texts)
def test_places_are_sorted_by_what_is_written_there(text: list[int]) -> None:
    order = Suffixes.of(text).order.tolist()
    assert order == sorted(range(len(text)), key=lambda place: text[place : place + DEPTH])


@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_every_occurrence_is_found(text: list[int], context: list[int]) -> None:
    low, high = (made := Suffixes.of(text)).find(context)
    found = sorted(made.order[low:high].tolist())
    assert found == [place for place in range(len(text)) if text[place : place + len(context)] == context]


@given(texts, texts, st.integers(1, 4), st.integers(1, 12))
def test_the_longest_end_that_goes_on_is_found(text: list[int], read: list[int], least: int, most: int) -> None:
    made = Suffixes.of(text)
    size, low, high = made.longest(read, most, least)
    sizes = range(least, min(most, len(read)) + 1)
    ends = [size for size in sizes if any(text[i : i + size] == read[-size:] for i in range(len(text) - size))]
    assert size == max(ends, default=0)
    assert (low < high) == bool(ends)
    assert all(text[place : place + size] == read[-size:] for place in made.order[low:high].tolist() if size)


def test_repetition_does_not_matter() -> None:
    made = Suffixes.of([7] * 300)
    low, high = made.find([7] * DEPTH)
    assert sorted(made.order[low:high].tolist()) == list(range(300 - DEPTH + 1))


@given(texts)
def test_automaton_and_array_count_the_same(text: list[int]) -> None:
    automaton, array = Automaton(), Suffixes.of(text)
    automaton.learn(text)
    for start in range(len(text)):
        state = 0
        for end in range(start, min(len(text), start + 8)):
            state = automaton.edges[state][text[end]]
            low, high = array.find(text[start : end + 1])
            assert automaton.counts[state] == high - low


# ------------------------------------------------------------------------------------ the corpus
def write(folder: Path, text: str) -> str:
    (folder / "store.txt").write_text(text)
    return str(folder / "store.txt")


@dataclass
class Reader:
    """A tokenizer that counts how much it reads."""

    read: int = 0
    shift: int = 0

    def __call__(self, text: str) -> list[int]:
        self.read += len(text)
        return [token + self.shift for token in letters(text)]


def test_a_corpus_is_built_once_and_then_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, reader = write(tmp_path, "abcabd " * 2000), Reader()
    first = open_corpus(name, replace(SETTING, encode=reader))
    assert reader.read > 14000
    reader.read = 0
    monkeypatch.setattr(corpora, "build", None)  # a second bind must not need it
    second = open_corpus(name, replace(SETTING, encode=reader))
    assert reader.read <= corpora.PROBE
    assert isinstance(second.tokens.base, np.memmap)
    assert isinstance(first.tokens.base, np.memmap)
    assert first.order.tolist() == second.order.tolist()
    assert second.find(letters("abd")) == first.find(letters("abd"))
    assert not list(tmp_path.rglob("*.part"))


def test_another_text_or_tokenizer_is_another_file(tmp_path: Path) -> None:
    name = write(tmp_path, "abcabd")
    places = {corpora.cached(Path(name), SETTING)}
    places.add(corpora.cached(Path(name), replace(SETTING, encode=Reader(shift=1))))
    places.add(corpora.cached(Path(name), replace(SETTING, target=Toy("other", vocab=VOCAB))))
    write(tmp_path, "abcabe")
    places.add(corpora.cached(Path(name), SETTING))
    assert len(places) == 4


@pytest.mark.parametrize("damage", [b"", b"not an array", None])
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    name = write(tmp_path, "abcabd" * 50)
    whole = open_corpus(name, SETTING).order.tolist()
    place = corpora.cached(Path(name), SETTING)
    place.write_bytes(place.read_bytes()[:-9] if damage is None else damage)
    assert open_corpus(name, SETTING).order.tolist() == whole
    assert np.load(place).shape == (2, 300)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "file"))
    assert len(open_corpus(write(tmp_path, "abc"), SETTING).tokens) == 3


def test_half_a_file_is_never_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "replace", fail)
    assert len(open_corpus(write(tmp_path, "abc"), SETTING).tokens) == 3
    assert not list((tmp_path / "cache").rglob("*.*"))


def test_pieces_make_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ab\ncdé\r\n" * 9 + "x" * 40
    name = write(tmp_path, text)
    monkeypatch.setattr(corpora, "PIECE", 7)
    found = list(corpora.pieces(Path(name)))
    assert "".join(found).replace("\r\n", "\n") == text.replace("\r\n", "\n")
    assert max(len(piece) for piece in found) <= 14
    assert all(piece.endswith("\n") for piece in found if "x" not in piece)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is not a file; name a file of plain text"),
        (b"", "is empty; name a file that holds text"),
        (b"123 456", "holds no tokens; name a file"),
        (b"a\xff", "is not UTF-8 at byte 1; save it as UTF-8"),
        (b"a" * 101, "has 101 bytes and at most 100 can be sorted; name a smaller"),
        ("\u0400".encode(), "reads as token .* has 60; use the target's own tokenizer"),
    ],
)
def test_a_corpus_that_will_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes | None, message: str
) -> None:
    monkeypatch.setattr(corpora, "LARGEST", 100)
    path = tmp_path / "odd.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(SapwoodError, match=message) as caught:
        Rest(corpus=str(path)).bind(SETTING)
    assert "odd.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [Rest, Sam, Aded, lambda corpus: Llma(references=corpus)])
def test_a_corpus_needs_a_tokenizer(tmp_path: Path, make: Callable[..., Part]) -> None:
    name = write(tmp_path, "abc")
    with pytest.raises(SapwoodError, match="'abc' cannot be read without the target's tokenizer; give the engine its"):
        make(corpus=name).bind(Setting(Toy(), flat(), no_loader))


def test_what_is_kept_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write(tmp_path, "abcabd")
    for module in ("sam", "aded"):
        monkeypatch.setattr(f"sapwood.drafters.{module}.LARGEST", 5)
    for part in (Sam(corpus=name), Aded(corpus=name)):
        with pytest.raises(SapwoodError, match="has 6 tokens and at most 5 fit here; use rest, or a smaller corpus"):
            part.bind(SETTING)
    Rest(corpus=name).bind(SETTING)


# ------------------------------------------------------------------------------------------ llma
def check_the_trigger(part: Llma) -> None:
    drafter = begin(part, [1, 2, 3, 4, 1, 2])
    assert not answer(drafter, 2)  # the prompt's own last tokens stand in the prompt, and do not count
    say(drafter, 9)
    assert not answer(drafter, 9)
    say(drafter, 3)
    assert spelled(drafter, 3) == [4, 1, 2]


@dataclass
class Eager(Llma):
    """A mutant that the prompt triggers."""

    def start(self, rng: Rng) -> Copy:
        return self._trigger(tuple(self.text_[-self.longest :]))


def test_llma_is_triggered_by_the_output_alone() -> None:
    check_the_trigger(Llma())
    with pytest.raises(AssertionError):
        check_the_trigger(Eager())


def test_llma_does_not_copy_from_the_output() -> None:
    drafter = begin(Llma(), [1, 2])
    say(drafter, 7, 8, 7)
    assert not answer(drafter, 7)


def test_llma_takes_the_longest_match_then_the_first_place() -> None:
    prompt = [3, 20, 3, 21, 5, 3, 22, 4, 5, 3, 23]
    drafter = begin(Llma(), prompt)
    say(drafter, 9, 3)
    assert spelled(drafter, 3, 1) == [20]
    say(drafter, 5, 3)
    assert spelled(drafter, 3, 1) == [22]
    say(drafter, 4, 5, 3)
    assert spelled(drafter, 3, 1) == [23]
    short = begin(Llma(longest=1), prompt)
    say(short, 4, 5, 3)
    assert spelled(short, 3, 1) == [20]


def test_llma_needs_as_many_tokens_as_the_trigger_says() -> None:
    drafter = begin(Llma(trigger=2), [1, 2, 3, 4])
    say(drafter, 2)
    assert not answer(drafter, 2)
    say(drafter, 1, 2)
    assert list(answer(drafter, 2)) == [3]


def test_llma_copies_so_many_tokens_and_stops() -> None:
    drafter = begin(Llma(copy=3), list(range(20)))
    say(drafter, 5)
    assert spelled(drafter, 5) == [6, 7, 8]
    assert list(answer(drafter, 5, 6)) == [7]
    assert list(answer(drafter, 5, 15)) == [16]  # another drafter's node triggers by itself


def test_llma_copies_from_references(tmp_path: Path) -> None:
    part = Llma(references=write(tmp_path, "abcd efgh"))
    drafter = begin(part, [40, 41])
    say(drafter, 2)
    assert spelled(drafter, 2) == letters("defgh")


# ------------------------------------------------------------------------------------------ anpd
def test_anpd_prefers_the_longest_context_then_the_commonest() -> None:
    drafter = begin(Anpd(n=3), [1, 2, 9, 5, 2, 8, 6, 2, 8, 1, 2])
    assert list(answer(drafter, 2)) == [9, 8]
    assert list(answer(begin(Anpd(n=2), [1, 2, 9, 5, 2, 8, 6, 2, 8, 1, 2]), 2)) == [8, 9]


def test_anpd_backs_off_and_learns() -> None:
    drafter = begin(Anpd(), [1, 2, 3])
    assert not answer(drafter, 3)
    say(drafter, 7, 3)
    assert list(answer(drafter, 3)) == [7]
    say(drafter, 8, 3, 8, 3)
    assert next(iter(answer(drafter, 3))) == 8
    assert sum(answer(drafter, 3).values()) <= 1


def in_pieces(counts: Counts, text: list[int], lead: int = 99) -> Counts:
    """The table after rounds of three tokens; a short lead forgets what stands before a round."""
    for cut in range(0, len(text), 3):
        counts.learn(text[:cut][-lead:] if lead else [], text[cut : cut + 3])
    return counts


@given(texts, st.integers(1, 4))
def test_counts_are_those_of_brute_force(text: list[int], longest: int) -> None:
    whole = Counts(longest)
    whole.learn([], text)
    assert in_pieces(Counts(longest), text).table == whole.table
    if len(text) > 3:
        assert in_pieces(Counts(longest), text, lead=0).table != whole.table
    for size in range(1, longest + 1):
        for end in range(size, len(text)):
            context = tuple(text[end - size : end])
            seen = Counter(text[i + size] for i in range(len(text) - size) if tuple(text[i : i + size]) == context)
            shares = whole.after(context)
            assert dict(shares) == {token: count / seen.total() for token, count in seen.items()}
            assert [share for _, share in shares] == sorted((share for _, share in shares), reverse=True)


def test_counts_forget_the_oldest() -> None:
    counts = Counts(1, 10)
    for token in range(100):
        counts.learn([token], [token + 1])
        assert len(counts.table) <= 10
    assert counts.after((99,)) == [(100, 1.0)]
    assert not counts.after((50,))


# ------------------------------------------------------------------------------------- n-grammys
@dataclass
class Rising(Part):
    """Proposes the next numbers, ever less surely."""

    draws: Draw = Draw.TOPK
    needs = frozenset[str]()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            token = int(tree.tokens[node])
            tree.extend(
                node, [(token + 1 + rank) % VOCAB for rank in range(width)], [0.5**rank / 2 for rank in range(width)]
            )


def test_n_grammys_copies_before_it_rolls_out() -> None:
    drafter = begin(NGrammys(rows=3, length=3, bigrams=Rising()), [5, 30, 31, 5, 40, 41, 5, 30, 31, 5])
    tree = grown(drafter, 5, 9, 9)
    rows = [string for string in strings(tree) if len(string) == 3]
    # twice 30 31 5, once 40 41 5; one row is left for the best bigram and what greedily follows it
    assert set(rows) == {(30, 31, 5), (40, 41, 5), (6, 7, 8)}
    first = [int(tree.tokens[node]) for node in tree.children(ROOT)]
    assert first.index(30) < first.index(40)
    assert tree.height == 3


def test_n_grammys_fills_all_rows_with_bigrams_at_first() -> None:
    tree = grown(begin(NGrammys(rows=3, length=2, bigrams=Rising()), [1, 2, 3]), 3, 9, 9)
    assert sorted(strings(tree)) == [(4,), (4, 5), (5,), (5, 6), (6,), (6, 7)]


def test_n_grammys_looks_at_as_many_tokens_as_it_is_told() -> None:
    text = [1, 5, 30, 2, 5, 40, 1, 5]
    assert set(answer(begin(NGrammys(bigrams=Ngram(), rows=9), text), 5)) == {30, 40}
    part = NGrammys(context=2, rows=1)
    assert list(answer(begin(part, text), 5)) == [30]


# ------------------------------------------------------------------------------------------- sam
def test_sam_copies_along_a_long_match_alone() -> None:
    text = [*range(10), 50, 0, 1, 2, 3]
    assert spelled(begin(Sam(otherwise=Rising()), text), 3) != [4, 5, 6, 7, 8, 9, 50]  # four tokens do not suffice
    drafter = begin(Sam(otherwise=Rising()), [*text, 4])
    assert spelled(drafter, 4) == [*range(5, 10), 50, *range(6)]
    assert list(answer(drafter, 4)) == [5]  # no tree beside the copy


def test_sam_copies_further_where_more_agrees() -> None:
    text = list(range(50))
    for matched in (5, 6):
        part = Sam(threshold=5, pace=1.5, otherwise=Ngram())
        assert len(spelled(begin(part, [*text, 55, *range(matched)]), matched - 1)) == int(1 + 1.5 * matched)
    assert len(spelled(begin(Sam(longest=4), [*text, 55, *range(9)]), 8)) == 4


def test_sam_lets_the_other_drafter_grow_a_tree_where_nothing_matches() -> None:
    drafter = begin(Sam(otherwise=Rising()), [1, 2, 3])
    assert list(answer(drafter, 3, width=2)) == [4, 5]
    assert list(answer(drafter, 3, 4, width=2)) == [5, 6]


def test_sam_trusts_a_named_text_by_a_margin(tmp_path: Path) -> None:
    name = write(tmp_path, "abcdefghijklm")
    part = Sam(corpus=name, threshold=2, margin=3, otherwise=Ngram(longest=1))
    prompt = letters("xyzcdefg")
    assert spelled(begin(part, prompt), letters("g")[0], 3) == letters("hij")
    assert not spelled(begin(part, prompt[:-1]), letters("f")[0])  # four tokens, less the margin, are one
    near = letters("fgzz cdefg")  # two tokens of the text itself are as good as five of the named one
    assert spelled(begin(part, near), letters("g")[0], 1) == letters("z")


# ------------------------------------------------------------------------------------------ rest
def hits_of(store: list[int], text: list[int], longest: int, ahead: int) -> list[list[int]]:
    """What follows the longest end of the text in a store, by looking everywhere."""
    for size in range(min(longest, len(text)), 0, -1):
        places = [i + size for i in range(len(store) - size + 1) if store[i : i + size] == text[-size:]]
        if min(places, default=len(store)) < len(store):
            return [store[place : place + ahead] for place in places if place < len(store)]
    return []


@given(texts.filter(bool), texts.filter(bool))
def test_rest_is_a_trie_of_all_hits_by_count(store: list[int], text: list[int]) -> None:
    part = Rest(longest=6, shortest=1, ahead=3)
    part.bind(SETTING)
    part.named = Suffixes.of(store)
    tree = grown(begin(part, text, setting=None), text[-1], 9, 5)
    hits = hits_of(store, text, 6, 3)
    counts = Counter(tuple(hit[:size]) for hit in hits for size in range(1, len(hit) + 1))
    reach = np.ones(len(tree))
    for node in range(1, len(tree)):
        reach[node] = reach[tree.parents[node]] * tree.probs[node]
    assert dict(zip(strings(tree), reach[1:].tolist(), strict=True)) == pytest.approx(
        {string: count / len(hits) for string, count in counts.items()}
    )
    for node in range(len(tree)):
        chances = tree.probs[tree.children(node)].tolist()
        assert chances == sorted(chances, reverse=True)


def test_rest_keeps_the_commonest_prefixes(tmp_path: Path) -> None:
    name = write(tmp_path, "xab" * 5 + "xac" * 3 + "xd" * 2)
    recipe = parse("rest(shortest=1) + best(estimator=raw) + match + fixed(nodes=4, depth=3, width=9)")
    recipe = replace(recipe, drafter=Rest(corpus=name, longest=1, shortest=1))
    engine = Engine(Toy(vocab=VOCAB), recipe, encode=letters)
    tree = next(engine.rounds([50, *letters("x")], Sampling(), RNG)).tree
    assert set(strings(tree)) == {tuple(letters(text)) for text in ("a", "ab", "ac", "abx")}


def check_the_selection(part: Rest) -> None:
    store = [token for last in range(50) for token in (55, last) * 2]
    part.bind(SETTING)
    part.named = Suffixes.of(store)
    found = answer(begin(part, [55], setting=None), 55, width=60)
    assert len(found) == 10
    assert max(found) >= 45


@dataclass
class Front(Rest):
    """A mutant that takes the first hits in order, as the authors' code does: those of low token ids."""

    def start(self, rng: Rng) -> Any:
        self.hits, most = 10**9, self.hits
        store, hits, size, drafted = super().start(rng)  # type: ignore[misc]
        return store, hits[:most], size, drafted


def test_rest_thins_hits_out_evenly() -> None:
    check_the_selection(Rest(longest=1, shortest=1, hits=10))
    with pytest.raises(AssertionError):
        check_the_selection(Front(longest=1, shortest=1, hits=20))


def test_rest_takes_no_end_of_a_store_for_a_hit() -> None:
    drafter = begin(Rest(hits=1), [1, 2, 3, 1, 2])
    assert answer(drafter, 2) == {3: 1.0}


def test_rest_without_a_store_reads_the_prompt_and_earlier_outputs() -> None:
    part = Rest()
    first = begin(part, [1, 2, 3, 1, 2])
    assert list(answer(first, 2)) == [3]
    say(first, 7, 8, 9)
    first.close()
    assert list(answer(begin(part, [50, 7, 8], setting=None), 8)) == [9]
    assert not answer(begin(part, [50, 8, 9], setting=None), 9)  # an output's end is followed by nothing
    assert list(answer(begin(part, [50, 1, 2], setting=None), 2)) == [7]  # an output's first token has a context


def test_rest_forgets_the_oldest_outputs() -> None:
    outputs = Outputs(25)
    for start in range(0, 50, 10):
        outputs.learn(range(start, start + 10))
    assert {token for one in outputs.kept for token in one} == set(range(30, 50))
    outputs.learn(range(100))
    assert [len(one) for one in outputs.kept] == [25]
    nothing = Outputs(0)
    nothing.learn([1, 2])
    assert nothing.size == 0


def test_rest_doubts_short_matches_when_told_to() -> None:
    sure, unsure = (answer(begin(Rest(doubt=doubt), [1, 2, 3, 1, 2]), 2) for doubt in (False, True))
    assert sure[3] == 1.0
    assert 0 < unsure[3] < 1


# ------------------------------------------------------------------------------------------ rasd
@dataclass
class Told(Part):
    """Proposes what it is told, after given strings."""

    known: dict[tuple[int, ...], list[int]]
    draws: Draw = Draw.TOPK
    needs = frozenset[str]()

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        for node, width in frontier:
            tokens = self.known.get(tuple(tree.spell(node)[1:]), [])[:width]
            tree.extend(node, tokens, [0.5**rank / 2 for rank in range(1, len(tokens) + 1)], source=self.source)


def fused(kind: type[Merge]) -> Tree:
    leader = Told({(): [5, 6], (5,): [7], (6,): [8]})
    store = Told({(): [5, 9], (5,): [7, 4], (5, 7): [3], (9,): [2]})
    return grown(begin(kind([leader, store]), [1]), 1, 4, 4)


def test_rasd_fuses_along_the_longest_common_prefix() -> None:
    tree = fused(Rasd)
    assert sorted(strings(tree)) == [(5,), (5, 4), (5, 7), (5, 7, 3), (6,), (6, 8)]
    assert len(set(strings(tree))) == len(tree) - 1  # no twins
    sources = {tuple(tree.spell(node)[1:]): int(tree.sources[node]) for node in range(1, len(tree))}
    assert sources == {(5,): 0b11, (6,): 0b01, (5, 7): 0b11, (5, 4): 0b10, (6, 8): 0b01, (5, 7, 3): 0b10}
    assert tree.probs[tree.child(ROOT, 5)] > tree.probs[tree.child(ROOT, 6)]


def test_rasd_prunes_what_a_plain_merge_keeps() -> None:
    assert (9, 2) in strings(fused(Merge))
    assert (9,) not in strings(fused(Rasd))


# ------------------------------------------------------------------------------------------ aded
def test_aded_visits_the_likely_more_and_the_others_too() -> None:
    part = Aded(searches=64, length=2)
    drafter = begin(part, [1, 2, 3] * 6 + [1, 2, 4] * 2 + [1, 2])
    found = answer(drafter, 2)
    assert list(found) == [3, 4]
    assert found[3] == pytest.approx(0.75, abs=0.1)
    assert sum(found.values()) <= 1
    few = begin(Aded(searches=2, length=2), [1, 2, 3] * 6 + [1, 2, 4] * 2 + [1, 2])
    assert set(answer(few, 2)) == {3, 4}  # a child never visited comes first


def test_aded_asks_two_tokens_before_one() -> None:
    drafter = begin(Aded(), [1, 2, 3, 5, 2, 4, 5, 2, 4, 1, 2])
    assert list(answer(drafter, 2)) == [3]
    assert list(answer(begin(Aded(), [5, 6, 7, 8, 6]), 6)) == [7]


def test_aded_remembers_and_reads_a_corpus(tmp_path: Path) -> None:
    part = Aded(corpus=write(tmp_path, "abc"))
    first = begin(part, [50, 51])
    say(first, 52)
    assert list(answer(begin(part, [40, 50, 51], setting=None), 51)) == [52]
    assert list(answer(begin(part, letters("ab"), setting=None), 1)) == [2]


def test_aded_plans_no_more_than_a_tree_holds() -> None:
    text = np.random.default_rng(0).integers(0, 6, 3000).tolist()
    drafter = begin(Aded(searches=512, length=8, wide=50), text)
    drafter.expand(Tree(text[-1]), [(ROOT, 50)], RNG)
    assert 512 < len(drafter.plan_) <= 1024


# ------------------------------------------------------------------------------------------- gsd
@dataclass
class Asked(Told):
    """Remembers what it was asked."""

    def expand(self, tree: Tree, frontier: Frontier, rng: Rng) -> None:
        self.calls = [*getattr(self, "calls", []), *(tuple(tree.spell(node)) for node, _ in frontier)]
        super().expand(tree, frontier, rng)


def branches(repeat: int) -> tuple[Tree, list[tuple[int, ...]]]:
    known = {(): [5, 6], (5,): [7], (6,): [5], (5, 7): [8], (6, 5): [7], (6, 5, 7): [9]}
    drafter = begin(Gsd(Asked(known), repeat=repeat, sibling=0.0), [1])
    return grown(drafter, 1, 4, 4), drafter.drafter.calls


def test_gsd_drafts_once_what_two_branches_say() -> None:
    tree, calls = branches(repeat=1)
    # 6 5 is 5 again: its continuation is not drafted but shared
    assert sorted(strings(tree)) == [(5,), (5, 7), (5, 7, 8), (6,), (6, 5), (6, 5, 7), (6, 5, 7, 8)]
    assert (1, 6, 5) not in calls
    assert len(calls) == len(set(calls)) == 5


def test_gsd_compares_as_many_tokens_as_it_is_told() -> None:
    tree, calls = branches(repeat=2)
    assert (1, 6, 5) in calls
    assert (1, 6, 5, 7) not in calls  # 5 7 stands on the other branch
    assert (6, 5, 7, 8) in strings(tree)
    tree, calls = branches(repeat=5)
    assert (6, 5, 7, 9) in strings(tree)
    assert (1, 6, 5, 7) in calls


def check_cycles() -> None:
    known = {(): [5], (5,): [5], (5, 5): [5, 6], (5, 5, 5): [6]}
    tree = grown(begin(Gsd(Told(known), repeat=1, sibling=0.0), [5]), 5, 4, 4)
    assert sorted(strings(tree)) == [(5,), (5, 5), (5, 5, 5), (5, 5, 5, 6), (5, 5, 6)]


class Loop(Graph):
    """A mutant that takes a node for one above it."""

    def settle(self) -> None:
        for node in range(len(self.meant), len(self.drafted)):
            alike = self.ends.setdefault((int(self.drafted.tokens[node]),), [])
            alike.append(node)
            self.meant.append(alike[0])


def test_gsd_never_takes_a_node_for_one_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_cycles()
    monkeypatch.setattr("sapwood.drafters.gsd.Graph", Loop)
    with pytest.raises(AssertionError):
        check_cycles()


def test_gsd_leaves_weak_siblings_out() -> None:
    known: dict[tuple[int, ...], list[int]] = {(): [5, 6, 7]}  # of chances 1/4, 1/8, 1/16
    assert strings(grown(begin(Gsd(Told(known), sibling=0.5), [1]), 1, 4, 1)) == [(5,), (6,)]


def test_gsd_draws_no_node_twice_on_a_model() -> None:
    whole = Recipe(
        Gsd(Model(model=Toy("draft")), repeat=1, sibling=0.0), Static(shape=[3, 3, 1]), Match(), Fixed(60, 3, 3)
    )
    tree = next(Engine(Toy(), whole).rounds([0, 1, 2], Sampling(), RNG)).grown
    assert len(tree) == 1 + 3 + 9 + 9
    assert len(set(strings(tree))) == len(tree) - 1


# ----------------------------------------------------------------------------------- all of them
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("salt", "ab")
def test_each_recipe_is_lossless(name: str, salt: str) -> None:
    assert law_error(resolve(name), Toy(salt), prompt=(0, 1, 2, 0, 1), rounds=2, horizon=2) <= 1e-12


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_recipe_says_what_plain_decoding_says(name: str, temperature: float) -> None:
    def text(recipe: str) -> Iterator[int]:
        sampling = Sampling(temperature=temperature, max_tokens=60)
        for outcome in Engine(Toy(), resolve(recipe)).rounds([0, 1, 2, 0, 1], sampling, Keyed(3)):
            yield from outcome.tokens

    ours, plain = ([token for token, _ in zip(text(recipe), range(40), strict=False)] for recipe in (name, "plain"))
    assert ours == plain


@pytest.mark.parametrize("part", [NGrammys(), Sam(), Rasd(), Gsd()], ids=str)
def test_drawn_guesses_cannot_be_selected_by_token(part: Any) -> None:
    option = next(name for name in ("bigrams", "otherwise", "drafters", "drafter") if hasattr(part, name))
    inner = Recycling(draws=Draw.SWOR)
    made = replace(part, **{option: [inner, Ngram()] if option == "drafters" else inner})
    with pytest.raises(Unsound, match=r"biases drawn ones; use draws=topk in recycling\(draws=swor\)"):
        Recipe(made, Best(), Match(), Fixed())


@pytest.mark.parametrize("part", [Llma(), Anpd(), NGrammys(), Sam(), Rest(), Rasd(), Aded(), Gsd()], ids=str)
def test_they_share_a_tree_with_others(part: Drafter) -> None:
    recipe = Recipe(Merge([Suffix(), part, Ngram()]), Best(), Match(), Fixed(nodes=12, depth=4, width=3))
    assert law_error(recipe, Toy("a"), prompt=(0, 1, 2, 0, 1), horizon=2) <= 1e-12
