"""One training step of a layer: three passes on one grid, and what is kept in memory between them.

    pass              reads       writes   what it can find kept
    forward           In, Ker     Out      nothing
    backward-data     dOut, Ker   dIn      Ker, from the forward pass
    backward-filter   dOut, In    dKer     In, from the forward pass; dOut, from backward-data

Without keeping, every tensor moves three times (twice gathered, once summed); each kept tensor saves one
gather, so keeping all three saves a third of the words. It costs memory: a kept slice lives from the pass
that gathers it to the pass that finds it. Which tensors to keep is part of the search.

A transposed convolution does backward-data first and forward second: In and Out change places above.
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
from synth.passes import PASSES, Pass, in_order, spans
from synth.tiling import Tiling
from synth.words import received


def roles(kept: frozenset[Tensor], transposed: bool = False) -> tuple[Tiling, ...]:
    """The three passes, each with what it keeps and finds kept when `kept` is kept between passes."""
    lives = spans(transposed)
    return tuple(
        Tiling(
            pass_=pass_,
            kept=frozenset(t for t in kept if lives[t][1] == pass_),
            keeps=frozenset(t for t in kept if lives[t][0] == pass_),
        )
        for pass_ in in_order(transposed)
    )


def resident(footprints: Footprints, kept: frozenset[Tensor], pass_: Pass, transposed: bool = False) -> int:
    """Words alive during a pass that are none of its business, at most.

    The layer's input waits for backward-filter while its gradient is computed; Ker and that finished
    gradient stay during backward-filter.
    """
    given: Tensor = "Out" if transposed else "In"
    first, second, _ = in_order(transposed)
    if pass_ == first:
        return 0
    if pass_ == second:
        return footprints.shares[given] + (footprints.slice(given) if given in kept else 0)
    return footprints.shares["Ker"] + footprints.shares[given]


def training_memory(footprints: Footprints, tilings: Sequence[Tiling]) -> Memory:
    """The most words a process holds over the three passes, what waits for later ones included."""
    kept = tilings[0].keeps | tilings[1].keeps
    transposed = tilings[0].pass_ != PASSES[0]
    passes = (
        footprints.memory(tiling).beside(resident(footprints, kept, tiling.pass_, transposed))
        for tiling in tilings
    )
    return reduce(Memory.most, passes)


def fit_training(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit: int | None,
    panels: int | None = None,
    transposed: bool = False,
) -> tuple[Fit | None, int]:
    """The three tilings, and what they keep, with the fewest words in all; and the least memory needed.

    Words are those of the process that receives most over the whole step; `panels` as for `fit`.
    """
    footprints = Footprints(distribution)
    best: Fit | None = None
    least: int | None = None
    for kept in choices(limit is None):
        if best is not None and _words(distribution, roles(kept, transposed)) >= best.words:
            continue
        chosen, needed = fit_passes(distribution, footprints, stationary, limit, kept, panels, transposed)
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
    transposed: bool = False,
) -> tuple[Fit | None, int]:
    """The three tilings when exactly `kept` is kept between passes, None where that does not fit `limit`.

    Also the least memory needed, in words.
    """
    tilings: list[Tiling] = []
    memory = needed = 0
    for role in roles(kept, transposed):
        alive = resident(footprints, kept, role.pass_, transposed)
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
    return reduce(add, (received(distribution, tiling) for tiling in tilings)).most_with()
