"""The index functions of a program: which box a rank works on, owns and carries, and what a block touches."""

from __future__ import annotations

from synth.codegen.line_breaks import WIDTH
from synth.codegen.parts.roles import roles, suffix
from synth.codegen.program import IndexFunction
from synth.layer.axes import AXES, DIMS, KERNEL_OF, SPATIAL, TENSORS, Axis, Tensor
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan


def layer_axes(plan: Plan) -> tuple[Axis, ...]:
    """The axes that the layer has, in rank order."""
    absent = {*SPATIAL} - {*plan.layer.spatial_axes}
    absent |= {"g"} if plan.layer.groups == 1 else set()
    return tuple(axis for axis in AXES if axis not in absent)


def dims_of(plan: Plan, tensor: Tensor) -> tuple[str, ...]:
    """The dimensions of a tensor that the layer has, in torch's order."""
    axes = layer_axes(plan)
    present = {*axes, *(KERNEL_OF[axis] for axis in axes if axis in SPATIAL)}
    return tuple(dim for dim in DIMS[tensor] if dim in present)


def work_intervals(plan: Plan) -> tuple[tuple[str, str], ...]:
    """Axis -> the interval of a work block."""
    extents = {axis: f"I_{axis}" for axis in plan.turned}
    return tuple((axis, _cut_axis(plan, axis, extents.get(axis, f"N_{axis}"))) for axis in layer_axes(plan))


def exchanges_rows(plan: Plan) -> bool:
    """Whether neighbours exchange a halo: a rank carries other rows of a framed tensor than it owns."""
    return bool(plan.distribution.row_axes)


def tensor_functions(plan: Plan) -> tuple[IndexFunction, ...]:
    """owned_*, touched_* and carried_* of all three tensors."""
    functions: list[IndexFunction] = []
    for tensor in TENSORS:
        functions += [_owned_function(plan, tensor), _touched_function(plan, tensor)]
        if plan.distribution.halo_axes(tensor):
            functions.append(_carried_function(plan, tensor))
    return tuple(functions)


def _owned_function(plan: Plan, tensor: Tensor) -> IndexFunction:
    member, named = _member(plan, tensor)
    intervals = tuple(_owned(plan, tensor, dim) for dim in dims_of(plan, tensor))
    only = "" if tensor in plan.resident else "only "
    return IndexFunction(
        name=f"owned_{suffix(plan, tensor)}",
        parameter="at",
        about=f"The box of {_shown(plan, tensor)} that {only}the rank at `at` stores.",
        body=(*(_member_lines(member) if named else ()), *_returned(intervals)),
    )


def _touched_function(plan: Plan, tensor: Tensor) -> IndexFunction:
    verb = "accesses" if plan.later else "adds to" if tensor == plan.first.written else "reads"
    return IndexFunction(
        name=f"touched_{suffix(plan, tensor)}",
        parameter="block",
        about=f"The box of {_shown(plan, tensor)} that a block of the nest {verb}.",
        body=_returned(tuple(_touched(plan, tensor, dim) for dim in dims_of(plan, tensor))),
    )


def _carried_function(plan: Plan, tensor: Tensor) -> IndexFunction:
    """Only a framed tensor is carried with other rows than those that are owned."""
    dims, parts = dims_of(plan, tensor), _parts(plan, tensor)
    member, named = _member(plan, tensor)
    framed = plan.distribution.nest.framed(tensor)
    cut_rows = [dim for dim in dims if dim in framed and (dim in parts or getattr(plan.grid, dim) > 1)]
    intervals = []
    for dim in dims:
        rows = _touched(plan, tensor, dim)
        widened = f"widen({dim}, {rows}, {', '.join(parts[dim])})" if dim in parts else rows
        intervals.append(widened if dim in cut_rows else dim)
    unpacked = ", ".join("_" if dim in cut_rows and dim not in parts else dim for dim in dims)
    name = suffix(plan, tensor)
    verb = "sums for" if not plan.later and plan.first.written == tensor else "sends to"
    return IndexFunction(
        name=f"carried_{name}",
        parameter="at",
        about=f"The box that the rank at `at` {verb} its group: its shard, with the halo.",
        body=(
            f"{unpacked} = owned_{name}(at)",
            "block = work(at)",
            *(_member_lines(member) if named and any(dim in parts for dim in cut_rows) else ()),
            *_returned(tuple(intervals)),
        ),
    )


