"""Which routine oneDNN takes for a convolution in float32, on each kind of processor.

It tries routines from the widest instruction set down. A direct convolution copies
In, Ker and Out into blocks of 16 or 8 channels. It keeps some neighbouring positions of
a row in registers, and needs a padding that is not longer. For dIn the padding is what
the taps reach beyond the first row. Where no direct convolution suits, oneDNN
multiplies matrices. A convolution then copies some windows at a time. dIn and dKer make
all windows of a sample, or of one of its depths.

The rules are those of oneDNN 3.12 (`jit_avx512_common_conv_kernel.cpp`,
`jit_avx2_conv_kernel_f32.cpp`, `jit_sse41_conv_kernel_f32.cpp`) on one thread. The
planner and the ranks ask this module, so it is plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from synth.runtime.grid.rules.convolution_call import ConvolutionCall
from synth.runtime.grid.rules.library_rules import FEW_WORDS
from synth.runtime.grid.rules.processors import SETS, Processor

BLOCK_OF_AVX512 = 16  # channels of a block
BLOCK_OF_AVX2 = 8
LEAST_BLOCK = 4
POSITIONS = 28  # of a row, at most
REGISTERS = 31  # vectors of AVX-512, beside one for other use
OF_BFLOAT16 = 15  # positions of a row in bfloat16
EXTRA_ROWS = 1.3  # rows of In over those of Out up to which dIn is worth a convolution
LONGEST_CODE = 1 << 18  # bytes of a routine that is generated


# -- the routines of each pass ---------------------------------------------------------


def block_of_forward(call: ConvolutionCall, processor: Processor) -> int:
    """Channels of the blocks of a convolution; 0 if matrices are multiplied."""
    if call.depthwise:  # which has a kernel of its own
        return _depthwise_block(processor)
    for isa in _sets(processor):
        if isa == "avx512":
            block = _wide_block(call)
            suits = block and _wide_forward(call, block, processor.level1)
        else:
            block = _half_block(call)
            suits = block and _half_forward(call, isa)
        if suits:
            return block
    return 0


def block_of_data(call: ConvolutionCall, processor: Processor) -> int:
    """The same of dIn, which is no convolution; of a stride of 1."""
    if call.depthwise and len(call.rows) < 3:
        return 0 if max(call.dilation) > 1 else _depthwise_block(processor)
    for isa in _sets(processor):
        if isa == "avx512":
            block = _wide_block(call)
            suits = block and _wide_data(call, block, processor.level1)
        else:
            block = _half_block(call) if isa == "avx2" else 0
            suits = block and _half_data(call)
        if suits:
            return block
    return 0


def block_of_filter(call: ConvolutionCall, processor: Processor) -> int:
    """The same of dKer."""
    if call.depthwise:
        few = call.stride[-1] <= call.taps[-1] <= 3 and len(call.rows) < 3
        few = few and max(call.dilation) == 1
        return _depthwise_block(processor) if few else 0
    for isa in _sets(processor):
        if isa == "avx512" and _wide_filter(call):
            return BLOCK_OF_AVX512
        if isa == "avx2" and _half_block(call) and _half_filter(call):
            return BLOCK_OF_AVX2
    return 0


def reads_as_it_is(call: ConvolutionCall, block: int) -> bool:
    """Whether a convolution reads an In of few channels without a copy."""
    return call.groups == 1 and call.channels < block


def _depthwise_block(processor: Processor) -> int:
    return BLOCK_OF_AVX512 if processor.isa == "avx512" else BLOCK_OF_AVX2


def _sets(processor: Processor) -> Iterator[str]:
    """Instruction sets whose routines are tried, in this order."""
    yield from reversed(SETS[: SETS.index(processor.isa) + 1])


def _wide_block(call: ConvolutionCall) -> int:
    """Channels of a block with AVX-512: groups are not filled up."""
    if call.groups == 1:
        return BLOCK_OF_AVX512
    both = math.gcd(call.group_channels, call.group_filters)
    return next(
        (
            block
            for block in (BLOCK_OF_AVX512, BLOCK_OF_AVX2, LEAST_BLOCK)
            if both % block == 0
        ),
        0,
    )


def _half_block(call: ConvolutionCall) -> int:
    both = math.gcd(call.group_channels, call.group_filters)
    return BLOCK_OF_AVX2 if call.groups == 1 or both % BLOCK_OF_AVX2 == 0 else 0


# -- AVX-512 ---------------------------------------------------------------------------


def _wide_forward(call: ConvolutionCall, block: int, cache: int) -> bool:
    """Whether the padding fits the positions of a row of Out that are in registers."""
    positions, blocks = _wide_positions(call, block, cache)
    first = reads_as_it_is(call, block)
    behind = call.end_padding(call.made[-1] - call.made[-1] % positions)
    read = call.channels if first else block
    ends = 1 + (call.padding[-1] > 0) + (behind > 0)
    code = 15 * ends * call.taps[-1] * read * blocks * positions
    return max(call.padding[-1], behind) <= positions and code <= LONGEST_CODE


def _wide_positions(call: ConvolutionCall, block: int, cache: int) -> tuple[int, int]:
    """(Positions of a row of Out, and blocks of Out, that are computed at once)."""
    across, along, row = math.prod(call.taps[:-1]), call.taps[-1], call.made[-1]
    first = reads_as_it_is(call, block)
    channels = call.group_channels if first else _filled(call.group_channels, block)
    filters, strided = _filled(call.group_filters, block), max(call.stride[-2:]) > 1
    read = (call.channels if first else block) * across
    per_row = -(-call.rows[-1] // call.stride[-1])
    words = per_row * read + 2 * block * row + 2 * read * along * block
    cached = along == 3 and row <= POSITIONS and 4 * words < cache
    cached = cached and not (row == 13 and channels >= 192)
    cached = cached and not (row == POSITIONS and channels >= 512)
    if strided:
        few_rows = math.prod(call.made[-2:-1]) <= 10
        cached = cached and call.samples <= 16 and (filters <= 192 or few_rows)
    narrow = row <= POSITIONS or first or (row <= 147 and filters <= 96)
    if along > 3 or cached or (call.samples == 1 and narrow):
        return min(row, POSITIONS), 1
    blocks = blocks_at_once(filters // block, 5)
    return min(row, REGISTERS // (1 + blocks)), blocks


def _wide_data(call: ConvolutionCall, block: int, cache: int) -> bool:
    """Whether the taps reach no farther than the positions of dIn in registers."""
    if not _keeps_steps(call):
        return False
    across, along = math.prod(call.taps[-2:-1]), call.taps[-1]
    row, made, step = call.rows[-1], call.made[-1], call.stride[-1]
    words = block * (2 * row * across + made) + 2 * block * block * across * along
    short = row <= 5 or 8 < row <= 13
    plain = along == 1 or (along == 5 and row < 8)
    plain = plain or (along < 5 and (short or 4 * words > cache))
    strided = max(call.stride[:-1], default=1) > 1
    blocks = -(-call.group_channels // block)
    positions = min(row, POSITIONS)
    if plain and not strided:
        blocks = blocks_at_once(blocks, 4)
        positions = min(row, REGISTERS // (1 + blocks))
    else:
        large = along < 3 or (along == 3 and (4 * words >= cache or made <= 8))
        if large and not strided and blocks % 2 == 0:
            positions = min(row, REGISTERS // 3)
    return _reaches(call, positions, step)


def _wide_filter(call: ConvolutionCall) -> bool:
    if call.groups == 1:
        if 3 < call.channels < BLOCK_OF_AVX512:
            return False
    elif math.gcd(call.group_channels, call.group_filters) % BLOCK_OF_AVX512:
        return False
    dims, extents = len(call.rows), [span + 1 for span in call.spans]
    if not _keeps_steps(call, along=False) or (dims == 3 and call.dilation[0] > 1):
        return False
    if dims > 1:
        tall, before = extents[-2], call.padding[-2]
        if before > tall // 2 or (call.dilation[-2] > 1 and tall > call.rows[-2]):
            return False
    if (
        dims == 3
        and call.padding[0] > 0
        and call.taps[0] >= call.rows[0] + call.padding[0]
    ):
        return False
    zeros = max(call.padding[-1], call.end_padding(call.made[-1]))
    return zeros <= POSITIONS and call.taps[-1] <= 14


# -- AVX2 and less ---------------------------------------------------------------------


def _half_forward(call: ConvolutionCall, isa: str) -> bool:
    """Whether at most 3 zeros before a row, or behind it, suit the registers."""
    row, step, zeros = call.made[-1], call.stride[-1], call.padding[-1]
    if isa == "sse41" and not _suits_sse41(call):
        return False
    registers = 15 if isa == "avx2" else 14
    positions = 3
    if isa == "avx" and zeros < positions:
        positions = 2  # one less, beside four blocks
    positions = min(row, positions)
    if zeros > positions:
        return False
    padded = any(each > 0 for each in call.padding)
    if call.taps[-1] > 7 and padded and max(call.stride[-2:]) > 1:
        return False
    left = row % positions
    behind = max(0, call.end_padding(row - left))
    if behind > positions * step and row // positions > 1:
        if isa == "sse41":
            return False
        positions = min(behind // step + left, row, registers // 2)
        behind = max(0, call.end_padding(row - row % positions))
        return positions >= max(zeros, behind)
    return True


def _suits_sse41(call: ConvolutionCall) -> bool:
    """Images and signals, of channels that fill the blocks."""
    few = call.groups == 1 and call.channels <= 3
    ends = [call.group_filters] if few else [call.group_channels, call.group_filters]
    return len(call.rows) < 3 and not any(each % BLOCK_OF_AVX2 for each in ends)


def _half_data(call: ConvolutionCall) -> bool:
    step, along = call.stride[-1], call.taps[-1]
    strides = (1, 1, *call.stride)[-3:]
    even = strides[0] == 1 and (strides[1] == step or len(call.rows) == 1)
    if not (_keeps_steps(call) and even):
        return False
    if call.group_channels < BLOCK_OF_AVX2 and along > 3 and step > 1:
        return False
    row, over = call.rows[-1], max(0, call.reach[-1] // step)
    blocks, best, positions = -(-call.group_channels // BLOCK_OF_AVX2), 0, 1
    for many in range(1, 5):
        if blocks % many:
            continue
        wide = step
        while wide * many + wide // step <= 15 and wide < row + step:
            kept = min(wide, row)
            work = -(-kept // step) * many
            fits = over * step <= kept or kept == row
            if fits and (work > best or (work == best and positions < kept)):
                positions, best = kept, work
            wide += step
    return best > 0 and _reaches(call, positions, step, before=False)


def _half_filter(call: ConvolutionCall) -> bool:
    """Whether dKer suits: of a layer without dilation, of a volume without zeros."""
    if max(call.dilation) > 1 or call.taps[-1] >= 14:
        return False
    if len(call.rows) == 3:
        deep = (call.made[0] - 1) * call.stride[0] + call.taps[0]
        if call.padding[0] > 0 or deep > call.rows[0]:
            return False
    pairs = list(zip(call.taps, call.rows, call.padding, strict=True))
    across = all(taps <= rows for taps, rows, _ in pairs[:-1])
    zeros = all(zeros < taps for taps, _, zeros in pairs)
    behind = call.end_padding(call.made[-1])
    return across and zeros and behind < call.taps[-1]


def multiplies(processor: Processor | None) -> bool:
    """Whether large products of matrices are oneDNN's: BLAS is faster without AVX-512.

    None: a processor that is not known.
    """
    return processor is not None and processor.isa == "avx512"


# -- dilated layers --------------------------------------------------------------------


def makes_windows(call: ConvolutionCall, processor: Processor) -> bool:
    """Whether oneDNN makes all windows of a sample for dIn."""
    if not call.is_dilated or call.depthwise:
        return False
    if call.word_bytes == 2:
        return call.reach[-1] > OF_BFLOAT16
    return not block_of_data(call, processor)


def is_faster_turned(call: ConvolutionCall, processor: Processor) -> bool:
    """Whether dIn, of a stride of 1, is made by a convolution of dOut.

    That holds less where a sample's windows are more than dIn and Ker. It is 0.7 to 5
    times as fast as oneDNN's gradient. Of depthwise layers it is 1.2 to 10 times as
    fast, and holds as much.
    """
    if not call.is_dilated or min(call.reach) < 0:
        return False
    if call.depthwise:
        return True
    rows, made = math.prod(call.rows), math.prod(call.made)
    in_ = call.samples * call.channels * rows
    taps = math.prod(call.taps)
    ker = call.channels * call.filters * taps
    windows = call.channels * taps * made
    fast = call.samples * call.filters * math.prod(call.made[:2]) > FEW_WORDS
    worth = rows <= EXTRA_ROWS * made and windows > in_ + ker
    return fast and worth and makes_windows(call, processor)


# -- what they have in common ----------------------------------------------------------


def blocks_at_once(blocks: int, most: int) -> int:
    """Blocks of channels that are computed at once: the most that divide them all."""
    return next(count for count in range(most, 0, -1) if blocks % count == 0)


def _filled(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _keeps_steps(call: ConvolutionCall, along: bool = True) -> bool:
    """Whether no axis has both a stride and a dilation; along: rows, too."""
    pairs = list(zip(call.stride, call.dilation, strict=True))
    return all(1 in pair for pair in (pairs if along else pairs[:-1]))


def _reaches(
    call: ConvolutionCall, positions: int, step: int, before: bool = True
) -> bool:
    """Whether the taps of dIn reach beyond a row by no more than some positions."""
    row, left = call.rows[-1], call.rows[-1] % positions
    behind = call.end_padding(call.made[-1])
    over, over_end = (
        max(0, call.spans[-1] - n) for n in (call.padding[-1], behind + left)
    )
    if before and over // step * step > positions:
        return False
    whole = row <= positions or (positions % step == 0 and behind + left >= 0)
    return over_end // step * step <= positions and whole
