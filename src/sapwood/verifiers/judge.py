"""Accept a drafted token that the target would not have said, if a trained judge finds it harmless.

Judge Decoding (arXiv 2501.19309) and AutoJudge (arXiv 2504.20039): a linear head reads the target's
final state at the drafted token, which the pass has computed anyway. A child that carries the target's
own token is followed as ever; where there is none, the child that the judge trusts most is accepted if
its chance to be harmless exceeds the threshold. What is accepted so is not what plain decoding says:
the output departs from the target's by design, and how far is a matter of the labels the judge was
trained on. At threshold 1 nothing is excused and the text is plain decoding's own.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sapwood.nets import Net, check_width, load, numbers, sigmoid
from sapwood.part import Part, between
from sapwood.protocols import Laws, Setting
from sapwood.records import Draw, Guarantee, Verdict
from sapwood.rng import Rng
from sapwood.tree import Tree
from sapwood.verifiers.lenient import excuse

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

    def bind(self, setting: Setting) -> None:
        """Load the judge and have the target keep its final states."""
        bundle = load(self.weights, KIND, setting.target.info.model)
        self.net: Net = bundle.nets["judge"]
        self.layer = int(bundle.facts["layer"])
        setting.target.watch([self.layer])

    def verify(self, tree: Tree, laws: Laws, position: int, rng: Rng) -> Verdict:
        """Walk along the target's own draws and what the judge excuses."""
        return excuse(tree, laws, position, rng, lambda children: self.excused(children, laws))

    def excused(self, children: list[int], laws: Laws) -> int | None:
        """The child that is most likely harmless, if likely enough."""
        if not children or self.threshold >= 1:
            return None
        states = numbers(laws.hidden(children, [self.layer]))
        check_width(self.net, states.shape[1], "the judge")
        harmless = sigmoid(self.net(states)[:, 0])
        best = int(np.argmax(harmless))
        return children[best] if harmless[best] > self.threshold else None
