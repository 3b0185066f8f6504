"""Measures what torch's convolutions allocate beside their results, on one thread.

    python measured_copies.py CASES

CASES: JSON, a list of [samples, channels, filters, rows, taps, stride, padding, dilation, groups]. It prints
JSON: for each the words of the three passes, as the runtime calls them.
"""

from __future__ import annotations

import json
import sys

import torch

from synth.runtime.grid.allocation_counter import allocated
from synth.runtime.kernels import routines
from synth.runtime.kernels.frame import Frame


def main() -> None:
    """All cases."""
    torch.set_num_threads(1)
    with torch.no_grad():
        print(json.dumps([measured(*case) for case in json.loads(sys.argv[1])]))


def measured(
    samples: int,
    channels: int,
    filters: int,
    rows: list[int],
    taps: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> list[int]:
    """Words beside the result, by pass."""
    dims = len(rows)
    frame = Frame([], *([each] * dims for each in (padding, stride, dilation)))
    made = [(n + 2 * padding - dilation * (taps - 1) - 1) // stride + 1 for n in rows]
    values, dout = torch.zeros(samples, channels, *rows), torch.zeros(samples, filters, *made)
    ker = torch.zeros(filters, channels // groups, *[taps] * dims)
    conv = getattr(torch, f"conv{dims}d")
    runs = (
        (dout, lambda: routines.convolution(values, ker, None, frame, groups, conv)),
        (values, lambda: routines.in_gradient(dout, ker, values.shape, frame, groups)),
        (ker, lambda: routines.ker_gradient(values, dout, ker.shape, frame, groups)),
    )
    found = []
    for result, run in runs:
        run()
        found.append(allocated(run).peak // values.element_size() - result.numel())
    return found


if __name__ == "__main__":
    main()
