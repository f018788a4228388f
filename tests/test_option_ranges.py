"""Options of parts are refused outside of their range, by name, and taken at its ends."""

import math

import pytest

from sapwood import registry
from sapwood.errors import SapwoodError

# part -> option -> least and most
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "verifier.adasd": {"fade": (0, 1)},
    "verifier.bild": {"rollback": (0, 100)},
    "verifier.consultant": {"limit": (0, 100), "memory": (0, 1)},
    "verifier.cascades": {"alpha": (0, 1)},
    "verifier.khisti": {"tokens": (1, 64)},
    "verifier.mtad": {"threshold": (0, 1)},
    "verifier.judge": {"threshold": (0, 1)},
    "verifier.optimal": {"tokens": (1, 64)},
    "verifier.specdec": {"top": (1, math.inf), "gap": (0, 100)},
    "verifier.threshold": {"base": (0, 1), "slope": (0, 1)},
    "verifier.typical": {"floor": (0, 1), "share": (0, 1)},
    "controller.adaptive-length": {
        "keep": (0, 1),
        "step": (0, math.inf),
        **dict.fromkeys(("least", "most", "width"), (1, math.inf)),
    },
    "controller.banditspec": {"fade": (0, 1)},
    "controller.ema": {
        "rise": (0, 1),
        "fall": (0, 1),
        "floor": (0, 100),
        "probe": (1, math.inf),
        "most": (1, math.inf),
        "nodes": (1, math.inf),
        "width": (1, math.inf),
    },
    "controller.fixed": dict.fromkeys(("nodes", "depth", "width"), (0, math.inf)),
    "controller.goodput": {
        "nodes": (1, 1023),
        "slack": (0, 1),
        "depth": (1, math.inf),
        "width": (1, math.inf),
        "patience": (1, math.inf),
        "pause": (1, math.inf),
        "probe": (1, math.inf),
    },
    "controller.heuristic": dict.fromkeys(("start", "most", "nodes", "width"), (1, math.inf)),
    "controller.ldlp": dict.fromkeys(("most", "start", "nodes", "width"), (1, math.inf)),
    "controller.on-the-fly": {
        "slack": (0, 1),
        **dict.fromkeys(("window", "start", "most", "nodes", "width"), (1, math.inf)),
    },
    "controller.smartspec": {
        "start": (0, 1),
        "fade": (0, 1),
        "bonus": (0.1, 10),
        **dict.fromkeys(("most", "batch", "probe"), (1, math.inf)),
    },
    "controller.specserve": {"deadline": (1e-6, 3600), "slack": (0, 1)},
    "drafter.draft-on-the-fly": {
        "similarity": (-1, 1),
        "share": (0, 1),
        "every": (1, math.inf),
    },
    "drafter.minions": {"fade": (0, 1)},
    "drafter.spin": {"fade": (0, 1), "rounds": (1, math.inf)},
    "drafter.stand": {"n": (1, 32), "count": (1, 1024), "most": (2, 100_000_000)},
    "estimator.binned": {"coarse": (1e-9, 1e6), "fine": (1e-9, 1e6), "memory": (0, 1e9)},
    "estimator.isotonic": {"trust": (1e-9, 1e6), "memory": (1e-3, 1e9)},
    "estimator.leader": {"lean": (0, 1)},
    "estimator.ranked": {"prior": (1e-9, 1e6), "memory": (0, 1e9)},
    "estimator.logistic": {"trust": (1e-3, 1e6), "memory": (1e-3, 1e9)},
    "policy.causal-path": {
        "mass": (0, 1),
        "share": (0, 1),
        **dict.fromkeys(("beam", "most", "order"), (1, math.inf)),
    },
    "policy.beam-path": {"beam": (1, math.inf)},
    "policy.pearl": {"first": (0, math.inf)},
    "policy.amusd": {"first": (1, math.inf)},
    "policy.pipeinfer": {
        **dict.fromkeys(("accept", "split", "recovery", "decay"), (0, 1)),
        **dict.fromkeys(("batch", "branches"), (1, math.inf)),
        "stages": (2, math.inf),
    },
    "policy.ppsd": {"stages": (2, math.inf)},
    "policy.predictive": {"guesses": (1, math.inf), "stages": (2, math.inf)},
    "drafter.respec": {"window": (1, math.inf), "fade": (0, 1)},
    "drafter.layer-exit": {"share": (0, 1)},
    "policy.pipedec": {"children": (1, math.inf), "stages": (2, math.inf)},
    "policy.specbranch": {"confidence": (0, 1), "most": (1, math.inf), "first": (0, math.inf)},
    "policy.radar": {"hidden": (1, 1024), "rate": (0, 1), "least": (1, math.inf)},
    "policy.best": {"stride": (1, math.inf)},
}


def make(part: str, option: str, value: float) -> None:
    registry.lookup(*part.split("."))(**{option: value})


@pytest.mark.parametrize("part", RANGES)
def test_values_outside_of_the_range_are_refused_by_name(part: str) -> None:
    for option, (least, most) in RANGES[part].items():
        bounded = math.isfinite(most)
        for value in (least - 1, most + 1) if bounded else (least - 1,):
            with pytest.raises(SapwoodError, match=option):
                make(part, option, value)
        for value in (least, most) if bounded else (least,):
            make(part, option, value)
