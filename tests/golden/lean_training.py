"""strided: conv2d training on 6 ranks as a grid h=2 x k=3.

Emitted by `synth emit --plan plans/training_tiles.json --lean -o lean_training.py` (plan 1bd7c76b2d18).
It needs torch alone; copy what you need.

Run    torchrun --nproc-per-node=6 lean_training.py --check
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
       dOut
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
Lean   each move is one all-to-all, and messages and computing alternate; a rank that is
       lost shows as an error of torch.distributed
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

NAME = "strided"
DTYPE = torch.float32
GRID = {"h": 2, "k": 3}  # ranks along each axis, the last one fastest
PROCS = 6  # ranks that may be started
N = {"b": 2, "h": 7, "w": 5, "c": 4, "k": 6, "r": 3, "s": 5}
AXES = "bhwck"
DIMS = {"In": "bchw", "Ker": "kcrs", "Out": "bkhw"}
# Ranks along these axes share a slice of a tensor, and own parts of it.
SHARED = {"In": ("k",), "Ker": ("h",), "Out": ()}
SHARDS = {"In": {"w": 3}, "Ker": {"c": 2}, "Out": {}}
HALO = {"In": "hw", "Ker": "", "Out": ""}
# Rows of In that are read, taps, stride, dilation, zeros before.
WINDOWS = {"h": (7, 3, 1, 1, 1), "w": (13, 5, 3, 1, 2)}
EXCHANGES = (("h",), ("k",))  # axes of groups of ranks
GROUPS = {}  # axes -> the ranks along them, torch's group, this rank
RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In


def forward(in_own, ker_own, at):
    """This rank's shard of Out, and `in_slice` for later passes."""
    tiles = {"h": 2, "c": 2}  # of the block, outermost loop first
    # The output rows of a block read input rows that its neighbours own.
    in_wide = exchange("In", in_own, owned, carried, ("h",))
    # All ranks along k need the same slice of In.
    in_slice = exchange("In", in_wide, carried, touching(work), ("k",))
    # All ranks along x need the same slice of Ker.
    ker_slice = exchange("Ker", ker_own, owned, touching(work), ("h",))
    out = torch.zeros(shape(touched("Out", work(at))), dtype=DTYPE)
    for step in range(4):
        block = tile(at, step, tiles)
        in_tile = in_slice[within(touched("In", block), touched("In", work(at)))]
        ker_tile = ker_slice[within(touched("Ker", block), touched("Ker", work(at)))]
        out[within(touched("Out", block), touched("Out", work(at)))] += convolve(
            in_tile, ker_tile, block
        )
    return out, in_slice


def backward_data(ker_own, dout_own, at):
    """This rank's shard of dIn."""
    tiles = {"c": 2}  # of the block, outermost loop first
    din = torch.zeros(shape(carried("In", at)), dtype=DTYPE)
    for step in range(2):
        block = tile(at, step, tiles)
        # All ranks along x need the same slice of Ker.
        ker_panel = exchange("Ker", ker_own, owned, touching(tile, step, tiles), ("h",))
        sums = input_gradient(ker_panel, dout_own, block)
        # Each rank along k holds a partial sum of the same slice of dIn.
        din += exchange("In", sums, touching(tile, step, tiles), carried, ("k",))
    # The rows of dIn that a block computes for its neighbours are added where they are
    # owned.
    return exchange("In", din, carried, owned, ("h",))


def backward_filter(in_slice, dout_own, at):
    """This rank's shard of dKer."""
    tiles = {"w": 2, "c": 2}  # of the block, outermost loop first
    dker = torch.zeros(shape(owned("Ker", at)), dtype=DTYPE)
    for step in range(4):
        block = tile(at, step, tiles)
        in_tile = in_slice[within(touched("In", block), touched("In", work(at)))]
        dout_tile = dout_own[within(touched("Out", block), owned("Out", at))]
        sums = kernel_gradient(in_tile, dout_tile, block)
        # Each rank along x holds a partial sum of the same slice of dKer.
        dker += exchange("Ker", sums, touching(tile, step, tiles), owned, ("h",))
    return dker


