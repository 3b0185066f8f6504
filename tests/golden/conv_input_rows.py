"""uneven: conv2d forward on 8 ranks as a grid h=2 x w=2 x k=2.

Emitted by `synth emit layers/uneven.yaml --procs 8 --grid h=2,w=2,k=2 --rows h=in,w=out -o conv_input_rows.py` (plan d4810ffa5f4b).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 conv_input_rows.py --check
Plan   --as "h=2 w=2 k=2; rows h=in; Out"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=3 h=11 w=9 c=7 k=5 r=3 s=3
Form   2D: Out stationary, In and Ker streamed in one panel
       blocks along h are cut by input rows: the halo is of Out
Owned  In: c over k, h over h, w over w
       Ker: k over k, c over x (x: h, w)
       Out: k over k, h over h, w over w
Moves  In 486, Ker 162, Out 45 (halo 117 of In and Out): at most 606 words received per
       rank
Memory at most 3069 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import all_gather, wait_gather
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along, return_rows
from synth.runtime.grid.boxes import (
    Window,
    cut,
    input_rows,
    output_rows,
    overlap,
    volume,
    within,
)
from synth.runtime.kernels.conv import convolve
from synth.runtime.program.check import reference
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
PLAN = "d4810ffa5f4b"
DTYPE = torch.float32

P_h, P_w, P_k = 2, 2, 2  # ranks along each axis
GRID = {"h": P_h, "w": P_w, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("h", "w"),  # a slice of Ker
}

N_b, N_c, N_k = 3, 7, 5  # samples, input and output channels
N_h, N_w = 11, 9  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 11, 9  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1, turned=N_h),
    "w": Window(I_w, N_s, padding=1),
}


def run(in_own, ker_own, at, groups, context):
    """This rank's shard of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`; `groups`
    holds the group of this rank for every entry of GROUP_AXES; `context` counts
    received words.
    """
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)

    # All ranks along k need the same slice of In.
    in_group = groups["k"].counted(context, "loop", "In")
    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "loop", "Ker")

    # The output rows of a block read input rows that its neighbours own.
    neighbours = neighbours_along(
        at, GRID, ("w",), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    in_box = touched_in(work(at))
    in_pending = gather(in_box, in_wide, carried_in, in_group)
    ker_box = touched_ker(work(at))
    ker_pending = gather(ker_box, ker_own, owned_ker, ker_group)
    in_slice, ker_slice = wait_gather(in_pending), wait_gather(ker_pending)

    block = work(at)
    out = convolve(F.conv2d, in_slice, ker_slice, block, WINDOWS, context)

    del in_slice, in_pending, ker_slice, ker_pending  # frees memory for what follows

    # The rows of Out that a block computes for its neighbours are added where they are
    # owned.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("return", 0, "Out"), context.ranks
    )
    return return_rows(out, carried_out, owned_out, neighbours, in_place=True)


def gather(panel, own, carried, group, step=0):
    """Start to gather a panel on all ranks of a group; each sends what it carries.

    own: the values of this rank's box `carried(at)`.
    """
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    mine = parts[group.me]
    sent = own[within(mine, carried(group.peers[group.me]))].contiguous()
    group.record(volume(panel) - volume(mine), step)
    return all_gather(panel, parts, sent, group)


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        "b": (0, N_b),
        "h": cut((0, I_h), P_h, at["h"]),
        "w": cut((0, N_w), P_w, at["w"]),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def owned_in(at):
    """The box of In[b, c, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_c), P_k, at["k"]),
        cut((0, I_h), P_h, at["h"]),
        cut((0, I_w), P_w, at["w"]),
    )


def touched_in(block):
    """The box of In[b, c, h, w] that a block of the nest reads."""
    return block["b"], block["c"], block["h"], input_rows(block["w"], WINDOWS["w"])


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, c, h, _ = owned_in(at)
    block = work(at)
    return b, c, h, input_rows(block["w"], WINDOWS["w"])


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    member = at["h"] * P_w + at["w"]  # index in the group
    return (
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_c), P_h * P_w, member),
        (0, N_r),
        (0, N_s),
    )


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_h), P_h, at["h"]),
        cut((0, N_w), P_w, at["w"]),
    )


def carried_out(at):
    """The box that the rank at `at` sums for its group: its shard, with the halo."""
    b, k, _, w = owned_out(at)
    block = work(at)
    return b, k, output_rows(block["h"], WINDOWS["h"]), w


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 11, 9)
KER_SHAPE = (N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 1), (1, 1), (1, 1)
FLOPS = 187_110  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 486, "Ker": 162, "Out": 45, "halo": 117, "total": 606}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 396, "Ker": 135, "Out": 45, "halo": 117, "total": 576},
    1: {"In": 486, "Ker": 90, "Out": 30, "halo": 84, "total": 606},
    2: {"In": 342, "Ker": 135, "Out": 36, "halo": 108, "total": 513},
    3: {"In": 414, "Ker": 90, "Out": 24, "halo": 78, "total": 528},
    4: {"In": 330, "Ker": 135, "Out": 45, "halo": 105, "total": 510},
    5: {"In": 405, "Ker": 90, "Out": 30, "halo": 75, "total": 525},
    6: {"In": 285, "Ker": 162, "Out": 36, "halo": 96, "total": 483},
    7: {"In": 345, "Ker": 108, "Out": 24, "halo": 69, "total": 477},
}


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return reference(
        F.conv2d, IN_SHAPE, KER_SHAPE, box, DTYPE, device, STRIDE, PADDING, DILATION
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
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    # with room for its ghost rows, so that the halo costs no copy
    in_own = world.context.rooms.keep(in_own, owned_in(at), carried_in(at))
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
