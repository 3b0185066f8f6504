"""The coordinate functions of a program as expressions: who works on, owns, carries and touches what."""

from __future__ import annotations

from synth.codegen.program import TensorText
from synth.layer.axes import AXES, DIMS, KERNEL_OF, LACKS, SPATIAL, TENSORS, Axis, Tensor
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

WIDTH = 88


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
    return tuple((axis, _cut_axis(plan, axis, f"N_{axis}")) for axis in layer_axes(plan))


def carries_more(plan: Plan) -> bool:
    """Whether any rank hands out other rows of In than it owns: then there is a halo to exchange."""
    return bool(plan.distribution.row_axes)


def tensor_texts(plan: Plan, asked: set[Tensor]) -> tuple[TensorText, ...]:
    """The functions of all three tensors; what a block touches only of those that are `asked` for it."""
    return tuple(_tensor_text(plan, tensor, tensor in asked) for tensor in TENSORS)


def _tensor_text(plan: Plan, tensor: Tensor, asked: bool) -> TensorText:
    dims = dims_of(plan, tensor)
    place = _place(plan, tensor)
    share = plan.distribution.shares[tensor]
    named = bool(share) and (len(share) > 1 or not place.startswith("at[") or place.count("at[") > 1)
    parts = _parts(plan, tensor, "member" if named else place)
    owned = tuple(_owned(plan, tensor, dim, parts) for dim in dims)
    carried = _carried(plan, dims, parts) if tensor == "In" and carries_more(plan) else ()
    return TensorText(
        name=tensor,
        var=tensor.lower(),
        dims=", ".join(dims),
        verb=_verb(plan, tensor),
        owned=_returned(owned),
        touched=_returned(tuple(_touched(tensor, dim) for dim in dims)) if asked else "",
        member=place if named else "",
        carried=_returned(carried) if carried else "",
        carried_member=place if any("member" in interval for interval in carried) else "",
        kept=", ".join(_kept(dim, own) for dim, own in zip(dims, carried, strict=False)),
    )


def _verb(plan: Plan, tensor: Tensor) -> str:
    """What a block of the nest does with a tensor."""
    if plan.later:
        return "touches"
    return "adds to" if tensor == plan.first.written else "reads"


def _returned(intervals: tuple[str, ...]) -> str:
    """The statement that returns a box: on one line where that is short, else an interval per line."""
    line = f"    return {', '.join(intervals)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join(["    return (", *(f"        {interval}," for interval in intervals), "    )"])


def _kept(dim: str, carried: str) -> str:
    return dim if carried == dim or carried.startswith("widen(") else "_"


def _place(plan: Plan, tensor: Tensor) -> str:
    """Index of a rank in the group that shares a slice: its coordinates in mixed radix."""
    text = ""
    for axis in LACKS[tensor]:
        if getattr(plan.grid, axis) == 1:
            continue
        if " + " in text:
            text = f"({text})"
        text = f'{text} * P_{axis} + at["{axis}"]' if text else f'at["{axis}"]'
    return text


def _parts(plan: Plan, tensor: Tensor, member: str) -> dict[str, tuple[str, str]]:
    """Dimension -> (parts, which of them), as `shares.member_parts` reads the digits of a member."""
    share = plan.distribution.shares[tensor]
    if len(share) == 1:
        axes = [axis for axis in LACKS[tensor] if getattr(plan.grid, axis) > 1]
        return {share[0][0]: (" * ".join(f"P_{axis}" for axis in axes), member)}
    result = {}
    faster = 1  # members that differ only in the dimensions after this one
    for place, (dim, parts) in reversed(list(enumerate(share))):
        digit = member if faster == 1 else f"{member} // {faster}"
        result[dim] = (str(parts), digit if place == 0 else f"{digit} % {parts}")
        faster *= parts
    return result


def panel_place(plan: Plan, tensor: Tensor, pass_plan: PassPlan) -> str:
    """Which panel of a tensor has a part in the share of the rank at `at`; see `panel_rotation`."""
    (loop,) = pass_plan.loops()
    place = _place(plan, tensor)
    share, panels = plan.distribution.shares[tensor], pass_plan.panels
    parts = dict(share)[loop]
    if " + " in place and (len(share) > 1 or parts > panels):
        place = f"({place})"
    _, part = _parts(plan, tensor, place)[loop]
    return part if parts == panels else f"{part} // {parts // panels}"


def _cut_axis(plan: Plan, axis: str, extent: str) -> str:
    if getattr(plan.grid, axis, 1) == 1:
        return f"(0, {extent})"
    return f'cut((0, {extent}), P_{axis}, at["{axis}"])'


def _owned(plan: Plan, tensor: Tensor, dim: str, parts: dict[str, tuple[str, str]]) -> str:
    extent = f"I_{dim}" if tensor == "In" and dim in SPATIAL else f"N_{dim}"
    whole = _cut_axis(plan, dim, extent)
    if dim not in parts:
        return whole
    count, part = parts[dim]
    return f"cut({whole}, {count}, {part})"


def _touched(tensor: Tensor, dim: str) -> str:
    if dim not in AXES:
        return f"(0, N_{dim})"
    if tensor == "In" and dim in SPATIAL:
        return f'input_rows(block["{dim}"], WINDOWS["{dim}"])'
    return f'block["{dim}"]'


def _carried(plan: Plan, dims: tuple[str, ...], parts: dict[str, tuple[str, str]]) -> tuple[str, ...]:
    def along(dim: str) -> str:
        if dim not in SPATIAL or (dim not in parts and getattr(plan.grid, dim) == 1):
            return dim
        need = _touched("In", dim)
        return f"widen({dim}, {need}, {', '.join(parts[dim])})" if dim in parts else need

    return tuple(along(dim) for dim in dims)