def run(in_own, ker_own, dout_own, at):
    """A training step: this rank's shards of Out, dIn and dKer."""
    out, in_slice = forward(in_own, ker_own, at)
    din = backward_data(ker_own, dout_own, at)
    dker = backward_filter(in_slice, dout_own, at)
    return out, din, dker


def exchange(tensor, values, held, wanted, axes):
    """The box that this rank wants, from the ranks that differ from it along `axes`.

    held, wanted: (tensor, rank) -> the box that it has in `values`, and that it wants.
    Words that several ranks hold are added; a gather is a sum of disjoint boxes.
    """
    peers, group, me = GROUPS[axes]
    here, there = held(tensor, me), wanted(tensor, me)
    sent = [overlap(here, wanted(tensor, peer)) for peer in peers]
    got = [overlap(there, held(tensor, peer)) for peer in peers]
    sizes = [[math.prod(shape(box)) for box in boxes] for boxes in (got, sent)]
    outgoing = torch.cat([values[within(box, here)].flatten() for box in sent])
    incoming = values.new_empty(sum(sizes[0]))
    dist.all_to_all_single(incoming, outgoing, *sizes, group=group)
    result = values.new_zeros(shape(there))
    for peer, box, words in zip(peers, got, incoming.split(sizes[0]), strict=True):
        if words.numel():
            result[within(box, there)] += words.view(shape(box))
        RECEIVED[tensor] += words.numel() * (peer != me)
    return result


def work(at):
    """The block of the nest that the rank at `at` works on: axis -> interval."""
    return {
        axis: cut((0, N[axis]), GRID.get(axis, 1), at.get(axis, 0)) for axis in AXES
    }


def tile(at, step, tiles):
    """The part of that block which one step works on; the last tile runs fastest."""
    block, index = work(at), digits(step, tiles)
    return block | {axis: cut(block[axis], tiles[axis], index[axis]) for axis in tiles}


def touched(tensor, block):
    """The box of a tensor that a block of the nest reads or adds to."""
    rows = {dim: (0, extent) for dim, extent in N.items()} | block
    if tensor == "In":
        rows["h"] = input_rows(block["h"], WINDOWS["h"])
        rows["w"] = input_rows(block["w"], WINDOWS["w"])
    return [rows[dim] for dim in DIMS[tensor]]


def touching(block, *step):
    """(tensor, rank) -> the box that its block, or its tile of a step, touches."""
    return lambda tensor, at: touched(tensor, block(at, *step))


def owned(tensor, at, halo=False):
    """The box that the rank at `at` stores alone: its share of a slice."""
    box = []
    for dim in DIMS[tensor]:
        extent = WINDOWS[dim][0] if tensor == "In" and dim in WINDOWS else N[dim]
        whole = cut((0, extent), GRID.get(dim, 1), at.get(dim, 0))
        parts, index = share(tensor, dim, at)
        low, high = cut(whole, parts, index)
        if halo and dim in HALO[tensor]:  # the ends have the rows beyond the slice
            need = touched(tensor, work(at))[len(box)]
            low = need[0] if index == 0 else low
            high = need[1] if index == parts - 1 else high
            low, high = overlap([(low, max(low, high))], [need])[0]
        box.append((low, high))
    return box


def carried(tensor, at):
    """That box with its halo."""
    return owned(tensor, at, halo=True)


def share(tensor, dim, at):
    """Into how many parts ranks cut a slice along a dimension, and whose is which."""
    member = 0
    for axis in SHARED[tensor]:
        member = member * GRID[axis] + at[axis]
    return SHARDS[tensor].get(dim, 1), digits(member, SHARDS[tensor]).get(dim, 0)


