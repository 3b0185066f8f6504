"""strided: conv2d training on 6 ranks as a grid h=2 x k=3.

Emitted by `synth emit --plan plans/training_tiles.json --lean -o lean_training.py` (plan 1bd7c76b2d18).
It needs torch alone; copy what you need. Messages and computing alternate.

Run    torchrun --nproc-per-node=6 lean_training.py --check
Plan   --as "h=2 k=3; forward Ker; h/2 c/2; saves In; backward-data Out; c/2; saves Out;
       backward-filter In; w/2 c/2; reuses In,Out" of `synth emit`; change it there
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
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

NAME = "strided"
DTYPE = torch.float32
GRID = {"h": 2, "k": 3}  # ranks along each axis, the last one fastest
# Boxes of tensors and blocks of the nest are dicts: index -> range.
SHAPES = {
    "In": {"b": 2, "c": 4, "h": 7, "w": 13},
    "Ker": {"k": 6, "c": 4, "r": 3, "s": 5},
    "Out": {"b": 2, "k": 6, "h": 7, "w": 5},
}
WHOLE = {name: {dim: range(n) for dim, n in SHAPES[name].items()} for name in SHAPES}
NEST = WHOLE["In"] | WHOLE["Ker"] | WHOLE["Out"]  # the loops
# Ranks along these axes share a slice of a tensor, and own parts of it.
SHARED = {"In": ("k",), "Ker": ("h",), "Out": ()}
SHARDS = {"In": {"w": 3}, "Ker": {"c": 2}, "Out": {}}
WINDOWS = {"h": (3, 1, 1), "w": (5, 3, 2)}  # rows of a window, stride, zeros before
GROUPS = dict.fromkeys((("h",), ("k",)))  # axes of exchanges
RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In


def forward(in_own, ker_own, at):
    """This rank's shard of Out, and `in_slice` for later passes."""
    tiles = {"h": 2, "c": 2}  # of the block, outermost loop first
    # The output rows of a block read input rows that its neighbours own.
    in_wide = exchange("In", in_own, owned, carried, ("h",))
    # All ranks along k need the same slice of In.
    in_slice = exchange("In", in_wide, carried, touching(work))
    # All ranks along x need the same slice of Ker.
    ker_slice = exchange("Ker", ker_own, owned, touching(work))
    out = torch.zeros(shape(touched("Out", work(at))), dtype=DTYPE)
    for step in range(4):
        block = work(at, step, tiles)
        in_tile = in_slice[within(touched("In", block), touched("In", work(at)))]
        ker_tile = ker_slice[within(touched("Ker", block), touched("Ker", work(at)))]
        place = within(touched("Out", block), touched("Out", work(at)))
        out[place] += convolve(in_tile, ker_tile, block)
    return out, in_slice


def backward_data(ker_own, dout_own, at):
    """This rank's shard of dIn."""
    tiles = {"c": 2}  # of the block, outermost loop first
    din = torch.zeros(shape(carried("In", at)), dtype=DTYPE)
    for step in range(2):
        block = work(at, step, tiles)
        # All ranks along x need the same slice of Ker.
        ker_panel = exchange("Ker", ker_own, owned, touching(work, step, tiles))
        sums = input_gradient(ker_panel, dout_own, block)
        # Each rank along k holds a partial sum of the same slice of dIn.
        din += exchange("In", sums, touching(work, step, tiles), carried)
    # The rows of dIn that a block computes for its neighbours are added where they are
    # owned.
    return exchange("In", din, carried, owned, ("h",))


def backward_filter(in_slice, dout_own, at):
    """This rank's shard of dKer."""
    tiles = {"w": 2, "c": 2}  # of the block, outermost loop first
    dker = torch.zeros(shape(owned("Ker", at)), dtype=DTYPE)
    for step in range(4):
        block = work(at, step, tiles)
        in_tile = in_slice[within(touched("In", block), touched("In", work(at)))]
        dout_tile = dout_own[within(touched("Out", block), owned("Out", at))]
        sums = kernel_gradient(in_tile, dout_tile, block)
        # Each rank along x holds a partial sum of the same slice of dKer.
        dker += exchange("Ker", sums, touching(work, step, tiles), owned)
    return dker


