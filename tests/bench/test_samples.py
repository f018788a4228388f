"""The tree of a run that is kept for a picture."""

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict

import pytest

from sapwood.bench.samples import SHOWN, TreeSample, better
from tests.helpers.bench_records import outcome

SVG = "{http://www.w3.org/2000/svg}"


def test_the_longer_accepted_path_is_kept() -> None:
    short = better(None, outcome([0, 1, 1, 0], (0, 1)))
    assert short is not None
    long = better(short, outcome([0, 1], (0, 1, 2)))
    assert long is not None
    assert (long.path, len(long.tokens)) == ([0, 1, 2], 3)
    assert better(long, outcome([0, 1, 1, 0], (0, 1))) is long


def test_of_equal_paths_the_larger_tree_is_kept_and_of_equal_trees_the_first() -> None:
    small = better(None, outcome([0, 0], (0, 1)))
    large = better(small, outcome([0, 0, 0], (0, 1)))
    assert large is not None
    assert len(large.tokens) == 4
    assert better(large, outcome([0, 0, 0], (0, 2))) is large


@pytest.mark.parametrize("nodes", [0, SHOWN, SHOWN + 5])
def test_trees_without_nodes_or_with_too_many_are_not_shown(nodes: int) -> None:
    assert better(None, outcome([0] * nodes, (0,))) is None
    kept = TreeSample([1, 2], [-1, 0], [1.0, 0.5], [0], 3)
    assert better(kept, outcome([0] * nodes, (0,))) is kept


def test_the_largest_tree_that_is_shown_counts_its_root() -> None:
    assert better(None, outcome([0] * (SHOWN - 1), (0,))) is not None


def test_a_sample_is_the_round_in_plain_numbers() -> None:
    found = better(None, outcome([0, 1, 0], (0, 1), reach=[0.51234, 0.25, 0.125]))
    assert found == TreeSample(
        [10, 11, 12, 13], [-1, 0, 1, 0], [1.0, 0.5123, 0.25, 0.125], [0, 1], 99
    )
    assert TreeSample(**json.loads(json.dumps(asdict(found)))) == found


def test_the_picture_holds_every_node_and_the_targets_own_token() -> None:
    sample = TreeSample([5, 6, 7, 8], [-1, 0, 1, 0], [1.0, 0.5, 0.25, 0.1], [0, 1], 9)
    drawn = sample.drawn(lambda token: f"t{token}")
    root = ET.fromstring(drawn)
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert sorted(label for label in labels if label) == ["t5", "t6", "t7", "t8", "t9"]
    kinds = [group.get("class", "") for group in root.iter(f"{SVG}g")]
    assert sum("accepted" in kind for kind in kinds) == 1
    assert sum("refused" in kind for kind in kinds) == 2
    assert sum("bonus" in kind for kind in kinds) == 1
    assert drawn == sample.drawn(lambda token: f"t{token}")
