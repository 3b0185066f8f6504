"""small: conv2d forward on 8 ranks as a grid h=2 x c=2 x k=2.

Emitted by `synth emit layers/small.yaml --procs 8 --grid h=2,c=2,k=2 --panels 4 --lean -o lean_halo.py` (plan 55b741281f48).
It needs torch alone; copy what you need.

Run    torchrun --nproc-per-node=8 lean_halo.py --check
Plan   --as "h=2 c=2 k=2; Out; c/4"
       of `synth emit` names the schedule; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=4 h=8 w=8 c=16 k=16 r=3 s=3
Form   2.5D: Out stationary, In and Ker streamed in 4 panels along c
Owned  In: c over c then k, h over h
       Ker: k over k, c over c then x (x: h)
       Out: k over k then c, h over h; partial sums along c until reduced
Moves  In 768 (halo 128), Ker 288, Out 512: at most 1568 words received per rank
Lean   each move is one all-to-all, and messages and computing alternate; a rank that is
       lost shows as an error of torch.distributed
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

NAME = "small"
DTYPE = torch.float32
GRID = {"h": 2, "c": 2, "k": 2}  # ranks along each axis, the last one fastest
PROCS = 8  # ranks that may be started
N = {"b": 4, "h": 8, "w": 8, "c": 16, "k": 16, "r": 3, "s": 3}
AXES = "bhwck"
DIMS = {"In": "bchw", "Ker": "kcrs", "Out": "bkhw"}
# Ranks along these axes share a slice of a tensor, and own parts of it.
SHARED = {"In": ("k",), "Ker": ("h",), "Out": ("c",)}
SHARDS = {"In": {"c": 2}, "Ker": {"c": 2}, "Out": {"k": 2}}
HALO = {"In": "h", "Ker": "", "Out": ""}
# Rows of In that are read, taps, stride, dilation, zeros before.
WINDOWS = {"h": (8, 3, 1, 1, 1), "w": (8, 3, 1, 1, 1)}
EXCHANGES = (("h",), ("k",), ("c",))  # axes of groups of ranks
GROUPS = {}  # axes -> the ranks along them, torch's group, this rank
RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In


def run(in_own, ker_own, at):
    """This rank's shard of Out."""
    tiles = {"c": 4}  # of the block, outermost loop first
    # The output rows of a block read input rows that its neighbours own.
    in_wide = exchange("In", in_own, owned, carried, ("h",))
    out = torch.zeros(shape(touched("Out", work(at))), dtype=DTYPE)
    for step in range(4):
        block = tile(at, step, tiles)
        # All ranks along k need the same slice of In.
        in_panel = exchange("In", in_wide, carried, touching(tile, step, tiles), ("k",))
        # All ranks along x need the same slice of Ker.
        ker_panel = exchange("Ker", ker_own, owned, touching(tile, step, tiles), ("h",))
        out += convolve(in_panel, ker_panel, block)
    # Each rank along c holds a partial sum of the same slice of Out.
    return exchange("Out", out, touching(work), owned, ("c",))


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
    out = F.conv2d(wide, ker, None, (1, 1), 0, (1, 1))
    return out.view(made)


IN_SHAPE = (4, 16, 8, 8)
KER_SHAPE = (16, 16, 3, 3)
STRIDE, DILATION, ZEROS = (1, 1), (1, 1), (1, 1, 1, 1)
RESULTS = (("Out", "Out"),)
MOST = 1568  # words that a rank receives
# Words received by a rank, and by all up to the next one.
WORDS = {0: {"In": 768, "Ker": 288, "Out": 512}}


def sample(tensor, whole, box=None):
    """Integers from -4 to 4 in a box: a hash of each word's place in the whole."""
    index = torch.zeros((), dtype=torch.int64)
    for dim, extent in enumerate(whole):
        low, high = box[dim] if box else (0, extent)
        index = index.unsqueeze(-1) * extent + torch.arange(low, high)
    mixed = (index % 2**31 + sum(map(ord, tensor))) * 1103515245 % 2**31
    mixed = (mixed ^ (mixed >> 15)) * 747796405 % 2**31
    return ((mixed ^ (mixed >> 13)) % 9 - 4).to(DTYPE)


def one_process():
    """Out of the whole layer, by torch in this process."""
    in_, ker = sample("In", IN_SHAPE), sample("Ker", KER_SHAPE)
    out = F.conv2d(F.pad(in_, ZEROS), ker, None, STRIDE, 0, DILATION)
    return (out,)


def main():
    """What one rank does: `run` on sample values; --check compares values and words."""
    dist.init_process_group("gloo")
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), math.prod(GRID.values())
    if sys.argv[1:] not in ([], ["--check"]) or not size <= ranks <= PROCS:
        sys.exit("Start 8 ranks, with --check or without." if rank == 0 else 1)
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
        made = (run(in_own, ker_own, at),)
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
