"""Why a plan moves more than the bound says: the gap split into three parts that add up to it.

    integer part   plan - relaxation: blocks are whole numbers, a grid has at most P processes, and the
                   most-receiving process counts, not the average one
    halo part      relaxation - relaxation without halos: rows that two blocks both read
    bound part     relaxation without halos - bound: blocks and their slices, where the bound admits any
                   set of multiply-adds; negative where the bound knows of halos more than blocks pay

All in received words per process.
"""

from __future__ import annotations

from dataclasses import dataclass


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


def split(plan: float, relaxed: float, relaxed_without_halos: float, bound: float) -> Gap:
    """The three parts of `plan - bound`; all arguments in received words per process."""
    return Gap(plan - relaxed, relaxed - relaxed_without_halos, relaxed_without_halos - bound)
