"""`synth errata`: errors in the printed formulas of SPAA'21, each with a computed counterexample.

Li, Xu, Sukumaran-Rajam, Rountev, Sadayappan, "Efficient Distributed Algorithms for Convolutional Neural
Networks", SPAA'21. Words are accessed words of one process.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from synth.base.units import show_words
from synth.bounds.closed_form import (
    Eq4,
    iterated_tile_memory,
    solve,
    table1_corrected,
    table1_printed,
    table2_corrected,
    table2_printed,
    tile_memory,
)
from synth.bounds.paper_cost import ORDER, grids, memory_at, owned_words, tile_words
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest, accessed_words
from synth.layer.window import Window

CONV4 = Layer.conv2d((32, 256, 16, 16), 256, 3, name="conv4_x")
CONV2 = Layer.conv2d((32, 64, 56, 56), 256, 1, name="conv2_x")
THIN = Layer.conv2d((32, 1, 256, 256), 1, 1, name="one channel")
FIRST = Layer.conv2d((32, 3, 224, 224), 64, 3, padding=1, name="VGG conv1_1")
WIDE = Layer.conv2d((32, 64, 62, 62), 64, 7, name="7x7")


@dataclass(frozen=True)
class Erratum:
    """An erratum: the printed statement, the correct one, and an example on which they differ."""

    where: str
    fault: str
    example: str
    printed: str
    right: str

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.fault}\n    on {self.example}\n    printed  {self.printed}\n"
            f"    right    {self.right}"
        )


def errata() -> list[Erratum]:
    """All errata, in the order of the paper."""
    return [
        footprint(),
        missing_case(),
        never_short(),
        share_without_procs(),
        tile_bounds(),
        table2_row1(),
        partial_sums(),
        halo_memory(),
        shards_along_c(),
        buffers(),
        overlapping_slices(),
        own_words(),
        memory_difference(),
    ]


def footprint() -> Erratum:
    """Eq. 1 and 3: the number of rows of In that a tile touches."""
    rows = Window.reduced(15, 3, 2, 1, 0).frame(7)
    sparse = Window.reduced(13, 1, 2, 1, 0)
    return Erratum(
        "Eq. 1 and 3",
        "the In footprint is sigma*(T-1) + N_r per dimension, and only touched rows count where N_r < sigma",
        "7 outputs, stride 2, kernels 3 and 1",
        f"sigma*T + N_r - 1 = {2 * 7 + 3 - 1} and {2 * 7 + 1 - 1} rows",
        f"{rows} and {sparse.size} rows",
    )


def missing_case() -> Erratum:
    """Table 1: case 1b, which the text derives (Eq. 7), is missing."""
    examples, printed, correct = [], [], []
    for layer, procs in ((CONV2, 4), (THIN, 1)):
        problem = Eq4.of(layer.nest, procs)
        form = solve(problem, "Out")
        (case, words), (name, right) = table1_printed(problem), table1_corrected(problem)
        sizes = (
            f"N_k = {problem.Nk:.0f}, N_c = {problem.Nc:.0f}, N_bhw = {show_words(problem.Nx)}, P = {procs}"
        )
        examples.append(f"{layer.name} ({sizes})")
        printed.append(f"{show_words(words)} words, case {case}: {words / form.cost:.3f} of the optimum")
        correct.append(f"{show_words(right)}, case {name} ({show_words(form.cost)} with T <= N)")
    return Erratum(
        "Table 1",
        "case 1b (t* < q_O < M_L: the shard q_O itself is the tile) is missing, row 2 answers in its place",
        " and ".join(examples),
        "; ".join(printed),
        "; ".join(correct),
    )


def never_short() -> Erratum:
    """Table 1, row 1: the condition of case 1a contradicts Eq. 11.

    Case 1a asks for q_O >= M_L words. By Eq. 11 the memory holds a whole slice of Out, so M_L > q_O.
    """
    nest, procs = CONV4.nest, 16
    problem = Eq4.of(nest, procs, 16384)
    case, words = table1_printed(problem)
    left = min(_memory_left(nest, grid) for grid in grids(nest, procs))
    return Erratum(
        "Table 1, row 1, beside Eq. 11",
        "at M_L = M case 1a (q_O >= M_L) cannot occur: Eq. 11 charges the whole slice of Out, not its tile",
        f"{CONV4.name}, P = {procs}, M_L = {show_words(problem.M_L)} words",
        f"case {case}: {show_words(words)} words",
        f"on every grid M = M_D - (|In| + |Ker|)/P >= {show_words(left)} words, more than q_O = "
        f"{show_words(problem.shards['Out'])}",
    )


def _memory_left(nest: Nest, grid: PerAxis) -> float:
    """The least M = M_D - (|In| + |Ker|)/P that Eq. 11 asks for on a grid, in words."""
    own = owned_words(nest.accesses, nest.loop_extents(nest.extents), grid.size, "Out")
    return float(memory_at(nest, "Out", grid, PerAxis(), True)) - float(own)


def share_without_procs() -> Erratum:
    """Cases 2a and 2b: their conditions lack a division by P."""
    nest, procs = CONV4.nest, 64
    problem = Eq4.of(nest, procs)
    whole = nest.extents.k * nest.extents.x
    return Erratum(
        "Cases 2a and 2b",
        "the condition reads M_L > N_k*N_bhw; M_L > N_k*N_bhw/P is meant",
        f"{CONV4.name}, P = {procs}, M_L = {show_words(2 * problem.t_star)} words, more than t* needs",
        f"case 2 asks for M_L > {show_words(whole)} words",
        f"M_L > q_O = {show_words(whole / procs)} words, and t* = {show_words(problem.t_star)}",
    )


def tile_bounds() -> Erratum:
    """Eq. 5 to 9: tiles may be larger than the layer."""
    problem = Eq4.of(CONV2.nest, 4)
    form = solve(problem, "Out")
    return Erratum(
        "Eq. 5 to 9",
        "1 <= T <= N is not enforced",
        f"{CONV2.name}, P = 4: the tile of case 1b",
        f"T_k = sqrt(q_O*S/RS) = {(problem.shards['Out'] * problem.S / problem.RS) ** 0.5:.0f}",
        f"N_k = {problem.Nk:.0f}, so T_k = {form.t_k:.0f} and T_x = {form.t_x:.0f}",
    )


def table2_row1() -> Erratum:
    """Table 2, row 1: the smallest of the three shards."""
    problem = Eq4.of(CONV4.nest, 16, 32768)
    return Erratum(
        "Table 2, row 1",
        "the shard is the least of q_O, q_K, q_I, with RS in q_K and S in q_I; print leaves these out",
        f"{CONV4.name}, P = 16, M_L = 32 768 words",
        f"{show_words(table2_printed(problem))} words, below every tile's cost",
        f"{show_words(table2_corrected(problem))} words, Ker stationary",
    )


def partial_sums() -> Erratum:
    """Table 2: with Ker or In stationary, Out is visited several times."""
    nest, grid, tile = CONV4.nest, PerAxis(k=16), PerAxis(b=32, h=14, w=14, c=32, k=16)
    block, sizes = nest.loop_extents(nest.extents.blocks(grid)), nest.loop_extents(tile)
    printed = accessed_words(nest.accesses, ORDER["Ker"], block, sizes)["Out"]
    first = nest.accesses["Out"].footprint(block)
    return Erratum(
        "Table 2",
        "with Ker or In stationary every visit of Out but the first reads partial sums and writes them",
        f"{CONV4.name}, grid {grid.shown()}, Ker stationary, tile {tile.shown()}: "
        f"{int(printed // first)} visits of {show_words(first)} words",
        f"{show_words(printed)} words of Out, one move per visit",
        f"{show_words(2 * printed - first)} words, unless the memory that owns Out adds",
    )


def halo_memory() -> Erratum:
    """The remark on M_L as a function of M: large halos."""
    nest, procs, memory = WIDE.nest, 16, 490
    words = tile_memory(memory, Eq4.of(nest, procs).K)
    printed = solve(Eq4.of(nest, procs, words), "Out")
    right = iterated_tile_memory(nest, procs, memory)
    need, tile = _least_memory(nest, round(words))
    return Erratum(
        "Remark on M_L",
        "M_L + 3K*sqrt(M_L) = M presumes a halo that inflates a tile at most twofold",
        f"{WIDE.name} kernel, 64 channels, P = {procs}, M = {memory} words",
        f"M_L = {words:.0f} words: T_k = {printed.t_k:.0f}, T_bhw = {printed.t_x:.0f}",
        f"no tile with {words:.0f} outputs needs less than {need} words ({tile.shown()}); with the halo of "
        f"the tile itself M_L = {right.t_k * right.t_x:.1f}",
    )


def _least_memory(nest: Nest, outputs: int) -> tuple[int, PerAxis]:
    """The least memory of a tile with at least `outputs` outputs and one channel: (words, tile)."""
    found, n = [], nest.extents
    for b, h in itertools.product(range(1, n.b + 1), range(1, n.h + 1)):
        for w in range(1, min(n.w, -(-outputs // (b * h))) + 1):  # a wider one has more outputs than asked
            k = -(-outputs // (b * h * w))
            if k <= n.k:
                tile = PerAxis(b=b, h=h, w=w, k=k)
                found.append((int(tile_words(nest.accesses, nest.loop_extents(tile))), tile))
    return min(found)


def shards_along_c() -> Erratum:
    """Section 2.2: the initial distribution cuts slices along c only."""
    grid = PerAxis(b=16)
    return Erratum(
        "Section 2.2, initial distribution",
        "shards along c need W_c >= P_b*P_h*P_w (Ker) and W_c >= P_k (In)",
        f"{FIRST.name}, grid {grid.shown()}",
        f"{FIRST.nest.extents.c}/{grid.x} input channels of Ker in each process",
        f"cut along k: {FIRST.nest.extents.k // grid.x} filters in each",
    )


def buffers() -> Erratum:
    """Section 2.2: the buffers of a tile lack T_c, which Eq. 11 has."""
    tile = PerAxis(h=14, w=14, c=4, k=64)
    sizes = CONV4.nest.loop_extents(tile)
    right = [int(CONV4.nest.accesses[t].footprint(sizes)) for t in ("In", "Ker")]
    return Erratum(
        "Section 2.2, buffers",
        "T_c is missing in the buffers of In and Ker; Eq. 11 has it",
        f"{CONV4.name}, tile {tile.shown()}",
        " and ".join(show_words(words // tile.c) for words in right) + " words",
        " and ".join(map(show_words, right)) + " words",
    )


def overlapping_slices() -> Erratum:
    """Eq. 10 and 11: the slices of In overlap."""
    nest, grid = CONV4.nest, PerAxis(h=2, w=2, k=4)
    block = nest.loop_extents(nest.extents.blocks(grid))
    share = nest.accesses["In"].footprint(block) / grid.k
    return Erratum(
        "Eq. 10 and 11",
        "slices of In overlap by their halos, so a P_k-th of a slice is more than |In|/P",
        f"{CONV4.name}, grid {grid.shown()}",
        f"{show_words(nest.words['In'] / grid.size)} words of In in each process",
        f"{show_words(share)} words, or one owner per word and an exchange of halos",
    )


def own_words() -> Erratum:
    """Eq. 10: a process that broadcasts does not receive its own words."""
    nest, grid = CONV4.nest, PerAxis(b=4, k=4)
    block = nest.loop_extents(nest.extents.blocks(grid))
    charged = [int(nest.accesses[t].footprint(block)) for t in ("In", "Ker")]
    received = [words - words // group for words, group in zip(charged, (grid.k, grid.x), strict=True)]
    return Erratum(
        "Eq. 10",
        "cost_C charges a broadcast to its root, too, which receives nothing",
        f"{CONV4.name}, grid {grid.shown()}, every slice broadcast once",
        f"{show_words(sum(charged))} words of In and Ker in each process",
        f"{show_words(sum(received))} words received; 1/P_k of In and 1/(P_b*P_h*P_w) of Ker are its own",
    )


def memory_difference() -> Erratum:
    """After Eq. 11: g_D - g is not a constant."""
    grid = PerAxis(b=8, c=2, k=4)
    tiles = (PerAxis(b=4, h=14, w=14, k=64), PerAxis(b=1, h=14, w=14, k=32))
    first, second = (
        memory_at(CONV4.nest, "Out", grid, tile, True) - memory_at(CONV4.nest, "Out", grid, tile)
        for tile in tiles
    )
    return Erratum(
        "After Eq. 11",
        "g_D - g is not a constant: it contains W_b*W_k*W_w*W_h - T_b*T_k*T_w*T_h",
        f"{CONV4.name}, grid {grid.shown()}, tiles {tiles[0].shown()} and {tiles[1].shown()}",
        "the same difference",
        f"{show_words(float(first))} and {show_words(float(second))} words",
    )


def text() -> str:
    """The numbered errata as text."""
    return "\n\n".join(f"{number}. {each}" for number, each in enumerate(errata(), 1)) + "\n"
