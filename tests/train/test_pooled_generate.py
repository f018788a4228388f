"""Texts written by the fast path are those of plain decoding, alone, beside others and resumed."""

from pathlib import Path

from sapwood.backends.torch import load as loader
from sapwood.backends.torch.backend import TorchBackend
from sapwood.train.decode_state import TextToContinue
from sapwood.train.journal import TextJournal, WrittenText
from sapwood.train.pooled_generate import PooledGenerator
from tests.helpers import tiny_gguf
from tests.helpers.engine_rounds import plain_tokens

PROMPTS = [[5, 6, 7], [9], [3, 4, 5, 6, 7, 8], [20, 21]]


def fast_backend(folder: Path) -> TorchBackend:
    """A tiny model in 4 bits."""
    path = tiny_gguf.write(folder / "tiny.gguf", "Q4_0", merged=True)
    return loader.load(str(path), device="cpu")[0]


def test_texts_are_those_of_plain_decoding(tmp_path: Path) -> None:
    backend = fast_backend(tmp_path)
    counts: list[int] = []
    said = PooledGenerator(backend).run(
        [TextToContinue(prompt, 12) for prompt in PROMPTS], [], counts.append
    )
    assert said == [plain_tokens(backend, prompt, 12, []) for prompt in PROMPTS]
    assert counts[-1] == 12 * len(PROMPTS)


def test_a_drawn_text_has_no_neighbours_and_goes_on_as_it_would_have(tmp_path: Path) -> None:
    backend = fast_backend(tmp_path)
    asks = [TextToContinue(prompt, 24, 1.0, key=row) for row, prompt in enumerate(PROMPTS)]
    alone = [PooledGenerator(backend).run([ask], [])[0] for ask in asks]
    assert PooledGenerator(backend).run(asks, []) == alone
    assert all(len(text) == 24 for text in alone)
    journal = TextJournal.open(tmp_path / "journal.json")
    passes: list[int] = []
    cut = PooledGenerator(backend).run(asks, [], passes.append, over=lambda: len(passes) > 2)
    assert all(text == whole[: len(text)] for text, whole in zip(cut, alone, strict=True))
    assert 16 <= len(cut[0]) < 24
    journal.texts = dict(enumerate(map(begun, alone)))
    assert PooledGenerator(backend).run(asks, [], journal=journal) == alone


def begun(text: list[int]) -> WrittenText:
    """A text of which ten tokens have been written."""
    return WrittenText(text[:10], finished=False)
