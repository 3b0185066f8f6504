"""One training step of a layer: three passes on one grid, and what is kept in memory between them.

    pass              reads       writes   what it can find kept
    forward           In, Ker     Out      nothing
    backward-data     dOut, Ker   dIn      Ker, from the forward pass
    backward-filter   dOut, In    dKer     In, from the forward pass; dOut, from backward-data

Without keeping, every tensor moves three times (twice gathered, once summed); each kept tensor saves one
gather, so keeping all three saves a third of the words. It costs memory: a kept slice lives from the pass
that gathers it to the pass that finds it. Which tensors to keep is part of the search.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations
from operator import add

from synth.axes import TENSORS, Tensor
from synth.distribution import Distribution
from synth.fit import Fit, fit
from synth.memory import Footprints, Memory
from synth.passes import PASSES, SPANS, Pass
from synth.tiling import Tiling
from synth.words import received


def roles(kept: frozenset[Tensor]) -> tuple[Tiling, ...]:
    """The three passes, each with what it keeps and finds kept when `kept` is kept between passes."""
    return tuple(
        Tiling(
            pass_=pass_,
            kept=frozenset(t for t in kept if SPANS[t][1] == pass_),
            keeps=frozenset(t for t in kept if SPANS[t][0] == pass_),
        )
        for pass_ in PASSES
    )


def resident(footprints: Footprints, kept: frozenset[Tensor], pass_: Pass) -> int:
    """Words alive during a pass that are none of its business, at most.

    In waits for backward-filter while backward-data runs; Ker and the finished dIn stay during
    backward-filter.
    """
    match pass_:
        case "forward":
            return 0
        case "backward-data":
            return footprints.shares["In"] + (footprints.slice("In") if "In" in kept else 0)
        case "backward-filter":
            return footprints.shares["Ker"] + footprints.shares["In"]


def training_memory(footprints: Footprints, tilings: Sequence[Tiling]) -> Memory:
    """The most words a process holds over the three passes, what waits for later ones included."""
    kept = tilings[0].keeps | tilings[1].keeps
    passes = (
        footprints.memory(tiling).beside(resident(footprints, kept, tiling.pass_)) for tiling in tilings
    )
    return reduce(Memory.most, passes)


def fit_training(
    distribution: Distribution, stationary: Sequence[Tensor], limit: int | None, panels: int | None = None
) -> tuple[Fit | None, int]:
    """The three tilings, and what they keep, with the fewest words in all; and the least memory needed.

    Words are those of the process that receives most over the whole step; `panels` as for `fit`.
    """
    footprints = Footprints(distribution)
    best: Fit | None = None
    least: int | None = None
    for kept in choices(limit is None):
        if best is not None and _words(distribution, roles(kept)) >= best.words:
            continue
        chosen, needed = fit_passes(distribution, footprints, stationary, limit, kept, panels)
        least = needed if least is None else min(least, needed)
        if chosen is not None and (best is None or chosen.words < best.words):
            best = chosen
    assert least is not None
    return best, least


def choices(all_fit: bool) -> Iterator[frozenset[Tensor]]:
    """What may be kept, most first; with enough memory everything is."""
    for count in range(len(TENSORS), -1, -1):
        for kept in combinations(TENSORS, count):
            yield frozenset(kept)
        if all_fit:
            return


def fit_passes(
    distribution: Distribution,
    footprints: Footprints,
    stationary: Sequence[Tensor],
    limit: int | None,
    kept: frozenset[Tensor],
    panels: int | None = None,
) -> tuple[Fit | None, int]:
    """The three tilings when exactly `kept` is kept between passes, None where that does not fit `limit`.

    Also the least memory needed, in words.
    """
    tilings: list[Tiling] = []
    memory = needed = 0
    for role in roles(kept):
        alive = resident(footprints, kept, role.pass_)
        room = None if limit is None else limit - alive
        found, least = fit(distribution, stationary, room, role, panels)
        needed = max(needed, least + alive)
        if found is not None:
            tilings.append(found.tiling)
            memory = max(memory, found.memory + alive)
    if len(tilings) < len(PASSES):
        return None, needed
    return Fit(tuple(tilings), _words(distribution, tilings), memory), needed


def _words(distribution: Distribution, tilings: Sequence[Tiling]) -> int:
    """Words of the process that receives most over all passes."""
    total = reduce(add, (received(distribution, tiling).total for tiling in tilings))
    return int(total.max())
