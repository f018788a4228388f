"""Accept a mismatching drafted token if a trained classifier finds it harmless (lossy).

Judge Decoding (arXiv 2501.19309) and AutoJudge (arXiv 2504.20039): a linear head, the judge, reads
the target's final state at the drafted token, which the pass has computed anyway. A child that
carries the target's own token is followed as usual; where there is none, the child that the judge
scores highest is accepted if its chance to be harmless exceeds the threshold. The output departs
from the target's by design, and how far depends on the labels the judge was trained on. At
threshold 1 nothing is excused and the text is plain decoding's own.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.common.numpy_mlp import NumpyMlp, as_float32, check_width, load, sigmoid
from sapwood.core.part import Part, between
from sapwood.core.protocols import EngineContext, TargetProbs
from sapwood.core.rng import Rng
from sapwood.core.tree import Tree
from sapwood.core.types import Draw, Guarantee, Verdict
from sapwood.verifiers.lenient import walk_leniently

KIND = "judge"


@dataclass
class Judge(Part):
    """LOSSY: follow the target's token, or a drafted one that a trained judge finds harmless."""

    threshold: float = 0.5  # chance to be harmless that excuses a mismatch; 1 excuses none
    weights: str = ""  # folder of the trained judge; empty: the one trained for this model

    paper: ClassVar[str] = "2501.19309"
    accepts: ClassVar[frozenset[Draw]] = frozenset({Draw.TOPK})
    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY
    reads_q: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"hidden"})

    def __post_init__(self) -> None:
        between(0, 1, threshold=self.threshold)

    def bind(self, setting: EngineContext) -> None:
        """Load the judge and have the target keep its final states."""
        info = setting.target.info
        bundle = load(self.weights, KIND, info.model, info.weights, setting.heads)
        self.net: NumpyMlp = bundle.nets["judge"]
        self.layer = int(bundle.facts["layer"])
        setting.target.watch([self.layer])

    def verify(self, tree: Tree, target: TargetProbs, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own draws and tokens that the judge excuses."""
        return walk_leniently(
            tree, target, position, rng, lambda children: self.replacement(children, target)
        )

    def replacement(self, children: list[int], target: TargetProbs) -> int | None:
        """The child that is most likely harmless, if likely enough."""
        if not children or self.threshold >= 1:
            return None
        states = as_float32(target.hidden(children, [self.layer]))
        check_width(self.net, states.shape[1], "the judge")
        harmless = sigmoid(self.net(states)[:, 0])
        best = int(np.argmax(harmless))
        return children[best] if harmless[best] > self.threshold else None
