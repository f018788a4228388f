"""Batched generation says what plain decoding says; samples follow the law."""

import functools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.backends.torch.backend import TorchBackend
from sapwood.core.rng import uniforms
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train.batch_cache import NAME, KvArena, attend, batch_attention
from sapwood.train.corpus import make
from sapwood.train.decode_state import DecodeState, TextToContinue, pick
from sapwood.train.generate import GenerationSettings, Generator
from sapwood.train.prompts import ChatFrame
from sapwood.train.shards import DataSettings
from tests.helpers import tiny_models
from tests.helpers.engine_rounds import plain_tokens

PROMPTS = [
    [5, 6, 7],
    [9],
    [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
    [20, 21],
    [30, 31, 32, 33, 34, 35],
]
EOS = 2


@pytest.mark.parametrize("name", tiny_models.NAMES)
def test_batches_say_what_plain_decoding_says(name: str) -> None:
    backend = tiny_models.backend(name)
    before = backend.model.config.get_text_config()._attn_implementation
    said = Generator(backend).run([TextToContinue(prompt, 24) for prompt in PROMPTS], [EOS])
    assert said == [plain_tokens(backend, prompt, 24, [EOS]) for prompt in PROMPTS]
    assert backend.model.config.get_text_config()._attn_implementation == before != NAME


def test_a_text_ends_with_the_first_end_or_at_its_own_limit() -> None:
    backend = tiny_models.backend("llama")
    free = Generator(backend).run([TextToContinue(prompt, 20) for prompt in PROMPTS], [])
    assert [len(text) for text in free] == [20] * len(PROMPTS)
    end = free[0][7]
    ended = Generator(backend).run(
        [TextToContinue(prompt, 20 - row) for row, prompt in enumerate(PROMPTS)], [end]
    )
    for row, (whole, text) in enumerate(zip(free, ended, strict=True)):
        stop = whole.index(end) + 1 if end in whole else 20
        assert text == whole[: min(stop, 20 - row)]


@pytest.mark.parametrize(
    "pace",
    [
        GenerationSettings(1, 1, 4),
        GenerationSettings(2, 3, 8),
        GenerationSettings(16, 16, 4096),
        GenerationSettings(3, 5, 1),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_neighbours_do_not_matter(name: str, pace: GenerationSettings) -> None:
    backend = tiny_models.backend(name)
    asks = [
        TextToContinue(prompt, 5 + 9 * row, 0.9 * (row % 2), key=row)
        for row, prompt in enumerate(PROMPTS)
    ]
    alone = [Generator(backend).run([ask], [EOS])[0] for ask in asks]
    assert Generator(backend, pace=pace).run(asks, [EOS]) == alone


def test_finished_rows_leave_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    accept = DecodeState.accept

    def watched(self: DecodeState, token: torch.Tensor, ends: torch.Tensor) -> None:
        sizes.append(self.rows)
        accept(self, token, ends)

    monkeypatch.setattr(DecodeState, "accept", watched)
    asks = [
        TextToContinue(prompt, new, key=new)
        for prompt, new in zip(PROMPTS, (3, 3, 20, 3, 9), strict=True)
    ]
    Generator(tiny_models.backend("llama")).run(asks, [])
    assert sizes == [5] * 3 + [2] * 6 + [1] * 11


def test_a_spare_row_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = [TextToContinue(prompt, 6 + row, 0.5, key=row) for row, prompt in enumerate(PROMPTS)]
    want = Generator(tiny_models.backend("llama")).run(asks, [])
    padded = Generator(tiny_models.backend("llama"), pace=GenerationSettings(16, 4, 64))
    monkeypatch.setattr(
        padded, "_rows", lambda count: next(size for size in (1, 2, 4, 8, 16) if size >= count)
    )
    assert padded.run(asks, []) == want


def test_shrinking_moves_every_plane() -> None:
    arena = KvArena(Generator(tiny_models.backend("deepseek")).layout, 5 * 8)
    before = [torch.randn_like(buffer) for buffer in arena.view(5, 8)]
    for buffer, values in zip(arena.view(5, 8), before, strict=True):
        buffer.copy_(values)
    keep = torch.tensor([4, 1, 1])
    arena.shrink(5, 8, keep)
    for buffer, values in zip(arena.view(3, 8), before, strict=True):
        assert torch.equal(buffer, values[:, keep])


def test_folded_heads_are_attention() -> None:
    torch.manual_seed(0)
    query = torch.randn(3, 6, 1, 8)
    key = torch.randn(3, 2, 12, 8)
    value = torch.randn(3, 2, 12, 10)
    mask = torch.zeros(3, 1, 1, 12).masked_fill(
        torch.arange(12) > torch.tensor([2, 11, 7])[:, None, None, None], -1e9
    )
    wide_key = key.repeat_interleave(3, 1)
    wide_value = value.repeat_interleave(3, 1)
    probs = (query @ wide_key.transpose(2, 3) * 0.3 + mask).softmax(-1)
    out, _ = attend(torch.nn.Module(), query, key, value, mask, scaling=0.3)
    assert torch.allclose(out, (probs @ wide_value).transpose(1, 2), atol=1e-6)


def test_attention_comes_back_after_an_error() -> None:
    model = tiny_models.make("llama")

    def fail() -> None:
        with batch_attention(model) as fits:
            assert fits
            assert model.config._attn_implementation == NAME
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert model.config._attn_implementation != NAME


def test_samples_follow_the_law() -> None:
    logits = torch.tensor([1.0, -2.0, 0.5, -float("inf"), 2.0, 0.0])
    count = 6000
    for temperature in (1.0, 0.6):
        probs = (logits / temperature).softmax(-1).double().numpy()
        noise = torch.from_numpy(uniforms(3, count)).float()[:, None]
        drawn = pick(logits.expand(count, 6), torch.full((count,), temperature), noise).numpy()
        seen = np.bincount(drawn, minlength=6)
        assert seen[3] == 0
        expected = count * probs[probs > 0]
        assert (
            (seen[probs > 0] - expected) ** 2 / expected
        ).sum() < 18.5  # 4 degrees of freedom: p = 0.001


def test_generated_tokens_follow_the_models_law() -> None:
    backend = tiny_models.backend("llama")
    prompt = [5, 6, 7]
    count = 4000
    said = Generator(backend, pace=GenerationSettings(500, 1, 4096)).run(
        [TextToContinue(prompt, 2, 1.0, key=9 * n) for n in range(count)], []
    )
    with torch.inference_mode():
        probs = backend.model(torch.tensor([prompt])).logits[0, -1].double().softmax(-1).numpy()
    seen = np.bincount([text[0] for text in said], minlength=len(probs))
    expected = count * probs
    rare = expected < 5
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    freedom = len(expected) - 1
    assert ((seen - expected) ** 2 / expected).sum() < freedom + 4 * (2 * freedom) ** 0.5
    first = max(
        {text[0] for text in said}, key=lambda token: sum(text[0] == token for text in said)
    )
    assert len({text[1] for text in said if text[0] == first}) > 1, (
        "the second token has noise of its own"
    )


@pytest.mark.parametrize("noise", [1e-30, 1.0])
def test_the_ends_of_the_line_are_tokens_of_the_law(noise: float) -> None:
    logits = torch.tensor([[-float("inf"), 0.0, 1.0, -float("inf")]])
    assert pick(logits, torch.ones(1), torch.tensor([[noise]])).item() in (1, 2)


def test_graphs_are_made_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping of graphs, with passes that stand in for them: padded rows, a pass before each capture."""
    asks = [TextToContinue(PROMPTS[n % 5], 40 + 6 * n, 0.9 * (n % 2), key=n) for n in range(12)]
    backend = tiny_models.backend("llama")
    want = Generator(backend).run(asks, [])
    generator = Generator(backend, pace=GenerationSettings(512, 16, 4096))
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
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_say_what_passes_say() -> None:
    backend = TorchBackend(tiny_models.make("llama", torch.float16).to("cuda"), "tiny")
    asks = [TextToContinue(PROMPTS[n % 5], 8 + n, 0.9 * (n % 2), key=n) for n in range(40)]
    notes: list[str] = []
    graphs = Generator(
        backend, pace=GenerationSettings(32, 16, 4096, graphs=True), note=notes.append
    )
    eager = Generator(backend, pace=GenerationSettings(32, 16, 4096))
    ours, theirs = graphs.run(asks, [EOS]), eager.run(asks, [EOS])
    assert graphs.graphs
    assert not notes
    assert (
        sum(a == b for a, b in zip(ours, theirs, strict=True)) >= 36
    )  # half precision: ties may fall either way


@functools.cache
def smol() -> tuple[TorchBackend, Tokenizer]:
    from sapwood.backends.torch.load import load

    backend, folder = load("smollm2", device="cpu", dtype="float32", threads=1)
    return backend, Tokenizer.load(folder)


@pytest.mark.smol
@pytest.mark.slow
def test_smollm2_says_the_same_in_a_batch() -> None:
    backend, text = smol()
    asked = (
        "What is the capital of France?",
        "Write a Python function that adds two numbers.",
        "Hi",
    )
    prompts = [text.chat([{"role": "user", "content": words}]) for words in asked]
    said = Generator(backend).run([TextToContinue(prompt, 10) for prompt in prompts], text.eos)
    assert said == [plain_tokens(backend, prompt, 10, text.eos) for prompt in prompts]


@pytest.mark.smol
@pytest.mark.slow
def test_smollm2_asks_itself_sensible_things(tmp_path: Path) -> None:
    backend, text = smol()
    frame = ChatFrame.of(text, "smollm2")
    assert frame.head.endswith("<|im_start|>user\n")
    assert "You are a helpful AI assistant" in frame.head
    assert frame.tail == "<|im_end|>\n<|im_start|>assistant\n"
    settings = DataSettings(size=4, new=8, turn=32, derived=0.0, long=0.0, opened=0.0)
    corpus = make(backend, text, tmp_path, tokens=1, seed=3, settings=settings)
    asked = [
        text.decode(corpus.sequence(index)[: corpus.answers[index]].tolist())
        for index in range(len(corpus))
    ]
    assert asked
    assert all(
        sum(letter.isalpha() or letter.isspace() for letter in one) > 0.7 * len(one)
        for one in asked
    )
