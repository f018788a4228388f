"""Memory of keys and values that a server takes by itself."""

import dataclasses

from sapwood.backends.toy import ToyBackend
from sapwood.core.protocols import Capabilities
from sapwood.server.engine_thread import LONGEST, MEMORY, default_memory


@dataclasses.dataclass
class OnDevice(ToyBackend):
    """A toy that says how many tokens its device has room for."""

    free: int = 0

    @property
    def capabilities(self) -> Capabilities:
        return dataclasses.replace(super().capabilities, free_tokens=lambda: self.free)


def test_on_a_cpu_it_is_one_long_text_or_a_few() -> None:
    assert default_memory(ToyBackend(context=512), 64) == MEMORY
    assert default_memory(ToyBackend(context=MEMORY + 1), 64) == MEMORY + 1
    assert default_memory(ToyBackend(context=10 * LONGEST), 64) == LONGEST


def test_on_a_device_it_is_what_fits_and_may_be_used() -> None:
    assert default_memory(OnDevice(context=4096, free=1 << 30), 64) == 64 * 4096
    assert default_memory(OnDevice(context=4096, free=100_000), 64) == 100_000
    assert default_memory(OnDevice(context=512, free=10), 64) == MEMORY
