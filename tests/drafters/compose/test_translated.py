"""Draft models with another tokenizer: in shared tokens, and by text."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers

from sapwood import LLM, registry
from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.toy import ToyBackend
from sapwood.controllers.fixed import Fixed
from sapwood.core.protocols import EngineContext, TreeInput, no_tokenizer
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Outcome
from sapwood.drafters.compose.draft_model import DraftModel
from sapwood.drafters.compose.merge import Merge
from sapwood.drafters.compose.translated import Translated
from sapwood.drafters.compose.universal import Universal, same
from sapwood.drafters.compose.vocab_map import BROKEN, MidTextTokenizer, TranslatedBackend, VocabMap
from sapwood.drafters.lookup.ngram import Ngram
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import Engine, no_loader
from sapwood.errors import SapwoodError
from sapwood.policies.chain import Chain
from sapwood.policies.static import Static
from sapwood.recipe import Recipe
from sapwood.testing import check_part, law_error
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.verifiers.match import Match
from sapwood.verifiers.mixed import Mixed
from sapwood.verifiers.mss import Mss
from sapwood.verifiers.rrs import Rrs
from tests.helpers import byte_tokenizer, tiny_models

EXACT = 1e-12
STORY = "the cat and the hat sat on the mat and ate "


# ------------------------------------------------------------------------- tokenizers that differ
class Letters:
    """A toy tokenizer: the longest piece that fits, from the left; what fits none is skipped."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    @property
    def size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str, *, whole: bool = True) -> list[int]:
        found = []
        while text:
            fit = max(
                (piece for piece in self.pieces if text.startswith(piece)), key=len, default=""
            )
            if fit:
                found.append(self.pieces.index(fit))
            text = text[max(1, len(fit)) :]
        return found

    def show(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in tokens)


@cache
def merged() -> Tokenizer:
    """Bytes and some words of the story, each with its blank, as byte-level tokenizers have them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("a", "t"),
        ("a", "n"),
        ("an", "d"),
        ("Ġ", "the"),
        ("Ġ", "and"),
        ("Ġ", "an"),
    ]
    vocabulary |= {
        one + other: len(vocabulary) + index for index, (one, other) in enumerate(merges)
    }
    made = FastTokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return Tokenizer(made)


@cache
def pieced() -> Tokenizer:
    """Whole words with the other blank sign and letters of their own, as sentence pieces are."""
    longer = ["th", "the", "at", "an", "and", "cat", "hat", "▁the", "▁and", "▁cat", "▁hat"]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"acdehmnost", *longer]
    made = FastTokenizer(
        models.BPE(
            {piece: index for index, piece in enumerate(pieces)}, rules(pieces), byte_fallback=True
        )
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(made)


def rules(pieces: list[str]) -> list[tuple[str, str]]:
    """A merge for every way that a piece is two others."""
    known = set(pieces)
    return [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known and not piece.startswith("<")
    ]


@cache
def model(name: str, vocab: int, seed: int) -> TorchBackend:
    """A two-layer model with this many tokens."""
    import torch

    made = tiny_models.make("llama", vocab_size=vocab, max_position_embeddings=128)
    torch.manual_seed(seed)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return TorchBackend(made, name)


PAIRS = [
    (byte_tokenizer.text, merged),
    (merged, byte_tokenizer.text),
    (merged, pieced),
    (byte_tokenizer.text, pieced),
]


def engine(drafter: Any, target: Any, draft: Any, policy: Any = None, **more: Any) -> Engine:
    """An engine whose target and draft model have these texts."""
    texts = {"": target(), "draft": draft()}
    recipe = Recipe(
        drafter, policy or Chain(), Match(), Fixed(**{"nodes": 6, "depth": 3, "width": 2, **more})
    )
    backend = model("target", texts[""].size, 0)
    return Engine(
        backend, recipe, load=lambda name: model(name, texts[name].size, 1), words=texts.__getitem__
    )


def text_of(
    running: Engine, prompt: list[int], sampling: Sampling, length: int = 16
) -> tuple[list[int], list[Outcome]]:
    rounds = []
    for outcome in running.rounds(prompt, sampling, KeyedRng(2)):
        rounds.append(outcome)
        if sum(len(one.tokens) for one in rounds) >= length:
            break
    return [token for one in rounds for token in one.tokens][:length], rounds


# ---------------------------------------------------------------------------------- shared tokens
def test_tokens_are_compared_by_how_they_read_inside_a_text() -> None:
    ours, theirs = MidTextTokenizer(pieced()), MidTextTokenizer(merged())
    mine = ours.pieces()
    other = theirs.pieces()
    for piece in (" the", " and", "at", "a", " "):
        assert mine[piece] == pieced().tokenizer.token_to_id(piece.replace(" ", "▁"))
        assert other[piece] == merged().tokenizer.token_to_id(piece.replace(" ", "Ġ"))
    assert not any(BROKEN in piece for piece in (*mine, *other))
    table = VocabMap(pieced(), merged())
    pairs = {
        (theirs.show([a]), ours.show([b])) for a, b in zip(table.target, table.own, strict=True)
    }
    assert all(one == other for one, other in pairs)
    assert " the" in {one for one, _ in pairs}
    assert len(set(table.own.tolist())) == len(set(table.target.tolist())) == len(table.own)


def test_the_blank_of_a_first_word_is_not_lost() -> None:
    """A token shown alone loses its blank in sentence pieces, and would be taken for another one."""
    [token] = MidTextTokenizer(pieced()).encode(" the")
    assert pieced().tokenizer.id_to_token(token) == "▁the"
    assert pieced().show([token]) == "the"
    assert MidTextTokenizer(pieced()).show([token]) == " the"


def test_other_tokens_are_read_as_several() -> None:
    table = VocabMap(Letters("a", "b"), Letters("ab", "b", "a", "x"))
    assert table.read(0) == [0, 1]
    assert table.read(1) == [1]
    assert table.read(3) == [1]  # no text in common: any token stands in
    with pytest.raises(
        SapwoodError, match="shares no token with the target; use the drafter universal"
    ):
        VocabMap(Letters("a"), Letters("b"))


def toy(draft: Letters, target: Letters, **options: Any) -> TranslatedBackend:
    """A toy model over its own letters, seen over the target's."""
    return TranslatedBackend(
        ToyBackend("draft", vocab=draft.size, **options),
        VocabMap(draft, target),
        ToyBackend(vocab=target.size).info,
    )


