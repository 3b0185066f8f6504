"""matrix: matmul forward on 6 ranks as a grid b=3 x k=2.

Emitted by `synth emit layer.yaml --procs 7` (plan b0dc543b7b4c).
Change the plan, not this file.

Run    torchrun --nproc-per-node=6 PROGRAM.py --check
       or with 7 ranks, 1 of them idle
Nest   Out[b,k] += In[b,c] * Ker[k,c]
       b=12 c=14 k=10
Form   2D: Out stays, In and Ker pass in 2 panels along c, ranks that share In at
       different ones
Owned  In: b over b, c over k
       Ker: k over k, c over x (x: b)
       Out: b over b, k over k
Moves  In 28, Ker 50, Out 0: at most 78 words received per rank
Memory at most 219 words of 4 bytes per rank
"""

import sys
from functools import partial

import torch

from synth.runtime.comm.collectives import all_gather, all_gather_own, settle
from synth.runtime.grid.boxes import cut, overlap, shape, volume, within
from synth.runtime.grid.process_grid import make_groups, start
from synth.runtime.program.check import reference
from synth.runtime.program.cli import Facts, Result, Share, arguments, conclude
from synth.runtime.program.sample_data import sample_box

NAME = "matrix"
PLAN = "b0dc543b7b4c"
DTYPE = torch.float32

P_b, P_k = 3, 2  # ranks along each axis
GRID = {"b": P_b, "k": P_k}  # the last axis varies fastest over the ranks
PROCS = 7  # ranks that may be started
LINES = {  # what the ranks that differ only along these axes share
    "k": ("k",),  # a slice of In
    "x": ("b",),  # a slice of Ker
}

N_b, N_c, N_k = 12, 14, 10  # rows of Out, terms of a sum, columns of Out
STEPS = 2  # tiles of a work block along c

IN_SHAPE, KER_SHAPE = (N_b, N_c), (N_k, N_c)  # Ker as torch's linear has it
FLOPS = 3_360  # of the whole layer

# Words received, as planned: by the rank that receives most, and by each rank.
MOST = {"In": 28, "Ker": 50, "Out": 0, "halo": 0, "total": 78}
# An entry of WORDS holds for the rank that it names and for all before the next entry.
WORDS = {
    0: {"In": 28, "Ker": 45, "Out": 0, "halo": 0, "total": 73},
    4: {"In": 28, "Ker": 50, "Out": 0, "halo": 0, "total": 78},
}


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
    # Ranks that share a slice of In are at different panels.
    first = at["k"]
    step = (first + step) % STEPS
    block["c"] = cut(block["c"], STEPS, step)
    return block


def owned_in(at):
    """The box of In[b, c] that the rank at `at` alone stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_c), P_k, at["k"])


def touched_in(block):
    """The box of In[b, c] that a block of the nest reads."""
    return block["b"], block["c"]


def owned_ker(at):
    """The box of Ker[k, c] that the rank at `at` alone stores."""
    return cut((0, N_k), P_k, at["k"]), cut((0, N_c), P_b, at["b"])


def touched_ker(block):
    """The box of Ker[k, c] that a block of the nest reads."""
    return block["k"], block["c"]


def owned_out(at):
    """The box of Out[b, k] that the rank at `at` alone stores."""
    return cut((0, N_b), P_b, at["b"]), cut((0, N_k), P_k, at["k"])


def touched_out(block):
    """The box of Out[b, k] that a block of the nest adds to."""
    return block["b"], block["k"]


def gather(panel, here, carried, group, count):
    """Start to bring a panel to all ranks of a group: each hands out what it carries.

    `here` holds `carried(at)` of this rank.
    """
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    mine = parts[group.me]
    own = here[within(mine, carried(group.peers[group.me]))].contiguous()
    count(volume(panel) - volume(mine))
    return all_gather(panel, parts, own, group)


def gather_own(panels, here, carried, group, count):
    """Start to bring each rank of a group its own panel; its share is part of one panel.

    panels: those of all ranks; `here` holds `carried(at)` of this one.
    """
    panel, mine = panels[group.me], carried(group.peers[group.me])
    parts = [overlap(carried(peer), panel) for peer in group.peers]
    uses = [volume(overlap(mine, theirs)) > 0 for theirs in panels]
    count(volume(panel) - volume(parts[group.me]))
    return all_gather_own(panel, parts, here, uses, group)


def run(in_own, ker_own, at, groups, words):
    """This rank's share of Out: its words of the box `owned_out(at)`.

    `in_own` and `ker_own` hold the boxes `owned_in(at)` and `owned_ker(at)`, `groups`
    the group of this rank for every entry of LINES; `words` counts what arrives.
    """
    words.given("In", in_own, owned_in(at), DTYPE)
    words.given("Ker", ker_own, owned_ker(at), DTYPE)

    out_box = touched_out(work(at))
    out = in_own.new_zeros(shape(out_box))

    def fetch(step):
        """Start to bring in the panels that `step` waits for."""
        block, coming = tile(at, step), {}
        # All ranks along k need the same slice of In.
        peers = groups["k"].peers
        wanted = [touched_in(tile(peer, step)) for peer in peers]
        count = words.counter("loop", step, "In")
        coming["In"] = gather_own(wanted, in_own, owned_in, groups["k"], count)
        # All ranks along x need the same slice of Ker.
        panel, count = touched_ker(block), words.counter("loop", step, "Ker")
        coming["Ker"] = gather(panel, ker_own, owned_ker, groups["x"], count)
        return coming

    panels, coming = {}, fetch(0)

    for step in range(STEPS):
        settle(coming, panels)
        if step + 1 < STEPS:
            coming = fetch(step + 1)  # travels while this step computes
        out += panels["In"] @ panels["Ker"].mT
        words.look("Out", step, out)

    return out


def expected_out(at, device):
    """The same share of Out from one torch call, with the layer's own numbers."""
    box = owned_out(at)
    return reference(None, IN_SHAPE, KER_SHAPE, box, DTYPE, device)


def main():
    """What one rank does; whoever has real tensors calls `run` in the same way."""
    args = arguments(__doc__)
    facts = Facts(NAME, PLAN, DTYPE, FLOPS, MOST, WORDS)
    world = start(PLAN, GRID, PROCS, args.timeout, args.device)
    at, device = world.at, world.device
    if at is None:  # the grid has no place for this rank: it only waits for the others
        return conclude(args, world, facts)
    groups = make_groups(at, GRID, LINES, args.timeout)
    in_own = sample_box("In", IN_SHAPE, owned_in(at), DTYPE, device)
    ker_own = sample_box("Ker", KER_SHAPE, owned_ker(at), DTYPE, device)
    job = partial(run, in_own, ker_own, at, groups)
    results = [
        Result("Out", owned_out(at), partial(expected_out, at, device)),
    ]
    return conclude(args, world, facts, Share(job, results))


if __name__ == "__main__":
    sys.exit(main())
