"""uneven: conv2d backward-filter on 8 ranks as a grid h=2 x c=2 x k=2.

Emitted by `synth emit --plan plans/backward_filter.json -o backward_filter.py` (plan dcab91b60d12).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 backward_filter.py --check
Plan   --as "h=2 c=2 k=2; Ker; h/2"
       of `synth emit` names the schedule; change it there
Nest   dKer[k,c,r,s] += dOut[b,k,h,w] * In[b,c,h+r-1,w+s-1]
       b=3 h=11 w=9 c=7 k=5 r=3 s=3
Form   2.5D: dKer stationary, In and dOut streamed in 2 panels along x
Owned  In: c over c then k, h over h
       dKer: k over k, c over c then x (x: h); partial sums along x until reduced
       dOut: k over k, h over h, w over c
Moves  In 540 (halo 54), dKer 54, dOut 270: at most 810 words received per rank
Memory at most 3320 words of 4 bytes per rank
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
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along
from synth.runtime.grid.boxes import (
    Window,
    cut,
    input_rows,
    overlap,
    shape,
    volume,
    within,
)
from synth.runtime.kernels.conv import kernel_gradient
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
PLAN = "dcab91b60d12"
DTYPE = torch.float32

P_h, P_c, P_k = 2, 2, 2  # ranks along each axis
GRID = {"h": P_h, "c": P_c, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("h",),  # a slice of dKer
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
STEPS = 2  # tiles of a work block along h


def run(in_own, dout_own, at, groups, context):
    """This rank's shard of dKer: its words of the box `owned_dker(at)`.

    `in_own` and `dout_own` hold the boxes `owned_in(at)` and `owned_dout(at)`; `groups`
    holds the group of this rank for every entry of GROUP_AXES; `context` counts
    received words.
    """
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("dOut", dout_own, owned_dout(at), DTYPE)

    # All ranks along k need the same slice of In.
    in_group = groups["k"].counted(context, "loop", "In")
    # All ranks along c need the same slice of dOut.
    dout_group = groups["c"].counted(context, "loop", "Out")
    # Each rank along x holds a partial sum of the same slice of dKer.
    dker_group = groups["x"].counted(context, "reduce", "Ker")

    # The output rows of a block read input rows that its neighbours own.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    dker_box = touched_dker(work(at))
    dker = in_own.new_zeros(shape(dker_box))

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step), {}
        pending["In"] = gather(touched_in(block), in_wide, carried_in, in_group, step)
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
        dker += kernel_gradient(panels["In"], panels["dOut"], block, WINDOWS, context)
        context.check_finite("dKer", step, dker)

    del panels  # frees memory for what follows
    pending_sum = reduce(dker, dker_box, owned_dker, dker_group)
    return wait_reduce(pending_sum)


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
    block["h"] = cut(block["h"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, c, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut(cut((0, N_c), P_c, at["c"]), P_k, at["k"]),
        cut((0, I_h), P_h, at["h"]),
        (0, I_w),
    )


def touched_in(block):
    """The box of In[b, c, h, w] that a block of the nest reads."""
    return (
        block["b"],
        block["c"],
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, c, _, w = owned_in(at)
    block = work(at)
    return b, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_dker(at):
    """The box of dKer[k, c, r, s] that only the rank at `at` stores."""
    return (
        cut((0, N_k), P_k, at["k"]),
        cut(cut((0, N_c), P_c, at["c"]), P_h, at["h"]),
        (0, N_r),
        (0, N_s),
    )


def touched_dker(block):
    """The box of dKer[k, c, r, s] that a block of the nest adds to."""
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
MOST = {"In": 540, "Ker": 54, "Out": 270, "halo": 54, "total": 810}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 540, "Ker": 54, "Out": 216, "halo": 54, "total": 810},
    1: {"In": 540, "Ker": 36, "Out": 144, "halo": 54, "total": 720},
    2: {"In": 297, "Ker": 54, "Out": 270, "halo": 54, "total": 621},
    3: {"In": 513, "Ker": 36, "Out": 180, "halo": 27, "total": 729},
    4: {"In": 486, "Ker": 54, "Out": 180, "halo": 54, "total": 720},
    5: {"In": 486, "Ker": 36, "Out": 120, "halo": 54, "total": 642},
    6: {"In": 270, "Ker": 27, "Out": 225, "halo": 54, "total": 522},
    7: {"In": 459, "Ker": 18, "Out": 150, "halo": 27, "total": 627},
}


def expected_dker(at, device):
    """The same shard of dKer from one torch call."""
    box = owned_dker(at)
    return gradient(
        "dKer", F.conv2d, SHAPES, box, DTYPE, device, STRIDE, PADDING, DILATION, WINDOWS
    )


def main():
    """What one rank does; a caller with real tensors calls `run` in the same way."""
    args = parse_arguments(__doc__)
    summary = PlanSummary(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    groups = world.context.make_groups(at, GRID, GROUP_AXES, args.timeout)
    windows = tuple(WINDOWS.values())
    in_own = sample_box("In", IN_SHAPE, owned_in(at), DTYPE, device, windows)
    dout_own = sample_box("dOut", OUT_SHAPE, owned_dout(at), DTYPE, device)
    # with room for its ghost rows, so that the halo costs no copy
    in_own = world.context.rooms.keep(in_own, owned_in(at), carried_in(at))
    job = partial(run, in_own, dout_own, at, groups)
    results = [
        Result("dKer", owned_dker(at), partial(expected_dker, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
