"""Interface of a module for several tokens that was trained with its model."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sapwood.core.types import BackendInfo

if TYPE_CHECKING:
    from sapwood.core.protocols import Session, TargetOutput, TreeInput


class MtpRunner(Protocol):
    """Backend of a module for several tokens that was trained with the target."""

    @property
    def info(self) -> BackendInfo:
        """Model, sizes, features and device."""

    @property
    def layers(self) -> int:
        """Layers of the module: the layer whose kept input goes with the next token."""

    def pair(self, states: Any) -> None:
        """Use these hidden states, each before its token, in the next pass, [rows, width]."""

    def open(self, tokens: Sequence[int]) -> "Session":
        """A session with these tokens committed; nothing is scored."""

    def score(self, work: "Sequence[TreeInput]") -> "list[TargetOutput]":
        """One pass over all trees, with the states of `pair`."""
