"""strided: conv2d forward on 6 ranks as a grid h=2 x k=3.

Emitted by `synth emit --plan plans/strided_tiles.json -o conv_strided_tiles.py` (plan ef1fd7159a70).
Change the plan, not this file.

Run    torchrun --nproc-per-node=6 conv_strided_tiles.py --check
Plan   --as "h=2 k=3; Out; c/2 h/2"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,3w+s-2] * Ker[k,c,r,s]
       b=2 h=7 w=5 c=4 k=6 r=3 s=5; In without the rows that the stride skips
Form   2D: Out stationary, In and Ker streamed in 2 panels along c; inner tiles along h
Owned  In: h over h, w over k
       Ker: k over k, c over x (x: h)
       Out: k over k, h over h
Moves  In 536 (halo 40), Ker 60, Out 0: at most 596 words received per rank
Memory at most 1331 words of 4 bytes per rank
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
    tile_indices,
    volume,
    widen,
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

NAME = "strided"
PLAN = "ef1fd7159a70"
DTYPE = torch.float32

P_h, P_k = 2, 3  # ranks along each axis
GRID = {"h": P_h, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 6  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("h",),  # a slice of Ker
}

N_b, N_c, N_k = 2, 4, 6  # samples, input and output channels
N_h, N_w = 7, 5  # output positions
N_r, N_s = 3, 5  # kernel taps
I_h, I_w = 7, 13  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1, first=1, step=2),
    "w": Window(I_w, N_s, stride=3, padding=2),
}
TILES = {"c": 2, "h": 2}  # of a work block, outermost loop first
STEPS = 4


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
        if changes(step, "c"):
            pending["Ker"] = gather(
                touched_ker(block), ker_own, owned_ker, ker_group, step
            )
        return pending

    panels, pending = {}, fetch(0)
    for step in range(STEPS):
        block = tile(at, step)
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        place = within(touched_out(block), out_box)
        out[place] += convolve(
            F.conv2d, panels["In"], panels["Ker"], block, WINDOWS, context
        )
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
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
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
    return (0, N_b), (0, N_c), cut((0, I_h), P_h, at["h"]), cut((0, I_w), P_k, at["k"])


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
    return (
        b,
        c,
        input_rows(block["h"], WINDOWS["h"]),
        widen(w, input_rows(block["w"], WINDOWS["w"]), P_k, at["k"]),
    )


def owned_ker(at):
    """The box of Ker[k, c, r, s] that only the rank at `at` stores."""
    return cut((0, N_k), P_k, at["k"]), cut((0, N_c), P_h, at["h"]), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] that only the rank at `at` stores."""
    return (0, N_b), cut((0, N_k), P_k, at["k"]), cut((0, N_h), P_h, at["h"]), (0, N_w)


def touched_out(block):
    """The box of Out[b, k, h, w] that a block of the nest adds to."""
    return block["b"], block["k"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 15, 13)
KER_SHAPE = (N_k, N_c, N_r, N_s)
STRIDE, PADDING, DILATION = (2, 3), (1, 2), (2, 1)
FLOPS = 50_400  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 536, "Ker": 60, "Out": 0, "halo": 40, "total": 596}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 488, "Ker": 60, "Out": 0, "halo": 40, "total": 548},
    1: {"In": 536, "Ker": 60, "Out": 0, "halo": 32, "total": 596},
    3: {"In": 424, "Ker": 60, "Out": 0, "halo": 40, "total": 484},
    4: {"In": 464, "Ker": 60, "Out": 0, "halo": 32, "total": 524},
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
