"""Words that torch's convolutions copy on a CPU, beside their operands and their result.

torch calls oneDNN for float32, but for one sample of few words (`is_plain`) its plain kernel, which copies
every window. oneDNN takes a routine by the processor (`synth.runtime.grid.rules.onednn_rules`). A direct
convolution copies In, Ker and Out into blocks of channels, and its result out of them:

    forward          an In with fewer channels than a block has is read as it is
    backward-data    strided: nothing is filled up; one copy more, and room for one sample of dOut
    backward-filter  an In of up to 3 channels is read as it is

With groups, blocks are not filled up. In images, kernels of one position copy blocks of all channels;
elsewhere they copy nothing, unless they are strided. Where oneDNN multiplies matrices, it copies the result
and windows: a convolution some at a time (`matrix_columns`), dIn and dKer all of a group and sample, or of
one of its depths. dKer then has room for four Ker. A dIn that is a convolution of dOut copies Ker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from synth.layer.nest import Nest
from synth.layer.passes import Pass
from synth.network.memory.matrix_columns import windows_at_once
from synth.network.memory.timeline import Words
from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.library_rules import (
    FEW_POSITIONS,
    MANY_SAMPLES,
    is_large_product,
    is_small_sample,
)
from synth.runtime.grid.rules.onednn_rules import (
    BLOCK_OF_AVX2,
    BLOCK_OF_AVX512,
    LEAST_BLOCK,
    block_of_data,
    block_of_filter,
    block_of_forward,
    is_faster_turned,
)
from synth.runtime.grid.rules.processors import SETS, Processor

THIN = 3  # channels
ROOM = 4  # Ker over, of dKer where matrices are multiplied
LONGER = 1.25  # rows of dOut that are laid out for dIn of a strided signal, at most, over those of In
PANEL, SHORT_ROW = 1024, 256  # terms of a panel of such a product; words


@dataclass(frozen=True)
class KernelCall:
    """One call of the kernel on every rank, with a block of at most `samples` and so many channels.

    dims: spatial dimensions of the layer. in_, ker, out: words that it reads or makes.
    first: words of In without its last dimension where it is a volume. call: the sizes of the largest block,
    where the layer calls torch's convolution itself.
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
    call: ConvolutionCall | None = None

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

    def is_reversed(self, processor: Processor) -> bool:
        """Whether dIn is a convolution of dOut."""
        plain = self.call is not None and max(self.call.stride) == 1
        whole = self.nest.extents.g == 1 or (self.call is not None and self.call.depthwise)
        return (
            self.pass_ == "backward-data"
            and self.call is not None
            and plain
            and whole
            and is_faster_turned(self.call, processor)
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

    def copies(self, processor: Processor) -> Words:
        """Words at most, on every rank."""
        nothing, block = 0 * self.in_, self._block(processor)
        if self.is_reversed(processor) and self.call is not None:
            turned = self.call.turned
            other = block_of_forward(turned, processor)
            made = (
                self._of_gradient(other)
                if other
                else np.maximum(windows_at_once(turned, processor), self.in_)
            )
            return self.ker + made
        if self.is_pointwise:
            few = self.pass_ == "backward-filter" and self.samples < MANY_SAMPLES
            if few and self.positions <= FEW_POSITIONS:
                return nothing
            laid_out = self.in_ if self.samples < MANY_SAMPLES and self.pass_ != "forward" else nothing
        elif self.is_plain and not self.is_laid_out:
            if not self._has_gaps and (
                self.nest.taps == 1 or (self.pass_ == "backward-data" and self.dims < 3)
            ):
                return nothing
            return self.out / max(1, self.out_channels) * self.in_channels * self.nest.taps
        elif self._is_product and not self.is_laid_out:
            return self._of_products
        else:
            laid_out = self.in_ if self.is_laid_out and self.pass_ != "forward" else nothing
        match self.pass_:
            case "forward":
                return self._of_forward(block, processor)
            case "backward-data":
                made = self._of_gradient(block) if block else np.maximum(self._windows, self.in_)
                side = self._by_channels if self._may_be_by_channels(processor) else nothing
                whole = self.nest.extents.g == 1 and np.any(side)
                return laid_out + (side if whole else np.maximum(side, made))
            case _ if not block:
                return laid_out + ROOM * self.ker + self._windows
            case _:
                as_it_is = self.in_channels == THIN or (block == BLOCK_OF_AVX512 and not self.is_pointwise)
                in_, ker, out = self._blocks(
                    block, THIN if as_it_is and (self.nest.taps > 1 or self._is_strided) else 0
                )
                return laid_out + np.maximum(in_ + ker + out - self.ker, ker)

    def _of_forward(self, block: int, processor: Processor) -> Words:
        """Words of a convolution. A kernel of one position reads every In in blocks."""
        if not block:
            at_once = 0 if self.call is None else windows_at_once(self.call, processor)
            return np.maximum(at_once, self.out)
        in_, ker, out = self._blocks(block, 0 if self.is_pointwise else block - 1)
        return np.maximum(in_ + ker + out - self.out, out)

    def _of_gradient(self, block: int) -> Words:
        """Words of blocks of all channels for dIn, beside the result."""
        in_, ker, out = self._blocks(block, 0)
        return np.maximum(in_ + ker + out - self.in_, in_)

    def _block(self, processor: Processor) -> int:
        """Channels of a block of oneDNN's routine; 0 where it multiplies matrices."""
        if self.call is not None and (self.nest.taps > 1 or self.call.depthwise):
            of = {
                "forward": block_of_forward,
                "backward-data": block_of_data,
                "backward-filter": block_of_filter,
            }
            return of[self.pass_](self.call, processor)
        single = self.nest.taps == 1 and not self._is_strided
        least = {"forward": "sse41", "backward-data": "avx" if single else "avx2"}.get(self.pass_, "avx2")
        if SETS.index(processor.isa) < SETS.index(least):
            return 0
        both = math.gcd(self.in_channels, self.out_channels) if self.nest.extents.g > 1 else BLOCK_OF_AVX512
        blocks = (
            (BLOCK_OF_AVX512, BLOCK_OF_AVX2, LEAST_BLOCK) if processor.isa == "avx512" else (BLOCK_OF_AVX2,)
        )
        return next((block for block in blocks if both % block == 0), 0)

    @property
    def _of_products(self) -> Words:
        """Words that torch copies where it multiplies matrices: none but of groups, one after the other."""
        if self.nest.extents.g == 1:
            return 0 * self.in_
        group = (self.in_ + self.out) / self.nest.extents.g
        match self.pass_:
            case "forward":
                return np.maximum(self.out, self.in_ / self.nest.extents.g)
            case "backward-data":
                return np.maximum(group, self.in_)
            case _:
                return group

    @property
    def _is_product(self) -> bool:
        """Whether torch multiplies matrices itself, for kernels of one position."""
        single = self.nest.taps == 1 and not self._is_strided and not self._has_gaps
        return single and self.samples < MANY_SAMPLES

    def _may_be_by_channels(self, processor: Processor) -> bool:
        """Whether oneDNN may lay the channels of a position side by side for dIn."""
        depthwise = self.nest.extents.g > 1 and self.in_channels == self.out_channels == 1
        return self._is_strided and not depthwise and SETS.index(processor.isa) >= SETS.index("avx2")

    @property
    def _by_channels(self) -> Words:
        """Words of a dIn whose channels lie side by side. A signal needs room for all rows."""
        ker = self.ker * self._filled(self.in_channels, BLOCK_OF_AVX512)
        room = self.out / max(1, self.samples)
        if self.dims == 1:
            rows = self.in_ / max(1, self.samples * self.in_channels)
            room = rows * (
                LONGER * self.out_channels + math.ceil(self.in_channels / BLOCK_OF_AVX512) * BLOCK_OF_AVX512
            )
        return np.maximum(ker + self.out + room, 2 * self.in_)

    @property
    def _has_gaps(self) -> bool:
        """Whether torch is told a dilation, which it is of one tap, too."""
        return any(window.dilation > 1 for window in self.nest.windows.values())

    @property
    def _windows(self) -> int:
        """Words of all windows of a group and sample, or of one depth of it."""
        single = self.nest.taps == 1 and not self._is_strided
        return 0 if single or self.call is None else self.call.windows

    @property
    def _is_strided(self) -> bool:
        return any(max(window.stride, window.divisor) > 1 for window in self.nest.windows.values())

    def _blocks(self, block: int, read: int) -> tuple[Words, Words, Words]:
        """In, Ker and Out in blocks; an In of at most `read` channels is read as it is."""
        of_out = self._filled(self.out_channels, block)
        if self.in_channels <= read and self.nest.extents.g == 1:
            return 0 * self.in_, self.ker * of_out, self.out * of_out
        of_in = self._filled(self.in_channels, block)
        return self.in_ * of_in, self.ker * of_in * of_out, self.out * of_out

    def _filled(self, channels: int, block: int) -> float:
        """Channels in full blocks, over the channels; of groups, where each is one."""
        groups = self.nest.extents.g
        if groups > 1:
            channels = groups if self.in_channels == self.out_channels == 1 else block
        return math.ceil(channels / block) * block / max(1, channels)


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
    panel = 4 * BLOCK_OF_AVX512 * (BLOCK_OF_AVX512 * math.ceil(along / BLOCK_OF_AVX512) + 4) if long else 0
    tile = terms * columns if tiled else 0
    return panel + tile + (out if pass_ == "backward-filter" else 0 * out)
