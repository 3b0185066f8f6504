"""uneven: conv2d forward on 4 ranks as a grid b=2 x c=2.

Emitted by `synth emit --plan plans/ker_stationary.json -o conv_ker_stationary.py` (plan a72003cc962b).
Change the plan, not this file.

Run    torchrun --nproc-per-node=4 conv_ker_stationary.py --check
Plan   --as "b=2 c=2; Ker; h/2 c/2; swapped"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=3 h=11 w=9 c=7 k=5 r=3 s=3
Form   2.5D: Ker stationary, In and Out streamed in 2 panels along x; inner tiles along
       c
Owned  In: b over b, c over c
       Ker: c over c then x (x: b)
       Out: b over b then c; partial sums along c until reduced
Moves  In 0, Ker 90, Out 495: at most 585 words received per rank
Memory at most 3960 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import (
    all_gather,
    reduce_scatter,
    wait_gather,
    wait_reduces,
)
from synth.runtime.grid.boxes import (
    Window,
    cut,
    input_rows,
    overlap,
    shape,
    tile_indices,
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
PLAN = "a72003cc962b"
DTYPE = torch.float32

P_b, P_c = 2, 2  # ranks along each axis
GRID = {"b": P_b, "c": P_c}  # the last axis varies fastest over the ranks
PROCS = 4  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "x": ("b",),  # a slice of Ker
    "c": ("c",),  # a slice of Out
}

N_b, N_c, N_k = 3, 7, 5  # samples, input and output channels
N_h, N_w = 11, 9  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 11, 9  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
TILES = {"h": 2, "c": 2}  # of a work block, outermost loop first
STEPS = 4


def run(in_own, ker_own, at, groups, context):
    """This rank's shard of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`; `groups`
    holds the group of this rank for every entry of GROUP_AXES; `context` counts
    received words.
    """
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)

    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "expand", "Ker")
    # Each rank along c holds a partial sum of the same slice of Out.
    out_group = groups["c"].counted(context, "loop", "Out")

    ker_box = touched_ker(work(at))
    ker_pending = gather(ker_box, ker_own, owned_ker, ker_group)
    ker_slice = wait_gather(ker_pending)

    out_box = owned_out(at)
    out = in_own.new_zeros(shape(out_box))
    pending_sums = []
    for step in range(STEPS):
        block = tile(at, step)
        if changes(step, "h"):
            sums = 0  # another panel of Out begins
        in_tile = in_own[within(touched_in(block), owned_in(at))]
        ker_tile = ker_slice[within(touched_ker(block), ker_box)]
        sums += convolve(F.conv2d, in_tile, ker_tile, block, WINDOWS, context)
        context.check_finite("Out", step, sums)
        if changes(step + 1, "h"):
            wait_reduces(pending_sums, out, out_box)  # of the panel before
            pending_sums.append(
                reduce(sums, touched_out(block), owned_out, out_group, step)
            )
            del sums
    wait_reduces(pending_sums, out, out_box)

    return out


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
        "b": cut((0, N_b), P_b, at["b"]),
        "h": (0, N_h),
        "w": (0, N_w),
        "c": cut((0, N_c), P_c, at["c"]),
        "k": (0, N_k),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    for axis, index in tile_indices(step, TILES).items():
        block[axis] = cut(block[axis], TILES[axis], index)
    return block


def changes(step, *axes):
    """Whether `step`, or the end, begins another tile along any of these axes."""
    before, now = tile_indices(step - 1, TILES), tile_indices(step, TILES)
    return any(before[axis] != now[axis] for axis in axes)


def owned_in(at):
    """The box of In[b, c, h, w] that only the rank at `at` stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_c), P_c, at["c"]), (0, I_h), (0, I_w)


def touched_in(block):
    """The box of In[b, c, h, w] that a block of the nest reads."""
    return (
        block["b"],
        block["c"],
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    return (0, N_k), cut(cut((0, N_c), P_c, at["c"]), P_b, at["b"]), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that only the rank at `at` stores."""
    return cut(cut((0, N_b), P_b, at["b"]), P_c, at["c"]), (0, N_k), (0, N_h), (0, N_w)


def touched_out(block):
    """The box of Out[b, k, h, w] that a block of the nest adds to."""
    return block["b"], block["k"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 11, 9)
KER_SHAPE = (N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 1), (1, 1), (1, 1)
FLOPS = 187_110  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 0, "Ker": 90, "Out": 495, "halo": 0, "total": 585}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 0, "Ker": 90, "Out": 495, "halo": 0, "total": 585},
    1: {"In": 0, "Ker": 45, "Out": 495, "halo": 0, "total": 540},
    2: {"In": 0, "Ker": 90, "Out": 495, "halo": 0, "total": 585},
    3: {"In": 0, "Ker": 90, "Out": 0, "halo": 0, "total": 90},
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
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