TABLES = [
    (Letters("c", "a", "b"), Letters("a", "b", "c")),  # the same in another order
    (Letters("b", "zz", "c", "y"), Letters("a", "b", "c")),  # two are shared
    (Letters("b", "a", "q"), Letters("a", "b", "ab")),  # one of the target's is two of the draft's
]


@pytest.mark.parametrize("tables", TABLES, ids=range(len(TABLES)))
def test_the_law_is_the_drafts_own_among_shared_tokens(tables: tuple[Letters, Letters]) -> None:
    draft, target = tables
    translated = toy(draft, target)
    tree = Tree(0)
    tree.add(tree.add(0, 1, 1.0), 2, 1.0)
    [scores] = translated.score([TreeInput(translated.open([1, 0]), tree)])
    best, logps = scores.topk(2)
    for row in range(3):
        read = draft.encode(target.show([1, 0]))
        for token in tree.spell(row):
            read += translated.table.read(token)
        own = np.exp(ToyBackend("draft", vocab=draft.size).scores([tuple(read)]).rows[0])
        probs = np.array(
            [
                own[draft.pieces.index(piece)] if piece in draft.pieces else 0.0
                for piece in target.pieces
            ]
        )
        probs /= probs.sum()
        logits = scores.logits(row)
        found = np.exp(logits - logits.max())
        assert found / found.sum() == pytest.approx(probs, abs=1e-15)
        assert best[row].tolist() == np.argsort(-probs, kind="stable")[:2].tolist()
        assert np.exp(logps[row]) == pytest.approx(probs[best[row]])
        assert scores.argmax()[row] == best[row, 0]


@pytest.mark.parametrize("tables", TABLES, ids=range(len(TABLES)))
@pytest.mark.parametrize(
    ("draws", "verifier"),
    [(Draw.IID, Mss()), (Draw.SWOR, Rrs()), (Draw.MIXED, Mixed()), (Draw.TOPK, Match())],
    ids=str,
)
def test_drafts_in_shared_tokens_keep_the_law(
    tables: tuple[Letters, Letters], draws: Draw, verifier: Any
) -> None:
    drafter = DraftModel(model=toy(*tables), draws=draws)
    recipe = Recipe(drafter, Static(shape=[2, 1]), verifier, Fixed(nodes=4, depth=2, width=2))
    assert law_error(recipe, ToyBackend("a")) <= EXACT


