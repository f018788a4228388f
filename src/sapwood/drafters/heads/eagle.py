"""The head of EAGLE (arXiv 2401.15077) and EAGLE-2, which predicts the target's final states.

At a temperature EAGLE draws the children of its fixed tree without replacement and tests them in
turn (`draws=swor` under `rrs`, the recipe `eagle`); EAGLE-2 chooses the best tokens and accepts one
with the target's probability of it (`match`). The head that ships is trained as HASS trains it
(arXiv 2408.15766), in three steps on its own outputs; `sapwood train eagle` alone is EAGLE's way.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sapwood.core.protocols import EngineContext
from sapwood.drafters.heads.eagle3 import Eagle3


@dataclass
class Eagle(Eagle3):
    """A trained layer that predicts the target's next final states, read by its output head."""

    name: ClassVar[str] = "eagle"
    paper: ClassVar[str] = "2401.15077"
    trained: ClassVar[str] = "eagle"

    def bind(self, setting: EngineContext) -> None:
        """Load the head and attach the target's output head."""
        super().bind(setting)
        net: Any = self.net
        model = setting.target.capabilities.model
        self.embedding = model.get_input_embeddings().weight  # whole: it is part of the network
        net.attach(self.embedding, model.get_output_embeddings().weight)
