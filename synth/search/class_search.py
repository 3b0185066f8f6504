"""The search over residue classes, too: one search for each choice of them, cut short by the best so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from synth.layer.axes import AXES
from synth.layer.residue_classes import Classes, class_choices
from synth.search.branch_and_bound import search_or_error, search_or_floor
from synth.search.grids import Space, work_cap
from synth.search.request import Optimum, Request


def search_classes(request: Request, asked: Mapping[str, int]) -> Optimum:
    """The optimum of a request over the useful residue classes of its nest, which has none yet.

    Classes are taken where they move fewer words. `asked`: axis -> the number of classes that the user wants,
    1 for none. Where the user leaves the choice, no process does more work, filler included, than it may
    without classes. Raises `InfeasibleError` as `search` does.
    """
    first, *others = _requests(request, asked)
    plain, floor, error = search_or_error(replace(first, divided=bool(others)))
    floors = [floor]
    best = _best_of(others, plain, floors)
    if best is None:
        raise error(all(words is None for words in floors[1:]))
    return best


def search_classes_or_none(request: Request, asked: Mapping[str, int]) -> Optimum | None:
    """The same, or None if no plan fits. Faster than `search_classes` then."""
    return _best_of([*_requests(request, asked)], None, [])


def _best_of(requests: list[Request], best: Optimum | None, floors: list[int | None]) -> Optimum | None:
    """The optimum of several requests; `best` is known already, and stands where none moves fewer words.

    What one search has left out may move fewer words than the result of another. `floors`: for each search,
    words that the plans go not below which it has left out; those of the requests are added.
    """
    for each in requests:
        fewer_than = best.tiling.words if best else None
        found, left = search_or_floor(replace(each, fewer_than=fewer_than))
        floors.append(left)
        if found is not None and (best is None or found.tiling.words < best.tiling.words):
            best = found
    if best is None:
        return None
    fewest = min((words for words in floors if words is not None), default=best.tiling.words)
    return replace(best, proven_words=fewest if fewest < best.tiling.words else None)


def _requests(request: Request, asked: Mapping[str, int]) -> Iterator[Request]:
    """A request for each choice of classes that the fixed axes fit, the fewest classes first."""
    *divided, fewest = class_choices(request.nest, asked, request.balance)
    cap = None if fewest else _cap(request)
    for classes in (fewest, *divided):
        nest = request.nest.by_classes(classes)
        if classes != fewest and any(request.fixed.get(a, 1) > getattr(nest.extents, a) for a in AXES):
            continue
        if set(request.turned) <= set(nest.turnable):
            yield _with_nest(request, classes, cap)


def _with_nest(request: Request, classes: Classes, cap: int | None) -> Request:
    """The request for the nest with some classes. `cap`: the most iterations without classes."""
    if not classes:
        return request
    nest = request.nest.by_classes(classes)
    divided = replace(request, nest=nest, turnable=tuple(a for a in nest.turnable if a in request.turnable))
    own = _cap(divided)
    return divided if own is None else replace(divided, most_work=own if cap is None else min(own, cap))


def _cap(request: Request) -> int | None:
    """The most iterations of a process that the balance allows; None if no grid exists."""
    if request.most_work is not None:
        return request.most_work
    least = Space(request.nest, request.procs, request.fixed, request.exact).least_work
    return None if least is None else work_cap(least, request.balance)