def digits(number, counts):
    """A number as one digit per key, the last one fastest; so ranks lie on the grid."""
    found = {}
    for key, count in reversed(counts.items()):
        number, found[key] = divmod(number, count)
    return found


def cut(whole, parts, index):
    """Part `index` of an interval (low, high); longer parts come first."""
    size, longer = divmod(whole[1] - whole[0], parts)
    low = whole[0] + index * size + min(index, longer)
    return low, low + size + (index < longer)


def overlap(one, other):
    """The words in both boxes."""
    pairs = zip(one, other, strict=True)
    return [(max(a, c), max(a, c, min(b, d))) for (a, b), (c, d) in pairs]


def within(box, frame):
    """The slices that pick a box out of a tensor that holds `frame`."""
    pairs = zip(box, frame, strict=True)
    return tuple(slice(low - first, high - first) for (low, high), (first, _) in pairs)


def shape(box):
    """Extent of a box along each dimension."""
    return [high - low for low, high in box]


def input_rows(rows, window):
    """The input rows that output rows read, without padding."""
    (low, high), (size, taps, stride, dilation, padding) = rows, window
    first = max(0, stride * low - padding)
    last = min(size, stride * (high - 1) + dilation * (taps - 1) + 1 - padding)
    return (first, last) if low < high and first < last else (0, 0)


def zeros(block):
    """Zeros around the input rows of a block, as F.pad takes them: last axis first."""
    found, made = [], touched("Out", block)[-2:]
    rows = zip(WINDOWS.values(), made, touched("In", block)[-2:], strict=True)
    for (_, taps, stride, dilation, padding), (low, high), (first, last) in rows:
        end = stride * (high - 1) + dilation * (taps - 1) + 1 - padding
        found = [first - stride * low + padding, end - last, *found]
    return found


def convolve(in_, ker, block):
    """What a block adds to Out, from exactly the input rows that it reads."""
    made = shape(touched("Out", block))
    if not (in_.numel() and ker.numel() and math.prod(made)):
        return in_.new_zeros(made)
    wide = F.pad(in_, zeros(block))
    out = F.conv2d(wide, ker, None, (1, 3), 0, (1, 1))
    return out.view(made)


def input_gradient(ker, dout, block):
    """What a block adds to dIn, on exactly the input rows that it reads."""
    made, around = shape(touched("In", block)), zeros(block)
    if not (ker.numel() and dout.numel() and math.prod(made)):
        return dout.new_zeros(made)
    ends = zip(made[-2:], around[-2::-2], around[::-2], strict=True)
    size = [made[0], math.prod(made[1:-2]), *map(sum, ends)]
    maps = size, ker, dout
    din = torch.nn.grad.conv2d_input(*maps, (1, 3), 0, (1, 1))
    return F.pad(din, [-n for n in around]).reshape(made)


def kernel_gradient(in_, dout, block):
    """What a block adds to dKer."""
    made = shape(touched("Ker", block))
    if not (in_.numel() and dout.numel() and math.prod(made)):
        return in_.new_zeros(made)
    wide = F.pad(in_, zeros(block))
    maps = wide, made, dout
    dker = torch.nn.grad.conv2d_weight(*maps, (1, 3), 0, (1, 1))
    return dker.view(made)


IN_SHAPE = (2, 4, 15, 13)
KER_SHAPE = (6, 4, 3, 5)
OUT_SHAPE = (2, 6, 7, 5)
STRIDE, DILATION, ZEROS = (2, 3), (2, 1), (2, 2, 1, 1)
USED = {  # dimension of In -> the rows that the stride does not skip
    2: range(1, 15, 2),
}
RESULTS = (("Out", "Out"), ("dIn", "In"), ("dKer", "Ker"))
MOST = 1040  # words that a rank receives
# Words received by a rank, and by all up to the next one.
WORDS = {
    0: {"In": 800, "Ker": 240, "Out": 0},
    1: {"In": 744, "Ker": 240, "Out": 0},
    3: {"In": 656, "Ker": 240, "Out": 0},
    4: {"In": 608, "Ker": 240, "Out": 0},
}


