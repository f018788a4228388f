"""Head sizes, tiles and the fixed order of sums of attention; importable without Triton."""

from dataclasses import dataclass

WORD = 64  # nodes per ancestor word
# of a block: first slot, committed length, first row, rows, nodes of the tree, 1 if a chain
FIELDS = 6
CHUNK = 64  # keys whose weights one product adds up
# groups of keys: positions at which the size of a group changes, and the size from there on
FINE = 1024
GROUPS = ((0, CHUNK), (FINE, 256), (4096, 1024), (16384, 4096))
LEADS = (1, 4, FINE // CHUNK)  # groups that the first program of several may take


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Numbers of attention heads, and their width."""

    queries: int
    keys: int
    width: int

    @property
    def all(self) -> int:
        """Heads that one projection makes."""
        return self.queries + 2 * self.keys


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """Tile sizes of attention, and programs that share the keys of one block and head."""

    rows: int  # of a block, a power of two
    units: int = 2  # programs that walk the keys which all rows of a block see
    lead: int = 0  # groups of the first unit; 0: all but the open one, and there are two units
    # rows have paths of their own: one more program walks each, or the only unit if `lead` is 0
    trees: bool = True
    warps: int = 4
    stages: int = 3

    @property
    def with_paths(self) -> bool:
        """True when each row of a tree has a program for its own path."""
        return self.trees and (self.units > 1 or self.lead > 0)


def group_of(position: int) -> int:
    """Index of the group that holds this position."""
    count = 0
    for (start, size), (stop, _) in zip(GROUPS, (*GROUPS[1:], (position + 1, 0)), strict=True):
        if position < stop or (start, size) == GROUPS[-1]:
            return count + (position - start) // size
        count += (stop - start) // size
    raise AssertionError("the last group has no end")


def units_of(positions: int, lead: int) -> int:
    """Programs that walk this many positions, when the first one takes `lead` groups."""
    return max(1, group_of(max(positions, 1) - 1) + 2 - lead)


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`, which is at least 1."""
    return 1 << (count - 1).bit_length()
