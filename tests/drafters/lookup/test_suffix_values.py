"""The chances that `suffix` gives, down to the number, from the first node on.

What followed a match of m tokens is trusted m / (m + 2) of what longer matches have left.
"""

import pytest

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import EngineContext, RequestContext
from sapwood.core.rng import KeyedRng
from sapwood.core.sampling import Sampler, Sampling
from sapwood.core.tree import ROOT, Tree
from sapwood.drafters.lookup.suffix import Suffix
from sapwood.engine.cost_model import flat
from sapwood.engine.loop import no_loader


def begin(prompt: list[int], source: int = 0, part: Suffix | None = None) -> Suffix:
    drafter = part or Suffix()
    drafter.source = source
    if part is None:
        drafter.bind(EngineContext(ToyBackend(vocab=50), flat(), no_loader))
    copy = drafter.fresh()
    copy.reset(RequestContext(prompt, Sampler(Sampling(), prompt), ToyBackend().open([])))
    assert isinstance(copy, Suffix)
    return copy


def test_the_root_and_its_first_child() -> None:
    tree = begin([7, 8, 9, 7], source=2).lookup_seed(7, 3, 1)
    assert tree.tokens.tolist() == [7, 8]
    assert tree.parents.tolist() == [-1, ROOT]
    assert tree.depths.tolist() == [0, 1]
    assert tree.ranks.tolist() == [0, 0]
    assert tree.sources.tolist() == [0, 1 << 2]
    assert tree.probs == pytest.approx([1.0, 1 / 3])
    assert tree.reach.tolist() == [1.0, 1.0]
    assert tree.valued == 1  # nothing but the root has its reach


def test_siblings_have_their_share_of_the_counts() -> None:
    tree = begin([3, 8, 4, 3, 8, 5, 3, 9, 6, 3]).lookup_seed(3, 4, 2)
    assert tree.tokens.tolist() == [3, 8, 9]
    assert tree.ranks.tolist() == [0, 0, 1]
    assert tree.probs == pytest.approx([1.0, 2 / 9, 1 / 9])


def test_shorter_matches_have_what_the_longer_ones_left() -> None:
    tree = begin([1, 2, 9, 5, 2, 8, 1, 2]).lookup_seed(2, 4, 1)
    # two tokens match before 9: 1/2; then one token before 9 and 8: 1/3 of the other half
    assert tree.tokens.tolist() == [2, 9, 8]
    assert tree.probs == pytest.approx([1.0, 1 / 2 + 1 / 12, 1 / 12])


def test_deeper_nodes_match_one_token_more_each() -> None:
    tree = begin([1, 2, 3, 4, 5, 6, 9, 9, 1, 2, 3, 4]).lookup_seed(4, 1, 3)
    # shorter ends of the match were seen at the same places, so they add nothing
    assert tree.probs[1:] == pytest.approx([4 / 6, 5 / 7, 6 / 8])
    assert tree.parents.tolist() == [-1, 0, 1, 2]


def test_expanding_gives_the_same_values_as_seeding() -> None:
    prompt = [3, 8, 4, 3, 8, 5, 3, 9, 6, 3]
    seeded = begin(prompt).lookup_seed(3, 4, 1)
    grown = Tree(3)
    begin(prompt).expand(grown, [(ROOT, 4)], KeyedRng(0))
    assert grown.tokens.tolist() == seeded.tokens.tolist()
    assert grown.probs == pytest.approx(seeded.probs)
    assert grown.ranks.tolist() == seeded.ranks.tolist()


@pytest.mark.parametrize(("local", "best"), [(0, 30), (2, 30), (3, 20), (8, 20)])
def test_the_text_at_hand_may_go_before_longer_matches_elsewhere(local: int, best: int) -> None:
    """[1, 2] -> 20 in the prompt, [5, 6, 7, 1, 2] -> 30 in an earlier output."""
    earlier = Suffix(local=local)
    earlier.bind(EngineContext(ToyBackend(vocab=50), flat(), no_loader))
    earlier.earlier.learn([5, 6, 7, 1, 2, 30, 31])
    drafter = begin([1, 2, 20, 21, 5, 6, 7, 1, 2], part=earlier)
    tree = drafter.lookup_seed(2, 2, 1)
    assert tree.tokens.tolist()[1] == best
    # chances follow the order: 5 / 7 of the first, or 2 / 4, and then of what is left
    first = 5 / 7 if best == 30 else 2 / 4
    assert tree.probs[1] == pytest.approx(first, abs=0.01)
