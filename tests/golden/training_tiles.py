"""strided: conv2d training on 6 ranks as a grid h=2 x k=3.

Emitted by `synth emit --plan plans/training_tiles.json -o training_tiles.py` (plan 1bd7c76b2d18).
Change the plan, not this file.

Run    torchrun --nproc-per-node=6 training_tiles.py --check
Plan   --as "h=2 k=3; forward Ker; h/2 c/2; saves In; backward-data Out; c/2; saves Out;
       backward-filter In; w/2 c/2; reuses In,Out"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,3w+s-2] * Ker[k,c,r,s]
       dIn[b,c,h+r-1,3w+s-2] += dOut[b,k,h,w] * Ker[k,c,r,s]
       dKer[k,c,r,s] += dOut[b,k,h,w] * In[b,c,h+r-1,3w+s-2]
       b=2 h=7 w=5 c=4 k=6 r=3 s=5; In without the rows that the stride skips
Form   forward: Ker stationary, Out streamed in 2 panels along x; inner tiles along c;
       saves In
       backward-data: dOut stationary, dIn and Ker streamed in 2 panels along c; saves
       dOut; reduce overlaps backward-filter
       backward-filter: In stationary, dKer streamed in one panel; inner tiles along w,
       c; reuses In and dOut
Owned  In and dIn: h over h, w over k; partial sums of dIn along k until reduced
       Ker and dKer: k over k, c over x (x: h); partial sums of dKer along x until
       reduced
       Out and dOut: k over k, h over h
Moves  forward: In 392 (halo 40), Ker 60, Out 0
       backward-data: dIn 440 (halo 40), Ker 60, dOut 0
       backward-filter: In 0 (halo 0), dKer 120, dOut 0
       together: In and dIn 800 (halo 80), Ker and dKer 240, Out and dOut 0: at most
       1040 words received per rank
Memory at most 2316 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from synth.runtime.comm.collectives import (
    all_gather,
    reduce_scatter,
    wait_gather,
    wait_gathers,
    wait_reduces,
)
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along, return_rows
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
from synth.runtime.kernels.conv import convolve, input_gradient, kernel_gradient
from synth.runtime.program.check import gradient, reference
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
PLAN = "1bd7c76b2d18"
DTYPE = torch.float32

P_h, P_k = 2, 3  # ranks along each axis
GRID = {"h": P_h, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 6  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In and dIn
    "x": ("h",),  # a slice of Ker and dKer
}

N_b, N_c, N_k = 2, 4, 6  # samples, input and output channels
N_h, N_w = 7, 5  # output positions
N_r, N_s = 3, 5  # kernel taps
I_h, I_w = 7, 13  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, padding=1, first=1, step=2),
    "w": Window(I_w, N_s, stride=3, padding=2),
}
TILES = {  # of a work block in each pass, outermost loop first
    "forward": {"h": 2, "c": 2},
    "backward_data": {"c": 2},
    "backward_filter": {"w": 2, "c": 2},
}
STEPS = {"forward": 4, "backward_data": 2, "backward_filter": 4}


def forward(in_own, ker_own, at, groups, context):
    """This rank's shard of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`; `groups`
    holds the group of this rank for every entry of GROUP_AXES; `context` counts
    received words. Also returned, for later passes: `in_slice`.
    """
    tiles, steps = TILES["forward"], STEPS["forward"]

    # All ranks along k need the same slice of In.
    in_group = groups["k"].counted(context, "expand", "In")
    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "expand", "Ker")

    # The output rows of a block read input rows that its neighbours own.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    in_box = touched_in(work(at))
    in_pending = gather(in_box, in_wide, carried_in, in_group)
    ker_box = touched_ker(work(at))
    ker_pending = gather(ker_box, ker_own, owned_ker, ker_group, step=1)
    in_slice, ker_slice = wait_gather(in_pending), wait_gather(ker_pending)

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))
    for step in range(steps):
        block = tile(at, step, tiles)
        in_tile = in_slice[within(touched_in(block), in_box)]
        ker_tile = ker_slice[within(touched_ker(block), ker_box)]
        place = within(touched_out(block), out_box)
        out[place] += convolve(F.conv2d, in_tile, ker_tile, block, WINDOWS, context)
        context.check_finite("Out", step, out)

    return out, in_slice


def backward_data(ker_own, dout_own, at, groups, context):
    """A function that waits for this rank's shard of dIn and returns it.

    `ker_own` and `dout_own` hold the boxes `owned_ker(at)` and `owned_out(at)`;
    `groups` holds the group of this rank for every entry of GROUP_AXES; `context`
    counts received words. The shard has the words of the box `owned_in(at)`.
    """
    tiles, steps = TILES["backward_data"], STEPS["backward_data"]

    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "loop", "Ker")
    # Each rank along k holds a partial sum of the same slice of dIn.
    din_group = groups["k"].counted(context, "loop", "In")

    din_box = carried_in(at)
    din = ker_own.new_zeros(shape(din_box))
    pending_sums = []

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step, tiles), {}
        pending["Ker"] = gather(touched_ker(block), ker_own, owned_ker, ker_group, step)
        return pending

    panels, pending = {}, fetch(0)
    for step in range(steps):
        block = tile(at, step, tiles)
        wait_gathers(pending, panels)
        if step + 1 < steps:
            pending = fetch(step + 1)  # travels while this step computes
        sums = input_gradient(panels["Ker"], dout_own, block, WINDOWS, context)
        context.check_finite("dIn", step, sums)
        wait_reduces(pending_sums, din, din_box)  # of the panel before
        pending_sums.append(
            reduce(sums, touched_in(block), carried_in, din_group, step)
        )
        del sums

    def finish():
        """Wait for the sums of dIn."""
        wait_reduces(pending_sums, din, din_box)
        # The rows of dIn that a block computes for its neighbours are added where they
        # are owned.
        neighbours = neighbours_along(
            at, GRID, ("h",), context.counter("return", 0, "In"), context.ranks
        )
        return return_rows(din, carried_in, owned_in, neighbours, in_place=True)

    return finish


def backward_filter(in_slice, dout_own, at, groups, context):
    """This rank's shard of dKer: its words of the box `owned_ker(at)`.

    `in_slice` and `dout_own` hold the boxes `touched_in(work(at))` and `owned_out(at)`;
    `groups` holds the group of this rank for every entry of GROUP_AXES; `context`
    counts received words.
    """
    tiles, steps = TILES["backward_filter"], STEPS["backward_filter"]

    # Each rank along x holds a partial sum of the same slice of dKer.
    dker_group = groups["x"].counted(context, "loop", "Ker")

    dker_box = owned_ker(at)
    dker = in_slice.new_zeros(shape(dker_box))
    pending_sums = []
    for step in range(steps):
        block = tile(at, step, tiles)
        in_tile = in_slice[within(touched_in(block), touched_in(work(at)))]
        dout_tile = dout_own[within(touched_out(block), owned_out(at))]
        sums = kernel_gradient(in_tile, dout_tile, block, WINDOWS, context)
        context.check_finite("dKer", step, sums)
        wait_reduces(pending_sums, dker, dker_box)  # of the panel before
        pending_sums.append(
            reduce(sums, touched_ker(block), owned_ker, dker_group, step)
        )
        del sums
    wait_reduces(pending_sums, dker, dker_box)

    return dker


class Layer(torch.autograd.Function):
    """The layer for autograd; `ctx` saves what later passes reuse."""

    @staticmethod
    def forward(ctx, in_own, ker_own, at, groups, context):
        """Out, from the shards of In and Ker."""
        ctx.place = at, groups, context
        place = at, groups, context.for_pass("forward")
        out, in_slice = forward(in_own, ker_own, *place)
        ctx.save_for_backward(in_slice, ker_own)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout_own):
        """dIn and dKer, from the shard of dOut."""
        at, groups, context = ctx.place
        in_slice, ker_own = ctx.saved_tensors
        place = at, groups, context.for_pass("backward-data")
        finish = backward_data(ker_own, dout_own, *place)
        # Sums of dIn travel while dKer is computed.
        place = at, groups, context.for_pass("backward-filter")
        dker = backward_filter(in_slice, dout_own, *place)
        din = finish()
        return din, dker, None, None, None


def run(in_own, ker_own, dout_own, at, groups, context):
    """A training step: this rank's shards of Out, dIn and dKer."""
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)
    context.check_shard("dOut", dout_own, owned_out(at), DTYPE)
    given = in_own.detach().requires_grad_(), ker_own.detach().requires_grad_()
    out = Layer.apply(*given, at, groups, context)
    return out.detach(), *torch.autograd.grad(out, given, dout_own)


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
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step, tiles):
    """The part of that block which one step of a pass works on."""
    block = work(at)
    for axis, index in tile_indices(step, tiles).items():
        block[axis] = cut(block[axis], tiles[axis], index)
    return block


