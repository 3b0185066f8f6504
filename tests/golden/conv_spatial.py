"""wide: conv2d forward on 4 ranks as a grid h=4.

Emitted by `synth emit layers/wide.yaml --procs 4 --grid h=4 -o conv_spatial.py` (plan 1e0a8ea314ef).
Change the plan, not this file.

Run    torchrun --nproc-per-node=4 conv_spatial.py --check
Plan   --as "h=4; Out"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-3,w+s-3] * Ker[k,c,r,s]
       b=2 h=12 w=6 c=3 k=4 r=7 s=7
Form   2D: Out stationary, In and Ker streamed in one panel
Owned  In: h over h
       Ker: k over x (x: h)
       Out: h over h
Moves  In 216 (halo 216), Ker 441, Out 0: at most 657 words received per rank
Memory at most 1647 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import all_gather, wait_gather
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along
from synth.runtime.grid.boxes import Window, cut, input_rows, overlap, volume, within
from synth.runtime.kernels.conv import convolve
from synth.runtime.kernels.frame import explicit_zeros
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

NAME = "wide"
PLAN = "1e0a8ea314ef"
DTYPE = torch.float32

P_h = 4  # ranks along each axis
GRID = {"h": P_h}  # the last axis varies fastest over the ranks
PROCS = 4  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "x": ("h",),  # a slice of Ker
}

N_b, N_c, N_k = 2, 3, 4  # samples, input and output channels
N_h, N_w = 12, 6  # output positions
N_r, N_s = 7, 7  # kernel taps
I_h, I_w = 12, 6  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=3),
    "w": Window(I_w, N_s, padding=3),
}


def run(in_own, ker_own, at, groups, context):
    """This rank's shard of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`; `groups`
    holds the group of this rank for every entry of GROUP_AXES; `context` counts
    received words.
    """
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)

    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "loop", "Ker")

    # The output rows of a block read input rows that its neighbours own.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("halo", 0, "In"), context.ranks
    )
    zeros = explicit_zeros(work(at), WINDOWS)  # padding at one end of the rows only
    in_wide = fetch_rows(
        in_own, owned_in, carried_in, neighbours, zeros, rooms=context.rooms
    )

    ker_box = touched_ker(work(at))
    ker_pending = gather(ker_box, ker_own, owned_ker, ker_group)
    ker_slice = wait_gather(ker_pending)

    block = work(at)
    return convolve(F.conv2d, in_wide, ker_slice, block, WINDOWS, context)


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
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": (0, N_k),
    }


def owned_in(at):
    """The box of In[b, c, h, w] that only the rank at `at` stores."""
    return (0, N_b), (0, N_c), cut((0, I_h), P_h, at["h"]), (0, I_w)


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, c, _, w = owned_in(at)
    block = work(at)
    return b, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    return cut((0, N_k), P_h, at["h"]), (0, N_c), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that only the rank at `at` stores."""
    return (0, N_b), (0, N_k), cut((0, N_h), P_h, at["h"]), (0, N_w)


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 12, 6)
KER_SHAPE = (N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 1), (3, 3), (1, 1)
FLOPS = 169_344  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 216, "Ker": 441, "Out": 0, "halo": 216, "total": 657}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 108, "Ker": 441, "Out": 0, "halo": 108, "total": 549},
    1: {"In": 216, "Ker": 441, "Out": 0, "halo": 216, "total": 657},
    3: {"In": 108, "Ker": 441, "Out": 0, "halo": 108, "total": 549},
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
    in_own = world.context.rooms.keep(
        in_own, owned_in(at), carried_in(at), explicit_zeros(work(at), WINDOWS)
    )
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
