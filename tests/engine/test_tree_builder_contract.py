"""The three forms of whole-tree growth, Python steps, compiled CPU code and CUDA, keep one contract."""

import os
from typing import Any

import numpy as np
import pytest
import torch

from sapwood.core.protocols import Capabilities
from sapwood.core.types import AcceptanceCounts, Budget, GrowthRule, TreeShape
from sapwood.core.whole_tree import TreeBuilder
from sapwood.estimators.binned import EDGES
from sapwood.heads.eagle3 import Eagle3Config, Eagle3Head
from sapwood.heads.layers import LayerShape
from sapwood.testing.tree_builder_contract import StepTreeBuilder, check_builder
from tests.helpers import tiny_models, triton_mode

WIDTH, VOCAB, DRAFT_VOCAB = 32, 61, 40
NONE = np.zeros((16, len(EDGES) + 1, 6, 5))
NO_COUNTS = AcceptanceCounts(EDGES, NONE, NONE, 4.0, 8.0)
BUDGET = Budget(nodes=12, depth=4, width=3)
BEAM = TreeShape(BUDGET.nodes, BUDGET.depth, 3, BUDGET.width)
RULE = TreeShape(
    BUDGET.nodes, BUDGET.depth, 3, BUDGET.width, terms=GrowthRule(BUDGET, 3, NO_COUNTS)
)


def make_head(head_width: int) -> Eagle3Head:
    """A head with random weights, small enough that rounding changes no order."""
    torch.manual_seed(1)
    shape = LayerShape(width=WIDTH, heads=4, kv_heads=2, head_width=head_width, inner=48)
    config = Eagle3Config(
        shape=shape, target_width=WIDTH, vocab=VOCAB, draft_vocab=DRAFT_VOCAB, features=(0, 1, 2)
    )
    head = Eagle3Head(config)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    head.use_vocabulary(torch.randperm(VOCAB)[:DRAFT_VOCAB].sort().values)
    return head


def embedding(device: str = "cpu") -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(VOCAB, WIDTH, device=device)


def check(builder: TreeBuilder, steps: TreeBuilder, shape: TreeShape, device: str = "cpu") -> None:
    rows = 2 * builder.most_rows + 5  # more than one tree can begin with
    torch.manual_seed(3)
    features = torch.randn(rows, 3 * WIDTH).to(device)
    tokens = np.random.default_rng(4).integers(VOCAB, size=rows).tolist()
    with torch.inference_mode():
        check_builder(builder, steps, shape, features, tokens)


@pytest.mark.parametrize("shape", [BEAM, RULE], ids=["beam", "best"])
def test_python_steps(shape: TreeShape) -> None:
    head = make_head(8)
    check(StepTreeBuilder(head, embedding()), StepTreeBuilder(head, embedding()), shape)


def test_compiled_cpu_code() -> None:
    from sapwood.backends.torch.cpu_int8 import int8_gemm

    if not int8_gemm.available():
        pytest.skip("this processor has no eight-bit dot products")
    from sapwood.backends.torch.load import build

    target = build(tiny_models.make("llama"), "llama", "int8", lambda _: None)
    able: Capabilities = target.capabilities
    assert able.network is not None
    assert able.tree_builder is not None
    packed = able.network.convert_head(make_head(64))
    builder = able.tree_builder(packed, embedding())
    assert builder is not None
    assert not builder.fits(BEAM), "leaves are opened by a rule"
    check(builder, StepTreeBuilder(packed, embedding()), RULE)


@pytest.mark.parametrize("steps", ["reference", "kernels"])
def test_cuda(steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sapwood.backends.torch.cuda.draft import tree_builder

    device = "cpu"
    if steps == "kernels":
        use_kernels(monkeypatch)
        device = triton_mode.DEVICE
    head = make_head(8).to(device)
    builder = tree_builder.CudaTreeBuilder(head, embedding(device))
    check(builder, StepTreeBuilder(head, embedding(device)), BEAM, device)


def use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels: on a CUDA device, or in Triton's interpreter."""
    if not triton_mode.CUDA and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a CUDA device, or `pip install triton` and TRITON_INTERPRET=1")
    pytest.importorskip("triton", reason="needs triton: `pip install triton`")
    triton_mode.require()
    from sapwood.backends.torch.cuda.draft import draft_kernels, tree_builder
    from sapwood.backends.torch.cuda.kernels import tile_configs

    def few_programs(rows: int, *_: Any) -> tile_configs.TileConfig:
        return tile_configs.TileConfig(tile_configs.row_tile(rows), 256, 256)

    if not triton_mode.CUDA:  # the interpreter's time goes by their number
        monkeypatch.setattr(tile_configs, "first_guess", few_programs)
    monkeypatch.setattr(tree_builder, "kernels", lambda device: draft_kernels)
