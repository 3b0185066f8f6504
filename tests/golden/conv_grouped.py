"""grouped: conv2d forward on 8 ranks as a grid g=2 x h=2 x k=2.

Emitted by `synth emit layers/grouped.yaml --procs 8 --grid g=2,h=2,k=2 --panels 3 --rows h=out -o conv_grouped.py` (plan c51b940e2c12).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 conv_grouped.py --check
Plan   --as "g=2 h=2 k=2; Out; c/3"
       of `synth emit` names the schedule; change it there
Nest   Out[b,g,k,h,w] += In[b,g,c,h+r-1,w+s-1] * Ker[g,k,c,r,s]
       b=2 g=4 h=8 w=8 c=3 k=2 r=3 s=3
Form   2D: Out stationary, In and Ker streamed in 3 panels along c
Owned  In: g over g then k, h over h
       Ker: g over g then x, k over k (x: h)
       Out: g over g, k over k, h over h
Moves  In 288 (halo 48), Ker 27, Out 0: at most 315 words received per rank
Memory at most 1071 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import all_gather, wait_gathers
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

NAME = "grouped"
PLAN = "c51b940e2c12"
DTYPE = torch.float32

P_g, P_h, P_k = 2, 2, 2  # ranks along each axis
GRID = {"g": P_g, "h": P_h, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("h",),  # a slice of Ker
}

N_b, N_g, N_c, N_k = 2, 4, 3, 2  # samples, groups, input and output channels
N_h, N_w = 8, 8  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 8, 8  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
STEPS = 3  # tiles of a work block along c


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
        at, GRID, ("h",), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step), {}
        pending["In"] = gather(touched_in(block), in_wide, carried_in, in_group, step)
        pending["Ker"] = gather(touched_ker(block), ker_own, owned_ker, ker_group, step)
        return pending

    panels, pending = {}, fetch(0)
    for step in range(STEPS):
        block = tile(at, step)
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        out += convolve(F.conv2d, panels["In"], panels["Ker"], block, WINDOWS, context)
        context.check_finite("Out", step, out)

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


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        "b": (0, N_b),
        "g": cut((0, N_g), P_g, at["g"]),
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    block["c"] = cut(block["c"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, g, c, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut(cut((0, N_g), P_g, at["g"]), P_k, at["k"]),
        (0, N_c),
        cut((0, I_h), P_h, at["h"]),
        (0, I_w),
    )


def touched_in(block):
    """The box of In[b, g, c, h, w] that a block of the nest reads."""
    return (
        block["b"],
        block["g"],
        block["c"],
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, g, c, _, w = owned_in(at)
    block = work(at)
    return b, g, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_ker(at):
    """The box of Ker[g, k, c, r, s] that only the rank at `at` stores."""
    return (
        cut(cut((0, N_g), P_g, at["g"]), P_h, at["h"]),
        cut((0, N_k), P_k, at["k"]),
        (0, N_c),
        (0, N_r),
        (0, N_s),
    )


def touched_ker(block):
    """The box of Ker[g, k, c, r, s] that a block of the nest reads."""
    return block["g"], block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, g, k, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_g), P_g, at["g"]),
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_h), P_h, at["h"]),
        (0, N_w),
    )


def touched_out(block):
    """The box of Out[b, g, k, h, w] that a block of the nest adds to."""
    return block["b"], block["g"], block["k"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_g, N_c, 8, 8)
KER_SHAPE = (N_g, N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 1), (1, 1), (1, 1)
FLOPS = 55_296  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 288, "Ker": 27, "Out": 0, "halo": 48, "total": 315}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 288, "Ker": 27, "Out": 0, "halo": 48, "total": 315},
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
