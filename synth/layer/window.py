"""The sliding window of a layer along one spatial dimension: the input rows that an output row reads.

"Row" means a position along the dimension. A `Nest` has three windows.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CUTS = 2**14  # cuts of a turned window that are examined one by one
Padding = int | tuple[int, int]  # zeros at both ends alike, or before and after
Rows = TypeVar("Rows", int, "NDArray[np.int64]")


def both_ends(padding: Padding) -> tuple[int, int]:
    """Zeros before and after a dimension."""
    return (padding, padding) if isinstance(padding, int) else padding


def out_size(size: int, kernel: int, stride: int, padding: Padding, dilation: int) -> int:
    """Output positions of a convolution along one dimension, as in torch."""
    return (size + sum(both_ends(padding)) - dilation * (kernel - 1) - 1) // stride + 1


@dataclass(frozen=True)
class Window:
    """One spatial dimension, reduced to the input rows that the layer reads.

    Input rows that no output reads are removed: kernel 1 with stride 2, kernel 2 with stride 3 and any
    dilation, rows at the end that the stride skips. `source` maps a reduced row to the row of the user's
    tensor. Rows in gaps stay in the problem where taps would be at unequal distances without them (kernel 4,
    stride 7, dilation 3), and near the ends, where a dilation is longer than the stride. See `read_rows`.

    `turned` exchanges the two sides: then `out` counts input rows, `size` output rows, `reach` gives the
    output rows that a block of input rows adds to, and `padding` may be negative.
    """

    out: int  # N: output positions
    kernel: int = 1
    stride: int = 1  # σ, of the reduced problem
    dilation: int = 1  # δ, of the reduced problem
    padding: int = 0  # zeros before the first reduced row
    size: int = 1  # reduced input rows
    first: int = 0  # reduced row i is row `first + step·(...)` of the user's tensor, see `source`
    step: int = 1
    period: int = 1  # of every `period` rows (in steps of `step`, from -padding)
    kept: tuple[int, ...] = (0,)  # these are read
    divisor: int = 1  # of a turned window: the stride of the layer

    @classmethod
    def reduced(cls, size: int, kernel: int, stride: int, dilation: int, zeros: Padding) -> Window:
        """The window of a layer's own numbers. `size` is the number of input rows in the user's tensor."""
        out = out_size(size, kernel, stride, zeros, dilation)
        padding, _ = both_ends(zeros)
        if kernel == 1:
            dilation = stride  # one tap needs no dilation; this value gives a lattice without gaps
        lattice = math.gcd(stride, dilation)
        first = -padding % lattice
        stride, dilation = stride // lattice, dilation // lattice
        padding = -(-padding // lattice)
        size = max(0, -(-(size - first) // lattice))
        size = min(size, stride * (out - 1) + dilation * (kernel - 1) + 1 - padding)
        kept = tuple(sorted({dilation * tap % stride for tap in range(kernel)}))

        def rows_read(position: int) -> int:
            return position // stride * len(kept) + bisect_left(kept, position % stride)

        taps = [rows_read(dilation * tap) for tap in range(kernel)]
        apart = taps[1] if kernel > 1 else 1
        if len(kept) == stride or taps != [apart * tap for tap in range(kernel)]:
            return cls(out, kernel, stride, dilation, padding, size, first, lattice)
        # the windows leave gaps: keep the rows of every `stride` that some tap reads
        offset = first - lattice * padding  # the user's row at padded position 0
        before = rows_read(padding)
        rows = rows_read(size + padding) - before
        return cls(out, kernel, len(kept), apart, before, rows, offset, lattice, stride, kept)

    def source(self, row: Rows) -> Rows:
        """The row of the user's tensor that is the reduced row `row`, a number or an array of numbers."""
        if self.period == len(self.kept):
            return self.first + self.step * row
        whole, rest = divmod(row + self.padding, len(self.kept))
        return self.first + self.step * (whole * self.period + self._kept_at(rest))

    def _kept_at(self, rest: Rows) -> Rows:
        if isinstance(rest, int):
            return self.kept[rest]
        import numpy as np

        return np.array(self.kept)[rest]

    @property
    def reads_all(self) -> bool:
        """Whether no row of the user's tensor is skipped before the last one that is read."""
        return self.source(self.size - 1) == self.size - 1 if self.size else True

    @property
    def is_reduced(self) -> bool:
        """Whether the reduced rows are other rows of the user's tensor, as a stride skips some."""
        return (self.first, self.step, self.period) != (0, 1, len(self.kept))

    @property
    def span(self) -> int:
        """Rows from the first to the last kernel tap of one output position."""
        return self.dilation * (self.kernel - 1) + 1

    def reach(self, low: int, high: int) -> tuple[int, int]:
        """Input rows `[first, last)` that output positions `[low, high)` read, without the padding."""
        if high <= low:
            return 0, 0
        first = max(0, -(-(self.stride * low - self.padding) // self.divisor))
        last = (self.stride * (high - 1) + self.span - 1 - self.padding) // self.divisor + 1
        last = min(self.size, last)
        return (first, last) if first < last else (0, 0)

    @cached_property
    def read_rows(self) -> int:
        """Reduced input rows that some output reads: all of them but those in gaps of a dilation."""
        if self.dilation == 1 and self.kernel >= self.stride:
            return self.size
        lines: dict[int, list[tuple[int, int]]] = {}  # rows modulo the stride -> what taps read of them
        for tap in range(self.kernel):
            first, residue = divmod(self.dilation * tap - self.padding, self.stride)
            most = (self.size - 1 - residue) // self.stride + 1
            lines.setdefault(residue, []).append((max(0, first), min(most, first + self.out)))
        rows = 0
        for intervals in lines.values():
            end = 0
            for low, high in sorted(intervals):
                rows += max(0, high - max(low, end))
                end = max(end, high)
        return rows

    @property
    def turned(self) -> Window:
        """The window of the same pairs of rows with input and output rows exchanged; its own inverse.

        Input row y and output row x are a pair if σx = y + π - δr for a tap r. So x is the quotient by σ of
        a row of a window of stride 1 with the taps in reverse order and the padding δ(R-1) - π.
        """
        return replace(
            self,
            out=self.size,
            size=self.out,
            stride=self.divisor,
            divisor=self.stride,
            padding=self.span - 1 - self.padding,
        )

    def of_class(self, classes: int) -> Window:
        """The window of every residue class, for some number of classes that divides the dilation.

        The stride is 1. Every class has as many rows as the longest, see `layer.residue_classes`, which says
        what rows of the user's tensor they are.
        """
        skipped = self.padding % classes
        out, dilation, padding = -(-self.out // classes), self.dilation // classes, self.padding // classes
        size = min(-(-(self.size + skipped) // classes), out + dilation * (self.kernel - 1) - padding)
        return Window(out, self.kernel, 1, dilation, padding, size)

    def taps(self, low: int, high: int) -> int:
        """Number of pairs (position in `[low, high)`, kernel tap) that read an input row, not padding.

        Of a turned window: pairs (input row, kernel tap) that add to an output row.
        """
        count = 0
        for tap in range(self.kernel):
            shift = self.dilation * tap - self.padding
            begin = max(low, -(-max(0, -shift) // self.stride))
            end = min(high, (self.divisor * self.size - 1 - shift) // self.stride + 1)
            if self.divisor > 1:  # only positions that the divisor divides, counted from the first row
                begin, end = (-(-(place + shift) // self.divisor) for place in (begin, end))
            count += max(0, end - begin)
        return count

    def frame(self, rows: int) -> int:
        """Number of input rows that `rows` output rows read, padding included; of a turned window at most."""
        return (self.stride * (rows - 1) + self.span - 1) // self.divisor + 1 if rows else 0

    def pads(self, low: int, high: int) -> tuple[int, int]:
        """Padding rows before and after the rows `reach(low, high)` that the block `[low, high)` reads."""
        if high <= low:
            return 0, 0
        begin = self.stride * low - self.padding
        end = self.stride * (high - 1) + self.span - self.padding
        first, last = self.reach(low, high)
        if first == last:
            return end - begin, 0
        return first - begin, end - last

    @property
    def trailing(self) -> int:
        """Zeros after the last row that windows read."""
        return max(0, self.frame(self.out) - self.padding - self.size)

    def plain(self, low: int, high: int) -> bool:
        """Whether the `padding=` argument of a torch convolution can express the padding of a block."""
        before, after = self.pads(low, high)
        return 0 <= before - after < self.stride

    @property
    def most_overlap(self) -> int:
        """The most rows that two neighbouring blocks both read."""
        if self.divisor > 1:
            return (self.span - 2) // self.divisor + 1 if self.span > 1 else 0
        return max(0, self.span - self.stride)

    @property
    def overlap(self) -> int:
        """The fewest rows that two neighbouring blocks both read, over all positions of the cut."""
        if self.out == 1 or self.span <= self.stride:
            return 0
        if self.divisor > 1:  # the overlap depends on the place of the cut
            return self._least_overlap
        # Padding can only shorten the overlap, and most at the first or at the last cut.
        least = self.size
        for cut in (1, self.out - 1):
            before, after = self.reach(0, cut), self.reach(cut, self.out)
            if before == (0, 0) or after == (0, 0):
                return 0
            least = min(least, before[1] - after[0])
        return max(0, least)

    @cached_property
    def _least_overlap(self) -> int:
        """`overlap` from every cut; 0 if there are more than `CUTS`."""
        least = self.size
        for cut in range(1, self.out) if self.out <= CUTS else ():
            before, after = self.reach(0, cut), self.reach(cut, self.out)
            least = min(least, 0 if (0, 0) in (before, after) else before[1] - after[0])
        return max(0, least) if self.out <= CUTS else 0

    def __str__(self) -> str:
        return f"{self.out} from {self.size} rows, kernel {self.kernel}, stride {self.stride}"
