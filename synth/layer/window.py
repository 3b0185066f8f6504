"""The sliding window of a layer along one spatial dimension: which rows of the input an output row reads.

Plain integers along one dimension; `nest` puts three of them into a loop nest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """One spatial dimension, reduced to the input rows that the layer reads.

    Rows that no window touches (1x1 stride 2, a tail that the stride skips, kernel 2 with stride 3) are
    left out of the problem: they never move. `source` says which rows of the user's tensor stay. Only
    the irregular gaps of a dilation that shares no divisor with the stride are kept and counted.
    """

    out: int  # N: output positions
    kernel: int = 1
    stride: int = 1  # σ, of the reduced problem
    dilation: int = 1  # δ, of the reduced problem
    padding: int = 0  # zeros before the first reduced row
    size: int = 1  # reduced input rows
    first: int = 0  # reduced row i is row `first + step·(...)` of the user's tensor, see `source`
    step: int = 1
    period: int = 1  # of every `period` rows (after `step`) the first `run`, counted from -padding, are read
    run: int = 1

    @classmethod
    def reduced(cls, size: int, kernel: int, stride: int, dilation: int, padding: int) -> Window:
        """From a layer's own numbers. `size` counts the user's input rows; all that is read must exist."""
        out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        if kernel == 1:
            dilation = stride  # a single tap has no dilation; this one makes the lattice below dense
        lattice = math.gcd(stride, dilation)
        first = -padding % lattice
        stride, dilation = stride // lattice, dilation // lattice
        padding = -(-padding // lattice)
        size = max(0, -(-(size - first) // lattice))
        size = min(size, stride * (out - 1) + dilation * (kernel - 1) + 1 - padding)
        if dilation > 1 or kernel >= stride:
            return cls(out, kernel, stride, dilation, padding, size, first, lattice)

        def touched(position: int) -> int:
            return position // stride * kernel + min(position % stride, kernel)

        # gaps between windows: keep the `kernel` rows of every `stride`
        offset = first - lattice * padding  # user's row at padded position 0
        kept = touched(size + padding) - touched(padding)
        return cls(out, kernel, kernel, 1, touched(padding), kept, offset, lattice, stride, kernel)

    def source(self, row: int) -> int:
        """The user's input row that reduced row `row` is."""
        if self.period == self.run:
            return self.first + self.step * row
        whole, rest = divmod(row + self.padding, self.run)
        return self.first + self.step * (whole * self.period + rest)

    def reach(self, low: int, high: int) -> tuple[int, int]:
        """Input rows `[first, last)` that output positions `[low, high)` read, clipped by the padding."""
        if high <= low:
            return 0, 0
        first = max(0, self.stride * low - self.padding)
        last = self.stride * (high - 1) + self.dilation * (self.kernel - 1) + 1 - self.padding
        last = min(self.size, last)
        return (first, last) if first < last else (0, 0)

    def taps(self, low: int, high: int) -> int:
        """(position, kernel tap) pairs with position in `[low, high)` that meet a real input row."""
        count = 0
        for tap in range(self.kernel):
            shift = self.dilation * tap - self.padding
            begin = max(low, -(-max(0, -shift) // self.stride))
            end = min(high, (self.size - 1 - shift) // self.stride + 1)
            count += max(0, end - begin)
        return count

    def frame(self, rows: int) -> int:
        """Input rows that `rows` output rows read, zeros included."""
        return self.stride * (rows - 1) + self.dilation * (self.kernel - 1) + 1 if rows else 0

    def pads(self, low: int, high: int) -> tuple[int, int]:
        """Zeros before and after the rows `reach(low, high)` that the block `[low, high)` sees."""
        if high <= low:
            return 0, 0
        begin = self.stride * low - self.padding
        end = self.stride * (high - 1) + self.dilation * (self.kernel - 1) + 1 - self.padding
        first, last = self.reach(low, high)
        if first == last:
            return end - begin, 0
        return first - begin, end - last

    def plain(self, low: int, high: int) -> bool:
        """Whether a convolution's own `padding=` can express the zeros that a block sees."""
        before, after = self.pads(low, high)
        return 0 <= before - after < self.stride

    @property
    def overlap(self) -> int:
        """The fewest rows that two neighbouring blocks both read, over all places to cut; 0 if none."""
        if self.out == 1 or self.dilation * (self.kernel - 1) + 1 <= self.stride:
            return 0
        # Clipping at the edges can only shorten the overlap of the first and of the last cuts.
        least = self.size
        for cut in (1, self.out - 1):
            before, after = self.reach(0, cut), self.reach(cut, self.out)
            if before == (0, 0) or after == (0, 0):
                return 0
            least = min(least, before[1] - after[0])
        return max(0, least)

    def __str__(self) -> str:
        return f"{self.out} from {self.size} rows, kernel {self.kernel}, stride {self.stride}"
