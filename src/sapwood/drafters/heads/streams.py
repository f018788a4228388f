"""Speculative streaming (arXiv 2402.11131): streams in the upper layers draft the next tree.

Every node of the tree has streams, rows of the verifying pass that begin in an upper layer from
the node's own state. Those of the last accepted node draft the next tree.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.heads.lookahead_base import MarginalBase


@dataclass
class Streams(MarginalBase):
    """Trained streams of every node in the target's upper layers."""

    paper: ClassVar[str] = "2402.11131"
    trained: ClassVar[str] = "streams"
