"""Plug-in for SGLang: trees of a fixed number of nodes, of any shape.

It is switched on by SGLang's own options, once the package is installed:

    --speculative-algorithm SAPWOOD --speculative-num-draft-tokens 12

`register`, the entry point of `sglang.srt.plugins`, adds the algorithm. It takes SGLang's own path
for n-gram trees: there a tree is drafted on the host and crosses as tokens and a mask, and nothing
of the target is needed but its tokens. Every request has the same number of rows in a pass; those
that a tree does not use are nodes that hang nowhere.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sapwood.common.extras import needed_by
from sapwood.core.array_types import BoolArray, IntArray
from sapwood.core.tree import Tree
from sapwood.core.types import BackendInfo
from sapwood.errors import SapwoodError
from sapwood.guest.core import Guest, HostRow
from sapwood.guest.host_cost import HostCostFile
from sapwood.guest.step_log import step_log

NAME = "SAPWOOD"
RECIPE_VARIABLE = "SAPWOOD_GUEST_RECIPE"


class TreeCorpus:
    """Drafts trees where SGLang's n-gram worker expects its corpus."""

    def __init__(self, info: BackendInfo, width: int) -> None:
        self.nodes = info.max_nodes
        self.file = HostCostFile.open(info)
        recipe = os.environ.get(RECIPE_VARIABLE, "")
        self.guest = Guest(info, recipe, self.file.cost, width=width, watch=step_log())
        self.prefill = 0  # rows of prompts since the last trees

    def trees(self, names: Sequence[str], texts: Sequence[list[int]]) -> tuple[IntArray, BoolArray]:
        """Tokens [requests * nodes] and masks [requests * nodes * nodes] of the next trees."""
        rows = [
            HostRow(name, text, text[self._known(name, len(text)) :])
            for name, text in zip(names, texts, strict=True)
        ]
        # all rows of a tree are paid for, so the seconds of a step are those of whole trees
        scheduled = self.prefill and self.prefill + len(rows) * self.nodes
        self.prefill = 0
        trees = self.guest.step(rows, scheduled)
        self.file.keep()
        encoded = [encode(tree, self.nodes) for tree in trees if tree is not None]
        tokens, masks = zip(*encoded, strict=True)
        return np.concatenate(tokens), np.concatenate([mask.reshape(-1) for mask in masks])

    def _known(self, name: str, length: int) -> int:
        """Tokens of a request that were known before the last step."""
        request = self.guest.requests.get(name)
        known = length - 1 if request is None else len(request.session.text)
        return min(known, length - 1)

    # ------------------------------------------------------------------- as the worker calls it
    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """Close requests that left the batch."""
        self.guest.finish(req_ids)

    def reset(self) -> None:
        """Close all requests."""
        self.guest.finish(list(self.guest.requests))

    def list_external_corpora(self) -> dict[str, int]:
        """None: earlier outputs are the corpus."""
        return {}

    def load_external_corpus_named(self, corpus_id: str, token_chunks: Any) -> int:
        """Refuse a corpus of SGLang's own."""
        raise SapwoodError(
            f"corpus {corpus_id!r} is not read by {NAME}; name a text file in the recipe, as in "
            f"{RECIPE_VARIABLE}='rest(corpus=FILE) + best + match + goodput'"
        )

    remove_external_corpus = load_external_corpus_named


def encode(tree: Tree, nodes: int) -> tuple[IntArray, BoolArray]:
    """Tokens [nodes] and ancestors [nodes, nodes] of a tree, filled up with nodes of no parent."""
    size = len(tree)
    if size > nodes:
        raise ValueError(f"a tree of {size} nodes does not fit into {nodes}")
    tokens = np.zeros(nodes, np.int64)
    tokens[:size] = tree.tokens
    mask = np.eye(nodes, dtype=bool)
    mask[:size, :size] = tree.ancestors()
    return tokens, mask