def _shown(plan: Plan, tensor: Tensor) -> str:
    """`In[b, c]`, or `In[b, c] and dIn`."""
    first, *others = roles(plan, tensor)
    return " and ".join([f"{first}[{', '.join(dims_of(plan, tensor))}]", *others])


def _returned(intervals: tuple[str, ...]) -> tuple[str, ...]:
    """The statement that returns a box: on one line where that fits, else an interval per line."""
    line = f"return {', '.join(intervals)}"
    if len(line) <= WIDTH - 4:
        return (line,)
    return ("return (", *(f"    {interval}," for interval in intervals), ")")


def _member_lines(member: str) -> tuple[str, ...]:
    line, comment = f"member = {member}", "# index in the group"
    if len(f"    {line}  {comment}") <= WIDTH:
        return (f"{line}  {comment}",)
    return comment, line


def _group_axes(plan: Plan, tensor: Tensor) -> list[Axis]:
    """The axes along which the ranks of a tensor's group differ."""
    return [axis for axis in plan.distribution.lacked(tensor) if getattr(plan.grid, axis) > 1]


def _group_index(axes: list[Axis]) -> str:
    """The index of a rank in its group: its coordinates along some axes as digits, the last fastest."""
    first, *others = axes
    text = f'at["{first}"]'
    for position, axis in enumerate(others):
        text = f"({text})" if position else text
        text = f'{text} * P_{axis} + at["{axis}"]'
    return text


def _member(plan: Plan, tensor: Tensor) -> tuple[str, bool]:
    """The index of a rank in its group, and whether the functions give it the name `member`."""
    cuts, axes = plan.distribution.shard_cuts[tensor], _group_axes(plan, tensor)
    if not axes:
        return "", False
    return _group_index(axes), bool(cuts) and (len(cuts) > 1 or len(axes) > 1)


def _parts(plan: Plan, tensor: Tensor) -> dict[str, tuple[str, str]]:
    """Dimension -> (parts, which of them), in terms of `member` where that has a name."""
    index, named = _member(plan, tensor)
    return _digits(plan, tensor, "member" if named else index)


def _digits(plan: Plan, tensor: Tensor, member: str) -> dict[str, tuple[str, str]]:
    """Dimension -> (parts, which of them), as `shard_cuts.member_parts` reads the digits of a member."""
    cuts = plan.distribution.shard_cuts[tensor]
    if len(cuts) == 1:
        count = " * ".join(f"P_{axis}" for axis in _group_axes(plan, tensor))
        return {cuts[0][0]: (count, member)}
    result = {}
    faster = 1  # members that differ only in the dimensions after this one
    for place, (dim, parts) in reversed(list(enumerate(cuts))):
        digit = member if faster == 1 else f"{member} // {faster}"
        result[dim] = (str(parts), digit if place == 0 else f"{digit} % {parts}")
        faster *= parts
    return result


def first_panel(plan: Plan, tensor: Tensor, pass_plan: PassPlan) -> str:
    """Which panel of a tensor contains the shard of the rank at `at`; see `panel_rotation`."""
    (loop,) = pass_plan.loops()
    axes = _group_axes(plan, tensor)
    cuts, panels = plan.distribution.shard_cuts[tensor], pass_plan.panels
    parts = dict(cuts)[loop]
    index = _group_index(axes)
    if len(axes) > 1 and (len(cuts) > 1 or parts > panels):
        index = f"({index})"
    _, part = _digits(plan, tensor, index)[loop]
    return part if parts == panels else f"{part} // {parts // panels}"


def _cut_axis(plan: Plan, axis: str, extent: str) -> str:
    if getattr(plan.grid, axis, 1) == 1:
        return f"(0, {extent})"
    return f'cut((0, {extent}), P_{axis}, at["{axis}"])'


def _owned(plan: Plan, tensor: Tensor, dim: str) -> str:
    extent = f"I_{dim}" if tensor == "In" and dim in SPATIAL else f"N_{dim}"
    slice_, parts = _cut_axis(plan, dim, extent), _parts(plan, tensor)
    if dim not in parts:
        return slice_
    count, part = parts[dim]
    return f"cut({slice_}, {count}, {part})"


def _touched(plan: Plan, tensor: Tensor, dim: str) -> str:
    if dim not in AXES:
        return f"(0, N_{dim})"
    if tensor == "Out" and dim in plan.turned:
        return f'output_rows(block["{dim}"], WINDOWS["{dim}"])'
    if tensor == "In" and dim in SPATIAL and dim not in plan.turned:
        return f'input_rows(block["{dim}"], WINDOWS["{dim}"])'
    return f'block["{dim}"]'
