"""The adapter to SGLang: trees as tokens and masks, and a worker that is asked as SGLang asks."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.guest import sglang
from sapwood.guest.sglang import TreeCorpus, encode
from tests.helpers.guest_host import HostRequest
from tests.helpers.random_trees import random_tree
from tests.helpers.tree_links import parents_of, walk_links

NODES = 8
LOOP = list(range(20, 40))
INFO = BackendInfo("sglang", "folder", 1000, 512, max_nodes=NODES)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path))
    # as many nodes as are found, whatever the seconds of a busy machine
    monkeypatch.setenv(
        "SAPWOOD_GUEST_RECIPE", "suffix + best + match + fixed(nodes=64, depth=64, width=4)"
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_mask_gives_the_tree_back(seed: int) -> None:
    tree = random_tree(1 + seed % 12, seed)
    tokens, mask = encode(tree, 12)
    assert tokens[: len(tree)].tolist() == tree.tokens.tolist()
    parents = parents_of(mask)
    assert parents[: len(tree)] == tree.parents.tolist()
    assert set(parents[len(tree) :]) <= {-1}, "rows that are left over hang nowhere"
    assert not mask[: len(tree), len(tree) :].any(), "and no node sees them"


def test_a_tree_that_is_too_large_is_an_error() -> None:
    tree = Tree(1)
    tree.extend(0, [2, 3], [0.5, 0.5])
    with pytest.raises(ValueError, match="does not fit"):
        encode(tree, 2)


def decode(corpus: TreeCorpus, requests: list[HostRequest], steps: int) -> list[list[int]]:
    """Decode as SGLang does: links from the mask, and the walk along them; tokens of each step."""
    counts = []
    for request in requests:
        request.said = 1  # the prompt was read
    for _ in range(steps):
        names = [request.name for request in requests]
        tokens, masks = corpus.trees(names, [request.text for request in requests])
        assert (tokens.shape, masks.shape) == (
            (len(requests) * NODES,),
            (len(requests) * NODES * NODES,),
        )
        got = []
        for row, request in enumerate(requests):
            own = tokens[row * NODES : (row + 1) * NODES]
            mask = masks.reshape(-1, NODES, NODES)[row]
            said = walk_links(own, mask, request.left)
            request.said += len(said)
            got.append(len(said))
        counts.append(got)
    return counts


def test_trees_are_accepted_where_text_repeats() -> None:
    corpus = TreeCorpus(INFO, 4)
    one = HostRequest("one", [3, *LOOP, *LOOP], LOOP * 20)
    other = HostRequest("other", [4, 5], list(range(100, 300)))
    counts = decode(corpus, [one, other], 25)
    assert max(first for first, _ in counts) == NODES
    assert {second for _, second in counts} == {1}
    assert corpus.guest.requests["one"].session.text == one.text[: -counts[-1][0]]


def test_trees_branch_where_continuations_differ() -> None:
    corpus = TreeCorpus(INFO, 4)
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    tokens, mask = corpus.trees(["a"], [text])
    parents = parents_of(mask.reshape(NODES, NODES))
    assert sum(parent == 0 for parent in parents) > 1
    assert len(set(tokens[[node for node, parent in enumerate(parents) if parent == 0]])) > 1


def test_requests_that_left_the_batch_are_closed() -> None:
    corpus = TreeCorpus(INFO, 4)
    corpus.trees(["a", "b"], [[1, 2, 3], [1, 2, 4]])
    corpus.erase_match_state(["a"])
    assert set(corpus.guest.requests) == {"b"}
    corpus.reset()
    assert not corpus.guest.requests
    assert corpus.list_external_corpora() == {}
    with pytest.raises(SapwoodError, match="name a text file in the recipe"):
        corpus.load_external_corpus_named("corpus.jsonl", [])


def test_a_retracted_request_returns() -> None:
    corpus = TreeCorpus(INFO, 4)
    one = HostRequest("one", [3, *LOOP, *LOOP], LOOP * 20)
    decode(corpus, [one], 12)
    corpus.erase_match_state(["one"])
    said = one.said
    tokens, mask = corpus.trees(["one"], [one.text])
    assert corpus.guest.requests["one"].session.text == one.text
    assert walk_links(tokens, mask.reshape(NODES, NODES), one.left)
    assert one.said == said


# ------------------------------------------------------------------------------------ the worker
class FakeNgramWorker:
    """The part of SGLang's NGRAMWorker that prepares trees."""

    enable_overlap = True

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        config = SimpleNamespace(
            model_path="folder", vocab_size=1000, context_len=512, dtype="torch.bfloat16"
        )
        self.model_runner = SimpleNamespace(model_config=config)
        self.draft_token_num = NODES
        self.topk = 4
        self.device = "cpu"
        # SGLang's own corpus is compiled and large: it must not be made
        self.ngram_corpus: Any = sys.modules["sglang.srt.speculative"].ngram_worker.NgramCorpus(
            capacity=1
        )

    def _prepare_for_speculative_decoding(self, batch: Any) -> Any:
        if batch.forward_mode.is_decode():
            return self._prepare_draft_tokens(batch)  # type: ignore[attr-defined]
        return None


