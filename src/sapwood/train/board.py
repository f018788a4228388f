"""Where each row of a batch stands, and how its next token is chosen; all of it stays on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood.rng import uniforms


@dataclass(frozen=True, slots=True)
class Ask:
    """One text to continue."""

    tokens: Sequence[int]
    new: int  # most tokens to add
    temperature: float = 0.0  # 0 takes the best token
    key: int = 0  # of its noise


class Board:
    """The state of every row, at addresses that do not change."""

    def __init__(self, rows: int, new: int, device: torch.device) -> None:
        def numbers(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.token = numbers(rows)  # last token, whose keys are not computed yet
        self.place = numbers(rows)  # its position
        self.made = numbers(rows)  # tokens added so far
        self.limit = numbers(rows)  # most tokens to add
        self.done = numbers(rows, dtype=torch.bool)
        self.temperature = numbers(rows, dtype=torch.float32)
        self.noise = numbers(rows, new + 1, dtype=torch.float32)  # the last column is never decisive
        self.out = numbers(rows, new + 1)  # tokens added; the last column takes what finished rows say

    @property
    def rows(self) -> int:
        """Rows, spare ones included."""
        return len(self.token)

    def fill(self, asks: Sequence[Ask]) -> None:
        """Begin these texts; further rows are finished from the start."""
        spare = [0] * (self.rows - len(asks))

        def put(to: torch.Tensor, values: Sequence[float]) -> None:
            to.copy_(torch.tensor([*values, *spare]))

        put(self.token, [ask.tokens[-1] for ask in asks])
        put(self.place, [len(ask.tokens) - 1 for ask in asks])
        put(self.limit, [ask.new for ask in asks])
        put(self.temperature, [ask.temperature for ask in asks])
        noise = np.ones(self.noise.shape, np.float32)
        for row, ask in enumerate(asks):
            if ask.temperature:
                noise[row] = uniforms(ask.key, noise.shape[1])
        self.noise.copy_(torch.from_numpy(noise))
        self.made.zero_()
        self.done.copy_(self.limit == 0)

    def take(self, other: "Board", rows: Sequence[int]) -> None:
        """Go on with these rows of a larger board; further rows are finished."""
        spare = [rows[0]] * (self.rows - len(rows))
        index = torch.tensor([*rows, *spare], device=self.token.device)
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.copy_(theirs.index_select(0, index))
        self.done[len(rows) :] = True

    def look(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens made, place and whether it is done, of each row; the only wait for the device."""
        made, place, done = torch.stack((self.made, self.place, self.done.long())).tolist()
        return made, place, done

    def draw(self, logits: torch.Tensor, sampled: bool) -> torch.Tensor:
        """The next token of every row, [rows]; `sampled` says that some row has a temperature."""
        best = logits.argmax(-1)
        if not sampled:
            return best
        noise = self.noise.gather(1, self.made[:, None])
        return torch.where(self.temperature > 0, pick(logits, self.temperature, noise), best)

    def accept(self, token: torch.Tensor, ends: torch.Tensor) -> None:
        """Add a token, [rows], to every row that is not finished; `ends` is True at tokens that finish one."""
        # no number meets a tensor in `where` here: it would be copied from the host, which a graph cannot hold
        column = self.made.masked_fill(self.done, self.out.shape[1] - 1)
        self.out.scatter_(1, column[:, None], token[:, None])
        self.token.copy_(token)
        live = (~self.done).long()
        self.made.add_(live)
        self.place.add_(live)
        self.done.logical_or_(ends.index_select(0, token)).logical_or_(self.made >= self.limit)


def pick(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The token of each row on which its noise, [rows, 1] in (0, 1], falls when the law is laid out in a line."""
    warmth = temperature.masked_fill(temperature == 0, 1.0)[:, None]
    reach = (logits.float() / warmth).softmax(-1).cumsum(-1)
    drawn = torch.searchsorted(reach, noise * reach[:, -1:])  # the first to reach it: its own chance is not 0
    return drawn[:, 0].clamp(max=logits.shape[1] - 1)