def sample(tensor, whole, box=None):
    """Integers from -4 to 4 in a box: a hash of each word's place in the whole."""
    index = torch.zeros((), dtype=torch.int64)
    for dim, extent in enumerate(whole):
        rows = USED.get(dim, range(extent)) if box and tensor == "In" else range(extent)
        places = list(rows[slice(*box[dim])] if box else rows)
        index = index.unsqueeze(-1) * extent + torch.tensor(places, dtype=torch.int64)
    mixed = (index % 2**31 + sum(map(ord, tensor))) * 1103515245 % 2**31
    mixed = (mixed ^ (mixed >> 15)) * 747796405 % 2**31
    return ((mixed ^ (mixed >> 13)) % 9 - 4).to(DTYPE)


def one_process():
    """Out, dIn and dKer of the whole layer, by torch in this process."""
    in_, ker = sample("In", IN_SHAPE), sample("Ker", KER_SHAPE)
    dout = sample("dOut", OUT_SHAPE)
    in_.requires_grad_(), ker.requires_grad_()
    out = F.conv2d(F.pad(in_, ZEROS), ker, None, STRIDE, 0, DILATION)
    din, dker = torch.autograd.grad(out, (in_, ker), dout)
    for dim, rows in USED.items():
        din = din.index_select(dim, torch.tensor(list(rows)))
    return out.detach(), din, dker


def main():
    """What one rank does: `run` on sample values; --check compares values and words."""
    dist.init_process_group("gloo")
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), math.prod(GRID.values())
    if sys.argv[1:] not in ([], ["--check"]) or not size <= ranks <= PROCS:
        sys.exit("Start 6 ranks, with --check or without." if rank == 0 else 1)
    places, faults = [digits(peer, GRID) for peer in range(size)], []
    for axes in EXCHANGES:  # all ranks make all groups
        fixed = [tuple(at[axis] for axis in GRID if axis not in axes) for at in places]
        for key in dict.fromkeys(fixed):
            peers = [peer for peer in range(size) if fixed[peer] == key]
            group = dist.new_group(peers)
            if rank in peers:
                GROUPS[axes] = [places[peer] for peer in peers], group, places[rank]
    if rank < size:  # the others are idle
        at = places[rank]
        in_own = sample("In", IN_SHAPE, owned("In", at))
        ker_own = sample("Ker", KER_SHAPE, owned("Ker", at))
        dout_own = sample("dOut", OUT_SHAPE, owned("Out", at))
        made = run(in_own, ker_own, dout_own, at)
        if sys.argv[1:]:
            results = zip(RESULTS, made, one_process(), strict=True)
            for (name, tensor), own, whole in results:
                right = whole[within(owned(tensor, at), [(0, n) for n in whole.shape])]
                if own.shape != right.shape or not ((own - right).abs() < 0.5).all():
                    faults.append(f"rank {rank}: {name} differs from one process")
        planned = WORDS[max(first for first in WORDS if first <= rank)]
        if planned not in (RECEIVED, {}):
            faults.append(f"rank {rank}: received {RECEIVED}, planned are {planned}")
    told = [None] * ranks
    dist.all_gather_object(told, (sum(RECEIVED.values()), faults))
    most, faults = max(told)[0], [each for _, found in told for each in found]
    faults += [] if most == MOST else [f"{most} words received, planned are {MOST}"]
    if rank == 0:
        print(
            f"{NAME}: {size} ranks, at most {most} words received per rank",
            *faults,
            sep="\n",
        )
        if not faults:
            good = "check: every shard and every word count is as it should be"
            print(good if sys.argv[1:] else "words as planned; add --check for values")
    dist.destroy_process_group()
    return 5 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
