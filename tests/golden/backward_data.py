"""uneven: conv2d backward-data on 8 ranks as a grid h=2 x c=2 x k=2.

Emitted by `synth emit layers/uneven.yaml --procs 8 --stationary in --grid h=2,c=2,k=2 --pass backward-data --panels 2 --rows h=out -o backward_data.py` (plan e3a75049845f).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 backward_data.py --check
Plan   --as "h=2 c=2 k=2; In; k/2"
       of `synth emit` names the schedule; change it there
Nest   dIn[b,c,h+r-1,w+s-1] += dOut[b,k,h,w] * Ker[k,c,r,s]
       b=3 h=11 w=9 c=7 k=5 r=3 s=3
Form   2.5D: dIn stationary, Ker and dOut streamed in 2 panels along k
Owned  dIn: c over c then k, h over h; partial sums along k until reduced
       Ker: k over k, c over c then x (x: h)
       dOut: k over k, h over h, w over c
Moves  dIn 432 (halo 54), Ker 54, dOut 270: at most 729 words received per rank
Memory at most 3492 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import (
    all_gather,
    reduce_scatter,
    wait_gathers,
    wait_reduce,
)
from synth.runtime.comm.halo_exchange import neighbours_along, return_rows
from synth.runtime.grid.boxes import (
    Window,
    cut,
    input_rows,
    overlap,
    shape,
    volume,
    within,
)
from synth.runtime.kernels.conv import input_gradient
from synth.runtime.program.check import gradient
from synth.runtime.program.cli import (
    PlanSummary,
    RankJob,
    Result,
    parse_arguments,
    run_program,
)
from synth.runtime.program.sample_data import sample_box
from synth.runtime.program.world import start

NAME = "uneven"
PLAN = "e3a75049845f"
DTYPE = torch.float32

P_h, P_c, P_k = 2, 2, 2  # ranks along each axis
GRID = {"h": P_h, "c": P_c, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of dIn
    "x": ("h",),  # a slice of Ker
    "c": ("c",),  # a slice of dOut
}

N_b, N_c, N_k = 3, 7, 5  # samples, input and output channels
N_h, N_w = 11, 9  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 11, 9  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
STEPS = 2  # tiles of a work block along k


def run(ker_own, dout_own, at, groups, context):
    """This rank's shard of dIn: its words of the box `owned_din(at)`.

    `ker_own` and `dout_own` hold the boxes `owned_ker(at)` and `owned_dout(at)`;
    `groups` holds the group of this rank for every entry of GROUP_AXES; `context`
    counts received words.
    """
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)
    context.check_shard("dOut", dout_own, owned_dout(at), DTYPE)

    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "loop", "Ker")
    # All ranks along c need the same slice of dOut.
    dout_group = groups["c"].counted(context, "loop", "Out")
    # Each rank along k holds a partial sum of the same slice of dIn.
    din_group = groups["k"].counted(context, "reduce", "In")

    din_box = touched_din(work(at))
    din = ker_own.new_zeros(shape(din_box))

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step), {}
        pending["Ker"] = gather(touched_ker(block), ker_own, owned_ker, ker_group, step)
        pending["dOut"] = gather(
            touched_dout(block), dout_own, owned_dout, dout_group, step
        )
        return pending

    panels, pending = {}, fetch(0)
    for step in range(STEPS):
        block = tile(at, step)
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        din += input_gradient(panels["Ker"], panels["dOut"], block, WINDOWS, context)
        context.check_finite("dIn", step, din)

    del panels  # frees memory for what follows
    pending_sum = reduce(din, din_box, carried_din, din_group)
    total = wait_reduce(pending_sum)
    del din

    # The rows of dIn that a block computes for its neighbours are added where they are
    # owned.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("return", 0, "In"), context.ranks
    )
    return return_rows(total, carried_din, owned_din, neighbours, in_place=True)


def gather(panel, own, carried, group, step=0):
    """Start to gather a panel on all ranks of a group; each sends what it carries.

    own: the values of this rank's box `carried(at)`.
    """
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    mine = parts[group.me]
    sent = own[within(mine, carried(group.peers[group.me]))].contiguous()
    group.record(volume(panel) - volume(mine), step)
    return all_gather(panel, parts, sent, group)


def reduce(sums, panel, carried, group, step=0):
    """Start to reduce-scatter a panel: each rank sums what it carries of the panel."""
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    group.record(volume(parts[group.me]) * (len(parts) - 1), step)
    return reduce_scatter(sums, panel, parts, group)


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        "b": (0, N_b),
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": cut((0, N_c), P_c, at["c"]),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    block["k"] = cut(block["k"], STEPS, step)
    return block


def owned_din(at):
    """The box of dIn[b, c, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut(cut((0, N_c), P_c, at["c"]), P_k, at["k"]),
        cut((0, I_h), P_h, at["h"]),
        (0, I_w),
    )


def touched_din(block):
    """The box of dIn[b, c, h, w] that a block of the nest adds to."""
    return (
        block["b"],
        block["c"],
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def carried_din(at):
    """The box that the rank at `at` sums for its group: its shard, with the halo."""
    b, c, _, w = owned_din(at)
    block = work(at)
    return b, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    return (
        cut((0, N_k), P_k, at["k"]),
        cut(cut((0, N_c), P_c, at["c"]), P_h, at["h"]),
        (0, N_r),
        (0, N_s),
    )


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_dout(at):
    """The box of dOut[b, k, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_h), P_h, at["h"]),
        cut((0, N_w), P_c, at["c"]),
    )


def touched_dout(block):
    """The box of dOut[b, k, h, w] that a block of the nest reads."""
    return block["b"], block["k"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 11, 9)
KER_SHAPE = (N_k, N_c, N_r, N_s)
OUT_SHAPE = (N_b, N_k, N_h, N_w)
SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE
STRIDE, PADDING, DILATION = (1, 1), (1, 1), (1, 1)
FLOPS = 187_110  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
# A gradient counts as its tensor: dIn as In.
MOST = {"In": 432, "Ker": 54, "Out": 270, "halo": 54, "total": 729}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 432, "Ker": 54, "Out": 216, "halo": 54, "total": 702},
    1: {"In": 432, "Ker": 36, "Out": 144, "halo": 54, "total": 612},
    2: {"In": 432, "Ker": 27, "Out": 270, "halo": 54, "total": 729},
    3: {"In": 216, "Ker": 18, "Out": 180, "halo": 27, "total": 414},
    4: {"In": 378, "Ker": 54, "Out": 180, "halo": 54, "total": 612},
    5: {"In": 378, "Ker": 36, "Out": 120, "halo": 54, "total": 534},
    6: {"In": 378, "Ker": 54, "Out": 225, "halo": 54, "total": 657},
    7: {"In": 189, "Ker": 36, "Out": 150, "halo": 27, "total": 375},
}


def expected_din(at, device):
    """The same shard of dIn from one torch call."""
    box = owned_din(at)
    return gradient(
        "dIn", F.conv2d, SHAPES, box, DTYPE, device, STRIDE, PADDING, DILATION, WINDOWS
    )


def main():
    """What one rank does; a caller with real tensors calls `run` in the same way."""
    args = parse_arguments(__doc__)
    summary = PlanSummary(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    groups = world.context.make_groups(at, GRID, GROUP_AXES, args.timeout)
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    dout_own = sample_box("dOut", OUT_SHAPE, owned_dout(at), DTYPE, device)
    job = partial(run, ker_own, dout_own, at, groups)
    results = [
        Result("dIn", owned_din(at), partial(expected_din, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
