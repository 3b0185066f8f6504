"""The process grid: ranks and their coordinates along the axes."""

from __future__ import annotations

At = dict[str, int]  # axis -> coordinate of a rank on the grid


def coordinates(rank: int, grid: dict[str, int]) -> At:
    """The coordinates of a rank; the last axis of `grid` (axis -> parts) is fastest."""
    at = {}
    for axis, parts in reversed(grid.items()):
        rank, at[axis] = divmod(rank, parts)
    return {axis: at[axis] for axis in grid}


def rank_of(at: At, grid: dict[str, int]) -> int:
    """The rank at some coordinates."""
    rank = 0
    for axis, parts in grid.items():
        rank = rank * parts + at[axis]
    return rank


def grid_size(grid: dict[str, int]) -> int:
    """The number of ranks on a grid."""
    size = 1
    for parts in grid.values():
        size *= parts
    return size


def peers_along(at: At, grid: dict[str, int], axes: tuple[str, ...]) -> list[At]:
    """Coordinates of the ranks that differ from `at` only along `axes`, in order."""
    peers = [at]
    for axis in axes:
        peers = [{**peer, axis: i} for peer in peers for i in range(grid[axis])]
    return peers


def place_at(at: At | None) -> str:
    """Coordinates as text, such as `b=0 k=1`."""
    if at is None:
        return "no place on the grid"
    return " ".join(f"{axis}={index}" for axis, index in at.items()) or "the only place"