def test_a_law_with_tokens_that_were_never_drawn_would_be_noticed() -> None:
    class Boaster(DraftModel):
        """Leaves its law as if every token could come."""

        def expand(self, tree: Tree, frontier: Any, rng: Any) -> None:
            super().expand(tree, frontier, rng)
            for key, probs in tree.proposals.items():
                tree.proposals[key] = 0.7 * probs + 0.3 / len(probs)

    recipe = Recipe(
        Boaster(model=toy(*TABLES[1]), draws=Draw.SWOR),
        Chain(),
        Rrs(),
        Fixed(nodes=2, depth=2, width=1),
    )
    assert law_error(recipe, ToyBackend("a")) > 1e-3


def test_a_ban_on_every_shared_token_leaves_plain_decoding() -> None:
    sampling = Sampling(temperature=1.0, banned=[1, 2], max_tokens=4)
    recipe = Recipe(
        DraftModel(model=toy(*TABLES[1]), draws=Draw.IID),
        Chain(),
        Mss(),
        Fixed(nodes=2, depth=2, width=1),
    )
    assert law_error(recipe, ToyBackend("a"), sampling) <= EXACT


def test_sessions_keep_step_with_the_text() -> None:
    draft, target = TABLES[2]
    translated = toy(draft, target)
    session = translated.open([0, 1])
    tree = Tree(2)
    tree.add(0, 0, 1.0)
    tree.add(0, 2, 1.0)
    translated.score([TreeInput(session, tree)])
    session.commit([0, 2])
    assert session.tokens == [0, 1, 2, 2]
    assert draft.show(session.read) == target.show(session.tokens) == "ababab"
    assert session.inner.tokens == session.read  # type: ignore[attr-defined]
    other = session.fork()
    session.rewind(1)
    assert (session.length, session.read) == (1, [1])
    assert other.length == 4
    with pytest.raises(SapwoodError, match="no hidden states"):
        translated.watch([0])


def test_a_text_beyond_the_drafts_context_is_read_from_its_last_part() -> None:
    draft, target = TABLES[0]
    translated = toy(draft, target, context=16)
    session = translated.open([0, 1, 2] * 9)
    assert draft.show(session.read) == target.show([0, 1, 2] * 9)[-6:]
    for _ in range(40):
        translated.score([TreeInput(session, Tree(1))])
        session.commit([0])
        assert session.inner.length < 16
    assert session.length == 67


@pytest.mark.parametrize(
    ("target", "draft"), PAIRS, ids=["bytes-words", "words-bytes", "words-pieces", "bytes-pieces"]
)
@pytest.mark.parametrize(
    "make", [lambda: Translated(model="draft", draws=Draw.SWOR), lambda: Universal(model="draft")]
)
def test_the_text_is_plain_decodings(target: Any, draft: Any, make: Any) -> None:
    prompt = target().encode(STORY)
    sampling = Sampling(temperature=0.0 if draft is byte_tokenizer.text else 0.8, max_tokens=40)
    plain, _ = text_of(engine(make(), target, draft, nodes=0), prompt, sampling)
    policy = Static(shape=[2, 1, 1])
    ours, rounds = text_of(engine(make(), target, draft, policy), prompt, sampling)
    both, _ = text_of(
        engine(Merge(drafters=[Ngram(), make()]), target, draft, policy), prompt, sampling
    )
    assert ours == both == plain
    assert isinstance(make(), Universal) or any(len(outcome.tree) > 1 for outcome in rounds)


# ---------------------------------------------------------------------------------------- by text
def bound(target: Any, draft: Any, **options: Any) -> Universal:
    """The drafter of an engine, at a prompt."""
    drafter: Any = engine(Universal(model="draft", **options), target, draft).recipe.drafter
    made = drafter.fresh()
    assert isinstance(made, Universal)
    return made


