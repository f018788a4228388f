"""Minutes that a first head for a model takes on this machine, from its measured passes."""

import math

from sapwood.core.types import BackendInfo
from sapwood.engine.cost_model import CostModel

TOKENS = 100_000  # answer tokens of a first head
PASSES = 5  # of the target for each of them: writing it, reading it, training on it
WIDE = 64  # rows of a pass whose cost per row stands for that in training
INT8 = 3.0  # seconds of a float32 pass, in which training runs, over those in int8
LEAST = 20  # minutes of a run that is worth starting
STEP = 10  # minutes to which the estimate is rounded up


def training_minutes(curve: CostModel, info: BackendInfo) -> int:
    """Minutes of `sapwood train eagle3` until the head is worth having; an estimate."""
    row = curve.seconds(WIDE, 0) / WIDE
    slower = INT8 if info.dtype in ("int8", "int4") else 1.0
    minutes = TOKENS * PASSES * row * slower / 60
    return max(LEAST, math.ceil(minutes / STEP) * STEP)
