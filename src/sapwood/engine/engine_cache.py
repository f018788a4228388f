"""One engine per tenant and recipe: weights are shared, remembered text is not."""

from collections import OrderedDict
from collections.abc import Callable

from sapwood.engine.loop import Engine

MOST = 64  # engines that are kept; the least recently used is dropped first


class EngineCache:
    """Bound engines by tenant and recipe."""

    def __init__(self, build: Callable[[str], Engine], most: int = MOST) -> None:
        # called with a recipe; empty is the default recipe
        self._build = build
        self._most = most
        self._known: OrderedDict[tuple[str, str], Engine] = OrderedDict()

    def get(self, tenant: str, recipe: str) -> Engine:
        """The engine of a tenant's recipe, built when missing; requests may keep a dropped one."""
        key = tenant, recipe
        engine = self._known.get(key)
        if engine is None:
            engine = self._known[key] = self._build(recipe)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return engine

    def __len__(self) -> int:
        return len(self._known)
