"""Steps of loops over rows that a traced model has turn by turn, and that are one call.

See `synth.parallel.front_end`: `recurrences` and `mapped_loops` find them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.prefix_exchange import lines_along
from synth.runtime.comm.redistribute import Count
from synth.runtime.grid.boxes import Box, shape, volume
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.replicated_params import ReplicatedParams
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.rules.access import Access, Same, Single, aligned
from synth.runtime.rules.affine_scan import CutAffineScan
from synth.runtime.rules.local_forms import LocalForm, fitting, regrouped, whole_along
from synth.runtime.rules.mapped_rows import MappedRows
from synth.runtime.rules.rule import Operand, Rule, needed, type_of, where_words

Hold = Callable[[Call, Mapping[str, Layout], Count], "ReplicatedParams | None"]


def affine_step(
    call: Call, inputs: Mapping[fx.Node, Layout], count: Count, hold: Hold
) -> Pulled | None:
    """The step of a recurrence, in lines of ranks; its terms say where states lie."""
    args: tuple[Any, ...] = call.node.args
    factors, terms, start, dim = args
    if terms not in inputs or node_shape(terms) != call.out:
        return None
    out = inputs[terms]
    if lines_along(out, dim) is None:
        others = [each for each in range(len(call.out)) if each != dim]
        out = fitting(
            out, whole_along(call.out, others, call.out, range(len(call.out)))
        )
    lines = lines_along(out, dim)
    if lines is None:
        return None
    reads: dict[fx.Node, tuple[Access, ...]] = {terms: aligned(call.out, call.out)}
    number = isinstance(factors, int | float)
    if start is not None:
        reads[start] = _beside(node_shape(start), call.out, dim)
    if not number:
        reads[factors] = aligned(node_shape(factors), call.out)
    if len(reads) < 3 - number - (start is None):
        return None  # a tensor that occurs twice
    given = (1,) * len(call.out) if number else node_shape(factors)
    boxes = {
        name: needed(out, tuple(values.shape), reads[node])
        for node, (name, values) in call.parameters.items()
    }
    needs = (*range(len(inputs)), *(call.state_key(name) for name in boxes))
    scan = CutAffineScan(dim, out, given, tuple(lines), needs)

    def run(factors: Any, terms: torch.Tensor, start: Any, _: int) -> Any:
        if number:
            factors = terms.new_full(given, factors)
        return scan(factors, terms, start, count)

    operands = tuple(
        Operand(source, needed(out, source.whole, reads[node]), place, reads[node])
        for place, (node, source) in enumerate(inputs.items())
    )
    local = where_words(
        call.filled(instead=run), out, lambda *here: call.dtypes.of(here[0].dtype)
    )
    rule = Rule(out, operands, local, scan)
    return Pulled(rule, count, hold(call, boxes, count))


def _beside(
    state: Sequence[int], states: Sequence[int], dim: int
) -> tuple[Access, ...]:
    """What is read of a state, of one shape with the states but for a dimension."""
    kept = [each for each in range(len(states)) if each != dim]
    pairs = zip(state, kept[len(kept) - len(state) :], strict=True)
    return tuple(
        Same(each) if states[each] == extent else Single() for extent, each in pairs
    )


def mapped_step(
    call: Call, inputs: Mapping[fx.Node, Layout], count: Count, hold: Hold
) -> Pulled | None:
    """The step of a loop over rows, which ranks divide along these."""
    function: Any = call.function
    assert isinstance(function, MappedRows)
    args: list[Any] = list(call.node.args)
    pairs = list(zip(args, function.reads, strict=False))
    if not all(node in inputs for node, _ in pairs):
        return None
    base, of_base = max(pairs, key=lambda each: math.prod(node_shape(each[0])))
    form = _turns_of(function, base, of_base, call.out)
    out = regrouped(fitting(inputs[base], form), form)
    if out is None:
        return None
    turns = node_shape(base)[of_base.dim] // of_base.size
    rows = call.out[function.dim] // turns

    def read(node: fx.Node, place: int, box: Box) -> Box:
        whole = node_shape(node)
        if not volume(box):
            return ((0, 0),) * len(whole)
        made = [(0, extent) for extent in whole]
        if place < len(function.reads):
            dim, size = function.reads[place]
            low, high = box[function.dim]
            made[dim] = low // rows * size, high // rows * size
        return tuple(made)

    layouts = [
        out.with_boxes(node_shape(node), [read(node, place, box) for box in out.boxes])
        for place, node in enumerate(args)
    ]
    moved = [place for place, node in enumerate(args) if node in inputs]
    given = [place for place, node in enumerate(args) if node not in inputs]
    nodes = list(inputs)
    operands = tuple(
        Operand(inputs[args[place]], layouts[place], nodes.index(args[place]))
        for place in moved
    )
    boxes = {call.parameters[args[place]][0]: layouts[place] for place in given}
    order = [*moved, *given]

    def run(*here: torch.Tensor) -> torch.Tensor:
        by_place = dict(zip(order, here, strict=True))
        return function(*(by_place[place] for place in range(len(args))))

    turn = tuple(
        (0, rows if dim == function.dim else extent)
        for dim, extent in enumerate(call.out)
    )
    least = [shape(read(args[place], place, turn)) for place in order]
    local = where_words(run, out, type_of(run, least))
    return Pulled(Rule(out, operands, local), count, hold(call, boxes, count))


def _turns_of(
    function: MappedRows, node: fx.Node, read: Any, out: tuple[int, ...]
) -> LocalForm:
    """Boxes of whole turns of a loop, and what it makes of them."""
    whole = node_shape(node)
    rows = out[function.dim] // (whole[read.dim] // read.size)

    def regroup(box: Box) -> Box | None:
        low, high = box[read.dim]
        for dim, extent in enumerate(whole):
            if dim != read.dim and box[dim] != (0, extent):
                return None
        if low % read.size or high % read.size:
            return None
        made = [(0, extent) for extent in out]
        made[function.dim] = low // read.size * rows, high // read.size * rows
        return tuple(made)

    return LocalForm({read.dim: read.size}, regroup, out)
