"""Lower bounds on the words that a convolution moves. docs/bounds.md has the proofs.

The universal bound holds for every schedule that does each multiply-add once, in one process, with no
replicas before or after the pass and at most `most_work` multiply-adds in each process. It bounds the
average over the processes, hence the maximum. This module imports no numpy, because `synth plan` loads it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synth.base.errors import UsageError
from synth.bounds.holder_brascamp_lieb import tap_range, weighted_work
from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest
from synth.layer.window import Window

Accounting = Literal["received", "accessed"]


@dataclass(frozen=True)
class UniversalBound:
    """No schedule moves fewer than `words` words per process, on average over `procs` processes."""

    words: float
    segments: int  # n, the number of equal parts into which the proof divides the work of a process
    x: tuple[float, float, float]  # words of (Out, In, Ker) that a process accesses in all its segments
    kappa: float  # κ of the geometric inequality O·I·K >= (F·κ/RS)² for the worst mix of taps
    procs: int
    most_work: int  # the most multiply-adds of one process that the bound assumes
    shards: tuple[float, float, float]  # words of (Out, In, Ker) that a process owns, once for each move
    accounting: Accounting

    @property
    def resident(self) -> float:
        """Owned words per process, which do not count as received."""
        return sum(self.shards) if self.accounting == "received" else 0.0

    def __str__(self) -> str:
        return (
            f"at least {self.words:.1f} words {self.accounting} per process ({self.segments} segments, "
            f"at most {self.most_work} multiply-adds in any process)"
        )


def water_fill_point(floors: Sequence[float], volume: float) -> tuple[float, ...]:
    """The x with the least sum under x_i >= floors_i > 0 and ∏x >= volume, in the order of `floors`."""
    point = list(floors)
    order = sorted(range(len(floors)), key=lambda i: -floors[i])
    if math.prod(floors) >= volume:
        return tuple(point)
    # The largest entries equal their floors. The others are equal and make up the remaining volume.
    rest = volume
    for position, i in enumerate(order):
        level = rest ** (1 / (len(order) - position))
        if level >= floors[i]:
            for j in order[position:]:
                point[j] = level
            break
        rest /= floors[i]
    return tuple(point)


def water_fill(floors: Sequence[float], volume: float) -> float:
    """The least Σx under x_i >= floors_i > 0 and ∏x >= volume, in the unit of `floors`."""
    return math.fsum(water_fill_point(floors, volume))


def _segment_counts(floors: tuple[float, float, float], volume: float, carried: float, cap: int) -> set[int]:
    """Candidates for the number n of segments that maximizes `water_fill(floors, n·volume) - (n-1)·carried`.

    The first term is constant, then linear in n, then 2√(n·V/l1), then 3(n·V)^(1/3). So the maximum is at
    n = 1, at n = cap, where two of these regimes meet, or where the derivative vanishes. The candidates are
    the integers next to these points, and those next to the segment sizes there. Every n gives a valid
    bound, so a missed maximum only weakens the bound.
    """
    l1, l2, l3 = sorted(floors, reverse=True)
    turns = [
        (volume ** (1 / 3) / carried) ** 1.5,
        volume / l1 / carried**2,
        l1 * l2 * l3 / volume,
        l1 * l2 * l2 / volume,
        l1 * l1 * l1 / volume,
    ]
    real = [turn for turn in turns if 0.5 < turn < 2 * cap]
    beside = {int(turn) + step for turn in real for step in (-1, 0, 1, 2)}
    sizes = {-(-cap // n) for n in beside if n >= 1}
    sizes |= {int(cap / turn) + step for turn in real for step in (-1, 0, 1, 2)}
    return {1, cap} | {-(-cap // size) for size in sizes if 1 <= size <= cap}  # the least n of each size


def segment_counts(
    sizes: tuple[float, float, float],
    mass: float,
    cap: int,
    procs: int,
    limit_words: float | None,
    piece: int,
) -> set[int]:
    """The numbers of segments among which `words_bound` takes the best; its arguments."""
    if limit_words is None or limit_words <= 0 or mass <= 0:
        return {1}
    counts = _segment_counts(sizes, mass**3 / cap, limit_words * procs, cap)
    return counts | {1, -(-cap // piece)}  # with fewer segments, a piece limits their size


def words_bound(
    sizes: tuple[float, float, float],
    mass: float,
    cap: int,
    procs: int,
    limit_words: float | None = None,
    piece: int | None = None,
) -> tuple[float, int, tuple[float, float, float]]:
    """Accessed words per process, less the words that memory carries between segments: (words, n, x).

    `sizes`: words of the three tensors. `mass`: Σ over multiply-adds of C^(-2/3), see
    `holder_brascamp_lieb.weighted_work`. `cap`: the most multiply-adds of one process. `piece`: the
    multiply-adds of one group of a grouped convolution. `limit_words`: memory per process, None for
    unlimited. n and x are those of `UniversalBound`.
    """
    best = (-math.inf, 1, sizes)
    for n in sorted(segment_counts(sizes, mass, cap, procs, limit_words, piece or cap)):
        # a segment has at most ⌈cap/n⌉ multiply-adds, for any order and any distribution of the work
        largest = min(-(-cap // n), piece or cap)
        x_out, x_in, x_ker = water_fill_point(sizes, mass**3 / largest)
        words = (x_out + x_in + x_ker) / procs - (n - 1) * (limit_words or 0.0)
        if words > best[0]:
            best = (words, n, (x_out / procs, x_in / procs, x_ker / procs))
    return best


def universal_bound(
    nest: Nest,
    procs: int,
    limit_words: float | None = None,
    most_work: int | None = None,
    accounting: Accounting = "received",
) -> UniversalBound:
    """The universal lower bound on words per process, average (hence maximum) over `procs` processes.

    `limit_words`: all memory of a process (`received`) or its fast memory (`accessed`), in words; None for
    unlimited. `most_work`: the most multiply-adds of one process, padding excluded; the least possible by
    default. `received` counts the words that a process does not own, and every word has one owner.
    `accessed` also counts the first touch of an owned word, like Eq. 3 of SPAA'21.

    With equal work this is `max over n of n·X(n·P) - (n-1)·M - resident`, X by `water_fill`. Unequal work
    weakens the bound, because the words that a segment needs are concave in its work. At n = 1 it is the
    memory-independent bound of Al Daas et al. (SPAA'22), generalized from matrix product to convolution.
    Raises `UsageError` if `procs` < 1 or `most_work` is too small for the layer.
    """
    if procs < 1:
        raise UsageError(f"A bound needs at least 1 process, not {procs}.")
    fair = max(1, -(-nest.real_work // procs))
    cap = fair if most_work is None else most_work
    if cap < fair:
        raise UsageError(
            f"{procs} processes of at most {cap} multiply-adds cannot do {nest.real_work}; "
            f"allow at least {fair} in each."
        )
    cap = min(cap, max(1, nest.real_work))
    sizes = tuple(map(float, _sizes(nest, accounting)))
    shards = (sizes[0] / procs, sizes[1] / procs, sizes[2] / procs)
    mass = weighted_work(nest, 2 / 3)
    piece = max(1, nest.real_work // nest.extents.g)
    words, n, x = words_bound((sizes[0], sizes[1], sizes[2]), mass, cap, procs, limit_words, piece)
    kappa = nest.taps * (mass / max(1, nest.real_work)) ** 1.5
    words *= 1 - 1e-12  # so that rounding errors do not lift the bound above an optimum that attains it
    if accounting == "received":
        words -= sum(shards)
    return UniversalBound(max(0.0, words), n, x, kappa, procs, cap, shards, accounting)


def _sizes(nest: Nest, accounting: Accounting) -> tuple[int, int, int]:
    """Words of (Out, In, Ker): of all outputs, taps and read rows (received), or those that are touched.

    Outputs and taps that read only padding are not touched by a multiply-add. The received accounting may
    count them: such a word raises a floor and `resident` by one each, and X grows at most by one.
    """
    if accounting == "received":
        return nest.read_words["Out"], nest.read_words["In"], nest.read_words["Ker"]
    n = nest.extents
    outs, rows, taps = zip(*(_touched(nest.windows[a], getattr(n, a)) for a in SPATIAL), strict=True)
    touched = (
        n.b * n.g * n.k * math.prod(outs),
        n.b * n.g * n.c * math.prod(rows),
        n.g * n.k * n.c * math.prod(taps),
    )
    return max(1, touched[0]), max(1, touched[1]), max(1, touched[2])


def _touched(window: Window, out: int) -> tuple[int, int, int]:
    """Number of output positions, input rows and taps with a multiply-add that does not read padding."""
    ranges = [r for tap in range(window.kernel) if (r := tap_range(window, tap, out)) != (0, 0)]
    positions = end = 0
    for first, last in sorted(ranges):
        positions += max(0, last - max(first, end))
        end = max(end, last)
    return positions, window.read_rows, len(ranges)


def matmul_memory_independent(m: int, n: int, k: int, procs: int) -> float:
    """Least words received per process for an m x n times n x k product (Al Daas et al., SPAA'22).

    Three regimes of P, by the sorted dimensions d1 >= d2 >= d3. The memory is unlimited and every word has
    one owner. The bound is the case RS = 1, n = 1 of `universal_bound`; a test compares them.
    """
    d3, d2, d1 = sorted((m, n, k))
    if procs * d2 <= d1:
        accessed = (d1 * d2 + d1 * d3) / procs + d2 * d3
    elif procs * d3 * d3 <= d1 * d2:
        accessed = 2 * math.sqrt(d1 * d2 * d3 * d3 / procs) + d1 * d2 / procs
    else:
        accessed = 3 * (d1 * d2 * d3 / procs) ** (2 / 3)
    return accessed - (d1 * d2 + d1 * d3 + d2 * d3) / procs


def sequential_bound(
    work: float, ratio: float, limit_words: float, precision: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> float:
    """Least words that one process moves between slow memory and `limit_words` of fast memory.

    `2·√(p_I·p_K·p_O)·work·ratio/√M - 2M`, with a weight `precision` per word of each tensor. `ratio` is
    κ₂/RS. For a matrix product it is 1, and the bound is `2F/√M - 2M`. docs/bounds.md derives the bound. It
    has the form of Chen et al. (PASC'22), whose constants we have not checked. A negative result says
    nothing.
    """
    return 2 * math.sqrt(math.prod(precision)) * work * ratio / math.sqrt(limit_words) - 2 * limit_words
