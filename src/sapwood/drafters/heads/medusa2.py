"""Medusa-2 (arXiv 2401.10774): Medusa's heads over a model that was tuned together with them.

`sapwood train medusa2` writes that model, which is another one than it came from: its text is its
own, and the guarantee is against plain decoding of the tuned model.
"""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.heads.medusa import Medusa


@dataclass
class Medusa2(Medusa):
    """Medusa's heads of a model that was tuned together with them."""

    name: ClassVar[str] = "medusa2"
    trained: ClassVar[str] = "medusa2"
