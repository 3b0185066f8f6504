"""The sizes of a convolution, by which the libraries choose its routine."""

from __future__ import annotations

import math
from typing import NamedTuple


class ConvolutionCall(NamedTuple):
    """A convolution of In [samples, channels, *rows], or a gradient of one.

    channels, filters: of In and Out, of all groups. made: rows of Out. word_bytes: of a
    word of the tensors.
    """

    samples: int
    channels: int
    filters: int
    rows: tuple[int, ...]
    made: tuple[int, ...]
    taps: tuple[int, ...]
    dilation: tuple[int, ...]
    stride: tuple[int, ...]
    groups: int = 1
    word_bytes: int = 4

    @property
    def depthwise(self) -> bool:
        """Whether every channel is a group of its own."""
        return self.groups > 1 and self.channels == self.filters == self.groups

    @property
    def group_channels(self) -> int:
        """Channels of In in a group."""
        return self.channels // self.groups

    @property
    def group_filters(self) -> int:
        """Channels of Out in a group."""
        return self.filters // self.groups

    @property
    def has_words(self) -> bool:
        """Whether no extent is 0."""
        return (
            min(self.samples, self.channels, self.filters, *self.rows, *self.made) > 0
        )

    @property
    def is_dilated(self) -> bool:
        """Whether there are words, and rows between the taps."""
        steps = zip(self.taps, self.dilation, strict=True)
        return self.has_words and any(tap > 1 and step > 1 for tap, step in steps)

    @property
    def spans(self) -> list[int]:
        """Rows from the first tap to the last one, by axis."""
        pairs = zip(self.taps, self.dilation, strict=True)
        return [step * (taps - 1) for taps, step in pairs]

    @property
    def padding(self) -> list[int]:
        """Zeros before the first row of In, by axis; negative: rows are cut off."""
        sizes = zip(self.rows, self.made, self.stride, self.spans, strict=True)
        return [
            -((rows - (made - 1) * step - span - 1) // 2)
            for rows, made, step, span in sizes
        ]

    @property
    def reach(self) -> list[int]:
        """Rows before the first of In from which the reversed taps read, by axis."""
        pairs = zip(self.spans, self.padding, strict=True)
        return [span - zeros for span, zeros in pairs]

    @property
    def plane(self) -> int:
        """Positions of Out, of one depth of a volume."""
        return math.prod(self.made[-2:])

    @property
    def windows(self) -> int:
        """Words of all windows of a group and sample, of one depth of a volume."""
        return self.group_channels * math.prod(self.taps) * self.plane

    @property
    def turned(self) -> ConvolutionCall:
        """The convolution of dOut with the reversed Ker that makes dIn."""
        return self._replace(
            channels=self.filters,
            filters=self.channels,
            rows=self.made,
            made=self.rows,
        )

    def end_padding(self, made: int) -> int:
        """Zeros behind the last row that the first `made` positions of a row read."""
        last = (made - 1) * self.stride[-1] + self.spans[-1] + 1
        return last - self.rows[-1] - self.padding[-1]
