"""The model's answer for each row of a pass; it stays on the device until asked for, and may still be under way."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from sapwood.arrays import FloatArray, IntArray
from sapwood.backends.torch.cache import settled
from sapwood.tree import ROOT, Tree


class TorchScores:
    """Logits, and on request hidden states, of the rows of one tree."""

    def __init__(
        self,
        logits: torch.Tensor | Callable[[], torch.Tensor],
        hidden: Mapping[int, torch.Tensor] | None = None,
        *,
        static: bool = False,  # the logits lie where those of the next pass will: steps that read them may be captured
        settle: Callable[[], None] = settled,  # waits for the pass, where it runs beside the host
    ) -> None:
        self._settle = settle
        self._given = logits  # [n, vocab], or how to compute them
        self._hidden = hidden or {}  # layer -> [n, width]
        self._best: IntArray | None = None
        self._static = static
        self._walked: Any = None  # a tree on the device whose path was walked there

    @property
    def beside(self) -> bool:
        """True where the pass runs beside the host."""
        return self._settle is not settled

    @cached_property
    def _logits(self) -> torch.Tensor:
        self._settle()
        return self._given if isinstance(self._given, torch.Tensor) else self._given()

    def after(self, row: int) -> "TorchScores":
        """The same answer without the rows before this one."""
        return TorchScores(self._logits[row:], {layer: states[row:] for layer, states in self._hidden.items()})

    @torch.inference_mode()
    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            self._best = self._logits.argmax(-1).cpu().numpy()
        return self._best

    @torch.inference_mode()
    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row and their log-probabilities, both [n, count]."""
        logits = self._logits.float()
        best, tokens = logits.topk(min(count, logits.shape[1]), dim=-1)
        logps = (best - logits.logsumexp(-1, keepdim=True)).double()
        packed = torch.stack((tokens.double(), logps)).cpu().numpy()  # one transfer
        ids, values = packed[0].astype(np.int64), packed[1]
        order = np.lexsort((ids, -values))  # of equals, the lowest id first
        return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)

    @torch.inference_mode()
    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        logits: FloatArray = self._logits[row].float().cpu().numpy()
        return logits

    def follow(self, tree: Tree, temperature: float, key: Callable[[int], int]) -> tuple[tuple[int, ...], int] | None:
        """Path and bonus by the target's own tokens; None where they are found as well token by token.

        At temperature 0 they are the best ones, else keyed draws: `key` names the noise after a depth.
        """
        if not hasattr(tree, "path_rows"):  # it has not grown on a device, and that module need not be looked for
            return self._walk(tree) if temperature == 0 else None
        from sapwood.backends.torch.fused.tree import DeviceTree
        from sapwood.backends.torch.fused.verify import follow

        assert isinstance(tree, DeviceTree)
        leading = getattr(self, "best", None)  # of each row on the device, where the pass has found them
        found = follow(tree, self._logits, temperature, key, leading=leading, hidden=self._hidden, static=self._static)
        self._walked = None if found is None else tree
        return found

    def _walk(self, tree: Tree) -> tuple[tuple[int, ...], int] | None:
        """The same on the host, where only rows on the way are looked at; None where a row is no whole array."""
        given = self._given if isinstance(self._given, torch.Tensor) else self._logits
        if given.device.type != "cpu" or given.dtype != torch.float32 or len(given) != len(tree):
            return None
        rows, nodes = given.numpy(), list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        self._settle()  # only now: while a pass runs beside the host, the host's time costs nothing
        path, said = [ROOT], int(rows[ROOT].argmax())
        for node, (parent, token) in enumerate(nodes):
            if token == said and parent == path[-1]:  # children come after their parents
                path.append(node)
                said = int(rows[node].argmax())
        return tuple(path), said

    def states(self, layers: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states of all rows on the device, [n, width] for each of these layers."""
        missing = [layer for layer in layers if layer not in self._hidden]
        if missing:
            raise ValueError(f"the inputs of layers {missing} were not kept; call backend.watch({list(layers)}) first")
        self._settle()
        return [self._hidden[layer] for layer in layers]

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width], layers in the order asked for."""
        states = self.states(layers)
        first = rows[0] if len(rows) else 0
        if first >= 0 and list(rows) == list(range(first, first + len(rows))):
            return torch.cat([state[first : first + len(rows)] for state in states], -1)
        where = self._rows(rows)
        return torch.cat([state.index_select(0, where) for state in states], -1)

    def _rows(self, rows: Sequence[int]) -> torch.Tensor:
        """These rows as an index on the device, without a transfer where they were walked there."""
        walked: torch.Tensor | None = None if self._walked is None else self._walked.path_rows(tuple(rows))
        if walked is not None:
            return walked
        return torch.tensor(list(rows), dtype=torch.int64, device=next(iter(self._hidden.values())).device)
