"""Protocol of a target whose layers run in stages."""

from typing import TYPE_CHECKING, Any, Protocol

from sapwood.core.tree import Tree

if TYPE_CHECKING:
    from sapwood.core.protocols import TargetOutput


class StageRunner(Protocol):
    """The target's layers in stages, for the window of one session."""

    stages: int

    @property
    def parallel(self) -> bool:
        """True when the stages may run at the same time, each in a thread."""

    def begin(self, tree: Tree, since: int) -> Any:
        """A run of the nodes from `since` on; `tree` has all nodes that were sent so far."""

    def step(self, run: Any, stage: int) -> None:
        """Run the nodes through this stage."""

    def states(self, run: Any) -> Any:
        """Hidden states that left the first stage, [nodes, width]; None without layers."""

    def output(self, run: Any) -> "tuple[int, TargetOutput]":
        """The first node that was scored, and the scores of the nodes from there on."""

    def drop(self, run: Any, stage: int) -> None:
        """Cancel a run before this stage."""
