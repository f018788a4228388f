"""Stop rules that keep the uncertain token: the largest probability, the lead, the entropy's rise."""

import itertools
import math

import pytest

from sapwood.common.uncertainty import lead_at
from sapwood.controllers.fixed import Fixed
from sapwood.core.sampling import Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.policies.logit_margin import LogitMargin
from sapwood.policies.max_confidence import MaxConfidence
from sapwood.policies.svip_difference import SvipDifference
from sapwood.recipes import resolve
from tests.helpers.stop_rounds import draft_laws, rounds, slow_entropy, texts


def test_max_confidence_keeps_the_token_of_a_law_without_a_likely_one() -> None:
    done = rounds(MaxConfidence(), Sampling(max_tokens=500), count=40)
    for outcome, text in zip(done, texts(done), strict=True):
        peaks = [float(full_probs.max()) for full_probs in draft_laws(outcome, text)]
        length = outcome.tree.height
        assert all(peak >= 0.6 for peak in peaks[: length - 1])
        assert length == 8 or peaks[length - 1] < 0.6
    assert {outcome.tree.height for outcome in done} >= {1, 2}  # never nothing at all


def test_svip_difference_ends_where_uncertainty_rises() -> None:
    done = rounds(SvipDifference(), count=40)
    lengths = set()
    for outcome, text in zip(done, texts(done), strict=True):
        roots = [math.sqrt(slow_entropy(probs)) for probs in draft_laws(outcome, text)]
        length = outcome.tree.height
        rises = [after - before for before, after in itertools.pairwise(roots)]
        assert all(rise <= 0.2 for rise in rises[: length - 2])
        assert length == 8 or (length > 1 and rises[length - 2] > 0.2)
        lengths.add(length)
    assert len(lengths) > 1


def test_logit_margin_ends_where_the_two_best_are_close() -> None:
    done = rounds(LogitMargin(), count=40)
    lengths = set()
    for outcome, text in zip(done, texts(done), strict=True):
        ranked = [sorted(probs.tolist()) for probs in draft_laws(outcome, text)]
        leads = [probs[-1] - probs[-2] for probs in ranked]
        length = outcome.tree.height
        assert all(lead >= 0.2 for lead in leads[: length - 1])
        assert length == 8 or leads[length - 1] < 0.2
        lengths.add(length)
    assert len(lengths) > 1
    tree = Tree(0)
    tree.extend(ROOT, [1, 2], [0.5, 0.2])
    assert lead_at(tree, ROOT) == pytest.approx(0.2)  # all others together have 0.3


def test_early_exit_has_kangaroos_two_exits() -> None:
    recipe = resolve("early-exit")
    assert recipe.policy == MaxConfidence(confidence=0.6)
    assert recipe.controller == Fixed(6, 6, 1)
