"""The llama.cpp backend: its contract, exactness with quantised weights, and what is refused."""

import importlib.util
import json
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapwood.backends.llamacpp import library as lib
from sapwood.backends.llamacpp import load as loading
from sapwood.backends.llamacpp.output import LlamaCppOutput
from sapwood.backends.llamacpp.sequence_ids import COMMITTED, Branch, branches, by_branch
from sapwood.backends.toy import ToyBackend
from sapwood.bench.ties import explain
from sapwood.cli.main import main
from sapwood.common.top_tokens import largest
from sapwood.core.protocols import TargetOutput, TreeInput
from sapwood.core.sampling import Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.llm import LLM
from sapwood.testing import backend_contract
from sapwood.testing import prefill_contract as chunks
from tests.helpers import byte_tokenizer

HERE = importlib.util.find_spec("llama_cpp") is not None
needs_library = pytest.mark.skipif(
    not HERE, reason="llama.cpp is missing: pip install llama-cpp-python"
)
needs_kernels = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="kernels of other processors were not tried"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@cache
def file(folder: Path, kind: str) -> Path:
    from tests.helpers import tiny_gguf

    return tiny_gguf.write(folder / f"tiny-{kind}.gguf", kind)


@cache
def backend(folder: Path, kind: str, threads: int = 1) -> Any:
    # two threads wait for each other in a loop: ten times as long where another process runs tests
    return loading.load(str(file(folder, kind)), threads=threads, progress=lambda _: None)[0]


# -------------------------------------------------------------------------- trees as sequences
def test_each_leaf_has_a_branch_and_each_node_those_below_it() -> None:
    #        0 - 1 - 2, 0 - 3 - 4, 3 - 5
    parents = [-1, 0, 1, 0, 3, 3]
    found, through = branches(parents, 0)
    assert found == [Branch(2, COMMITTED), Branch(4, COMMITTED), Branch(5, COMMITTED)]
    assert through == [[0, 1, 2], [0], [0], [1, 2], [1], [2]]


def test_a_grown_tree_has_stems_in_what_was_scored() -> None:
    parents = [-1, 0, 1, 0, 2, 4, 0]
    found, through = branches(parents, 4)
    assert found == [Branch(5, 2), Branch(6, 0)]
    assert through == [[0], [0], [1]]


def test_rows_lie_branch_by_branch() -> None:
    parents = [-1, 0, 0, 1, 2, 1, 3]
    assert by_branch(parents, 0) == [0, 1, 3, 6, 5, 2, 4]
    assert by_branch(parents, 3) == [3, 6, 4, 5]
    assert sorted(by_branch(parents, 1)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("seed", range(20))
def test_sequences_hold_paths_and_nothing_else(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(node)) for node in range(1, 30))]
    found, through = branches(parents, 0)
    tree = Tree(0)
    for parent in parents[1:]:
        tree.add(parent, 1, 1.0, sampled=True)
    for place, branch in enumerate(found):
        assert [node for node in range(30) if place in through[node]] == tree.path(branch.leaf)
    order = by_branch(parents, 0)
    assert all(
        order.index(parent) < order.index(node) for node, parent in enumerate(parents) if node
    )


# --------------------------------------------------------------------------------------- scores
@pytest.mark.parametrize(("vocab", "count"), [(1000, 8), (1024, 1), (70, 2), (10, 4), (130, 130)])
def test_largest_is_a_stable_sort(vocab: int, count: int) -> None:
    rows = (
        np.random.default_rng(vocab).integers(0, 40, (5, vocab)).astype(np.float32)
    )  # many equals
    for row in rows:
        assert np.array_equal(largest(row, count), np.argsort(-row, kind="stable")[:count])


def test_scores_come_in_the_order_of_nodes() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    scores = LlamaCppOutput(rows, [2, 0, 1])
    plain = LlamaCppOutput(rows[[2, 0, 1]])
    assert np.array_equal(scores.argmax(), plain.argmax())
    assert np.array_equal(scores.logits(1), rows[0])
    for found, wanted in zip(scores.topk(3), plain.topk(3), strict=True):
        assert np.array_equal(found, wanted)
    assert np.array_equal(scores.tail(1).argmax(), rows[1:2].argmax(1))