def owned_in(at):
    """The box of In[b, c, h, w] and dIn that only the rank at `at` stores."""
    return (0, N_b), (0, N_c), cut((0, I_h), P_h, at["h"]), cut((0, I_w), P_k, at["k"])


def touched_in(block):
    """The box of In[b, c, h, w] and dIn that a block of the nest accesses."""
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
    """The box of Ker[k, c, r, s] and dKer that only the rank at `at` stores."""
    return cut((0, N_k), P_k, at["k"]), cut((0, N_c), P_h, at["h"]), (0, N_r), (0, N_s)


def touched_ker(block):
    """The box of Ker[k, c, r, s] and dKer that a block of the nest accesses."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] and dOut that only the rank at `at` stores."""
    return (0, N_b), cut((0, N_k), P_k, at["k"]), cut((0, N_h), P_h, at["h"]), (0, N_w)


def touched_out(block):
    """The box of Out[b, k, h, w] and dOut that a block of the nest accesses."""
    return block["b"], block["k"], block["h"], block["w"]


# The layer as torch has it.
IN_SHAPE = (N_b, N_c, 15, 13)
KER_SHAPE = (N_k, N_c, N_r, N_s)
OUT_SHAPE = (N_b, N_k, N_h, N_w)
SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE
STRIDE, PADDING, DILATION = (2, 3), (1, 2), (2, 1)
FLOPS = 151_200  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
# A gradient counts as its tensor: dIn as In.
MOST = {"In": 800, "Ker": 240, "Out": 0, "halo": 80, "total": 1040}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 800, "Ker": 240, "Out": 0, "halo": 80, "total": 1040},
    1: {"In": 744, "Ker": 240, "Out": 0, "halo": 64, "total": 984},
    3: {"In": 656, "Ker": 240, "Out": 0, "halo": 80, "total": 896},
    4: {"In": 608, "Ker": 240, "Out": 0, "halo": 64, "total": 848},
}


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return reference(
        F.conv2d, IN_SHAPE, KER_SHAPE, box, DTYPE, device, STRIDE, PADDING, DILATION
    )


def expected_din(at, device):
    """The same shard of dIn from one torch call."""
    box = owned_in(at)
    return gradient(
        "dIn", F.conv2d, SHAPES, box, DTYPE, device, STRIDE, PADDING, DILATION, WINDOWS
    )


def expected_dker(at, device):
    """The same shard of dKer from one torch call."""
    box = owned_ker(at)
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
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    dout_own = sample_box("dOut", OUT_SHAPE, owned_out(at), DTYPE, device)
    # with room for its ghost rows, so that the halo costs no copy
    in_own = world.context.rooms.keep(in_own, owned_in(at), carried_in(at))
    job = partial(run, in_own, ker_own, dout_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
        Result("dIn", owned_in(at), partial(expected_din, at, device)),
        Result("dKer", owned_ker(at), partial(expected_dker, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
