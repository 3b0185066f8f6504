"""Checks: values against torch in one process, received words against the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from synth.runtime.comm.precision import HALF
from synth.runtime.grid.boxes import Box, Window, shape, source_rows, volume
from synth.runtime.program.sample_data import sample

NAMES = "In", "Ker", "dOut"  # tensors with sample values


def reference(
    conv: Callable[..., torch.Tensor] | None,
    in_shape: Sequence[int],
    ker_shape: Sequence[int],
    out_box: Box,
    dtype: torch.dtype,
    device: torch.device,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
) -> torch.Tensor:
    """A box of Out by one torch call on sample values, from the layer's own numbers.

    The plan is not used. `conv` is None for a matrix product In[b, c] · Ker[k, c], or
    for one in each group, In[b, g, c] · Ker[g, k, c].
    Half types are computed in float32.
    """
    wide = torch.promote_types(dtype, torch.float32)
    out_shape = shape(out_box)
    if not volume(out_box):
        return torch.zeros(out_shape, dtype=wide, device=device)
    lead = len(out_box) - len(stride)  # dimensions before the spatial ones
    positions = [range(*interval) for interval in out_box[: lead - 1]]
    positions.append(range(in_shape[lead - 1]))
    # around the rows that are read; the last dimension comes first
    zeros: list[int] = []
    for dim, (low, high) in enumerate(out_box[lead:]):
        begin = stride[dim] * low - padding[dim]
        reach = dilation[dim] * (ker_shape[lead + dim] - 1) + 1
        frame = stride[dim] * (high - low - 1) + reach
        first = min(in_shape[lead + dim], max(0, begin))
        last = max(first, min(in_shape[lead + dim], begin + frame))
        before = max(0, min(first - begin, frame))
        positions.append(range(first, last))
        zeros = [before, frame - before - (last - first), *zeros]
    ker_positions = [range(*interval) for interval in out_box[1:lead]]
    ker_positions += [range(extent) for extent in ker_shape[lead - 1 :]]
    dims = len(stride)
    inputs = sample("In", in_shape, positions, dtype, device, dims).to(wide)
    ker = sample("Ker", ker_shape, ker_positions, dtype, device, dims).to(wide)
    if conv is None:
        return product(inputs, ker)
    groups = 1
    if lead == 3:  # [b, g, k, *rows]: a grouped convolution
        groups = ker.shape[0]
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    out = conv(F.pad(inputs, zeros), ker, None, list(stride), 0, list(dilation), groups)
    return out.reshape(out_shape)


def product(inputs: torch.Tensor, ker: torch.Tensor) -> torch.Tensor:
    """A matrix product, or one in each group, as a sum over its terms."""
    if inputs.dim() == 2:
        return inputs @ ker.mT
    return (inputs.transpose(0, 1) @ ker.mT).transpose(0, 1)


def gradient(
    of: str,
    conv: Callable[..., torch.Tensor] | None,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    box: Box,
    dtype: torch.dtype,
    device: torch.device,
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    windows: dict[str, Window] | None = None,
) -> torch.Tensor:
    """A box of dIn or dKer by torch's autograd on sample values, in one process.

    `shapes` are those of In, Ker and Out. Samples and channels outside the box are left
    out, rows are not. `windows` map the rows of a dIn box to those of the user's
    tensor. Half types: as in `reference`.
    """
    wide, lead = torch.promote_types(dtype, torch.float32), len(shapes[0]) - len(stride)
    places = [[range(n) for n in each] for each in shapes]
    mine = [range(*interval) for interval in box[:lead]]
    if of == "dIn":  # [b, (g,) c, *rows]
        places[0][:lead] = mine
        places[1][: lead - 2] = mine[1:-1]
        places[1][lead - 1] = mine[-1]
        places[2][: lead - 1] = mine[:-1]
    else:  # dKer [(g,) k, c, *taps]
        places[0][1:lead] = [*mine[:-2], mine[-1]]
        places[1][:lead] = mine
        places[2][1:lead] = mine[:-1]
    inputs, ker, dout = (
        sample(name, whole, where, dtype, device, len(stride)).to(wide).requires_grad_()
        for name, whole, where in zip(NAMES, shapes, places, strict=True)
    )
    asked = inputs if of == "dIn" else ker
    if not (inputs.numel() and ker.numel() and dout.numel()):
        return torch.zeros(shape(box), dtype=wide, device=device)
    if conv is None:
        out = product(inputs, ker)
    else:
        out = padded_conv(conv, inputs, ker, shapes, stride, padding, dilation)
    (result,) = torch.autograd.grad(out.reshape(dout.shape), asked, dout)
    for dim, window in enumerate((windows or {}).values(), lead):
        rows = list(range(*box[dim])) if of == "dKer" else source_rows(box[dim], window)
        index = torch.tensor(rows, dtype=torch.int64, device=device)
        result = result.index_select(dim, index)
    return result


def padded_conv(
    conv: Callable[..., torch.Tensor],
    inputs: torch.Tensor,
    ker: torch.Tensor,
    shapes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """A convolution with zeros before and after, as many as all rows of Out read.

    `shapes` are those of In, Ker and Out. With groups, In is [b, g, c, *rows] and Ker
    [g, k, c, *taps].
    """
    lead = len(shapes[0]) - len(stride)
    groups = ker.shape[0] if lead == 3 else 1
    if lead == 3:
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    zeros: list[int] = []
    for dim in range(len(stride)):
        reach = dilation[dim] * (shapes[1][lead + dim] - 1) + 1
        read = stride[dim] * (shapes[2][lead + dim] - 1) + reach
        after = max(0, read - padding[dim] - shapes[0][lead + dim])
        zeros = [padding[dim], after, *zeros]
    padded = F.pad(inputs, zeros)
    return conv(padded, ker, None, list(stride), 0, list(dilation), groups)


def value_fault(
    name: str, out: torch.Tensor, expected: torch.Tensor, box: Box
) -> str | None:
    """What is wrong with the values of a shard, in one sentence, or None.

    Sample values are integers, and so are exact results. An error below one half is
    the vendor's rounding (Winograd), a larger one is a fault. In half types every
    partial sum is exact (see `nonzero`), so any difference is a fault.
    """
    if out.shape != expected.shape:
        return f"{name} has shape {tuple(out.shape)} instead of {tuple(expected.shape)}"
    if not out.numel():
        return None
    wrong = wrong_values(out, expected)
    count = int(wrong.sum())
    if count == 0:
        return None
    place = [int(i) for i in wrong.nonzero()[0]]
    got, right = float(out[tuple(place)]), float(expected[tuple(place)])
    first = [i + low for i, (low, _) in zip(place, box, strict=True)]
    shown = ", ".join(f"{low}:{high}" for low, high in box)
    return (
        f"{name} differs in {count} of {out.numel()} words of its box [{shown}],"
        f" first at {first}: {got:g} instead of {right:g}"
    )


def wrong_values(out: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where values are wrong; NaN is always wrong, except where NaN is expected.

    NaN is expected in rows that no row of the user's tensor is (`class_samples`).
    """
    if out.dtype in HALF:
        return (out.to(expected.dtype) != expected) & ~expected.isnan()
    right = (out.to(expected.dtype) - expected).abs() < 0.5
    return ~(right | expected.isnan())


def expected_words(
    words: dict[int, dict[str, int]], rank: int
) -> dict[str, int] | None:
    """The entry of a rank, in a table that lists only ranks where entries change."""
    first = max((first for first in words if first <= rank), default=None)
    return None if first is None else words[first]


def word_faults(
    received: dict[str, int], predicted: dict[str, int] | None
) -> list[str]:
    """One sentence per tensor with another number of received words than planned."""
    return [
        f"received {received[name]} words of {name} instead of {expected}"
        for name, expected in (predicted or {}).items()
        if received[name] != expected
    ]
