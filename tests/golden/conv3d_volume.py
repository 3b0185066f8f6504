"""volume: conv3d forward on 8 ranks as a grid d=2 x h=2 x k=2.

Emitted by `synth emit layers/volume.yaml --procs 8 --grid d=2,h=2,k=2 --panels 2 --rows d=out,h=out -o conv3d_volume.py` (plan 4807c4d995cf).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 conv3d_volume.py --check
Plan   --as "d=2 h=2 k=2; Out; c/2"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,d,h,w] += In[b,c,d+t-1,2h+r-1,w+s-1] * Ker[k,c,t,r,s]
       b=2 d=6 h=4 w=5 c=4 k=6 t=3 r=3 s=3
Form   2D: Out stationary, In and Ker streamed in 2 panels along c (Ker rotated)
Owned  In: c over k, d over d, h over h
       Ker: k over k, c over x (x: d, h)
       Out: k over k, d over d, h over h
Moves  In 460 (halo 140), Ker 243, Out 0: at most 703 words received per rank
Memory at most 1905 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F

from synth.runtime.comm.collectives import all_gather, all_gather_rotated, wait_gathers
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

NAME = "volume"
PLAN = "4807c4d995cf"
DTYPE = torch.float32

P_d, P_h, P_k = 2, 2, 2  # ranks along each axis
GRID = {"d": P_d, "h": P_h, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("d", "h"),  # a slice of Ker
}

N_b, N_c, N_k = 2, 4, 6  # samples, input and output channels
N_d, N_h, N_w = 6, 4, 5  # output positions
N_t, N_r, N_s = 3, 3, 3  # kernel taps
I_d, I_h, I_w = 6, 7, 5  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "d": Window(I_d, N_t, padding=1),
    "h": Window(I_h, N_r, stride=2, padding=1),
    "w": Window(I_w, N_s, padding=1),
}
STEPS = 2  # tiles of a work block along c


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
        at, GRID, ("d", "h"), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step), {}
        pending["In"] = gather(touched_in(block), in_wide, carried_in, in_group, step)
        wanted = [touched_ker(tile(peer, step)) for peer in ker_group.peers]
        pending["Ker"] = gather_rotated(wanted, ker_own, owned_ker, ker_group, step)
        return pending

    panels, pending = {}, fetch(0)
    for step in range(STEPS):
        block = tile(at, step)
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        out += convolve(F.conv3d, panels["In"], panels["Ker"], block, WINDOWS, context)
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


def gather_rotated(panels, own, carried, group, step):
    """Start to gather on each rank of a group a panel of its own (rotation).

    panels: the panel of every rank. own: the values of this rank's box `carried(at)`,
    which is part of one panel.
    """
    panel, mine = panels[group.me], carried(group.peers[group.me])
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    uses = [volume(overlap(mine, theirs)) > 0 for theirs in panels]
    group.record(volume(panel) - volume(parts[group.me]), step)
    return all_gather_rotated(panel, parts, own, uses, group)


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        "b": (0, N_b),
        "d": cut((0, N_d), P_d, at["d"]),
        "h": cut((0, N_h), P_h, at["h"]),
        "w": (0, N_w),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    # Ranks that share a slice of Ker start at different panels (rotation).
    first = (at["d"] * P_h + at["h"]) // 2
    step = (first + step) % STEPS
    block["c"] = cut(block["c"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, c, d, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_c), P_k, at["k"]),
        cut((0, I_d), P_d, at["d"]),
        cut((0, I_h), P_h, at["h"]),
        (0, I_w),
    )


def touched_in(block):
    """The box of In[b, c, d, h, w] that a block of the nest reads."""
    return (
        block["b"],
        block["c"],
        input_rows(block["d"], WINDOWS["d"]),
        input_rows(block["h"], WINDOWS["h"]),
        input_rows(block["w"], WINDOWS["w"]),
    )


def carried_in(at):
    """The box that the rank at `at` sends to its group: its shard, with the halo."""
    b, c, _, _, w = owned_in(at)
    block = work(at)
    return (
        b,
        c,
        input_rows(block["d"], WINDOWS["d"]),
        input_rows(block["h"], WINDOWS["h"]),
        w,
    )


def owned_ker(at):
    """The box of Ker[k, c, t, r, s] that only the rank at `at` stores."""
    member = at["d"] * P_h + at["h"]  # index in the group
    return (
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_c), P_d * P_h, member),
        (0, N_t),
        (0, N_r),
        (0, N_s),
    )


def touched_ker(block):
    """The box of Ker[k, c, t, r, s] that a block of the nest reads."""
    return block["k"], block["c"], (0, N_t), (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, d, h, w] that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut((0, N_k), P_k, at["k"]),
        cut((0, N_d), P_d, at["d"]),
        cut((0, N_h), P_h, at["h"]),
        (0, N_w),
    )


def touched_out(block):
    """The box of Out[b, k, d, h, w] that a block of the nest adds to."""
    return block["b"], block["k"], block["d"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 6, 7, 5)
KER_SHAPE = (N_k, N_c, N_t, N_r, N_s)
STRIDE, PADDING, DILATION = (1, 2, 1), (1, 1, 1), (1, 1, 1)
FLOPS = 311_040  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 460, "Ker": 243, "Out": 0, "halo": 140, "total": 703}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 400, "Ker": 243, "Out": 0, "halo": 80, "total": 643},
    2: {"In": 460, "Ker": 243, "Out": 0, "halo": 140, "total": 703},
    4: {"In": 400, "Ker": 243, "Out": 0, "halo": 80, "total": 643},
    6: {"In": 460, "Ker": 243, "Out": 0, "halo": 140, "total": 703},
}


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return reference(
        F.conv3d, IN_SHAPE, KER_SHAPE, box, DTYPE, device, STRIDE, PADDING, DILATION
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
