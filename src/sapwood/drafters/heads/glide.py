"""GLIDE (arXiv 2402.02082): a draft layer that attends to the target's own keys and values."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.heads.moa import Moa


@dataclass
class Glide(Moa):
    """A trained layer whose cross-attention reads keys and values of the target's last layer."""

    paper: ClassVar[str] = "2402.02082"
    trained: ClassVar[str] = "glide"
