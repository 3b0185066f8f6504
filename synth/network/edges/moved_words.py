"""Words that the most-receiving rank receives between two layers, for all pairs of their options.

A rank receives what it wants and does not have: its words after, minus those in common, a product over
dimensions. The largest number over all ranks lies between two that are cheap: the largest over a few ranks,
and the most words of any rank minus the product of the least common rows per dimension. For most pairs these
are equal. The others are counted on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from synth.layer.window import Window
from synth.network.edges.user_rows import rows_before
from synth.network.grids.box_rows import Array, BoxRows, distinct

FEW_RANKS = 64  # up to so many ranks, all pairs are counted on all of them
GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 are spread evenly
TOGETHER = 32  # pairs that are counted together on all ranks
SAMPLE = 32  # ranks of a first look, beside those that want or have the most


def moved_words(
    source: BoxRows,
    target: BoxRows,
    windows: dict[int, Window],
    back: bool = True,
) -> tuple[Array, Array]:
    """Words that the most-receiving rank receives: of the value, and of its gradient on the way back.

    `windows`, from `windows_with_gaps`, translate rows of the source if the target skips rows. Rows that no
    window reads have no gradient. Both results have one entry per (source option, target option), in 64 bits
    since sums of them need these. Without `back`, the second one is 0.
    """
    for at, window in windows.items():
        source = source.along(at, partial(rows_before, window))
    pairs = _Pairs(source, target, back)
    if pairs.ranks <= FEW_RANKS:
        return pairs.at_ranks(np.arange(pairs.ranks))
    found = pairs.at_ranks(pairs.sample())
    one, other = np.nonzero(pairs.open(found, pairs.most_wanted, pairs.most_had[:, None]))
    some = tuple(words[one, other] for words in found)
    still = pairs.open(some, *pairs.at_most(one, other))
    one, other = one[still], other[still]
    for first in range(0, len(one), TOGETHER):
        part = one[first : first + TOGETHER], other[first : first + TOGETHER]
        for table, words in zip(found, pairs.on_all_ranks(*part), strict=True):
            table[part] = words
    return found


class _Pairs:
    """All pairs of an option of the source and one of the target."""

    def __init__(self, source: BoxRows, target: BoxRows, back: bool) -> None:
        self.source, self.target, self.back = source, target, back
        self.want, self.have = target.volumes, source.volumes  # (option, rank)
        self.ranks = self.want.shape[1]
        self.most_wanted, self.most_had = target.most, source.most
        dims = range(len(source.low))
        self.split = [
            d for d in dims if not _all_whole(source.low[d], source.high[d], target.low[d], target.high[d])
        ]
        narrow = max(int(self.most_wanted.max()), int(self.most_had.max())) < 2**31
        self.integer = np.int32 if narrow else np.int64
        self.scale = np.ones(1, dtype=self.integer)  # words per position of the split dimensions
        for d in set(dims) - set(self.split):
            self.scale = self.scale * max(0, int(source.high[d].max() - source.low[d].min()))

    def sample(self) -> Array:
        """A few ranks: some spread over all, and of every option the first and the last that have most."""
        spread = (np.arange(SAMPLE) * GOLDEN % 1 * self.ranks).astype(np.intp)
        return distinct(np.concatenate([spread, self.target.ranks_of_most, self.source.ranks_of_most]))

    def at_ranks(self, ranks: Array) -> tuple[Array, Array]:
        """The most words that any of some ranks receives, there and back, in 64 bits."""
        shape = len(self.have), len(self.want)
        there, back = np.zeros(shape, self.integer), np.zeros(shape, self.integer)
        rows = [self._common_rows(d, ranks) for d in self.split]
        for place, rank in enumerate(ranks.tolist()):
            common = np.broadcast_to(self.scale, shape)
            for d, of_rows in zip(self.split, rows, strict=True):
                common = common * of_rows[place][self.source.row[d]][:, self.target.row[d]]
            np.maximum(there, self.want[:, rank] - common, out=there)
            if self.back:
                np.maximum(back, self.have[:, rank, None] - common, out=back)
        return there.astype(np.int64), back.astype(np.int64)

    def _common_rows(self, d: int, ranks: Array) -> Array:
        """Rows in common along a dimension, by (rank, row of the source, row of the target)."""
        low, high, low2, high2 = (
            bound[d][:, ranks].T
            for bound in (self.source.low, self.source.high, self.target.low, self.target.high)
        )
        common = np.minimum(high[:, :, None], high2[:, None]) - np.maximum(low[:, :, None], low2[:, None])
        rows: Array = np.maximum(common, 0).astype(self.integer, copy=False)
        return rows

    def open(self, found: Sequence[Array], most: Array, most_back: Array) -> Array:
        """The pairs whose words, there or back, may be more than those found."""
        may: Array = (found[0] < most) | (found[1] < most_back if self.back else False)
        return may

    def at_most(self, one: Array, other: Array) -> tuple[Array, Array]:
        """Numbers that no rank's words exceed, there and back, by pair of options."""
        there = back = np.broadcast_to(self.scale.astype(np.int64), one.shape)
        for d in self.split:
            row, row2, of_pair = self._pairs_of_rows(d, one, other)
            least, least_back = self._least_common(d, row, row2)
            there, back = there * least[of_pair], back * least_back[of_pair]
        return self.most_wanted[other] - there, self.most_had[one] - back

    def _pairs_of_rows(self, d: int, one: Array, other: Array) -> tuple[Array, Array, Array]:
        """(Row of the source, row of the target, pair of options -> its pair of rows) along a dimension."""
        width = len(self.target.low[d])
        pairs = self.source.row[d][one] * width + self.target.row[d][other]
        different, of_pair = np.unique(pairs, return_inverse=True)
        return *np.divmod(different, width), of_pair

    def _least_common(self, d: int, row: Array, row2: Array) -> tuple[Array, Array]:
        """The least rows in common of pairs of rows, by the ranks that want some, and that have some."""
        there, back = np.empty((2, len(row)), np.int64)
        wants = self.target.low[d] < self.target.high[d]
        has = self.source.low[d] < self.source.high[d]
        for first in range(0, len(row), TOGETHER):
            at = slice(first, first + TOGETHER)
            common = self._common(d, row[at], row2[at])
            most = common.max(initial=0)
            there[at] = np.where(wants[row2[at]], common, most).min(axis=1)
            back[at] = np.where(has[row[at]], common, most).min(axis=1)
        return there, back

    def _common(self, d: int, row: Array, row2: Array) -> Array:
        """Rows in common of some pairs of rows, by (pair, rank)."""
        high = np.minimum(self.source.high[d][row], self.target.high[d][row2])
        low = np.maximum(self.source.low[d][row], self.target.low[d][row2])
        found: Array = np.maximum(high - low, 0)
        return found

    def on_all_ranks(self, one: Array, other: Array) -> tuple[Array, Array]:
        """The words of pairs of options."""
        common = np.broadcast_to(self.scale, (len(one), self.ranks))
        for d in self.split:
            row, row2, of_pair = self._pairs_of_rows(d, one, other)
            common = common * self._common(d, row, row2)[of_pair]
        there = (self.want[other] - common).max(axis=1)
        return there, (self.have[one] - common).max(axis=1) if self.back else np.zeros_like(there)


def _all_whole(*bounds: Array) -> bool:
    """Whether every box, before and after, spans the same whole dimension."""
    low, high, low2, high2 = (int(b.flat[0]) for b in bounds)
    return low == low2 and high == high2 and all(bool((b == b.flat[0]).all()) for b in bounds)
