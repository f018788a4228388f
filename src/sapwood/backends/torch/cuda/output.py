"""Output of a pass of the CUDA network for one tree, in buffers that the next pass overwrites."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from sapwood.backends.torch.cuda.draft.device_tree import DeviceTree
from sapwood.backends.torch.cuda.network import CudaNetwork
from sapwood.backends.torch.cuda.pass_buffers import PassResult
from sapwood.backends.torch.cuda.session import CudaSession
from sapwood.backends.torch.output import TorchOutput
from sapwood.core.array_types import FloatArray, IntArray
from sapwood.core.tree import ROOT, Tree

STALE = "the session went on and a later pass overwrote this output; read it before the next pass"


class RowsOfStates(Mapping[int, torch.Tensor]):
    """The same rows of the states of several layers, sliced when they are read."""

    def __init__(self, states: Mapping[int, torch.Tensor], rows: slice) -> None:
        self._states = states
        self._rows = rows

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self._states[layer][self._rows]

    def __iter__(self) -> Iterator[int]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)


class PassFeatures:
    """States of several layers beside each other, of all rows of a pass; copied once."""

    def __init__(self, kept: Mapping[int, torch.Tensor]) -> None:
        self._kept = kept
        self._joined: dict[tuple[int, ...], torch.Tensor] = {}

    def joined(self, layers: tuple[int, ...]) -> torch.Tensor:
        """The states of these layers, [rows, layers * width]."""
        if layers not in self._joined:
            missing = [layer for layer in layers if layer not in self._kept]
            if missing:
                raise ValueError(f"the inputs of layers {missing} were not kept")
            self._joined[layers] = torch.cat([self._kept[layer] for layer in layers], -1)
        return self._joined[layers]


def walk(tree: Tree, tokens: IntArray) -> tuple[tuple[int, ...], int]:
    """Path from the root along the target's tokens, [n], and the token after its last node."""
    path = [ROOT]
    while (child := tree.child(path[-1], int(tokens[path[-1]]))) is not None:
        path.append(child)
    return tuple(path), int(tokens[path[-1]])


class CudaOutput(TorchOutput):
    """Rows of the last pass, in static buffers that the next pass overwrites.

    Before it does, rows are copied if their session has not moved on.
    """

    def __init__(
        self,
        result: PassResult,
        rows: slice,
        session: CudaSession,
        network: CudaNetwork | None = None,  # if its buffers hold the result
        features: "PassFeatures | None" = None,  # of all rows, in a pass of several sessions
    ) -> None:
        assert result.logits is not None
        self._alone = rows.stop - rows.start == result.logits.shape[0]
        kept = result.kept if self._alone else RowsOfStates(result.kept, rows)
        super().__init__(self._own_logits, kept, static=rows.start == 0)
        self._result = result
        self._network = network
        self._features = features
        self._span = rows
        self._stale = False
        self._session = weakref.ref(session)
        self._length = session.length

    def _own_logits(self) -> torch.Tensor:
        assert self._result.logits is not None
        return self._result.logits if self._alone else self._result.logits[self._span]

    @cached_property
    def best(self) -> torch.Tensor:  # type: ignore[override]
        """Best token of each row, on the device."""
        assert self._result.best is not None
        return self._result.best if self._alone else self._result.best[self._span]

    @property
    def device_logits(self) -> torch.Tensor:
        """Logits on the device, [n, vocab]."""
        return self._logits

    def argmax(self) -> IntArray:
        """Best next token of each row, [n]; the lowest id wins a tie."""
        if self._best is None:
            if self._stale:
                raise ValueError(STALE)
            network, rows = self._network, self._span
            best = self.best.cpu().numpy() if network is None else network.best_on_host()[rows]
            self._best = best.copy()
        return self._best

    def follow(
        self, tree: Tree, temperature: float, key: Callable[[int], int]
    ) -> tuple[tuple[int, ...], int] | None:
        """Path and bonus by the target's own tokens; None if they cannot be drawn on the device."""
        if temperature == 0 and not isinstance(tree, DeviceTree):
            return walk(tree, self.argmax())
        alone = self._network is not None and self._alone
        if not alone or isinstance(tree, DeviceTree):
            found = super().follow(tree, temperature, key)
            if isinstance(tree, DeviceTree) and tree.round_use.prelaunched_pass is not None:
                self.host_wait = tree.round_use.round_buffer.waited
            return found
        assert self._network is not None
        tokens = self._network.sampler.sample(tree.depths, temperature, key)
        return None if tokens is None else walk(tree, tokens)

    def logits(self, row: int) -> FloatArray:
        """Raw logits of this row, float32 [vocab]."""
        return super().logits(row).copy()  # the buffer changes

    def hidden(self, rows: Sequence[int], layers: Sequence[int]) -> Any:
        """Hidden states of these rows on the device, [rows, layers * width], in this order."""
        first = rows[0] if len(rows) else 0
        if self._features is None or list(rows) != list(range(first, first + len(rows))):
            return super().hidden(rows, layers)
        start = self._span.start + first
        return self._features.joined(tuple(layers))[start : start + len(rows)]

    def shared_features(self, layers: Sequence[int]) -> tuple[torch.Tensor, int] | None:
        """Hidden states of all rows of a shared pass, and the first row of this output."""
        if self._features is None:
            return None
        return self._features.joined(tuple(layers)), self._span.start

    def detach_buffers(self) -> None:
        """Give the buffers to the next pass: copy the rows, unless the session has moved on."""
        session = self._session()
        self._network = None
        self._features = None
        if session is not None and session.length == self._length:
            self._given = self._logits.clone()
            self.__dict__["best"] = self.best.clone()
            self.__dict__["_logits"], self._static = self._given, False
            self._hidden = {layer: states.clone() for layer, states in self._hidden.items()}
        else:
            self._given = self._raise_stale
            self._hidden = {}
            self._stale = True
            self.__dict__.pop("_logits", None)

    def _raise_stale(self) -> torch.Tensor:
        raise ValueError(STALE)
