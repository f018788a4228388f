"""Decoding state of the rows of a batch, and choice of their next tokens, on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from sapwood.core.rng import uniforms


@dataclass(frozen=True, slots=True)
class TextToContinue:
    """One text to continue."""

    tokens: Sequence[int]
    new: int  # most tokens to add
    temperature: float = 0.0  # 0 takes the best token
    key: int = 0  # of its random numbers
    said: int = 0  # last of its tokens that were added earlier, with the first random numbers


class DecodeState:
    """State of every row, in tensors at fixed addresses."""

    def __init__(self, rows: int, new: int, device: torch.device) -> None:
        def numbers(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.token = numbers(rows)  # last token, whose keys and values are not computed yet
        self.place = numbers(rows)  # its position
        self.made = numbers(rows)  # tokens added so far
        self.limit = numbers(rows)  # most tokens to add
        self.done = numbers(rows, dtype=torch.bool)
        self.temperature = numbers(rows, dtype=torch.float32)
        # the last column of both is scratch space of finished rows
        self.noise = numbers(rows, new + 1, dtype=torch.float32)
        self.out = numbers(rows, new + 1)  # tokens added

    @property
    def rows(self) -> int:
        """Number of rows, spare ones included."""
        return len(self.token)

    def fill(self, asks: Sequence[TextToContinue]) -> None:
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
                noise[row] = uniforms(ask.key, ask.said + noise.shape[1])[ask.said :]
        self.noise.copy_(torch.from_numpy(noise))
        self.made.zero_()
        self.done.copy_(self.limit == 0)

    def take(self, other: "DecodeState", rows: Sequence[int]) -> None:
        """Continue these rows of a larger batch; further rows are finished."""
        spare = [rows[0]] * (self.rows - len(rows))
        index = torch.tensor([*rows, *spare], device=self.token.device)
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.copy_(theirs.index_select(0, index))
        self.done[len(rows) :] = True

    def look(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens made, place and done flag of each row; synchronizes with the device."""
        made, place, done = torch.stack((self.made, self.place, self.done.long())).tolist()
        return made, place, done

    def draw(self, logits: torch.Tensor, sampled: bool) -> torch.Tensor:
        """The next token of every row, [rows]; `sampled` if some row has a temperature."""
        best = logits.argmax(-1)
        if not sampled:
            return best
        noise = self.noise.gather(1, self.made[:, None])
        return torch.where(self.temperature > 0, pick(logits, self.temperature, noise), best)

    def accept(self, token: torch.Tensor, ends: torch.Tensor) -> None:
        """Add a token [rows] to every unfinished row; `ends` is True at tokens that finish one."""
        # no Python number in `where`: a CUDA graph cannot copy it from the host
        column = self.made.masked_fill(self.done, self.out.shape[1] - 1)
        self.out.scatter_(1, column[:, None], token[:, None])
        self.token.copy_(token)
        live = (~self.done).long()
        self.made.add_(live)
        self.place.add_(live)
        self.done.logical_or_(ends.index_select(0, token)).logical_or_(self.made >= self.limit)


def pick(logits: torch.Tensor, temperature: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Sample a token of each row by inverse transform; noise [rows, 1] in (0, 1]."""
    warmth = temperature.masked_fill(temperature == 0, 1.0)[:, None]
    cumulative = (logits.float() / warmth).softmax(-1).cumsum(-1)
    # the first token that reaches the noise: its own probability is not 0
    drawn = torch.searchsorted(cumulative, noise * cumulative[:, -1:])
    return drawn[:, 0].clamp(max=logits.shape[1] - 1)
