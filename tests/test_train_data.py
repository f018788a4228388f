"""Training data from the target: prompts, batched generation, shards, the corpus on disk."""

import errno
import functools
import json
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from sapwood.backends.torch.model import TorchBackend
from sapwood.engine import Engine
from sapwood.errors import SapwoodError
from sapwood.recipes import resolve
from sapwood.rng import Keyed, uniforms
from sapwood.sampling import Sampling
from sapwood.text import Text
from sapwood.train import corpus as corpora
from sapwood.train import prompts as prompting
from sapwood.train.board import Ask, Board, pick
from sapwood.train.corpus import Corpus, Progress, make
from sapwood.train.generate import Generator, Pace
from sapwood.train.openings import OPENINGS, PASSAGES, QUESTIONS, SENTENCES
from sapwood.train.prompts import Draws, Frame, choose, circles, derive, finished, library
from sapwood.train.rows import NAME, Arena, attend, batch_attention
from sapwood.train.shards import DataSettings
from tests import tiny, words

PROMPTS = [[5, 6, 7], [9], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [20, 21], [30, 31, 32, 33, 34, 35]]
EOS = 2


def plain(backend: TorchBackend, prompt: Sequence[int], new: int, ends: Sequence[int]) -> list[int]:
    """What the engine says without drafting."""
    said: list[int] = []
    for outcome in Engine(backend, resolve("plain")).rounds(prompt, Sampling(max_tokens=new), Keyed(0)):
        said += outcome.tokens
        if len(said) >= new or said[-1] in ends:
            break
    return said


# -------------------------------------------------------------------------------------- generating
@pytest.mark.parametrize("name", tiny.NAMES)
def test_batches_say_what_plain_decoding_says(name: str) -> None:
    backend = tiny.backend(name)
    before = backend.model.config.get_text_config()._attn_implementation
    said = Generator(backend).run([Ask(prompt, 24) for prompt in PROMPTS], [EOS])
    assert said == [plain(backend, prompt, 24, [EOS]) for prompt in PROMPTS]
    assert backend.model.config.get_text_config()._attn_implementation == before != NAME


def test_a_text_ends_with_the_first_end_or_at_its_own_limit() -> None:
    backend = tiny.backend("llama")
    free = Generator(backend).run([Ask(prompt, 20) for prompt in PROMPTS], [])
    assert [len(text) for text in free] == [20] * len(PROMPTS)
    end = free[0][7]
    ended = Generator(backend).run([Ask(prompt, 20 - row) for row, prompt in enumerate(PROMPTS)], [end])
    for row, (whole, text) in enumerate(zip(free, ended, strict=True)):
        stop = whole.index(end) + 1 if end in whole else 20
        assert text == whole[: min(stop, 20 - row)]


@pytest.mark.parametrize("pace", [Pace(1, 1, 4), Pace(2, 3, 8), Pace(16, 16, 4096), Pace(3, 5, 1)])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_neighbours_do_not_matter(name: str, pace: Pace) -> None:
    backend = tiny.backend(name)
    asks = [Ask(prompt, 5 + 9 * row, 0.9 * (row % 2), key=row) for row, prompt in enumerate(PROMPTS)]
    alone = [Generator(backend).run([ask], [EOS])[0] for ask in asks]
    assert Generator(backend, pace=pace).run(asks, [EOS]) == alone


def test_finished_rows_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    accept = Board.accept

    def watched(self: Board, token: torch.Tensor, ends: torch.Tensor) -> None:
        sizes.append(self.rows)
        accept(self, token, ends)

    monkeypatch.setattr(Board, "accept", watched)
    asks = [Ask(prompt, new, key=new) for prompt, new in zip(PROMPTS, (3, 3, 20, 3, 9), strict=True)]
    Generator(tiny.backend("llama")).run(asks, [])
    assert sizes == [5] * 3 + [2] * 6 + [1] * 11


def test_a_spare_row_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [Ask(prompt, 6 + row, 0.5, key=row) for row, prompt in enumerate(PROMPTS)]
    want = Generator(tiny.backend("llama")).run(asks, [])
    padded = Generator(tiny.backend("llama"), pace=Pace(16, 4, 64))
    monkeypatch.setattr(padded, "_rows", lambda count: next(size for size in (1, 2, 4, 8, 16) if size >= count))
    assert padded.run(asks, []) == want


