"""Depth predicted by a small network before anything is drafted.

The draft length predictor of AdaEAGLE (arXiv 2412.18910): a small network reads the target's final
state at the last checked token and the embedding of the token that came out of it, and its rounded
output is the depth of the next tree; at zero nothing is drafted. It is trained on a quantile of the
accepted length, not its mean: with a price of a drafted token in tokens, the length that pays most
is the quantile at one minus that price.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapwood.common.numpy_mlp import NumpyMlp, as_float32, check_width, load
from sapwood.core.part import Part, at_least
from sapwood.core.protocols import Backend, EngineContext, RequestContext
from sapwood.core.types import NO_NODES, Budget, Outcome
from sapwood.errors import SapwoodError

KIND = "ldlp"


@dataclass
class Ldlp(Part):
    """Depth by a trained predictor that reads the target's last state and token."""

    most: int = 20  # deepest
    start: int = 5  # depth where the prompt left no state to read
    nodes: int = 60
    width: int = 4
    weights: str = ""  # folder of the trained predictor; empty: the one trained for this model

    paper: ClassVar[str] = "2412.18910"
    reads_scores = True
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})

    def __post_init__(self) -> None:
        at_least(1, most=self.most, start=self.start, nodes=self.nodes, width=self.width)

    def bind(self, setting: EngineContext) -> None:
        """Load the predictor and have the target keep its final states."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.net: NumpyMlp = bundle.nets["length"]
        self.layer = int(bundle.facts["layer"])
        self.table = embedding(setting.target)
        setting.target.watch([self.layer])

    def reset(self, request: RequestContext) -> None:
        """Predict from the end of the prompt."""
        read = request.session.prefill_output(1)
        self.depth_ = (
            self.start
            if read is None
            else self.predict(read.hidden([0], [self.layer]), request.prompt[-1])
        )

    def observe(self, outcome: Outcome) -> None:
        """Predict from the last accepted node and the bonus."""
        state = outcome.scores.hidden([outcome.verdict.path[-1]], [self.layer])
        self.depth_ = self.predict(state, outcome.verdict.bonus)

    def predict(self, state: Any, token: int) -> int:
        """Depth of the next round, from the last state [1, width] and the token it led to."""
        inputs = np.concatenate((as_float32(state)[0], as_float32(self.table[token])))
        check_width(self.net, len(inputs), "the predictor of ldlp")
        return int(np.clip(np.rint(self.net(inputs)[0]), 0, self.most))

    def budget(self) -> Budget:
        """The predicted depth, or no nodes."""
        return Budget(self.nodes, self.depth_, self.width) if self.depth_ else NO_NODES


def embedding(target: Backend) -> Any:
    """The target's input embedding, [vocab, width]."""
    model = target.capabilities.model
    if model is None:
        raise SapwoodError(
            f"ldlp reads the embedding of {target.info.model}, which its backend does not show; "
            "use ema"
        )
    return model.get_input_embeddings().weight
