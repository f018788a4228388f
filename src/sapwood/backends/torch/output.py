"""Output of a pass for one tree; it stays on the device until it is read."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sapwood.backends.torch.kv_slots import settled
from sapwood.common.top_tokens import top_tokens
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.protocols import TargetOutput
from sapwood.core.tree import ROOT, Tree

if TYPE_CHECKING:
    from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree
    from sapwood.backends.torch.cuda.verify.device_verifier import PendingWalk


class TorchOutput(TargetOutput):
    """Logits, and on request hidden states, of the rows of one tree."""

    best: torch.Tensor | None = None  # best token of each row, if the pass has computed them

    def __init__(
        self,
        logits: torch.Tensor | Callable[[], torch.Tensor],
        hidden: Mapping[int, torch.Tensor] | None = None,
        *,
        # the logits are in a static buffer, so kernels that read them may be captured in a graph
        static: bool = False,
        settle: Callable[[], None] = settled,  # waits for a pass that overlaps the host
    ) -> None:
        self._settle = settle
        self._given = logits  # [n, vocab], or a function that computes them
        self._hidden = hidden or {}  # layer -> [n, width]
        self._best: IntArray | None = None
        self._static = static
        self._walked: DeviceTree | None = None  # the tree whose path was found on the device
        self._launched: PendingWalk | None = (
            None  # a verification on the device that was not read yet
        )

    @property
    def overlaps_host(self) -> bool:
        """True if the pass overlaps the host."""
        return self._settle is not settled

    @cached_property
    def _logits(self) -> torch.Tensor:
        if self.overlaps_host:
            self._settle()
        return self._given if isinstance(self._given, torch.Tensor) else self._given()

    def after(self, row: int) -> "TorchOutput":
        """The output without the rows before this one."""
        return TorchOutput(
            self._logits[row:], {layer: states[row:] for layer, states in self._hidden.items()}
        )

    def before(self, row: int) -> "TorchOutput":
        """The output of the rows before this one."""
        return TorchOutput(
            self._logits[:row], {layer: states[:row] for layer, states in self._hidden.items()}
        )

    @torch.inference_mode()
    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            logits = self._logits
            # on a CPU without torch, for the reason that `topk` gives
            self._best = (
                logits.float().numpy().argmax(-1)
                if logits.device.type == "cpu"
                else logits.argmax(-1).cpu().numpy()
            )
        return self._best

    @torch.inference_mode()
    def topk(self, count: int) -> tuple[IntArray, FloatArray]:
        """Best next tokens of each row and their log-probabilities, both [n, count]."""
        logits = self._logits.float()
        if logits.device.type == "cpu":
            # Threads of torch would wait for those of a pass that still spin: logsumexp of one row
            # of 49,152 logits took 44 ms with two threads, and 0.06 ms with one.
            return top_tokens(logits.numpy(), count)
        best, tokens = logits.topk(min(count, logits.shape[1]), dim=-1)
        logps = (best - logits.logsumexp(-1, keepdim=True)).double()
        packed = torch.stack((tokens.double(), logps)).cpu().numpy()  # one transfer
        ids = packed[0].astype(np.int64)
        values = packed[1]
        order = np.lexsort((ids, -values))  # ties by lowest id
        return np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)

    @torch.inference_mode()
    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        logits: FloatArray = self._logits[row].float().cpu().numpy()
        return logits

    def launch_follow(self, tree: Tree, temperature: float, key: Callable[[int], int]) -> bool:
        """Launch `follow` on the device of the tree; True if a draft can continue from it there."""
        if not tree.on_device:
            return False
        self._launched = self._launch(tree, temperature, key)
        return self._launched is not None and self._launched.leaves_features

    def follow(
        self, tree: Tree, temperature: float, key: Callable[[int], int]
    ) -> tuple[tuple[int, ...], int] | None:
        """Path and bonus by the target's own tokens; None if the caller should go row by row.

        At temperature 0 they are the best tokens, else keyed draws: `key` gives the noise key
        after a depth.
        """
        if not tree.on_device:
            return self._walk(tree) if temperature == 0 else None
        walk, self._launched = self._launched, None
        if walk is None or walk.tree is not tree:
            walk = self._launch(tree, temperature, key)
        self._walked = None if walk is None else walk.tree
        return None if walk is None else walk.read()

    def _launch(
        self, tree: Tree, temperature: float, key: Callable[[int], int]
    ) -> "PendingWalk | None":
        """Launch the verification on the device; None if the tree is no longer there."""
        from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree
        from sapwood.backends.torch.cuda.verify.device_verifier import launch

        assert isinstance(tree, DeviceTree)
        return launch(
            tree,
            self._logits,
            temperature,
            key,
            leading=self.best,
            hidden=self._hidden,
            static=self._static,
        )

    def _walk(self, tree: Tree) -> tuple[tuple[int, ...], int] | None:
        """`follow` on the host, which reads rows of the path only; None for other dtypes."""
        given = self._given if isinstance(self._given, torch.Tensor) else self._logits
        if given.device.type != "cpu" or given.dtype != torch.float32 or len(given) != len(tree):
            return None
        rows = given.numpy()
        nodes = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
        self._settle()  # last: until then the pass overlaps the host
        path = [ROOT]
        target = int(rows[ROOT].argmax())
        for node, (parent, token) in enumerate(nodes):
            if token == target and parent == path[-1]:  # nodes are in topological order
                path.append(node)
                target = int(rows[node].argmax())
        return tuple(path), target

    def states(self, layers: Sequence[int]) -> list[torch.Tensor]:
        """Hidden states of all rows on the device, [n, width] for each of these layers."""
        try:
            found = [self._hidden[layer] for layer in layers]
        except KeyError:
            missing = [layer for layer in layers if layer not in self._hidden]
            raise ValueError(
                f"the inputs of layers {missing} were not kept; "
                f"call backend.watch({list(layers)}) first"
            ) from None
        self._settle()
        return found

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width], in this order."""
        states = self.states(layers)
        first = rows[0] if len(rows) else 0
        if first >= 0 and list(rows) == list(range(first, first + len(rows))):
            return torch.cat([state[first : first + len(rows)] for state in states], -1)
        where = self._rows(rows)
        return torch.cat([state.index_select(0, where) for state in states], -1)

    def _rows(self, rows: Sequence[int]) -> torch.Tensor:
        """These rows as an index on the device, without a transfer if verified there."""
        walked = None if self._walked is None else self._walked.path_rows(tuple(rows))
        if walked is not None:
            return walked
        return torch.tensor(
            list(rows), dtype=torch.int64, device=next(iter(self._hidden.values())).device
        )