# ----------------------------------------------------------------------------------- refusals
def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    lib.library.cache_clear()
    try:
        with pytest.raises(SapwoodError, match=r"pip install 'sapwood\[llamacpp\]'"):
            lib.library()
    finally:
        lib.library.cache_clear()


@pytest.mark.parametrize("version", ["0.2.90", "0.3.16", "0.4.0"])
def test_other_layouts_are_refused(version: str) -> None:
    lib.check_version("0.3.36")
    lib.check_version("0.3.40")
    with pytest.raises(SapwoodError, match=version):
        lib.check_version(version)


def test_only_gguf_files_are_read(tmp_path: Path) -> None:
    for model, words_ in (
        (str(tmp_path), "torch backend"),
        ("org/name", "torch backend"),
        ("no.gguf", "not there"),
    ):
        with pytest.raises(SapwoodError, match=words_):
            loading.find_file(model)
    for name in ("small.gguf", "large.GGUF"):
        (tmp_path / name).write_bytes(b"GGUF")
        assert loading.find_file(str(tmp_path / name)) == tmp_path / name


def test_options_it_does_not_have_are_refused() -> None:
    loading.check("m", "auto", None)
    with pytest.raises(SapwoodError, match="float16"):
        loading.check("m", "float16", None)
    with pytest.raises(SapwoodError, match="threads=0"):
        loading.check("m", None, 0)


@pytest.mark.parametrize("verb", [["run", "hi"], ["chat"], ["bench"], ["profile"]])
def test_an_unknown_backend_is_named(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*verb, "--backend", "onnx"]) == 2
    assert "backend 'onnx' is not known; use torch or llamacpp" in capsys.readouterr().err


def test_a_folder_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hi", "--backend", "llamacpp", "--model", str(tmp_path)]) == 2
    assert "reads GGUF files, not" in capsys.readouterr().err


def test_torch_is_not_loaded() -> None:
    code = "import sapwood.backends.llamacpp.load, sys; print('torch' in sys.modules, 'llama_cpp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# --------------------------------------------------------------------------- ties of other formats
class Rounding(ToyBackend):
    """A toy whose passes over one row are a little off, as quantised weights may be."""

    off = 0.01

    @property
    def info(self) -> BackendInfo:
        return BackendInfo(
            name="toy", model="rounding", vocab=self.vocab, context=self.context, dtype="q9"
        )

    def score(self, work: Any, chunks: Any = ()) -> list[TargetOutput]:
        found: Any = super().score(work, chunks)
        if len(work[0].tree) == 1:
            found[0].rows = found[0].rows + self.off * np.arange(self.vocab)
        return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(("off", "tie"), [(10.0, True), (0.0, False)])
def test_the_slack_of_an_unknown_format_is_measured(off: float, tie: bool) -> None:
    target = Rounding()
    target.off = off
    found = explain(target, "p", [1, 2, 0, 1], [0, 1], [1, 1], Sampling())
    assert found is not None
    assert found.tie is tie


# --------------------------------------------------------------------------------- with the library
@needs_library
@pytest.mark.parametrize("check", backend_contract.CHECKS, ids=lambda check: check.__name__)
def test_waist(check: backend_contract.Check, folder: Path) -> None:
    check(backend(folder, "F32"), np.random.default_rng(0), 0.05)  # keys are kept in 16 bits


@needs_library
@pytest.mark.parametrize("check", chunks.LIMITED, ids=lambda check: check.__name__)
def test_memory(check: chunks.Limited, folder: Path) -> None:
    from sapwood.backends.llamacpp.backend import LlamaCppBackend
    from sapwood.backends.llamacpp.weights import GgufModel

    limited = LlamaCppBackend(GgufModel(file(folder, "F32")), "small", threads=1)
    check(limited, backend(folder, "F32"), np.random.default_rng(0), 0.05)


