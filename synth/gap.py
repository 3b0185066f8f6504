"""Why a plan moves more than the bound says: the gap split into three parts that add up to it.

    integer part   plan - relaxation: blocks are whole numbers, grids have at most P processes, the
                   maximum over processes is more than their average
    halo part      what the relaxation gains without halos, less what the bound would lose without its
                   knowledge of them (the constants C(N, R) < √R): halo words that the bound does not see
    bound part     relaxation without halos - bound without halos: blocks instead of arbitrary sets of
                   multiply-adds

All in received words per process. A part may be slightly negative: the bound then sees more of it than
the relaxation pays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.axes import SPATIAL
from synth.bounds import words_bound
from synth.hbl import residues, tap_range
from synth.nest import Nest


@dataclass(frozen=True)
class Gap:
    """Received words per process by which a plan exceeds the bound."""

    integer: float
    halo: float
    bound: float

    @property
    def total(self) -> float:
        """The whole gap."""
        return self.integer + self.halo + self.bound


def split(plan: float, relaxed: float, relaxed_blind: float, bound: float, bound_blind: float) -> Gap:
    """The three parts of `plan - bound`; all arguments in received words per process."""
    seen = bound - bound_blind
    return Gap(plan - relaxed, relaxed - relaxed_blind - seen, relaxed_blind - bound_blind)


def halo_blind_bound(nest: Nest, procs: int, memory_words: float | None, most_work: int) -> float:
    """The universal bound with √R instead of C(N, R): what is known without looking at halos. Words."""
    n = nest.extents
    mass = float(n.b * n.g * n.c * n.k)
    for axis in SPATIAL:
        window, out = nest.windows[axis], getattr(n, axis)
        counts = {tap: tap_range(window, tap, out) for tap in range(window.kernel)}
        mass *= math.fsum(
            (counts[tap][1] - counts[tap][0]) / len(taps) ** (1 / 3)  # C^(-2/3) with C = √R
            for _, taps in residues(window)
            for tap in taps
        )
    sizes = (float(nest.words["Out"]), float(nest.words["In"]), float(nest.words["Ker"]))
    piece = max(1, nest.real_work // n.g)
    cap = min(most_work, max(1, nest.real_work))
    words, _, _ = words_bound(sizes, mass, cap, procs, memory_words, piece)
    return max(0.0, words * (1 - 1e-12) - nest.total_words / procs)