def register() -> None:
    """Add the algorithm to SGLang; does nothing the second time."""
    with needed_by("the plug-in for SGLang"):
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
        from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(NAME) is None:
        made = algorithm_class()
        SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=made)(worker_class)


def algorithm_class() -> type:
    """The algorithm: SGLang's n-gram path, with another worker."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class SapwoodAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
        """N-gram trees of another origin; methods that 0.5.23 asks for and its base lacks."""

        def is_ngram(self) -> bool:
            """True: trees are verified, and their keys kept, as those of NGRAM."""
            return True

        def has_draft_kv(self) -> bool:
            """False: drafting writes no keys."""
            return False

        def carries_draft_hidden_states(self) -> bool:
            """False: lookups have none."""
            return False

        def need_topk(self) -> bool:
            """False: there is no draft model."""
            return False

        def get_platform_worker_cls(self) -> None:
            """None: no platform replaces the worker."""

        def create_future_map(self, device: Any, *args: Any, **kwargs: Any) -> Any:
            """The relay between overlapped steps, as for NGRAM."""
            from sglang.srt.managers.overlap_utils import FutureMap

            return FutureMap(device, self, *args, **kwargs)

        def handle_server_args(self, server_args: Any) -> None:
            """Set what NGRAM sets: topk, steps, number of nodes, no mixed chunks."""
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

    return SapwoodAlgorithm


def worker_class(_: Any) -> type:
    """The worker: SGLang's n-gram worker, with our trees instead of its corpus."""
    from sglang.srt.speculative import ngram_worker

    class SapwoodWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
        """Runs passes over our trees."""

        def __init__(
            self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any
        ) -> None:
            with replaced(ngram_worker, "NgramCorpus", lambda **_: None):
                super().__init__(server_args, gpu_id, nccl_port, target_worker)
            self.ngram_corpus = TreeCorpus(
                host_info(self.model_runner.model_config, self.draft_token_num, self.device),
                width=max(self.topk or 1, 1),
            )

        def _prepare_for_speculative_decoding(self, batch: Any) -> Any:
            """Count rows of prompts, whose seconds are not those of trees."""
            if not batch.forward_mode.is_decode():
                self.ngram_corpus.prefill += int(batch.extend_num_tokens or 1)
            return super()._prepare_for_speculative_decoding(batch)

        def _prepare_draft_tokens(self, batch: Any) -> tuple[IntArray, BoolArray]:
            """Trees of all requests; with overlap the last tokens are only in `spec_info`."""
            late = self.enable_overlap and not batch.grammar_needs_sync()
            news = (
                accepted(batch.spec_info, self.draft_token_num) if late else [[]] * len(batch.reqs)
            )
            texts = [
                [*req.origin_input_ids_unpadded, *req.output_ids, *new]
                for req, new in zip(batch.reqs, news, strict=True)
            ]
            tokens, masks = self.ngram_corpus.trees([req.rid for req in batch.reqs], texts)
            return tokens, masks

        def _update_ngram_corpus(self, batch: Any) -> None:
            """Nothing: the trees' outcomes are learned with the next step."""

    return SapwoodWorker


def host_info(config: Any, nodes: int, device: Any) -> BackendInfo:
    """The host's model and sizes, from SGLang's ModelConfig."""
    return BackendInfo(
        "sglang",
        str(config.model_path),
        config.vocab_size,
        config.context_len,
        max_nodes=nodes,
        device=str(device),
        dtype=str(config.dtype).removeprefix("torch."),
    )


def accepted(spec_info: Any, nodes: int) -> list[list[int]]:
    """Tokens that each request got in the last pass, from the relay of overlapped steps."""
    tokens = spec_info.accept_tokens.cpu().tolist()
    lengths = spec_info.accept_lens.cpu().tolist()
    return [tokens[row * nodes : row * nodes + length] for row, length in enumerate(lengths)]


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a name of a module for a while."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)
