"""`synth.lower_bounds`: what `synth bounds` prints, from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.base.ranges import MOST_POINTS, MOST_PROCS, parse_memory, parse_procs
from synth.base.units import as_bytes
from synth.base.work_balance import BALANCE, check_balance
from synth.layer.layer import Layer, load_layer

if TYPE_CHECKING:
    from synth.analysis.sweep_table import Study

Ticks = Callable[[int], AbstractContextManager[Callable[[], None]]]  # number of points -> called after each


def _unseen(_: int) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


def lower_bounds(
    layer: Layer | str | os.PathLike[str],
    procs: int | str | Sequence[int],
    memory: int | str | Sequence[int] | None = None,
    *,
    points: int | None = None,
    plans: bool = True,
    relaxations: bool = True,
    eq3: bool = False,
    balance: float = BALANCE,
    exact_procs: bool = False,
    ticks: Ticks = _unseen,
) -> Study:
    """Lower bounds on the words that one process receives, beside closed forms and the best plans.

    layer: a `Layer`, or the path of a layer file.
    procs: processes: a number, several, or text like "1:4096", whose points are log-spaced.
    memory: bytes per process: a number, several, text like "16GiB" or "64KiB:64GiB"; None for any amount.
    points: of each range; None: each is twice the one before.
    plans, relaxations, eq3: whether to search the best plans, solve the geometric programs (needs the extra
        `solver`), and find the integer optimum of Eq. 3 (slow).
    balance, exact_procs: of the plans, as for `synth.plan`.
    ticks: called with the number of points; gives what is called after each, for a progress bar.

    All numbers of the result are words; docs/bounds.md states and proves the bounds (Hölder-Brascamp-Lieb
    inequalities; Li et al., SPAA'21). `Study.points` has a row per point; `str(study)` is a table.

    Raises `UsageError`, `InputError` for a wrong file, and `InfeasibleError` if nothing fits at any point.
    """
    procs_list = parse_procs(procs, points) if isinstance(procs, str) else _counts(procs)
    memory_list = _sizes(memory, points)
    check_balance(balance)
    if len(procs_list) * len(memory_list) > MOST_POINTS:
        raise UsageError(
            f"{len(procs_list)} processes x {len(memory_list)} sizes are more than {MOST_POINTS} points; "
            f"ask for fewer with {option('points')}"
        )
    from synth.analysis.sweep import Sweep, SweepOptions, why_nothing_fits
    from synth.analysis.sweep_table import Study

    if not isinstance(layer, Layer):
        layer = load_layer(layer)
    options = SweepOptions(plans, relaxations, eq3, balance, exact_procs)
    largest = memory_list[-1]
    if largest is not None and largest < layer.nest.word_bytes:
        raise UsageError(f"memory is {largest} bytes; it must hold at least one {layer.dtype} word")
    if largest is not None and plans:
        # if nothing fits at the end of both ranges, nothing fits anywhere
        fault = why_nothing_fits(layer.nest, procs_list[-1], largest, options)
        if fault is not None:
            raise fault
    fitting = [m for m in memory_list if m is None or m >= layer.nest.word_bytes]
    with ticks(len(procs_list) * len(fitting)) as tick:
        found = Sweep(layer.nest, options).points(procs_list, fitting, tick)
    return Study.of(layer, found)


def _counts(procs: int | Sequence[int]) -> list[int]:
    """Numbers of processes, ascending and distinct."""
    counts = [procs] if isinstance(procs, int) else list(procs)
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PROCS:
            raise UsageError(f"procs is {count!r}; it must be a whole number from 1 to {MOST_PROCS}")
    if not counts:
        raise UsageError("procs is empty; give at least one number of processes")
    return sorted(set(counts))


def _sizes(memory: int | str | Sequence[int] | None, points: int | None) -> list[int | None]:
    """Sizes in bytes, ascending and distinct; one None for any amount."""
    if memory is None:
        return [None]
    if isinstance(memory, str):
        return [*parse_memory(memory, points)]
    sizes = [memory] if isinstance(memory, int) else list(memory)
    found = sorted({size for size in map(as_bytes, sizes) if size is not None})
    if not found or found[0] < 1:
        raise UsageError(f"memory is {memory!r}; give at least one size, of at least one byte")
    return [*found]
