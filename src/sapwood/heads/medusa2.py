"""Heads of Medusa-2 (arXiv 2401.10774): Medusa's, for a model that was tuned together with them."""

from typing import ClassVar

from sapwood.heads.medusa import MedusaConfig, MedusaHeads


class Medusa2Heads(MedusaHeads):
    """The final state of one position in, logits of each of the next positions out."""

    kind: ClassVar[str] = "medusa2"

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config)
