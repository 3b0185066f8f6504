"""up: transposed conv2d training on 8 ranks as a grid h=2 x c=2 x k=2.

Emitted by `synth emit layers/up.yaml --procs 8 --grid h=2,c=2,k=2 --pass training --rows h=out -o training_transposed.py` (plan a05499f0363a).
Change the plan, not this file.

Run    torchrun --nproc-per-node=8 training_transposed.py --check
Plan   --as "h=2 c=2 k=2; backward-data Out; saves Ker,Out; forward Out; reuses Ker;
       saves In; backward-filter Out; reuses In,Out"
       of `synth emit` names the schedule; change it there
Layer  the backward-data pass of a conv2d: the input of the layer is dOut, its output
       dIn; the gradients of these two are Out and In
Nest   dIn[b,c,2h+r-1,2w+s-1] += dOut[b,k,h,w] * Ker[k,c,r,s]
       Out[b,k,h,w] += In[b,c,2h+r-1,2w+s-1] * Ker[k,c,r,s]
       dKer[k,c,r,s] += dOut[b,k,h,w] * In[b,c,2h+r-1,2w+s-1]
       b=2 h=5 w=6 c=6 k=8 r=3 s=3
Form   backward-data: dOut stationary, dIn streamed in one panel; saves Ker and dOut
       forward: Out stationary; reuses Ker; saves In; reduce overlaps backward-filter
       backward-filter: dOut stationary, dKer streamed in one panel; reuses In and dOut
Owned  In and dIn: b over k, c over c, h over h; partial sums of dIn along k until
       reduced
       Ker and dKer: k over k then x, c over c (x: h); partial sums of dKer along x
       until reduced
       Out and dOut: k over k then c, h over h; partial sums of Out along c until
       reduced
Moves  backward-data: dIn 216 (halo 36), Ker 54, dOut 72
       forward: In 252 (halo 36), Ker 0, Out 72
       backward-filter: In 0 (halo 0), dKer 54, dOut 0
       together: In and dIn 468 (halo 36), Ker and dKer 108, Out and dOut 144: at most
       720 words received per rank
Memory at most 2016 words of 4 bytes per rank
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
    wait_reduce,
)
from synth.runtime.comm.halo_exchange import fetch_rows, neighbours_along, return_rows
from synth.runtime.grid.boxes import Window, cut, input_rows, overlap, volume, within
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

NAME = "up"
PLAN = "a05499f0363a"
DTYPE = torch.float32

P_h, P_c, P_k = 2, 2, 2  # ranks along each axis
GRID = {"h": P_h, "c": P_c, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 8  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In and dIn
    "x": ("h",),  # a slice of Ker and dKer
    "c": ("c",),  # a slice of Out and dOut
}

N_b, N_c, N_k = 2, 6, 8  # samples, input and output channels
N_h, N_w = 5, 6  # output positions
N_r, N_s = 3, 3  # kernel taps
I_h, I_w = 10, 12  # input positions that are read
WINDOWS = {  # how output positions read input positions
    "h": Window(I_h, N_r, stride=2, padding=1),
    "w": Window(I_w, N_s, stride=2, padding=1),
}


def backward_data(ker_own, dout_own, at, groups, context):
    """This rank's shard of dIn: its words of the box `owned_in(at)`.

    `ker_own` and `dout_own` hold the boxes `owned_ker(at)` and `owned_out(at)`;
    `groups` holds the group of this rank for every entry of GROUP_AXES; `context`
    counts received words. Also returned, for later passes: `ker_slice` and
    `dout_slice`.
    """
    # All ranks along x need the same slice of Ker.
    ker_group = groups["x"].counted(context, "expand", "Ker")
    # All ranks along c need the same slice of dOut.
    dout_group = groups["c"].counted(context, "expand", "Out")
    # Each rank along k holds a partial sum of the same slice of dIn.
    din_group = groups["k"].counted(context, "loop", "In")

    ker_box = touched_ker(work(at))
    ker_pending = gather(ker_box, ker_own, owned_ker, ker_group)
    dout_box = touched_out(work(at))
    dout_pending = gather(dout_box, dout_own, owned_out, dout_group, step=1)
    ker_slice, dout_slice = wait_gather(ker_pending), wait_gather(dout_pending)

    din_box = touched_in(work(at))
    block = work(at)
    din = input_gradient(ker_slice, dout_slice, block, WINDOWS, context)
    context.check_finite("dIn", 0, din)

    pending_sum = reduce(din, din_box, carried_in, din_group)
    total = wait_reduce(pending_sum)
    del din

    # The rows of dIn that a block computes for its neighbours are added where they are
    # owned.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("return", 0, "In"), context.ranks
    )
    din_own = return_rows(total, carried_in, owned_in, neighbours, in_place=True)

    return din_own, ker_slice, dout_slice


def forward(in_own, ker_slice, at, groups, context):
    """A function that waits for this rank's shard of Out and returns it.

    `in_own` and `ker_slice` hold the boxes `owned_in(at)` and `touched_ker(work(at))`;
    `groups` holds the group of this rank for every entry of GROUP_AXES; `context`
    counts received words. The shard has the words of the box `owned_out(at)`. Also
    returned, for later passes: `in_slice`.
    """
    # All ranks along k need the same slice of In.
    in_group = groups["k"].counted(context, "expand", "In")
    # Each rank along c holds a partial sum of the same slice of Out.
    out_group = groups["c"].counted(context, "reduce", "Out")

    # The output rows of a block read input rows that its neighbours own.
    neighbours = neighbours_along(
        at, GRID, ("h",), context.counter("halo", 0, "In"), context.ranks
    )
    in_wide = fetch_rows(in_own, owned_in, carried_in, neighbours, rooms=context.rooms)

    in_box = touched_in(work(at))
    in_pending = gather(in_box, in_wide, carried_in, in_group)
    in_slice = wait_gather(in_pending)

    out_box = touched_out(work(at))
    block = work(at)
    out = convolve(F.conv2d, in_slice, ker_slice, block, WINDOWS, context)
    context.check_finite("Out", 0, out)

    pending_sum = reduce(out, out_box, owned_out, out_group)

    def finish():
        """Wait for the sums of Out."""
        return wait_reduce(pending_sum)

    return finish, in_slice


def backward_filter(in_slice, dout_slice, at, groups, context):
    """This rank's shard of dKer: its words of the box `owned_ker(at)`.

    `in_slice` and `dout_slice` hold the boxes `touched_in(work(at))` and
    `touched_out(work(at))`; `groups` holds the group of this rank for every entry of
    GROUP_AXES; `context` counts received words.
    """
    # Each rank along x holds a partial sum of the same slice of dKer.
    dker_group = groups["x"].counted(context, "loop", "Ker")

    dker_box = touched_ker(work(at))
    block = work(at)
    dker = kernel_gradient(in_slice, dout_slice, block, WINDOWS, context)
    context.check_finite("dKer", 0, dker)

    pending_sum = reduce(dker, dker_box, owned_ker, dker_group)
    return wait_reduce(pending_sum)


class Layer(torch.autograd.Function):
    """The layer for autograd; `ctx` saves what later passes reuse."""

    @staticmethod
    def forward(ctx, dout_own, ker_own, at, groups, context):
        """dIn, from the shards of dOut and Ker."""
        ctx.place = at, groups, context
        place = at, groups, context.for_pass("backward-data")
        din, ker_slice, dout_slice = backward_data(ker_own, dout_own, *place)
        ctx.save_for_backward(dout_slice, ker_slice)
        return din

    @staticmethod
    @once_differentiable
    def backward(ctx, in_own):
        """Out and dKer, from the shard of In."""
        at, groups, context = ctx.place
        dout_slice, ker_slice = ctx.saved_tensors
        place = at, groups, context.for_pass("forward")
        finish, in_slice = forward(in_own, ker_slice, *place)
        # Sums of Out travel while dKer is computed.
        place = at, groups, context.for_pass("backward-filter")
        dker = backward_filter(in_slice, dout_slice, *place)
        out = finish()
        return out, dker, None, None, None


def run(in_own, ker_own, dout_own, at, groups, context):
    """A training step: this rank's shards of dIn, Out and dKer."""
    context.check_shard("In", in_own, owned_in(at), DTYPE)
    context.check_shard("Ker", ker_own, owned_ker(at), DTYPE)
    context.check_shard("dOut", dout_own, owned_out(at), DTYPE)
    given = dout_own.detach().requires_grad_(), ker_own.detach().requires_grad_()
    din = Layer.apply(*given, at, groups, context)
    return din.detach(), *torch.autograd.grad(din, given, in_own)


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


