"""The prices of `goodput` follow the length of the text, from the prompt on."""

import numpy as np
import pytest

from sapwood.backends.toy import ToyBackend, ToyOutput
from sapwood.controllers.goodput import Goodput
from sapwood.core.array_types import FloatArray
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import Tree
from sapwood.core.types import BatchLoad, Outcome, StageTimes, Verdict
from sapwood.engine.cost_model import ROOTS, CostModel
from sapwood.engine.loop import no_loader

ROWS = [1, 2, 3, 4]
SHORT = [1.0, 1.1, 1.2, 1.3]  # a row costs a tenth of a pass on an empty context
LONG = [2.0, 3.0, 4.0, 5.0]  # and half a pass after a thousand tokens


def machine() -> CostModel:
    return CostModel(list(ROWS), [0, 1000], [list(SHORT), list(LONG)])


def begin(length: int, cost: CostModel | None = None) -> Goodput:
    controller = Goodput(nodes=3)
    controller.bind(EngineContext(ToyBackend(), cost or machine(), no_loader))
    prompt = [0] * length
    request = RequestContext(prompt, Sampler(Sampling(), prompt), ToyBackend().open([]))
    controller.reset(request)
    return controller


def price(controller: Goodput) -> FloatArray:
    found = controller.budget().price
    assert found is not None
    return found


def outcome(context: int, accepted: int) -> Outcome:
    """A chain of three of which so many were accepted, after so many committed tokens."""
    tree = Tree(0)
    for node in range(3):
        tree.add(node, 1, 0.5)
    path = tuple(range(accepted + 1))
    cost = machine()
    times = StageTimes(0.0, cost.seconds(4, context), 0.0)
    return Outcome(tree, tree, Verdict(path, 2), ToyOutput(np.zeros((1, 3))), context, times)


def test_the_first_price_is_that_of_the_prompts_length() -> None:
    # the last token of the prompt is the root and not committed yet
    assert price(begin(1)) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert price(begin(1001)) == pytest.approx([0.0, 0.5, 1.0, 1.5])
    assert price(begin(501)) == pytest.approx(np.arange(4) * 0.55 / 1.5)


@pytest.mark.parametrize("accepted", [0, 3])
def test_the_price_goes_on_where_the_round_has_ended(accepted: int) -> None:
    controller = begin(1)
    controller.observe(outcome(context=700, accepted=accepted))
    assert controller.context_ == 700 + accepted + 1
    line = controller.cost.line(4, 701 + accepted)
    assert price(controller) == pytest.approx(controller.rate() * (line - line[0]))
    assert price(controller)[1] > 3 * price(begin(1))[1]


def test_plain_decodings_pace_is_that_of_the_context_and_of_the_company() -> None:
    assert begin(1).plain() == pytest.approx(1.0)
    assert begin(1001).plain() == pytest.approx(2.0)
    shared = begin(1001)
    shared.join(BatchLoad(trees=2, rows=1, rate=0.0))
    assert shared.plain() == pytest.approx(shared.cost.seconds(2, 1000, 2) / 2)
    assert price(shared)[1] == pytest.approx(shared.rate() * 1.0)  # the step from two rows to three


def test_the_rate_of_the_company_counts_where_it_is_higher() -> None:
    controller = begin(1)
    controller.join(BatchLoad(trees=1, rows=0, rate=5.0))
    assert controller.rate() == pytest.approx(5.0)
    controller.join(BatchLoad(trees=1, rows=0, rate=0.5))
    assert controller.rate() == pytest.approx(1.0)  # never less than plain decoding


def test_a_long_text_is_soon_decoded_without_a_tree() -> None:
    controller = begin(2501)
    assert controller.budget().nodes == 3  # drafters read the prompt in the first round
    controller.observe(outcome(context=2499, accepted=0))
    tree = Tree.of_root(0)
    seen = Outcome(
        tree,
        tree,
        Verdict((0,), 2),
        ToyOutput(np.zeros((1, 3))),
        2500,
        StageTimes(0.0, 2.5, 0.0),
        asked=False,
    )
    for _ in range(ROOTS):
        assert controller.budget().nodes == 0  # what one row costs there is not known
        controller.observe(seen)
    assert controller.cost.contexts == [0, 1000, 2499]
    assert controller.budget().nodes == 3
    assert controller.plain() == pytest.approx(2.5, rel=1e-3)
    # many requests at once do not wait for it
    shared = begin(2501)
    shared.observe(outcome(context=2499, accepted=0))
    shared.join(BatchLoad(trees=2, rows=1, rate=0.0))
    assert shared.budget().nodes == 3
