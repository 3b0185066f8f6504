"""Memory that no schedule of some grids can do without: what a range of grids is held against a limit by.

Of what `memory` counts, these are always there: the shares of the tensors that are read, the sums for the
share of the one that is written or its slice, the halo where rows are shared, and the stationary slice where
several processes need it, twice while it is gathered or summed. All of it shrinks with the number of parts,
so a range is bounded by its grid of the most parts; what several share, by its grid of the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence

from synth.layer.axes import LACKS, SPATIAL, TENSORS, PerAxis, Tensor
from synth.layer.nest import Nest
from synth.layer.passes import WRITES, Pass, Passes, reads, reuse_intervals
from synth.layer.window import Window

Words = dict[Tensor, int]


class LeastMemory:
    """Lower bounds of the memory of grids, in words, for some stationary tensors.

    sequences: the passes, in all orders that they may have.
    """

    def __init__(self, nest: Nest, sequences: Sequence[Passes], stationary: Sequence[Tensor]) -> None:
        self.nest, self.sequences, self.stationary = nest, sequences, stationary

    def __call__(self, least: PerAxis, most: PerAxis, size: int) -> int:
        """Words that a process holds at some time, on any grid between two, of `size` processes at most."""
        shares = {tensor: -(-self.nest.words[tensor] // size) for tensor in TENSORS}
        slices = self._slices(most)
        return min(self._step(each, least, most, shares, slices) for each in self.sequences)

    def _step(self, sequence: Passes, least: PerAxis, most: PerAxis, shares: Words, slices: Words) -> int:
        """One pass alone, or a training step: beside a backward pass wait shares of what it leaves alone."""
        needed = waiting = 0
        for number, pass_ in enumerate(sequence):
            waiting += shares[WRITES[pass_]] if number else 0
            found = [tensor for tensor, (_, finds) in reuse_intervals(sequence).items() if finds == pass_]
            needed = max(needed, self._pass(pass_, found, least, most, shares, slices) + waiting)
        return needed

    def _pass(
        self,
        pass_: Pass,
        found: Sequence[Tensor],
        least: PerAxis,
        most: PerAxis,
        shares: Words,
        slices: Words,
    ) -> int:
        """One pass, in which the slices of some tensors may be found."""
        written = WRITES[pass_]
        base = sum(shares[tensor] for tensor in reads(pass_))
        if written != "In" and "In" not in found and self._halo(least):
            base += -(-slices["In"] // most.k)
        carried = 0 if written == "In" and most.of(SPATIAL) > 1 else shares[written]
        needs = []
        for stays in self.stationary:
            members = least.of(LACKS[stays])
            if stays == written:  # summed whole: the slice, its copy that is sent, and what others send
                sums = slices[stays] + (members - 1) * carried if members > 1 else 0
                needs.append(slices[stays] + sums)
            else:  # gathered whole: the slice, and its pieces on their way
                copies = 0 if members == 1 else 1 if stays in found else 2
                needs.append(carried + copies * slices[stays])
        return base + min(needs)

    def _halo(self, least: PerAxis) -> bool:
        """Whether neighbours share rows."""
        return any(getattr(least, axis) > 1 and self.nest.windows[axis].overlap > 0 for axis in SPATIAL)

    def _slices(self, parts: PerAxis) -> Words:
        n = PerAxis(*(-(-extent // p) for extent, p in zip(self.nest.extents, parts, strict=True)))
        rows = 1
        for axis in SPATIAL:
            rows *= _rows_read(self.nest.windows[axis], getattr(n, axis))
        return {
            "In": n.b * n.g * n.c * rows,
            "Ker": n.g * n.k * n.c * self.nest.taps,
            "Out": n.b * n.g * n.k * n.d * n.h * n.w,
        }


def _rows_read(window: Window, size: int) -> int:
    """Rows that a block of some positions reads at least, wherever the padding cuts it."""
    beyond = window.stride * (window.out - 1) + window.dilation * (window.kernel - 1) + 1 - window.padding
    return max(0, window.frame(size) - window.padding - max(0, beyond - window.size))
