"""Lower bounds on the words that a convolution moves; `docs/bounds.md` has the proofs.

The universal bound ("lb2") holds for every schedule in which each multiply-add is done once, by one
process, nothing is replicated before the pass or after it, and the most-loaded process does at most
`most_work` multiply-adds. It bounds the average over processes, hence the maximum. Pure Python: the
planner imports this on its fast path.
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
    """A certificate: no schedule moves fewer than `words` words per process, on average over `procs`."""

    words: float
    segments: int  # n, the number of equal parts into which the proof cuts a process's work
    x: tuple[float, float, float]  # words of (Out, In, Ker) that a process accesses in all its segments
    kappa: float  # κ of the geometric inequality O·I·K >= (F·κ/RS)² for the worst mix of taps
    procs: int
    most_work: int  # multiply-adds of the most-loaded process that the bound admits
    resident: float  # words that a process owns and that were therefore not counted
    accounting: Accounting

    def __str__(self) -> str:
        return (
            f"at least {self.words:.1f} words {self.accounting} per process ({self.segments} segments, "
            f"at most {self.most_work} multiply-adds in any process)"
        )


def water_fill_point(floors: Sequence[float], volume: float) -> tuple[float, ...]:
    """The x with the least sum subject to x_i >= floors_i > 0 and ∏x >= volume, in the order of `floors`."""
    point = list(floors)
    order = sorted(range(len(floors)), key=lambda i: -floors[i])
    if math.prod(floors) >= volume:
        return tuple(point)
    # The largest stay at their floors; the rest share what volume is left equally.
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
    """Least Σx subject to x_i >= floors_i > 0 and ∏x >= volume (words, when the floors are words)."""
    return math.fsum(water_fill_point(floors, volume))


def _segment_counts(floors: tuple[float, float, float], volume: float, carried: float, cap: int) -> set[int]:
    """Numbers n of segments among which `water_fill(floors, n·volume) - (n-1)·carried` is largest.

    The first term is constant, then linear in n, then 2√(n·V/l1), then 3(n·V)^(1/3): so the maximum is at
    n = 1, at n = cap, where two regimes meet, or where the derivative vanishes; the integers beside these
    are tried, and those for the segment sizes beside. Any n gives a valid bound.
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
    return {1, cap} | {-(-cap // size) for size in sizes if 1 <= size <= cap}  # the fewest of each size


def words_bound(
    sizes: tuple[float, float, float],
    mass: float,
    cap: int,
    procs: int,
    limit_words: float | None = None,
    piece: int | None = None,
) -> tuple[float, int, tuple[float, float, float]]:
    """Words accessed per process less what memory carries between segments: (words, n, x).

    `sizes` are the words of three tensors; `mass` is Σ over multiply-adds of C^(-2/3), see `hbl`; no
    process does more than `cap` multiply-adds, nor more than `piece` of them on one separate piece of
    the problem (a group of a grouped convolution); `limit_words` per process, None for any amount.
    """
    best = (-math.inf, 1, sizes)
    counts = {1}
    if limit_words is not None and limit_words > 0 and mass > 0:
        counts = _segment_counts(sizes, mass**3 / cap, limit_words * procs, cap)
        counts.add(-(-cap // (piece or cap)))  # fewer segments than that are no smaller than a piece
    for n in sorted(counts):
        # every segment has at most ⌈cap/n⌉ multiply-adds, whatever the order and the shares
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

    `limit_words`: all local words of a process (`received`) or its fast memory (`accessed`); None for
    unlimited. `most_work`: real multiply-adds of the most-loaded process; the least possible by default.
    `received` counts words that a process did not own, with every word of the three tensors owned
    once; `accessed` charges the first touch of a word, too, as Eq. 3 of SPAA'21 does.

    With equal shares this is `max over n of n·X(n·P) - (n-1)·M - resident`, X by `water_fill`; unequal
    shares weaken it, because the words a segment needs are concave in its work. At n = 1 it is the
    memory-independent bound of Al Daas et al. (SPAA'22) carried from matrix product to convolution.
    UsageError if `procs` or `most_work` make no sense.
    """
    if procs < 1:
        raise UsageError(f"A bound for {procs} processes does not exist; ask for at least 1.")
    fair = max(1, -(-nest.real_work // procs))
    cap = fair if most_work is None else most_work
    if cap < fair:
        raise UsageError(
            f"{procs} processes of at most {cap} multiply-adds cannot do {nest.real_work}; "
            f"allow at least {fair} in each."
        )
    cap = min(cap, max(1, nest.real_work))
    sizes = tuple(map(float, _sizes(nest, accounting)))
    resident = nest.total_words / procs if accounting == "received" else 0.0
    mass = weighted_work(nest, 2 / 3)
    piece = max(1, nest.real_work // nest.extents.g)
    words, n, x = words_bound((sizes[0], sizes[1], sizes[2]), mass, cap, procs, limit_words, piece)
    kappa = nest.taps * (mass / max(1, nest.real_work)) ** 1.5
    words *= 1 - 1e-12  # rounding errors never lift a bound above an optimum that attains it
    return UniversalBound(max(0.0, words - resident), n, x, kappa, procs, cap, resident, accounting)


def _sizes(nest: Nest, accounting: Accounting) -> tuple[int, int, int]:
    """Words of (Out, In, Ker): all that are owned, or only those that some multiply-add touches.

    Padding can leave outputs and taps without a real input. Owned words may all be counted: one that no
    process touches raises a floor by one and `resident` by one, and X grows at most by one.
    """
    if accounting == "received":
        return nest.words["Out"], nest.words["In"], nest.words["Ker"]
    n = nest.extents
    outs, rows, taps = zip(*(_touched(nest.windows[a], getattr(n, a)) for a in SPATIAL), strict=True)
    touched = (
        n.b * n.g * n.k * math.prod(outs),
        n.b * n.g * n.c * math.prod(rows),
        n.g * n.k * n.c * math.prod(taps),
    )
    return max(1, touched[0]), max(1, touched[1]), max(1, touched[2])


def _touched(window: Window, out: int) -> tuple[int, int, int]:
    """Output positions, input rows and taps that take part in a real multiply-add."""
    ranges = [r for tap in range(window.kernel) if (r := tap_range(window, tap, out)) != (0, 0)]
    positions = end = 0
    for first, last in sorted(ranges):
        positions += max(0, last - max(first, end))
        end = max(end, last)
    rows = window.size
    if window.dilation > 1 or window.kernel < window.stride:
        rows = len({row for tap in range(window.kernel) for row in _rows(window, tap, out)})
    return positions, rows, len(ranges)


def _rows(window: Window, tap: int, out: int) -> range:
    """Input rows that one tap reads."""
    first, last = tap_range(window, tap, out)
    shift = window.dilation * tap - window.padding
    return range(window.stride * first + shift, window.stride * last + shift, window.stride)


def matmul_memory_independent(m: int, n: int, k: int, procs: int) -> float:
    """Words received per process by an m x n times n x k product, any memory (Al Daas et al., SPAA'22).

    Theirs in three regimes of P, by the sorted dimensions d1 >= d2 >= d3; it is the case RS = 1, n = 1 of
    `universal_bound`, which the tests check. In words, whole problem owned once.
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
    """Words one process moves between slow memory and `limit_words` of fast memory.

    `2·√(p_I·p_K·p_O)·work·ratio/√M - 2M`, words of the three tensors weighing `precision`; `ratio` is
    κ₂/RS, 1 for a matrix product (then `2F/√M - 2M`). Re-derived in docs/bounds.md; the form is that of
    Chen et al. (PASC'22), whose constants were not checked against the paper. May be negative: vacuous.
    """
    return 2 * math.sqrt(math.prod(precision)) * work * ratio / math.sqrt(limit_words) - 2 * limit_words