def run(in_own, ker_own, dout_own, at):
    """A training step: this rank's shards of Out, dIn and dKer."""
    out, in_slice = forward(in_own, ker_own, at)
    din = backward_data(ker_own, dout_own, at)
    dker = backward_filter(in_slice, dout_own, at)
    return out, din, dker


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
    box, need, index = owned(tensor, at), touched(tensor, work(at)), share(tensor, at)
    for dim in box.keys() & WINDOWS.keys():  # the ends have the rows beyond the slice
        low = box[dim].start if index.get(dim) else need[dim].start
        last = index.get(dim, 0) == SHARDS[tensor].get(dim, 1) - 1
        box[dim] = range(low, need[dim].stop if last else box[dim].stop)
    return overlap(box, need)


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


def zeros(block):
    """Zeros around the input rows of a block, as F.pad takes them: last axis first."""
    found, rows = [], touched("In", block)
    for axis in reversed(WINDOWS):
        read = read_by(axis, block[axis])
        found += [rows[axis].start - read.start, read.stop - rows[axis].stop]
    return found


def convolve(in_, ker, block):
    """What a block adds to Out, from exactly the input rows that it reads."""
    return F.conv2d(F.pad(in_, zeros(block)), ker, stride=(1, 3))


def input_gradient(ker, dout, block):
    """What a block adds to dIn, on exactly the input rows that it reads."""
    made = shape(touched("In", block))
    read = [len(read_by(axis, block[axis])) for axis in WINDOWS]
    din = torch.nn.grad.conv2d_input(
        [made[0], made[1], *read], ker, dout, stride=(1, 3)
    )
    return F.pad(din, [-n for n in zeros(block)])


def kernel_gradient(in_, dout, block):
    """What a block adds to dKer."""
    made = shape(touched("Ker", block))
    wide = F.pad(in_, zeros(block))
    return torch.nn.grad.conv2d_weight(wide, made, dout, stride=(1, 3))


# Planned words: of the rank that receives most, and of all ranks together.
MOST, BY_ALL = 1040, {"In": 4160, "Ker": 1440, "Out": 0}


def sample(name, box):
    """Integers from -4 to 4 in a box: a hash of each word's place in the whole."""
    index, extents = torch.tensor(sum(map(ord, name))), SHAPES[name.removeprefix("d")]
    for dim, rows in box.items():
        index = index.unsqueeze(-1) * extents[dim] + torch.arange(rows.start, rows.stop)
    return (((index % 2**31 * 1103515245 % 2**31) ** 2 >> 20) % 9 - 4).to(DTYPE)


def one_process():
    """Out, dIn and dKer of the whole layer, by torch in this process."""
    in_, ker = sample("In", WHOLE["In"]), sample("Ker", WHOLE["Ker"])
    dout = sample("dOut", WHOLE["Out"])
    in_.requires_grad_(), ker.requires_grad_()
    # What the stride skips is zero here.
    rows = range(1, 15, 2)
    wide = in_.new_zeros(2, 4, 15, 13).index_copy(2, torch.tensor(rows), in_)
    out = F.conv2d(wide, ker, padding=(1, 2), stride=(2, 3), dilation=(2, 1))
    din, dker = torch.autograd.grad(out, (in_, ker), dout)
    return {"Out": out.detach(), "dIn": din, "dKer": dker}


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
        sys.exit("Start 6 ranks, with --check or without." if rank == 0 else 1)
    places, faults = [digits(peer, GRID) for peer in range(size)], []
    at = places[rank]
    make_groups(at, places)
    in_own = sample("In", owned("In", at))
    ker_own = sample("Ker", owned("Ker", at))
    dout_own = sample("dOut", owned("Out", at))
    made = run(in_own, ker_own, dout_own, at)
    if sys.argv[1:]:
        for own, (name, right) in zip(made, one_process().items(), strict=True):
            tensor = name.removeprefix("d")
            right = right[within(owned(tensor, at), WHOLE[tensor])]
            if own.shape != right.shape or not ((own - right).abs() < 0.5).all():
                faults.append(f"rank {rank}: {name} differs from one process")
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