def test_shrinking_moves_every_plane() -> None:
    arena = Arena(Generator(tiny.backend("deepseek")).layout, 5 * 8)
    before = [torch.randn_like(buffer) for buffer in arena.view(5, 8)]
    for buffer, values in zip(arena.view(5, 8), before, strict=True):
        buffer.copy_(values)
    keep = torch.tensor([4, 1, 1])
    arena.shrink(5, 8, keep)
    for buffer, values in zip(arena.view(3, 8), before, strict=True):
        assert torch.equal(buffer, values[:, keep])


def test_folded_heads_are_attention() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 6, 1, 8), torch.randn(3, 2, 12, 8), torch.randn(3, 2, 12, 10)
    mask = torch.zeros(3, 1, 1, 12).masked_fill(torch.arange(12) > torch.tensor([2, 11, 7])[:, None, None, None], -1e9)
    wide_key, wide_value = key.repeat_interleave(3, 1), value.repeat_interleave(3, 1)
    law = (query @ wide_key.transpose(2, 3) * 0.3 + mask).softmax(-1)
    out, _ = attend(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    assert torch.allclose(out, (law @ wide_value).transpose(1, 2), atol=1e-6)


def test_attention_comes_back_after_an_error() -> None:
    model = tiny.make("llama")

    def fail() -> None:
        with batch_attention(model) as fits:
            assert fits
            assert model.config._attn_implementation == NAME
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.config._attn_implementation != NAME


def test_samples_follow_the_law() -> None:
    logits, count = torch.tensor([1.0, -2.0, 0.5, -float("inf"), 2.0, 0.0]), 6000
    for temperature in (1.0, 0.6):
        law = (logits / temperature).softmax(-1).double().numpy()
        noise = torch.from_numpy(uniforms(3, count)).float()[:, None]
        drawn = pick(logits.expand(count, 6), torch.full((count,), temperature), noise).numpy()
        seen = np.bincount(drawn, minlength=6)
        assert seen[3] == 0
        expected = count * law[law > 0]
        assert ((seen[law > 0] - expected) ** 2 / expected).sum() < 18.5  # 4 degrees of freedom: p = 0.001


def test_generated_tokens_follow_the_models_law() -> None:
    backend, prompt, count = tiny.backend("llama"), [5, 6, 7], 4000
    said = Generator(backend, pace=Pace(500, 1, 4096)).run([Ask(prompt, 2, 1.0, key=9 * n) for n in range(count)], [])
    with torch.inference_mode():
        law = backend.model(torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy()
    seen, expected = np.bincount([text[0] for text in said], minlength=len(law)), count * law
    rare = expected < 5
    seen, expected = np.append(seen[~rare], seen[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    freedom = len(expected) - 1
    assert ((seen - expected) ** 2 / expected).sum() < freedom + 4 * (2 * freedom) ** 0.5
    first = max({text[0] for text in said}, key=lambda token: sum(text[0] == token for text in said))
    assert len({text[1] for text in said if text[0] == first}) > 1, "the second token has noise of its own"


@pytest.mark.parametrize("noise", [1e-30, 1.0])
def test_the_ends_of_the_line_are_tokens_of_the_law(noise: float) -> None:
    logits = torch.tensor([[-float("inf"), 0.0, 1.0, -float("inf")]])
    assert pick(logits, torch.ones(1), torch.tensor([[noise]])).item() in (1, 2)


def test_graphs_are_made_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping of graphs, with passes that stand in for them: padded rows, a pass before each capture."""
    asks = [Ask(PROMPTS[n % 5], 40 + 6 * n, 0.9 * (n % 2), key=n) for n in range(12)]
    backend = tiny.backend("llama")
    want = Generator(backend).run(asks, [])
    generator = Generator(backend, pace=Pace(512, 16, 4096))
    generator.graphing = True
    made = []

    def capture(shape: tuple[int, ...], step: Any) -> None:
        step()
        generator.graphs[shape] = types.SimpleNamespace(replay=step)
        made.append(shape)

    monkeypatch.setattr(generator, "_capture", capture)
    assert generator.run(asks, []) == want
    assert {shape[0] for shape in made} == {16}
    assert len(made) == len(set(made)) == 1  # all keys fit one bucket
    assert generator.run(asks, []) == want
    assert len(made) == 1, "a second run needs no second capture"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_graphs_say_what_passes_say() -> None:
    backend = TorchBackend(tiny.make("llama", torch.float16).to("cuda"), "tiny")
    asks = [Ask(PROMPTS[n % 5], 8 + n, 0.9 * (n % 2), key=n) for n in range(40)]
    notes: list[str] = []
    graphs = Generator(backend, pace=Pace(32, 16, 4096, graphs=True), note=notes.append)
    eager = Generator(backend, pace=Pace(32, 16, 4096))
    ours, theirs = graphs.run(asks, [EOS]), eager.run(asks, [EOS])
    assert graphs.graphs
    assert not notes
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 36  # half precision: ties may fall either way


# ----------------------------------------------------------------------------------------- prompts
def framed(template: str = words.TEMPLATE) -> Frame:
    return Frame.of(Text(words.tokenizer(), template, (words.EOS,), specials={"bos_token": "<bos>"}), "tiny")


def test_a_template_is_taken_apart() -> None:
    frame = framed("<user>be kind <user>{{ messages[0].content | trim }}<eos><bot>")
    assert (frame.head, frame.tail, frame.trims) == ("<user>be kind <user>", "<eos><bot>", True)
    assert frame.ends == [words.EOS]
    [prompt] = frame.prompts(["  hi "])
    assert prompt.words == "hi"
    assert list(prompt.tokens) == frame.text.chat([{"role": "user", "content": "  hi "}])
    assert not framed().trims
    assert framed().ends == [words.EOS, 259]
    for template, wrong in (
        (None, "no chat template"),
        ("{{ messages[0].content | upper }}", "changes the user's words"),
    ):
        with pytest.raises(SapwoodError, match=wrong):
            Frame.of(Text(words.tokenizer(), template), "tiny")


def test_prompts_of_a_file(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    rows = [
        {"prompt": "Wie?", "source": "x"},
        {"messages": [*chat, {"role": "user", "content": "three"}, {"role": "assistant", "content": "gone"}]},
        {"turns": ["first", "second"]},
        {"prompt": "x" * 100},
        {"messages": [{"role": "user", "content": "Wie?"}]},
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\ufeff" + "\n\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    frame = framed()
    found = prompting.read(path, frame, 50)
    assert [prompt.words for prompt in found.items] == ["Wie?", "three", "second"]
    assert (found.long, found.repeated) == (1, 1)
    asked = frame.text.chat([*chat, {"role": "user", "content": "three"}])
    assert list(found.items[1].tokens) == asked
    with pytest.raises(SapwoodError, match="at most 2 tokens"):
        prompting.read(path, frame, 2)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ('{"prompt": "x"', "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[1]", "no JSON object"),
        ('"prompt"', "no JSON object"),
        ('{"text": "x"}', "no JSON object"),
        ('{"prompt": 3}', "without words"),
        ('{"prompt": ["x"]}', "wrong kind"),
        ('{"messages": "x"}', "wrong kind"),
        ('{"prompt": "  "}', "without words"),
        ('{"messages": [{"role": "user"}]}', "without words"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "no user speaks"),
        ('{"turns": []}', "no user speaks"),
        ('{"prompt": "\\ud800"}', "not valid Unicode"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: str, wrong: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n{row}\n')
    with pytest.raises(SapwoodError, match=rf"line 2 of .*p\.jsonl .*{wrong}") as caught:
        prompting.read(path, framed(), 100)
    assert "\n" not in str(caught.value)


def test_a_line_the_template_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "good"}\n{"turns": ["a", "b"]}\n')
    strict = framed("{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}" + words.TEMPLATE)
    with pytest.raises(SapwoodError, match=r"line 2 of .*refuses"):
        prompting.read(path, strict, 100)


@pytest.mark.parametrize(("data", "wrong"), [(b"\n \n", "holds no prompts"), (b'{"prompt": "\xff"}', "not UTF-8")])
def test_a_bad_file_is_named(tmp_path: Path, data: bytes, wrong: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(data)
    with pytest.raises(SapwoodError, match=wrong):
        prompting.read(path, framed(), 100)
    with pytest.raises(SapwoodError, match="cannot be read"):
        prompting.read(tmp_path / "none", framed(), 100)


def test_openings_come_in_their_shares() -> None:
    chosen = [choose(Draws(1, n), 0.5, 0.125) for n in range(4000)]
    assert sum(bool(one.words) for one in chosen) / 4000 == pytest.approx(0.5, abs=0.03)
    assert sum(one.long for one in chosen) / 4000 == pytest.approx(0.125, abs=0.02)
    assert {one.words for one in chosen} == {"", *(one.words for one in OPENINGS)}
    assert not any(one.words for one in (choose(Draws(2, n), 0.0, 0.125) for n in range(50)))
    assert 60 <= len(OPENINGS) == len({one.words for one in OPENINGS})
    assert not any(one.words.endswith(" ") for one in OPENINGS), "a blank belongs to the word after it"


def test_turns_are_whole_and_do_not_run_in_circles() -> None:
    assert finished(" What is a tree? ", True) == "What is a tree?"
    assert finished("What is a tree? And wh", False) == "What is a tree?"
    assert finished("What is a tree and wh", False) == finished("Hm?", True) == finished("bad \ufffd bytes", True) == ""
    assert circles(list(range(20)) * 3)
    assert not circles(list(range(20)) * 2)
    assert not circles([1] * 21)
    assert circles([1] * 22)


def test_tasks_are_made_of_passages() -> None:
    texts = [f"Text number {n} {{question}} says a thing. It says another thing, too." for n in range(40)]
    books = library([texts, ["Another shelf holds this sentence."]], ["Who is it?", "Say it."])
    assert books.questions == ["Who is it?"]
    tasks = [derive(books, Draws(5, n), words.text(), 400) for n in range(300)]
    assert all(len(task) < 700 and "{passage}" not in task and "{sentence}" not in task for task in tasks)
    starts = [task.form.partition("{")[0] for task in (*PASSAGES, *QUESTIONS, *SENTENCES)]
    assert all(any(task.startswith(start) for task in tasks) for start in starts)
    assert sum("Who is it?" in task for task in tasks) > 40
    assert max(map(len, tasks)) > 300
    assert all(form.form.count("{passage}") == 1 for form in (*PASSAGES, *QUESTIONS))


# ------------------------------------------------------------------------------------------ corpus
SMALL = DataSettings(size=10, own=0.4, derived=0.2, new=12, turn=10, long_turn=20, limit=80, longest=128)


@functools.cache
def speaker() -> tuple[TorchBackend, Text]:
    """A model whose 61 words are words, so that what it writes by itself is text."""
    vocab = {f"word{n}{'?' if n % 7 == 3 else ''}": n for n in range(3, 59)}
    made = Tokenizer(models.WordLevel({**vocab, "[?]": 0}, unk_token="[?]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken(word, special=True) for word in ("<bos>", "<eos>", "<user>", "<bot>")])
    specials = {"bos_token": "<bos>"}
    template = "<bos><user>{{ messages[0].content }}<bot>"
    return tiny.backend("llama"), Text(made, template, (made.get_vocab()["<eos>"],), specials=specials)


def write_prompts(folder: Path, count: int = 7) -> Path:
    path = folder / "prompts.jsonl"
    said = [f"word{4 + n % 5} word{11 + n // 5 % 5} word{18 + n // 25} word10?" for n in range(count)]
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in said))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_corpus_is_what_it_says(tmp_path: Path) -> None:
    backend, text = speaker()
    told: list[Progress] = []
    settings = DataSettings(**{**vars(SMALL), "greedy": 1.0})
    made = make(
        backend,
        text,
        tmp_path / "c",
        prompts=write_prompts(tmp_path),
        tokens=200,
        settings=settings,
        progress=told.append,
    )
    read = Corpus.open(tmp_path / "c")
    for field in ("tokens", "starts", "answers", "shards"):
        assert np.array_equal(getattr(read, field), getattr(made, field))
    assert read.tokens.dtype == read.answers.dtype == np.int32
    assert read.starts.dtype == np.int64
    assert read.shards > 1
    assert read.written >= 200 > read.written - SMALL.new * 10
    assert read.counts(61).sum() == read.written == sum(read.lengths - read.answers)
    bot = text.tokenizer.token_to_id("<bot>")
    greedy = 0
    for index in range(len(read)):
        tokens, start = read.sequence(index).tolist(), int(read.answers[index])
        assert tokens[start - 1] == bot
        assert start <= 80
        assert len(tokens) <= min(128, start + SMALL.new)
        greedy += tokens[start:] == plain(backend, tokens[:start], SMALL.new, text.eos)
    assert len(read) > greedy >= len(read) - 4 * (read.shards - 1)  # prompts that came before are sampled
    assert told[-1].done == read.written
    assert (told[-1].goal, told[-1].left) == (200, 0)
    assert all(state.rate >= 0 for state in told)


def test_the_mixture_holds_from_the_first_shard(tmp_path: Path) -> None:
    backend, text = speaker()
    path = write_prompts(tmp_path, 100)
    corpus = make(backend, text, tmp_path / "c", prompts=path, tokens=1, settings=SMALL)
    said = [json.loads(row)["prompt"] for row in path.read_text().splitlines()]
    own = {tuple(text.chat([{"role": "user", "content": one}])) for one in said}
    asked = [tuple(corpus.sequence(index)[: corpus.answers[index]].tolist()) for index in range(len(corpus))]
    assert sum(prompt in own for prompt in asked) == 4
    assert 6 < len(asked) <= 10
    assert len(set(asked)) == len(asked)


def test_every_prompt_comes_once_before_one_comes_twice(tmp_path: Path) -> None:
    backend, text = speaker()
    settings = DataSettings(size=5, new=2, own=1.0, derived=0.0, longest=128)
    corpus = make(backend, text, tmp_path / "c", prompts=write_prompts(tmp_path, 10), tokens=31, settings=settings)
    asked = [tuple(corpus.sequence(index)[: corpus.answers[index]].tolist()) for index in range(len(corpus))]
    assert len(set(asked[:10])) == 10 == len(set(asked[10:20]))


def test_a_corpus_needs_no_prompts(tmp_path: Path) -> None:
    backend, text = speaker()
    corpus = make(backend, text, tmp_path, tokens=250, settings=SMALL)
    assert corpus.shards > 1
    assert len(corpus) > 5 * corpus.shards


class Stop(BaseException):
    """An interruption."""


@pytest.mark.parametrize("when", [0.1, 0.5, 0.9])
def test_an_interrupted_corpus_ends_up_the_same(tmp_path: Path, when: float) -> None:
    backend, text = speaker()
    path = write_prompts(tmp_path)
    whole = make(backend, text, tmp_path / "whole", prompts=path, tokens=250, seed=4, settings=SMALL)

    def stop(state: Progress) -> None:
        if state.done > when * whole.written:
            raise Stop

    with pytest.raises(Stop):
        make(backend, text, tmp_path / "cut", prompts=path, tokens=250, seed=4, settings=SMALL, progress=stop)
    assert len(contents(tmp_path / "cut")) < len(contents(tmp_path / "whole"))
    for tokens in (120, 250):
        make(backend, text, tmp_path / "cut", prompts=path, tokens=tokens, seed=4, settings=SMALL)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    other = make(backend, text, tmp_path / "other", prompts=path, tokens=250, seed=5, settings=SMALL)
    assert not np.array_equal(other.tokens, whole.tokens)


def test_time_ends_the_work_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, text = speaker()
    ticks = iter(range(10**9))
    monkeypatch.setattr("sapwood.train.corpus.time.monotonic", lambda: next(ticks) / 10)
    first = make(backend, text, tmp_path, seconds=0, settings=SMALL)
    assert first.shards == 1  # never nothing
    assert make(backend, text, tmp_path, seconds=0, settings=SMALL).shards == 1
    more = make(backend, text, tmp_path, seconds=60, tokens=10**9, settings=SMALL)
    assert 1 < more.shards < 60


def test_what_does_not_match_is_named(tmp_path: Path) -> None:
    backend, text = speaker()
    path, folder = write_prompts(tmp_path), tmp_path / "c"
    make(backend, text, folder, prompts=path, tokens=1, settings=SMALL)
    before = contents(folder)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 9}, "seed=0, not 9"),
        ({"prompts": None}, "prompts="),
        ({"settings": DataSettings(**{**vars(SMALL), "new": 9})}, "new=12, not 9"),
    ]
    for change, wrong in changes:
        with pytest.raises(SapwoodError, match=wrong):
            make(backend, text, folder, **{"prompts": path, "tokens": 9999, "settings": SMALL, **change})
    with pytest.raises(SapwoodError, match="needs an end"):
        make(backend, text, folder, prompts=path, settings=SMALL)
    with pytest.raises(SapwoodError, match="cannot be read"):
        make(backend, text, folder, prompts=tmp_path / "none", tokens=9, settings=SMALL)
    assert contents(folder) == before


def test_the_size_of_shards_stays_what_it_was(tmp_path: Path) -> None:
    backend, text = speaker()
    (tmp_path / "corpus.json").write_text(
        json.dumps({**corpora.describe(backend, None, 0, DataSettings(new=4, longest=128)), "size": 6})
    )
    corpus = make(backend, text, tmp_path, tokens=1, settings=DataSettings(new=4, longest=128))
    assert len(corpus) <= 6


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, text = speaker()
    folder = tmp_path / "c"
    make(backend, text, folder, tokens=1, settings=SMALL)
    before, write = contents(folder), Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write(self, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(SapwoodError, match=r"no room for 0\.0 MiB; free some: the 1 finished shards stay"):
            make(backend, text, folder, tokens=200, settings=SMALL)
    assert contents(folder) == before
    assert make(backend, text, folder, tokens=200, settings=SMALL).written >= 200
    (tmp_path / "file").write_text("")
    with pytest.raises(SapwoodError, match="cannot be made"):
        make(backend, text, tmp_path / "file" / "c", tokens=1, settings=SMALL)


def test_damage_is_named(tmp_path: Path) -> None:
    backend, text = speaker()
    with pytest.raises(SapwoodError, match="holds no corpus"):
        Corpus.open(tmp_path)
    make(backend, text, tmp_path, tokens=1, settings=SMALL)
    shard = tmp_path / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    with pytest.raises(SapwoodError, match=r"shard-00000.*damaged"):
        Corpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text("{")
    with pytest.raises(SapwoodError, match="damaged"):
        Corpus.open(tmp_path)


def test_a_model_that_writes_nothing_usable_says_so(tmp_path: Path) -> None:
    backend = TorchBackend(tiny.make("llama", vocab_size=words.SIZE), "bytes")  # random bytes are no text
    with pytest.raises(SapwoodError, match="bring prompts of your own"):
        make(backend, words.text(), tmp_path, tokens=1, settings=DataSettings(size=1, derived=0, turn=3, longest=128))


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"own": 1.5}, "own"),
        ({"own": 0.9, "derived": 0.2}, "own"),
        ({"warm": ()}, "warm"),
        ({"new": 0}, "new"),
        ({"longest": 9}, "longest"),
    ],
)
def test_settings_are_checked(change: dict[str, Any], wrong: str) -> None:
    with pytest.raises(SapwoodError, match=wrong):
        DataSettings(**change)


# ------------------------------------------------------------------------------- the built-in model
@functools.cache
def smol() -> tuple[TorchBackend, Text]:
    from sapwood.backends.torch.load import load

    backend, folder = load("smollm2", device="cpu", dtype="float32", threads=1)
    return backend, Text.load(folder)


@pytest.mark.smol
@pytest.mark.slow
@pytest.mark.xdist_group("smol")
def test_smollm2_says_the_same_in_a_batch() -> None:
    backend, text = smol()
    asked = ("What is the capital of France?", "Write a Python function that adds two numbers.", "Hi")
    prompts = [text.chat([{"role": "user", "content": words}]) for words in asked]
    said = Generator(backend).run([Ask(prompt, 24) for prompt in prompts], text.eos)
    assert said == [plain(backend, prompt, 24, text.eos) for prompt in prompts]


@pytest.mark.smol
@pytest.mark.slow
@pytest.mark.xdist_group("smol")
def test_smollm2_asks_itself_sensible_things(tmp_path: Path) -> None:
    backend, text = smol()
    frame = Frame.of(text, "smollm2")
    assert frame.head.endswith("<|im_start|>user\n")
    assert "You are a helpful AI assistant" in frame.head
    assert frame.tail == "<|im_end|>\n<|im_start|>assistant\n"
    settings = DataSettings(size=4, new=8, turn=32, derived=0.0, long=0.0, opened=0.0)
    corpus = make(backend, text, tmp_path, tokens=1, seed=3, settings=settings)
    asked = [text.decode(corpus.sequence(index)[: corpus.answers[index]].tolist()) for index in range(len(corpus))]
    assert asked
    assert all(sum(letter.isalpha() or letter.isspace() for letter in one) > 0.7 * len(one) for one in asked)
