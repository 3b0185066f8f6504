"""small: conv2d forward on 8 ranks as a grid h=2 x c=2 x k=2.

Emitted by `synth emit layers/small.yaml --procs 8 --grid h=2,c=2,k=2 --panels 4 --lean -o lean_halo.py` (plan 55b741281f48).
It needs torch alone; copy what you need. Messages and computing alternate.

Run    torchrun --nproc-per-node=8 lean_halo.py --check
Plan   --as "h=2 c=2 k=2; Out; c/4" of `synth emit`; change it there
Nest   Out[b,k,h,w] += In[b,c,h+r-1,w+s-1] * Ker[k,c,r,s]
       b=4 h=8 w=8 c=16 k=16 r=3 s=3
Form   2.5D: Out stationary, In and Ker streamed in 4 panels along c
Owned  In: c over c then k, h over h
       Ker: k over k, c over c then x (x: h)
       Out: k over k then c, h over h; partial sums along c until reduced
Moves  In 768 (halo 128), Ker 288, Out 512: at most 1568 words received per rank
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

NAME = "small"
DTYPE = torch.float32
GRID = {"h": 2, "c": 2, "k": 2}  # ranks along each axis, the last one fastest
# Boxes of tensors and blocks of the nest are dicts: index -> range.
SHAPES = {
    "In": {"b": 4, "c": 16, "h": 8, "w": 8},
    "Ker": {"k": 16, "c": 16, "r": 3, "s": 3},
    "Out": {"b": 4, "k": 16, "h": 8, "w": 8},
}
WHOLE = {name: {dim: range(n) for dim, n in SHAPES[name].items()} for name in SHAPES}
NEST = WHOLE["In"] | WHOLE["Ker"] | WHOLE["Out"]  # the loops
# Ranks along these axes share a slice of a tensor, and own parts of it.
SHARED = {"In": ("k",), "Ker": ("h",), "Out": ("c",)}
SHARDS = {"In": {"c": 2}, "Ker": {"c": 2}, "Out": {"k": 2}}
WINDOWS = {"h": (3, 1, 1), "w": (3, 1, 1)}  # rows of a window, stride, zeros before
GROUPS = dict.fromkeys((("h",), ("k",), ("c",)))  # axes of exchanges
RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In


def run(in_own, ker_own, at):
    """This rank's shard of Out."""
    tiles = {"c": 4}  # of the block, outermost loop first
    # The output rows of a block read input rows that its neighbours own.
    in_wide = exchange("In", in_own, owned, carried, ("h",))
    out = torch.zeros(shape(touched("Out", work(at))), dtype=DTYPE)
    for step in range(4):
        block = work(at, step, tiles)
        # All ranks along k need the same slice of In.
        in_panel = exchange("In", in_wide, carried, touching(work, step, tiles))
        # All ranks along x need the same slice of Ker.
        ker_panel = exchange("Ker", ker_own, owned, touching(work, step, tiles))
        out += convolve(in_panel, ker_panel, block)
    # Each rank along c holds a partial sum of the same slice of Out.
    return exchange("Out", out, touching(work), owned)


def exchange(tensor, values, held, wanted, axes=None):
    """The box that this rank wants: from ranks along `axes`, or all that share a slice.

    held, wanted: (tensor, rank) -> the box that it has in `values`, and that it wants.
    Words that several ranks hold are added; a gather is a sum of disjoint boxes.
    """
    peers, group, me = GROUPS[axes or SHARED[tensor]]
    here, there = held(tensor, me), wanted(tensor, me)
    sent = [overlap(here, wanted(tensor, peer)) for peer in peers]
    got = [overlap(there, held(tensor, peer)) for peer in peers]
    sizes = [[math.prod(shape(box)) for box in boxes] for boxes in (got, sent)]
    outgoing = torch.cat([values[within(box, here)].flatten() for box in sent])
    incoming = values.new_empty(sum(sizes[0]))
    dist.all_to_all_single(incoming, outgoing, *sizes, group=group)
    result = values.new_zeros(shape(there))
    for peer, box, words in zip(peers, got, incoming.split(sizes[0]), strict=True):
        result[within(box, there)] += words.view(shape(box))
        RECEIVED[tensor] += words.numel() * (peer != me)
    return result


def work(at, step=0, tiles=None):
    """The block of the nest that the rank at `at` works on, or its tile of a step."""
    counts = tiles or {}  # the last tile runs fastest
    return part(part(NEST, GRID, at), counts, digits(step, counts))


def touched(tensor, block):
    """The box of a tensor that a block of the nest reads or adds to."""
    rows = dict(block)
    if tensor == "In":
        rows |= {axis: read_by(axis, block[axis]) for axis in WINDOWS}
    return overlap({dim: rows[dim] for dim in SHAPES[tensor]}, WHOLE[tensor])


def touching(block, *step):
    """(tensor, rank) -> the box that its block, or its tile of a step, touches."""
    return lambda tensor, at: touched(tensor, block(at, *step))


def owned(tensor, at):
    """The box that the rank at `at` stores alone: its share of a slice."""
    return part(part(WHOLE[tensor], GRID, at), SHARDS[tensor], share(tensor, at))


