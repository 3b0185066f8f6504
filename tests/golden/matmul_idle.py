"""matrix: matmul forward on 6 ranks as a grid b=3 x k=2.

Emitted by `synth emit layers/matrix.yaml --procs 7 --grid b=3,k=2 --panels 2 -o matmul_idle.py` (plan b0dc543b7b4c).
Change the plan, not this file.

Run    torchrun --nproc-per-node=6 matmul_idle.py --check
       or with 7 ranks, 1 of them idle
Plan   --as "b=3 k=2; Out; c/2"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k] += In[b,c] * Ker[k,c]
       b=12 c=14 k=10
Form   2D: Out stationary, In and Ker streamed in 2 panels along c (In rotated)
Owned  In: b over b, c over k
       Ker: k over k, c over x (x: b)
       Out: b over b, k over k
Moves  In 28, Ker 50, Out 0: at most 78 words received per rank
Memory at most 260 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch

from synth.runtime.comm.collectives import all_gather, all_gather_rotated, wait_gathers
from synth.runtime.grid.boxes import cut, overlap, shape, volume, within
from synth.runtime.kernels.matrix_product import matrix_product
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

NAME = "matrix"
PLAN = "b0dc543b7b4c"
DTYPE = torch.float32

P_b, P_k = 3, 2  # ranks along each axis
GRID = {"b": P_b, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 7  # ranks that may be started
GROUP_AXES = {  # the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("b",),  # a slice of Ker
}

N_b, N_c, N_k = 12, 14, 10  # rows of Out, terms of a sum, columns of Out
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

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))

    def fetch(step):
        """Start to gather the panels that `step` uses."""
        block, pending = tile(at, step), {}
        wanted = [touched_in(tile(peer, step)) for peer in in_group.peers]
        pending["In"] = gather_rotated(wanted, in_own, owned_in, in_group, step)
        pending["Ker"] = gather(touched_ker(block), ker_own, owned_ker, ker_group, step)
        return pending

    panels, pending = {}, fetch(0)
    for step in range(STEPS):
        wait_gathers(pending, panels)
        if step + 1 < STEPS:
            pending = fetch(step + 1)  # travels while this step computes
        out += matrix_product(panels["In"], panels["Ker"].mT)
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
        "b": cut((0, N_b), P_b, at["b"]),
        "c": (0, N_c),
        "k": cut((0, N_k), P_k, at["k"]),
    }


def tile(at, step):
    """The part of that block which one step works on."""
    block = work(at)
    # Ranks that share a slice of In start at different panels (rotation).
    first = at["k"]
    step = (first + step) % STEPS
    block["c"] = cut(block["c"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, c] that only the rank at `at` stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_c), P_k, at["k"])


def touched_in(block):
    """The box of In[b, c] that a block of the nest reads."""
    return block["b"], block["c"]


def owned_ker(at):
    """The box of Ker[k, c] that only the rank at `at` stores."""
    return cut((0, N_k), P_k, at["k"]), cut((0, N_c), P_b, at["b"])


def touched_ker(block):
    """The box of Ker[k, c] that a block of the nest reads."""
    return block["k"], block["c"]


def owned_out(at):
    """The box of Out[b, k] that only the rank at `at` stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_k), P_k, at["k"])


def touched_out(block):
    """The box of Out[b, k] that a block of the nest adds to."""
    return block["b"], block["k"]


IN_SHAPE, KER_SHAPE = (N_b, N_c), (N_k, N_c)  # Ker as torch's linear has it
FLOPS = 3_360  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 28, "Ker": 50, "Out": 0, "halo": 0, "total": 78}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 28, "Ker": 45, "Out": 0, "halo": 0, "total": 73},
    4: {"In": 28, "Ker": 50, "Out": 0, "halo": 0, "total": 78},
}


def expected_out(at, device):
    """The same shard of Out from one torch call."""
    box = owned_out(at)
    return reference(None, IN_SHAPE, KER_SHAPE, box, DTYPE, device)


def main():
    """What one rank does; a caller with real tensors calls `run` in the same way."""
    args = parse_arguments(__doc__)
    summary = PlanSummary(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    if at is None:  # the grid has no place for this rank: it only waits for the others
        return run_program(args, world, summary)
    groups = world.context.make_groups(at, GRID, GROUP_AXES, args.timeout)
    in_own = sample_box("In", IN_SHAPE, owned_in(at), DTYPE, device)
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return run_program(args, world, summary, RankJob(job, results))


if __name__ == "__main__":
    sys.exit(main())
