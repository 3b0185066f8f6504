"""How the planned layer before a call is divided."""

from __future__ import annotations

from collections.abc import Sequence

RANKS = 4
SPATIAL = {1: "w", 2: "hw", 3: "dhw"}  # by the number of spatial dimensions
MIXED = (("w", "k"), ("b", "k"), ("b", "w"), ("b", "c"), ("h", "w"), ("w", "c"))


def grid(cut: str, extents: dict[str, int], turn: int, ranks: int = RANKS) -> dict[str, int] | None:
    """The grid of a cut, in parts by axis; {} for a free plan, None where the extents do not allow the cut.

    turn: which of several grids of a mixed cut, and which spatial axis.
    """
    if cut == "free":
        return {}
    if cut == "mixed":
        half = ranks // 2
        found = [
            {one: half, other: 2}
            for one, other in MIXED
            if extents.get(one, 1) >= half and extents.get(other, 1) >= 2
        ]
        return found[turn % len(found)] if found else None
    spatial = [axis for axis in "whd" if extents.get(axis, 1) >= 2]
    axes = {"batch": ["b"], "channels": ["c"], "filters": ["k"], "spatial": spatial}[cut]
    if not axes:
        return None
    axis = axes[turn % len(axes)]
    parts = next((n for n in (ranks, ranks // 2) if n > 1 and extents.get(axis, 1) >= n), None)
    return {axis: parts} if parts else None


def extents_of(shape: Sequence[int], channels: int, filters: int) -> dict[str, int]:
    """The extents by axis of a layer. shape: of its input."""
    spatial = shape[2:]
    axes = SPATIAL[len(spatial)] if spatial else ""
    return {"b": shape[0], "c": channels, "k": filters, **dict(zip(axes, spatial, strict=True))}


def shown(grid: dict[str, int]) -> str:
    """A grid as text, such as "h2 w2"."""
    return " ".join(f"{axis}{parts}" for axis, parts in grid.items())


def read(text: str) -> dict[str, int]:
    """The grid of such a text."""
    return {each[0]: int(each[1:]) for each in text.split()}
