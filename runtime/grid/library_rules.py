"""Which routine of torch, oneDNN or BLAS computes a call on a CPU, by its sizes alone.

The planner and the ranks ask this module, so it is plain Python.

oneDNN's fast kernels of dilated convolutions of stride 1 keep some neighbouring
positions of a row in registers, and need a padding that is not longer. For dIn the
padding is what the taps reach beyond the first row. Where it is longer, oneDNN
multiplies matrices. A convolution then copies a few windows at a time. For dIn it makes
all windows of a sample first. dIn is then made by a convolution of dOut instead, with
the taps of Ker reversed and its channels exchanged. Sizes are those of processors with
AVX-512 and 48 KiB of first-level cache (oneDNN 3.12,
`jit_avx512_common_conv_kernel.cpp`). Elsewhere the values are the same, and a process
may hold more than is planned.
"""

from __future__ import annotations

import math
from typing import NamedTuple

CHANNELS = 16  # channels of a vector
REGISTERS = 31  # vectors, beside one for other use
POSITIONS = 28  # of a row, at most
OF_BFLOAT16 = 15  # positions of a row in bfloat16
CACHE = 49152  # bytes
FEW_WORDS = 20480  # words of a sample for which torch prefers its own kernel
MANY_SAMPLES = 16  # of images and one tap, for which torch takes oneDNN by itself
FEW_POSITIONS = 128  # of all samples and one tap, up to which torch makes dKer faster
LEAST_WORK = 1 << 22  # multiply-adds of a product below which BLAS is called faster
LEAST_EXTENT = 32  # of its rows and terms: less is read faster by BLAS
EXTRA_ROWS = 1.3  # rows of In over those of Out up to which dIn is worth a convolution


def is_large_product(rows: int, terms: int, columns: int) -> bool:
    """Whether a product of matrices in float32 is oneDNN's, with AVX-512."""
    return rows * terms * columns >= LEAST_WORK and min(rows, terms) >= LEAST_EXTENT


def is_small_sample(samples: int, groups: int, words: int) -> bool:
    """Whether torch takes its plain kernel, several times slower than oneDNN in 3-D.

    words: of In; of a volume, those of its first rows (without the last dimension).
    """
    return groups == samples == 1 and words <= FEW_WORDS


class DilatedCall(NamedTuple):
    """A convolution of stride 1 with In [samples, channels, *rows] and its gradients.

    filters: channels of Out. made: its rows. depthwise: whether every channel is a
    group of its own. word_bytes: of a word of the tensors.
    """

    samples: int
    channels: int
    filters: int
    rows: tuple[int, ...]
    made: tuple[int, ...]
    taps: tuple[int, ...]
    dilation: tuple[int, ...]
    depthwise: bool = False
    word_bytes: int = 4

    @property
    def is_dilated(self) -> bool:
        """Whether there are words, and rows between the taps."""
        steps = zip(self.taps, self.dilation, strict=True)
        gaps = any(tap > 1 and step > 1 for tap, step in steps)
        return gaps and min(self.samples, self.channels, self.filters, *self.made) > 0

    @property
    def reach(self) -> list[int]:
        """Rows before the first of In from which the reversed taps read, by axis."""
        spans = (n * (t - 1) for n, t in zip(self.dilation, self.taps, strict=True))
        extents = zip(self.rows, self.made, spans, strict=True)
        return [(rows - made + span) // 2 for rows, made, span in extents]

    @property
    def windows(self) -> int:
        """Words of all windows of a sample."""
        return self.channels * math.prod(self.taps) * math.prod(self.made)

    @property
    def copies_windows(self) -> bool:
        """Whether oneDNN makes all windows of a sample for dIn."""
        return (
            self.is_dilated
            and not self.depthwise
            and self.reach[-1] > self._positions_of_gradient()
        )

    @property
    def gradient_is_convolution(self) -> bool:
        """Whether dIn is made by a convolution of dOut.

        That holds less where a sample's windows are more than dIn and Ker. It is 0.7 to
        5 times as fast as oneDNN's gradient. Of depthwise layers it is 1.2 to 10 times
        as fast, and holds as much.
        """
        if not self.is_dilated or min(self.reach) < 0:
            return False
        if self.depthwise:
            return True
        rows, made = math.prod(self.rows), math.prod(self.made)
        in_ = self.samples * self.channels * rows
        ker = self.channels * self.filters * math.prod(self.taps)
        fast = self.samples * self.filters * math.prod(self.made[:2]) > FEW_WORDS
        worth = rows <= EXTRA_ROWS * made and self.windows > in_ + ker
        return fast and worth and self.copies_windows

    def _positions_of_gradient(self) -> int:
        """Positions of a row of dIn that are in registers at once."""
        if self.word_bytes == 2:
            return OF_BFLOAT16
        across, along = math.prod(self.taps[-2:-1]), self.taps[-1]
        tap_words = CHANNELS * CHANNELS * across * along
        read = CHANNELS * (2 * self.rows[-1] * across + self.made[-1]) + 2 * tap_words
        if along > 4 or (along > 2 and 4 * read < CACHE):
            return POSITIONS
        return REGISTERS // (1 + blocks_at_once(self.channels, 4))


def blocks_at_once(channels: int, most: int) -> int:
    """Blocks of channels that are computed at once: the most that divide them all."""
    whole = -(-channels // CHANNELS)
    return next(count for count in range(most, 0, -1) if whole % count == 0)