def carried(tensor, at):
    """That box with its halo: rows that its group needs and that neighbours own."""
    return owned(tensor, at) | {dim: touched(tensor, work(at))[dim] for dim in WINDOWS}


def share(tensor, at):
    """Which part of a slice a rank owns: its number along SHARED, one digit per cut."""
    number = 0
    for axis in SHARED[tensor]:
        number = number * GRID[axis] + at[axis]
    return digits(number, SHARDS[tensor])


def part(box, counts, index):
    """The part of a box at `index` when `counts` cut it; longer parts come first."""
    found = dict(box)
    for dim in counts.keys() & box.keys():
        size, longer = divmod(len(box[dim]), counts[dim])
        low = index[dim] * size + min(index[dim], longer)
        found[dim] = box[dim][low : low + size + (index[dim] < longer)]
    return found


def digits(number, counts):
    """A number as one digit per key, the last one fastest; so ranks lie on the grid."""
    found = {}
    for key, count in reversed(counts.items()):
        number, found[key] = divmod(number, count)
    return found


def overlap(one, other):
    """The words in both boxes."""
    pairs = zip(one, one.values(), other.values(), strict=True)
    return {d: range(max(a.start, b.start), min(a.stop, b.stop)) for d, a, b in pairs}


def within(box, frame):
    """The slices that pick a box out of a tensor that holds `frame`."""
    lows = [rows.start - frame[dim].start for dim, rows in box.items()]
    return tuple(slice(low, low + n) for low, n in zip(lows, shape(box), strict=True))


def shape(box):
    """Extent of a box along each dimension."""
    return [len(rows) for rows in box.values()]


def read_by(axis, rows):
    """The input rows that output rows read, and those of zeros around the input."""
    span, stride, padding = WINDOWS[axis]
    low, high = stride * rows.start - padding, stride * (rows.stop - 1) - padding + span
    return range(low, high) if rows else rows


def convolve(in_, ker, block):
    """What a block adds to Out, from exactly the input rows that it reads."""
    around, rows = [], touched("In", block)
    for axis in reversed(WINDOWS):  # zeros around In, as F.pad takes them
        read = read_by(axis, block[axis])
        around += [rows[axis].start - read.start, read.stop - rows[axis].stop]
    return F.conv2d(F.pad(in_, around), ker)


# Planned words: of the rank that receives most, and of all ranks together.
MOST, BY_ALL = 1568, {"In": 6144, "Ker": 2304, "Out": 4096}


def sample(name, box):
    """Integers from -4 to 4 in a box: a hash of each word's place in the whole."""
    index, extents = torch.tensor(sum(map(ord, name))), SHAPES[name]
    for dim, rows in box.items():
        index = index.unsqueeze(-1) * extents[dim] + torch.arange(rows.start, rows.stop)
    return (((index % 2**31 * 1103515245 % 2**31) ** 2 >> 20) % 9 - 4).to(DTYPE)


def one_process():
    """Out of the whole layer, by torch in this process."""
    in_, ker = sample("In", WHOLE["In"]), sample("Ker", WHOLE["Ker"])
    return {"Out": F.conv2d(in_, ker, padding=1)}


def make_groups(at, places):
    """Fill GROUPS: axes -> the ranks along them, torch's group of these, this rank."""
    for axes in GROUPS:
        fixed = GRID.keys() - axes
        line = [n for n, to in enumerate(places) if all(to[a] == at[a] for a in fixed)]
        group = dist.new_group(line, use_local_synchronization=True)
        GROUPS[axes] = [places[n] for n in line], group, at


def main():
    """What one rank does: `run` on sample values; --check compares values and words."""
    dist.init_process_group("gloo")
    rank, ranks, size = dist.get_rank(), dist.get_world_size(), math.prod(GRID.values())
    if sys.argv[1:] not in ([], ["--check"]) or ranks != size:
        sys.exit("Start 8 ranks, with --check or without." if rank == 0 else 1)
    places, faults = [digits(peer, GRID) for peer in range(size)], []
    at = places[rank]
    make_groups(at, places)
    in_own = sample("In", owned("In", at))
    ker_own = sample("Ker", owned("Ker", at))
    made = (run(in_own, ker_own, at),)
    if sys.argv[1:]:
        for own, (tensor, right) in zip(made, one_process().items(), strict=True):
            right = right[within(owned(tensor, at), WHOLE[tensor])]
            if own.shape != right.shape or not ((own - right).abs() < 0.5).all():
                faults.append(f"rank {rank}: {tensor} differs from one process")
    told = [None] * ranks
    dist.all_gather_object(told, (RECEIVED, faults))
    faults = [fault for _, found in told for fault in found]
    most = max(sum(words.values()) for words, _ in told)
    by_all = {tensor: sum(words[tensor] for words, _ in told) for tensor in RECEIVED}
    if (most, by_all) != (MOST, BY_ALL):
        faults.append(f"words: {most}, {by_all}; planned are {MOST}, {BY_ALL}")
    if rank == 0:
        right = "values and words are right" if sys.argv[1:] else "words are right"
        print(f"{NAME}: {size} ranks, at most {most} words received per rank")
        print(*faults or [right], sep="\n")
    dist.destroy_process_group()
    return 5 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
