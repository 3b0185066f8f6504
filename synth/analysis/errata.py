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
from synth.bounds.paper_cost import memory_at, tile_words
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import accessed_words
from synth.layer.window import Window

CONV4 = Layer.conv2d((32, 256, 16, 16), 256, 3, name="conv4_x")
CONV2 = Layer.conv2d((32, 64, 56, 56), 256, 1, name="conv2_x")
THIN = Layer.conv2d((32, 1, 256, 256), 1, 1, name="one channel")


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
        orders(),
        missing_case(CONV2, 4),
        missing_case(THIN, 1),
        share_without_procs(),
        tile_bounds(),
        table2_row1(),
        halo_memory(),
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


def orders() -> Erratum:
    """The remark on loop orders: the number of distinct costs of the 120 orders of the tile loops."""
    block = {"b": 32, "c": 27, "h": 20, "w": 28, "k": 22, "r": 3, "s": 3, "g": 1, "d": 1, "t": 1}
    tile = {"b": 4, "c": 3, "h": 4, "w": 7, "k": 11, "r": 3, "s": 3, "g": 1, "d": 1, "t": 1}
    found = {
        sum(accessed_words(CONV4.nest.accesses, order, block, tile).values())
        for order in itertools.permutations(("b", "c", "h", "w", "k"))
    }
    return Erratum(
        "The remark on loop orders",
        "the order of the outer four tile loops does matter, unless b, h, w stay together",
        "the 120 orders of the loops b, c, h, w, k of one tile",
        "3 classes, by the innermost loop (b, h, w as a band)",
        f"{len(found)} distinct costs: innermost run c, k, or any non-empty part of b, h, w",
    )


def missing_case(layer: Layer, procs: int) -> Erratum:
    """Table 1: case 1b, which the text derives (Eq. 7), is missing."""
    problem = Eq4.of(layer.nest, procs)
    form = solve(problem, "Out")
    (case, words), (name, right) = table1_printed(problem), table1_corrected(problem)
    return Erratum(
        "Table 1",
        "case 1b (t* < q_O < M_L: the shard q_O itself is the tile) is missing, row 2 answers instead",
        f"{layer.name}: {layer}, P = {procs}, ample memory",
        f"{show_words(words)} words, case {case}: {words / form.cost:.3f} of the optimum",
        f"{show_words(right)} words, case {name}; with T <= N kept {show_words(form.cost)}",
    )


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


def halo_memory() -> Erratum:
    """The remark on M_L as a function of M: large halos."""
    layer = Layer.conv2d((32, 64, 62, 62), 64, 7, name="7x7")
    nest, procs, memory = layer.nest, 16, 600
    words = tile_memory(memory, Eq4.of(nest, procs).K)

    def filled(t_k: float, t_x: float) -> PerAxis:
        return PerAxis(k=int(t_k), w=min(nest.extents.w, int(t_x)), h=max(1, int(t_x / nest.extents.w)))

    def needed(tile: PerAxis) -> str:
        return f"tile {tile.shown()} needs {tile_words(nest.accesses, nest.loop_extents(tile))} words"

    printed = solve(Eq4.of(nest, procs, words), "Out")
    right = iterated_tile_memory(nest, procs, memory)
    return Erratum(
        "Remark on M_L",
        "M_L + 3K*sqrt(M_L) = M presumes a halo that inflates a tile at most twofold",
        f"{layer.name} kernel, 64 channels, P = {procs}, M = {memory} words, tiles fill w, then h",
        f"M_L = {words:.0f} words: {needed(filled(printed.t_k, printed.t_x))}",
        f"with the halo of the tile itself: {needed(filled(right.t_k, right.t_x))}",
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
