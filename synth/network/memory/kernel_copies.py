"""Words that torch's convolutions copy on a CPU, beside their operands and their result.

torch calls oneDNN for float32, but for one sample of few words (`is_plain`) its plain kernel, which copies
every window. oneDNN copies In, Ker and Out into blocks of 16 channels, and its result out of them:

    forward          an In of fewer than 16 channels is read as it is
    backward-data    strided: nothing is filled up; one copy more, and room for one sample of dOut
    backward-filter  an In of up to 3 channels is read as it is; blocks of 8 for up to 8 channels

With groups, blocks are not filled up. In images, kernels of one position copy blocks of all channels;
elsewhere they copy nothing, unless they are strided. For some dilated layers oneDNN multiplies matrices
(`synth.runtime.grid.library_rules`). A convolution then copies its result alone, and dIn makes every window
of a sample, or is a convolution of dOut with a reversed copy of Ker. dKer of a dilated layer with groups
makes the windows of one group of a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from synth.layer.nest import Nest
from synth.layer.passes import Pass
from synth.network.memory.timeline import Words
from synth.runtime.grid.library_rules import (
    CACHE,
    FEW_POSITIONS,
    MANY_SAMPLES,
    POSITIONS,
    REGISTERS,
    DilatedCall,
    blocks_at_once,
    is_large_product,
    is_small_sample,
)

BLOCK, SMALL, THIN = 16, 8, 3  # channels
PANEL, SHORT_ROW = 1024, 256  # terms of a panel of such a product; words


@dataclass(frozen=True)
class KernelCall:
    """One call of the kernel on every rank, with a block of at most `samples` and so many channels.

    dims: spatial dimensions of the layer. in_, ker, out: words that it reads or makes.
    first: words of In without its last dimension where it is a volume. dilated: sizes of a call with a
    dilation, without strides and with one group or one channel a group.
    """

    nest: Nest
    pass_: Pass
    dims: int
    samples: int
    in_channels: int
    out_channels: int
    in_: Words
    ker: Words
    out: Words
    first: int
    dilated: DilatedCall | None = None

    @property
    def is_plain(self) -> bool:
        """Whether torch prefers its plain kernel to oneDNN; the runtime calls oneDNN for volumes itself."""
        if self.nest.word_bytes != 4:
            return True
        taps = [window.kernel for window in self.nest.windows.values()]
        return self._is_few and min(sorted(taps)[-2:]) <= THIN

    @property
    def _is_few(self) -> bool:
        return is_small_sample(self.samples, self.nest.extents.g, self.first)

    @property
    def is_laid_out(self) -> bool:
        """Whether the runtime gives oneDNN an In of its layout, in place of the plain kernel."""
        return self.dims == 3 and self.nest.word_bytes == 4 and self._is_few

    @property
    def is_reversed(self) -> bool:
        """Whether dIn is a convolution of dOut."""
        return (
            self.pass_ == "backward-data"
            and self.dilated is not None
            and self.dilated.gradient_is_convolution
        )

    @property
    def is_pointwise(self) -> bool:
        """Whether oneDNN computes a kernel of one position, as the runtime has it do on one thread."""
        windows = self.nest.windows.values()
        steps = any(max(each.stride, each.divisor) > 1 or each.padding for each in windows)
        one = self.dims == 2 and self.nest.taps == self.nest.extents.g == 1 and self.nest.word_bytes == 4
        return one and not steps and self.positions > self.samples

    @property
    def is_onednns(self) -> bool:
        """Whether the runtime calls oneDNN where torch would not."""
        return self.is_laid_out or (self.is_pointwise and self.samples < MANY_SAMPLES)

    @property
    def positions(self) -> int:
        """Positions of In of all samples at most."""
        return int(self.in_.max()) // max(1, self.in_channels)

    @property
    def copies(self) -> Words:
        """Words at most, on every rank."""
        nothing, dilated = 0 * self.in_, self.dilated
        if self.is_pointwise:
            return self._of_pointwise
        if self.is_reversed and dilated is not None:
            turned = dilated._replace(
                channels=dilated.filters, filters=dilated.channels, rows=dilated.made, made=dilated.rows
            )
            return self.ker + (self._of_gradient if convolves_in_blocks(turned) else self.in_)
        strided = any(max(window.stride, window.divisor) > 1 for window in self.nest.windows.values())
        if self.is_plain and not self.is_laid_out:
            if self.nest.taps == 1 or (self.pass_ == "backward-data" and self.dims < 3):
                return nothing
            return self.out / max(1, self.out_channels) * self.in_channels * self.nest.taps
        if self.nest.taps == 1 and not strided:
            return nothing
        laid_out = self.in_ if self.is_laid_out else nothing
        match self.pass_:
            case "forward" if dilated and not convolves_in_blocks(dilated):
                return self.out
            case "forward":
                (in_, ker, out), made = self._blocks(BLOCK, BLOCK - 1), self.out
                return np.maximum(in_ + ker + out - made, out)
            case "backward-data" if dilated and dilated.copies_windows:
                return np.maximum(dilated.windows, self.in_)
            case "backward-data" if strided:
                ker = self.ker * self._filled(self.in_channels, BLOCK)
                room = self.out / max(1, self.samples)
                return laid_out + np.maximum(ker + self.out + room, 2 * self.in_)
            case "backward-data":
                return laid_out + self._of_gradient
            case "backward-filter" if self._is_dilated and self.nest.extents.g > 1:
                windows = self.out / (self.samples * self.nest.extents.g * max(1, self.out_channels))
                return self.ker + windows * self.in_channels * self.nest.taps
            case _:
                in_, ker, out = self._blocks(SMALL if self.in_channels <= SMALL else BLOCK, THIN)
                return laid_out + np.maximum(in_ + ker + out - self.ker, ker)

    @property
    def _of_pointwise(self) -> Words:
        """Words of blocks of all channels, beside the result, and for gradients an In of oneDNN's layout."""
        in_, ker, out = self._blocks(BLOCK, 0)
        laid_out = self.in_ if self.samples < MANY_SAMPLES else 0 * self.in_
        match self.pass_:
            case "forward":
                return np.maximum(in_ + ker + out - self.out, out)
            case "backward-data":
                return laid_out + self._of_gradient
            case _ if self.samples < MANY_SAMPLES and self.positions <= FEW_POSITIONS:
                return 0 * self.in_
            case _:
                return laid_out + np.maximum(in_ + ker + out - self.ker, ker)

    @property
    def _is_dilated(self) -> bool:
        return any(window.dilation > 1 and window.kernel > 1 for window in self.nest.windows.values())

    @property
    def _of_gradient(self) -> Words:
        """Words of blocks of all channels for dIn, beside the result."""
        in_, ker, out = self._blocks(BLOCK, 0)
        return np.maximum(in_ + ker + out - self.in_, in_)

    def _blocks(self, block: int, read: int) -> tuple[Words, Words, Words]:
        """In, Ker and Out in blocks; an In of at most `read` channels is read as it is."""
        of_out = self._filled(self.out_channels, block)
        if self.in_channels <= read and self.nest.extents.g == 1:
            return 0 * self.in_, self.ker * of_out, self.out * of_out
        of_in = self._filled(self.in_channels, block)
        return self.in_ * of_in, self.ker * of_in * of_out, self.out * of_out

    def _filled(self, channels: int, block: int) -> float:
        """Channels in full blocks, over the channels."""
        return 1.0 if self.nest.extents.g > 1 else math.ceil(channels / block) * block / max(1, channels)


