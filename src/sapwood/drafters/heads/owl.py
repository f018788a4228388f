"""OWL (arXiv 2510.07535): an LSTM over the drafted tokens, begun from the target's last state."""

from dataclasses import dataclass
from typing import ClassVar

from sapwood.drafters.heads.recurrent import Recurrent


@dataclass
class Owl(Recurrent):
    """A trained LSTM that starts from the target's last state, whatever the text's length."""

    paper: ClassVar[str] = "2510.07535"
    trained: ClassVar[str] = "owl"