@needs_library
@needs_kernels
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("check", backend_contract.CHECKS, ids=lambda check: check.__name__)
def test_quantised_weights_score_to_the_last_bit(
    check: backend_contract.Check, kind: str, folder: Path
) -> None:
    check(
        backend(folder, kind), np.random.default_rng(1), 1e-6
    )  # what `topk` and a sum in float64 differ by


@needs_library
@needs_kernels
def test_two_threads_score_to_the_last_bit(folder: Path) -> None:
    check = backend_contract.chain_equals_steps
    check(backend(folder, "Q8_0", threads=2), np.random.default_rng(1), 1e-6)


@needs_library
@needs_kernels
def test_long_texts_score_to_the_last_bit(folder: Path) -> None:
    target = backend(folder, "Q8_0")
    rng = np.random.default_rng(5)
    text = backend_contract.text(target, rng, 700)
    tree = backend_contract.random_tree(target, rng, 90)  # more rows than a tile of attention
    rows = backend_contract.run(target, target.open(text), tree)
    for node in (0, 3, 40, 89):
        backend_contract.agree(
            rows[node],
            backend_contract.after(target, [*text, *tree.spell(node)]),
            0.0,
            "a row must not see others",
        )


@needs_library
def test_the_same_weights_in_transformers(folder: Path) -> None:
    import torch

    from tests.helpers import tiny_gguf

    target = backend(folder, "F32")
    tokens = backend_contract.text(target, np.random.default_rng(3), 24)
    with torch.inference_mode():
        wanted = tiny_gguf.model()(torch.tensor([tokens])).logits[0, -4:].numpy()
    [scores] = target.score(
        [TreeInput(target.open(tokens[:-4]), backend_contract.line(tokens[-4:]))]
    )
    assert np.stack([scores.logits(row) for row in range(4)]) == pytest.approx(
        wanted, abs=0.3
    )  # logits of +-9, 16-bit keys


@needs_library
def test_memory_grows_and_keeps_what_it_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sapwood.backends.llamacpp.backend import LlamaCppBackend
    from sapwood.backends.llamacpp.weights import GgufModel

    monkeypatch.setattr("sapwood.backends.llamacpp.kv_context.CELLS", 512)
    target = LlamaCppBackend(GgufModel(file(folder, "Q8_0")), "small", threads=1)
    rng = np.random.default_rng(0)
    text = backend_contract.text(target, rng, 40)
    session = target.open(text)
    other = target.open(text[:30])
    moved = target.memory._context
    for _ in range(40):
        tree = backend_contract.random_tree(target, rng, 20)
        backend_contract.run(target, session, tree)
        path = tree.path(int(rng.integers(10, 20)))
        session.commit(path)
        text += tree.tokens[path].tolist()
    fresh = target.open(text)
    probe = backend_contract.random_tree(target, rng, 9)
    backend_contract.agree(
        backend_contract.run(target, session, probe),
        backend_contract.run(target, fresh, probe),
        1e-6,
        "moves must lose nothing",
    )
    assert target.memory._context != moved
    assert other.length == 30
    backend_contract.agree(
        backend_contract.run(target, other, probe),
        backend_contract.run(target, target.open(text[:30]), probe),
        1e-6,
        "nor others",
    )


@needs_library
def test_branches_are_limited_and_come_back(folder: Path) -> None:
    target = backend(folder, "F32")
    free = len(target.memory._free)
    fan = Tree(1)
    for token in range(target.info.max_nodes - 1):
        fan.add(0, token, 1.0, sampled=True)
    one, two, three = (target.open([1, 2]) for _ in range(3))
    target.score([TreeInput(one, fan), TreeInput(two, fan)])
    with pytest.raises(SapwoodError, match="use smaller trees"):
        target.score([TreeInput(three, fan)])
    three_alone = backend_contract.run(
        target, three, Tree(5)
    )  # the session that failed is as it was
    one.commit([0, 3])
    backend_contract.agree(
        three_alone,
        backend_contract.run(target, target.open([1, 2]), Tree(5)),
        1e-6,
        "a refusal must leave no trace",
    )
    for session in (one, two, three):
        session.close()
    assert len(target.memory._free) == free


