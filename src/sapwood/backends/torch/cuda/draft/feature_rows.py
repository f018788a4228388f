"""The target's hidden states of rows of a pass, gathered for all requests of a batch at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sapwood.core.whole_tree import TreeJob


class PassFeatureRows:
    """Rows of the features of a whole pass, which are gathered when a head needs them."""

    __slots__ = ("rows", "states")

    def __init__(self, states: Tensor, rows: Sequence[int]) -> None:
        self.states = states  # [rows of the pass, features], in memory of their own
        self.rows = rows

    def tensor(self) -> Tensor:
        """The features as one tensor, [rows, features]."""
        return self.states[torch.tensor(self.rows, device=self.states.device)]


class FeatureIndex:
    """Features of new text of several requests, as rows of few tensors."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self._starts: dict[int, int] = {}  # by identity of a part
        self._rows = 0

    def add(self, job: TreeJob) -> tuple[list[int], list[int]]:
        """The tokens of a request's new text, and the row of each one's features."""
        tokens: list[int] = []
        places: list[int] = []
        for features, said in job.unread:
            tokens += said
            if isinstance(features, PassFeatureRows):
                start = self._start(features.states)
                places += [start + row for row in features.rows]
            else:
                part = features if isinstance(features, Tensor) else features.tensor()
                start = self._start(part)
                places += range(start, start + len(part))
        return tokens, places

    def _start(self, part: Tensor) -> int:
        """Row of the first features of a part among those of all parts."""
        start = self._starts.get(id(part))
        if start is None:
            start = self._starts[id(part)] = self._rows
            self.parts.append(part)
            self._rows += len(part)
        return start

    def gather(self, places: Tensor, goal: Tensor) -> None:
        """Copy the rows at these places [rows] to the goal [rows, features]."""
        source = self.parts[0] if len(self.parts) == 1 else torch.cat(self.parts)
        torch.index_select(source, 0, places, out=goal)
