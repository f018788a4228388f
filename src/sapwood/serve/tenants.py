"""One engine for each tenant and recipe: weights are shared, what is remembered of texts is not."""

from collections import OrderedDict
from collections.abc import Callable

from sapwood.engine import Engine

MOST = 64  # engines that are kept; the one that was asked for longest ago is forgotten first


class Engines:
    """Bound engines by tenant and recipe."""

    def __init__(self, build: Callable[[str], Engine], most: int = MOST) -> None:
        self._build, self._most = build, most  # of a recipe; the empty name is that of the server's own
        self._known: OrderedDict[tuple[str, str], Engine] = OrderedDict()

    def get(self, tenant: str, recipe: str) -> Engine:
        """The engine of a tenant's recipe, bound where it is not known yet; whoever uses one may go on doing so."""
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
