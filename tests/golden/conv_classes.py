"""atrous: conv2d forward on 4 ranks as a grid b=2 x h=2.

Emitted by `synth emit layers/atrous.yaml --procs 4 --grid b=2,h=2 --rows h=out --classes h=3,w=2 -o conv_classes.py` (plan feb0cc0cccc2).
Change the plan, not this file.

Run    torchrun --nproc-per-node=4 conv_classes.py --check
Plan   --as "b=2 h=2; classes h=3,w=2; Out"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=6 h=5 w=6 c=4 k=6 r=3 s=3
Form   2D: Out stationary, In and Ker streamed in one panel
       residue classes of the dilation, 3 along h x 2 along w, are samples: axis b
       counts both; output rows with filler: h 13 to 15
Owned  In: b over b, h over h
       Ker: c over x (x: b, h)
       Out: b over b, h over h
Moves  In 72 (halo 72), Ker 162, Out 0: at most 234 words received per rank
Memory at most 1242 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import all_gather, wait_gather
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along
from synth.runtime.grid.boxes import Window, cut, input_rows, overlap, volume, within
from synth.runtime.grid.residue_classes import Classes
from synth.runtime.kernels.conv import convolve
from synth.runtime.program.class_samples import class_reference, sample_classes
from synth.runtime.program.cli import (
    PlanSummary,
    RankJob,
    Result,
    parse_arguments,
    run_program,
)
from synth.runtime.program.sample_data import sample_box
from synth.runtime.program.world import start

NAME = "atrous"
PLAN = "feb0cc0cccc2"
DTYPE = torch.float32

P_b, P_h = 2, 2  # ranks along each axis
GRID = {"b": P_b, "h": P_h}  # the last axis varies fastest over the ranks
PROCS = 4  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "x": ("b", "h"),  # a slice of Ker
}

N_b, N_c, N_k = 6, 4, 6  # samples of classes, input and output channels
N_h, N_w = 5, 6  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 5, 6  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
CLASSES = {  # samples; row i of class j is row first + step * (parts * i + j)
    "h": Classes(3),
    "w": Classes(2),
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
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

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
        "b": cut((0, N_b), P_b, at["b"]),
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": (0, N_k),
    }


def owned_in(at):
    """The box of In[b, c, h, w] that only the rank at `at` stores."""
    return cut((0, N_b), P_b, at["b"]), (0, N_c), cut((0, I_h), P_h, at["h"]), (0, I_w)


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, c, _, w = owned_in(at)
    block = work(at)
    return b, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    member = at["b"] * P_h + at["h"]  # index in the group
    return (0, N_k), cut((0, N_c), P_b * P_h, member), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that only the rank at `at` stores."""
    return cut((0, N_b), P_b, at["b"]), (0, N_k), cut((0, N_h), P_h, at["h"]), (0, N_w)


# The layer as torch has it.
IN_SHAPE = (1, N_c, 13, 12)
KER_SHAPE = (N_k, N_c, N_r, N_s)
OUT_SHAPE = (1, N_k, 13, 12)
SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE
STRIDE, PADDING, DILATION = (1, 1), (3, 2), (3, 2)
FLOPS = 67_392  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 72, "Ker": 162, "Out": 0, "halo": 72, "total": 234}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 72, "Ker": 162, "Out": 0, "halo": 72, "total": 234},
}


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return class_reference(
        CLASSES,
        WINDOWS,
        F.conv2d,
        SHAPES,
        box,
        DTYPE,
        device,
        STRIDE,
        PADDING,
        DILATION,
    )


def main():
    """What one rank does; a caller with real tensors calls `run` in the same way."""
    args = parse_arguments(__doc__)
    summary = PlanSummary(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    groups = world.context.make_groups(at, GRID, GROUP_AXES, args.timeout)
    in_own = sample_classes(
        "In", IN_SHAPE, owned_in(at), DTYPE, device, CLASSES, WINDOWS
    )
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