class Prompt:
    """A request as far as the drafter reads it."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (" and the", [" and", " the"]),  # as the whole text would be encoded
        ("n", ["n"]),  # finishes a word: a token that would reach back is not taken
        ("", []),
    ],
)
def test_what_is_said_is_encoded_after_the_text(said: str, expected: list[str]) -> None:
    drafter = bound(merged, byte_tokenizer.text)
    drafter.reset(Prompt(merged().encode("the cat a")))  # type: ignore[arg-type]
    assert [
        MidTextTokenizer(merged()).show([token]) for token in drafter.encode_after(said)
    ] == expected
    drafter.close()


@pytest.mark.parametrize("window", [2, 3, 99])
def test_guesses_spell_what_the_model_says(window: int) -> None:
    draft = Letters("b", "a", "ba")
    target = Letters("a", "b", "ab")
    small = ToyBackend("draft", vocab=3)
    texts = {"": target, "draft": draft}
    drafter = Universal(model="draft", length=4, window=window)
    recipe = Recipe(drafter, Chain(), Match(), Fixed(nodes=9, depth=9, width=1))
    running = Engine(ToyBackend(), recipe, load=lambda name: small, words=texts.__getitem__)
    text = [0, 1, 2, 0, 1, 1, 0]
    whole = 0
    for outcome in running.rounds(text, Sampling(max_tokens=40), KeyedRng(0)):
        told = target.show(text)
        drafted = target.show(outcome.grown.tokens[1:].tolist())
        own = draft.encode(told)
        for _ in range(4):
            own.append(int(small.scores([tuple(own)]).argmax()[0]))
        whole += draft.show(own) == told + drafted
        text += outcome.tokens
        if len(text) > 40:
            break
    assert whole > 0
    if window == 99:  # nothing is encoded in parts, which may read otherwise
        assert whole == sum(1 for _ in played_rounds(running, text[:7], len(text)))


def played_rounds(running: Engine, prompt: list[int], length: int) -> list[Outcome]:
    """The rounds that it takes to reach this length."""
    _, rounds = text_of(running, prompt, Sampling(max_tokens=40), length - len(prompt))
    return rounds


def test_only_what_changed_is_read_again() -> None:
    running = engine(
        Universal(model="draft", window=8), merged, byte_tokenizer.text, nodes=6, depth=6
    )
    prompt = merged().encode(STORY)
    small = model("draft", byte_tokenizer.SIZE, 1)
    opened: list[int] = []
    plain_open = small.open

    def counted(tokens: Sequence[int]) -> Any:
        opened.append(len(tokens))
        return plain_open(tokens)

    small.open = counted  # type: ignore[method-assign]
    try:
        text_of(running, prompt, Sampling(max_tokens=60), 48)
    finally:
        del small.open
    assert len(opened) == 1  # one session, rewound


def test_long_texts_are_read_from_their_end() -> None:
    running = engine(
        Universal(model="draft", window=8), merged, byte_tokenizer.text, nodes=6, depth=6
    )
    prompt = merged().encode(STORY * 2)  # bytes make it longer than the draft holds as it grows
    text, _ = text_of(running, prompt, Sampling(max_tokens=60), 50)
    assert len(text) == 50


def test_beginnings_are_compared() -> None:
    assert same([1, 2, 3], [1, 2, 4]) == 2
    assert same([1], [1, 2]) == same([1, 2], [1]) == 1
    assert same([], [1]) == 0


# ------------------------------------------------------------------------------------------ parts
@pytest.mark.parametrize("kind", [Translated, Universal])
def test_a_model_is_named(kind: Any) -> None:
    with pytest.raises(
        SapwoodError, match=r"needs a model by name, for its tokenizer; write .*\(model='NAME'\)"
    ):
        kind().bind(EngineContext(ToyBackend(), flat(), no_loader))
    with pytest.raises(SapwoodError, match="tokenizer of draft cannot be found here"):
        kind(model="draft").bind(
            EngineContext(ToyBackend(), flat(), lambda name: ToyBackend(name), no_tokenizer)
        )


def test_they_keep_the_contract_of_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Translated, "bind", lambda self, setting: setattr(self, "backend", toy(*TABLES[2]))
    )
    registry.lookup("drafter", "translated"), registry.lookup("drafter", "universal")  # names them
    check_part("drafter", Translated(model="draft", draws=Draw.SWOR))

    def bind(self: Universal, setting: EngineContext) -> None:
        draft, target = TABLES[2]
        self.backend = ToyBackend("draft", vocab=draft.size)
        self.ours = MidTextTokenizer(draft)
        self.theirs = MidTextTokenizer(target)

    monkeypatch.setattr(Universal, "bind", bind)
    check_part("drafter", Universal(model="draft"))


def test_models_are_found_with_their_tokenizers(tmp_path: Path) -> None:
    for name, size in (("target", byte_tokenizer.SIZE), ("draft", merged().size)):
        folder = tmp_path / name
        tiny_models.make("llama", vocab_size=size).save_pretrained(folder)
    byte_tokenizer.save(tmp_path / "target")
    merged().tokenizer.save(str(tmp_path / "draft" / "tokenizer.json"))
    recipe = "{}(model='{}') + chain + match + fixed(nodes=4, depth=4, width=1)"
    texts = []
    for one in (
        "plain",
        *(recipe.format(name, tmp_path / "draft") for name in ("translated", "universal")),
    ):
        llm = LLM(str(tmp_path / "target"), one, device="cpu", dtype="float32")
        texts.append(llm.generate(STORY, raw=True, max_tokens=12).tokens)
    assert texts[0] == texts[1] == texts[2]
