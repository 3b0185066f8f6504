"""Halo rows that no tap reads, on dilated layers: `python benchmarks/unread_rows.py` (half a minute).

A halo is fetched as one interval. Where the dilation is longer than a block, the interval has rows that no
tap of the block reads. For each layer and number of processes: the words of the plan, and those without such
rows of the halo, at most of any process; with residue classes and without. The plan is not chosen anew.
"""

from __future__ import annotations

from functools import cache
from math import prod

from gap import dilated

from synth.layer.axes import DIMS, TENSORS, PerAxis, Tensor
from synth.layer.intervals import Interval, length, meet
from synth.layer.layer import Layer
from synth.layer.window import Window
from synth.planning.derive import plan
from synth.planning.plan import Plan


def layers() -> list[Layer]:
    """The dilated layers of `gap`, and some with longer dilations."""
    return [
        *dilated(),
        Layer.conv1d((1, 64, 16384), 64, 2, dilation=256, name="WaveNet 64-64, k 2, dilation 256"),
        Layer.conv2d((1, 2048, 33, 33), 256, 3, padding=18, dilation=18, name="ASPP, dilation 18"),
        Layer.conv2d((1, 2048, 65, 65), 256, 3, padding=24, dilation=24, name="ASPP, 65 rows, dilation 24"),
        Layer.conv2d((1, 21, 64, 64), 21, 3, padding=16, dilation=16, name="context 21-21, dilation 16"),
    ]


@cache
def rows_read(window: Window, low: int, high: int) -> frozenset[int]:
    """The rows of the framed tensor that the taps of a block touch."""
    taps = (
        window.stride * x + window.dilation * r - window.padding
        for x in range(low, high)
        for r in range(window.kernel)
    )
    rows = (tap // window.divisor for tap in taps if tap % window.divisor == 0)
    return frozenset(row for row in rows if 0 <= row < window.size)


def unread(made: Plan, at: PerAxis, tensor: Tensor) -> int:
    """Words of the halo of a tensor that a process receives and does not read."""
    d = made.distribution
    if not d.halo_axes(tensor):
        return 0
    work, framed = d.work(at), d.nest.framed(tensor)

    def read(dim: str, within: Interval) -> int:
        if dim not in framed:
            return length(within)
        return sum(within[0] <= row < within[1] for row in rows_read(d.nest.windows[dim], *work[dim]))

    boxes = [*zip(DIMS[tensor], d.carried(tensor, at), d.owned(tensor, at), strict=True)]
    carried, owned = prod(length(c) for _, c, _ in boxes), prod(length(meet(c, o)) for _, c, o in boxes)
    wanted, kept = prod(read(n, c) for n, c, _ in boxes), prod(read(n, meet(c, o)) for n, c, o in boxes)
    return (carried - owned) - (wanted - kept)


def fewest(made: Plan) -> int:
    """The most words of any process, without halo rows that it does not read."""
    places = map(made.distribution.at, made.distribution.ranks)
    return max(made.received.at(at)["total"] - sum(unread(made, at, t) for t in TENSORS) for at in places)


def main() -> None:
    """Prints a Markdown table."""
    print("| layer | processes | classes | words | without unread rows | ratio |\n|---|---|---|---|---|---|")
    for layer in layers():
        for procs in (4, 16, 64):
            for asked in (None, dict.fromkeys(layer.spatial_axes, 1)):
                made = plan(layer, procs, classes=asked)
                words, less = made.words["total"], fewest(made)
                name = "none" if asked else "as planned"
                print(
                    f"| {layer.name} | {procs} | {name} | {words} | {less} | {less / words:.2f} |", flush=True
                )


if __name__ == "__main__":
    main()
