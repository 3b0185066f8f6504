"""The effort of a search under a memory limit: its steps, and what it assumes after many of them.

A step takes about as long as the examination of one range of grids. The first `patience` steps assume
nothing. Then grids are left out that would be too large if they exceeded the lower bound of their memory by
as much as the best of those that were examined; not those that split other axes than any of these. After
`2·patience` steps the search ends. `left_words` is a lower bound of the words of all plans that were left
out in these ways: the search says what it did not prove.
"""

from __future__ import annotations

from fractions import Fraction

from synth.layer.axes import Axis, PerAxis

MOST_TILED, PROCS_PER_TILED = 20_000, 2_000  # grids to tile before the search takes the best one so far;
# a grid counts once, and once more for each `PROCS_PER_TILED` processes
EXAMINED = 2  # and for each so many tilings whose memory is computed
PATIENCE = 20_000  # steps
TILED = {False: 20, True: 100}  # steps of a grid that is tiled; of a training step: True
UNFIT = {False: 5, True: 20}  # of a grid whose slices and shards alone are too large


class Effort:
    """What one search has done. `training`: whether grids are tiled for several passes."""

    def __init__(self, patience: int, training: bool) -> None:
        self.patience, self.training = patience, training
        self.steps = 0
        self.grids_left: float = MOST_TILED * patience / PATIENCE
        self.left_words: int | None = None  # the fewest words that a plan may have that was left out
        self._ratio: Fraction = Fraction(1 << 62)  # least (needed memory / its bound) of what did not fit
        self._unfit: dict[tuple[Axis, ...], set[int]] = {}  # turned axes -> what these split, a bit per axis
        self._known: dict[tuple[tuple[Axis, ...], int, int], bool] = {}

    @property
    def assumes(self) -> bool:
        """Whether the search goes on with assumptions."""
        return self.steps > self.patience

    @property
    def ends(self) -> bool:
        """Whether the search ends."""
        return self.steps > 2 * self.patience or self.grids_left < 0

    def tile(self, size: int, examined: int) -> None:
        """Count a grid of `size` processes that is tiled; the memory of `examined` plans was computed."""
        steps = TILED[self.training]
        self.steps += steps
        self.grids_left -= (1 + size / PROCS_PER_TILED) * steps / TILED[False] + examined / EXAMINED

    def note_unfit(self, grid: PerAxis, turned: tuple[Axis, ...], needed: int, bound: int) -> None:
        """Count a grid over the limit: it needs at least `needed` words, and its lower bound is `bound`."""
        self.steps += UNFIT[self.training]
        self._ratio = min(self._ratio, Fraction(needed, bound))
        splits, split = self._unfit.setdefault(turned, set()), _split(grid)
        if split not in splits:
            splits.add(split)
            self._known.clear()

    def leave(self, words: int) -> None:
        """Note that plans with at least these words were left out."""
        self.left_words = words if self.left_words is None else min(words, self.left_words)

    def raised(self, bound: int, least: PerAxis, most: PerAxis, turned: tuple[Axis, ...]) -> Fraction | int:
        """The bound of the memory of all grids from `least` to `most`, raised by what is assumed."""
        key = turned, _split(least._replace(**dict.fromkeys(turned, 2))), _split(most)
        if key not in self._known:
            self._known[key] = self._all_unfit(*key)
        return bound * self._ratio if self._known[key] else bound

    def _all_unfit(self, turned: tuple[Axis, ...], low: int, high: int) -> bool:
        """Whether of each set of split axes between two sets a grid did not fit."""
        among = [
            split for split in self._unfit.get(turned, ()) if split & low == low and split | high == high
        ]
        return len(among) == 1 << (high & ~low).bit_count()


def _split(grid: PerAxis) -> int:
    """The axes that a grid splits, a bit each."""
    return sum(1 << place for place, parts in enumerate(grid) if parts > 1)
