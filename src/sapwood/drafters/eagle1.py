"""Draft with the head of EAGLE (arXiv 2401.15077) and EAGLE-2, which continues the target's final states."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.drafters.eagle import Eagle
from sapwood.protocols import Setting


@dataclass
class Eagle1(Eagle):
    """A trained layer that continues the target's final states and speaks through its output head."""

    name: ClassVar[str] = "eagle"
    paper: ClassVar[str] = "2401.15077"
    trained: ClassVar[str] = "eagle"

    def bind(self, setting: Setting) -> None:
        """Load the head and lend it the target's output rows."""
        super().bind(setting)
        net: Any = self.net
        target: Any = setting.target
        net.attach(self.embedding, target.model.get_output_embeddings().weight)