def owned_in(at):
    """The box of In[b, c, h, w] and dIn that only the rank at `at` stores."""
    return (
        cut((0, N_b), P_k, at["k"]),
        cut((0, N_c), P_c, at["c"]),
        cut((0, I_h), P_h, at["h"]),
        (0, I_w),
    )


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
    return b, c, input_rows(block["h"], WINDOWS["h"]), w


def owned_ker(at):
    """The box of Ker[k, c, r, s] and dKer that only the rank at `at` stores."""
    return (
        cut(cut((0, N_k), P_k, at["k"]), P_h, at["h"]),
        cut((0, N_c), P_c, at["c"]),
        (0, N_r),
        (0, N_s),
    )


def touched_ker(block):
    """The box of Ker[k, c, r, s] and dKer that a block of the nest accesses."""
    return block["k"], block["c"], (0, N_r), (0, N_s)


def owned_out(at):
    """The box of Out[b, k, h, w] and dOut that only the rank at `at` stores."""
    return (
        (0, N_b),
        cut(cut((0, N_k), P_k, at["k"]), P_c, at["c"]),
        cut((0, N_h), P_h, at["h"]),
        (0, N_w),
    )


def touched_out(block):
    """The box of Out[b, k, h, w] and dOut that a block of the nest accesses."""
    return block["b"], block["k"], block["h"], block["w"]


# The convolution as torch has it.
IN_SHAPE = (N_b, N_c, 10, 12)
KER_SHAPE = (N_k, N_c, N_r, N_s)
OUT_SHAPE = (N_b, N_k, N_h, N_w)
SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE
STRIDE, PADDING, DILATION = (2, 2), (1, 1), (1, 1)
FLOPS = 155_520  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
# A gradient counts as its tensor: dIn as In.
MOST = {"In": 468, "Ker": 108, "Out": 144, "halo": 36, "total": 720}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 468, "Ker": 108, "Out": 144, "halo": 36, "total": 720},
    4: {"In": 396, "Ker": 108, "Out": 96, "halo": 36, "total": 600},
}


def expected_din(at, device):
    """The same shard of dIn from one torch call."""
    box = owned_in(at)
    return gradient(
        "dIn", F.conv2d, SHAPES, box, DTYPE, device, STRIDE, PADDING, DILATION, WINDOWS
    )


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return reference(
        F.conv2d, IN_SHAPE, KER_SHAPE, box, DTYPE, device, STRIDE, PADDING, DILATION
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
        Result("dIn", owned_in(at), partial(expected_din, at, device)),
        Result("Out", owned_out(at), partial(expected_out, at, device)),
        Result("dKer", owned_ker(at), partial(expected_dker, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