@needs_library
def test_since_may_go_back(folder: Path) -> None:
    target = backend(folder, "Q8_0")
    start = [3, 1, 4, 1, 5]
    first = backend_contract.line([1, 2, 3, 4])
    second = backend_contract.line([1, 2])
    second.add(0, 9, 1.0, sampled=True)
    second.add(1, 7, 1.0, sampled=True)
    session = target.open(start)
    target.score([TreeInput(session, first)])
    rows = backend_contract.run(target, session, second, since=2)
    backend_contract.agree(
        rows,
        backend_contract.run(target, target.open(start), second)[2:],
        1e-6,
        "nodes may be scored again",
    )
    session.commit([0, 1, 3])
    backend_contract.agree(
        backend_contract.run(target, session, Tree(5))[0],
        backend_contract.after(target, [*start, 1, 2, 7, 5]),
        1e-6,
        "and committed",
    )
    session.commit([0])
    with pytest.raises(ValueError, match="only 0 nodes"):
        target.score([TreeInput(session, second, 1)])


@needs_library
def test_it_has_no_hidden_states(folder: Path) -> None:
    target = backend(folder, "F32")
    assert target.info.provides == frozenset()
    [scores] = target.score([TreeInput(target.open([1]), Tree(2))])
    with pytest.raises(SapwoodError, match="no hidden states"):
        target.watch([0])
    with pytest.raises(SapwoodError, match="no hidden states"):
        scores.hidden([0], [0])


@needs_library
def test_its_tokenizer_is_the_files(folder: Path) -> None:
    llm = LLM(str(file(folder, "Q8_0")), "plain", backend="llamacpp", threads=1)
    wanted = byte_tokenizer.text()
    assert llm.text is not None
    for sentence in ("Hello, wörld!\n", "<user>a<bot>", "日本 🙂", ""):
        tokens = wanted.encode(sentence)
        assert llm.text.encode(sentence) == tokens
        assert llm.text.decode(tokens) == wanted.decode(tokens)
    assert llm.text.spell(byte_tokenizer.EOS) == "<eos>"
    assert byte_tokenizer.EOS in llm.text.eos
    assert llm.text.size == byte_tokenizer.SIZE
    talk = [{"role": "user", "content": "hi"}]
    assert llm.text.chat(talk) == wanted.chat(talk)
    assert llm.text.decode(wanted.encode("aö")[:-1]) == "a\ufffd"  # half a character waits


@needs_library
def test_a_damaged_file_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF and no more")
    with pytest.raises(SapwoodError, match="damaged or truncated"):
        LLM(str(broken), backend="llamacpp")
    with pytest.raises(SapwoodError, match="'cuda9'"):
        loading.wants_gpu("cuda9")


@needs_library
@needs_kernels
@pytest.mark.parametrize("recipe", ["auto", "suffix", "recycling"])
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_text_is_plain_decodings(
    recipe: str,
    temperature: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    monkeypatch.setattr("sapwood.engine.cost_profiler.QUICK_S", 0.0)
    options = [
        "--backend",
        "llamacpp",
        "--model",
        str(file(folder, "Q8_0")),
        "--threads",
        "1",  # threads of two test processes would wait for each other
        "--json",
    ]
    said = []
    for name in ("plain", recipe):
        argv = ["run", "tell me, tell me, tell me", "--recipe", name, "--max-tokens", "60"]
        assert main([*argv, "--temperature", temperature, *options]) == 0
        out, err = capfd.readouterr()
        said.append(json.loads(out.splitlines()[-1]))
        printed = [line for line in err.splitlines() if " runs in " not in line]
        assert "llama" not in "".join(printed)  # the library is silent
    assert said[0]["tokens"] == said[1]["tokens"]
    assert said[1]["dtype"] == "q8_0"
    assert said[1]["stats"]["passes"] <= said[0]["stats"]["passes"]
    if recipe == "auto":
        [kept] = (tmp_path / "profiles").glob("*-llamacpp-cpu-q8_0-1.json")
        assert kept.is_file()