def copies_of_product(
    pass_: Pass, samples: int, in_channels: int, out_channels: int, out: Words, tiled: bool = False
) -> Words:
    """Words of a product of matrices in float32. out: of dOut, on every rank. tiled: In and Ker along c.

    BLAS copies nothing. oneDNN, for large products, copies a panel of the right factor, unless its rows are
    short and contiguous; and all of dOut for dKer, transposed. A tile that is a part of each row of a right
    factor is copied first.
    """
    rows, terms, columns = {
        "forward": (samples, in_channels, out_channels),
        "backward-data": (samples, out_channels, in_channels),
        "backward-filter": (out_channels, samples, in_channels),
    }[pass_]
    if not is_large_product(rows, terms, columns):
        return 0 * out
    long = pass_ == "forward" or columns > SHORT_ROW
    along = PANEL if terms > PANEL else min(terms, PANEL // 2)
    panel = 4 * BLOCK * (BLOCK * math.ceil(along / BLOCK) + 4) if long else 0
    tile = terms * columns if tiled else 0
    return panel + tile + (out if pass_ == "backward-filter" else 0 * out)


def convolves_in_blocks(call: DilatedCall) -> bool:
    """Whether oneDNN's convolution copies In, Ker and Out into blocks; if not, it copies its result alone.

    The padding is at most the positions of a row of Out that the kernel keeps in registers.
    """
    if call.depthwise:  # which has a kernel of its own
        return True
    across, along, row = math.prod(call.taps[:-1]), call.taps[-1], call.made[-1]
    padding = call.dilation[-1] * (along - 1) - call.reach[-1]
    words = BLOCK * (call.rows[-1] * across + 2 * row + 2 * BLOCK * across * along)
    short = row <= POSITIONS
    narrow = call.channels <= THIN or (row <= 147 and call.filters <= 6 * BLOCK)
    cached = along == 3 and short and call.word_bytes * words < CACHE
    if along > 3 or cached or (call.samples == 1 and (short or narrow)):
        return padding <= min(row, POSITIONS)
    return padding <= REGISTERS // (1 + blocks_at_once(call.filters, 5))