def refuse(**options: object) -> None:
    raise AssertionError("the corpus of SGLang was made")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A worker on a fake of SGLang's."""
    package = ModuleType("sglang.srt.speculative")
    package.ngram_worker = SimpleNamespace(NGRAMWorker=FakeNgramWorker, NgramCorpus=refuse)  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    made = sglang.worker_class(None)(None, 0, 0, None)
    assert package.ngram_worker.NgramCorpus is refuse, "put back"
    return made


class FakeTensor(list[int]):
    """A list with the one method of a tensor that is called."""

    def cpu(self) -> np.ndarray[Any, Any]:
        return np.array(self)


def batch(
    request: HostRequest, late: list[int], *, decode: bool = True, grammar: bool = False
) -> Any:
    """A batch of one request whose last tokens are in the relay alone."""
    told = request.text[len(request.prompt) : len(request.text) - len(late)]
    return SimpleNamespace(
        reqs=[
            SimpleNamespace(
                rid=request.name, origin_input_ids_unpadded=request.prompt, output_ids=told
            )
        ],
        forward_mode=SimpleNamespace(is_decode=lambda: decode),
        extend_num_tokens=30,
        grammar_needs_sync=lambda: grammar,
        spec_info=SimpleNamespace(
            accept_tokens=FakeTensor([*late, *[0] * (NODES - len(late))]),
            accept_lens=FakeTensor([len(late)]),
        ),
    )


def test_the_worker_reads_tokens_that_only_the_relay_has(worker: Any) -> None:
    request = HostRequest("a", [3, *LOOP, *LOOP], LOOP * 20)
    request.said = 1
    late = request.output[:1]
    for _ in range(20):
        tokens, masks = worker._prepare_for_speculative_decoding(batch(request, late))
        late = walk_links(tokens, masks.reshape(NODES, NODES), request.left)
        request.said += len(late)
    assert len(late) == NODES
    session = worker.ngram_corpus.guest.requests["a"].session
    assert session.text == request.text[: -len(late)]


def test_without_overlap_nothing_is_added(worker: Any) -> None:
    request = HostRequest("a", [1, 2, 3], [4, 5, 6])
    request.said = 2
    worker._prepare_for_speculative_decoding(batch(request, [], grammar=True))
    assert worker.ngram_corpus.guest.requests["a"].session.text == [1, 2, 3, 4, 5]


def test_passes_over_prompts_are_counted(worker: Any) -> None:
    request = HostRequest("a", [1, 2, 3], [4, 5, 6])
    worker._prepare_for_speculative_decoding(batch(request, [], decode=False))
    assert worker.ngram_corpus.prefill == 30


def test_the_host_is_described_by_its_config(worker: Any) -> None:
    info = worker.ngram_corpus.guest.info
    assert (info.name, info.model, info.max_nodes) == ("sglang", "folder", NODES)
    assert (info.device, info.dtype) == ("cpu", "bfloat16")
