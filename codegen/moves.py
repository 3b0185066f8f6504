"""Every move of a schedule tree as a statement: which functions, variables and groups it names."""

from __future__ import annotations

from synth.codegen.program import (
    BindGroup,
    FetchRows,
    GatherPanel,
    GatherRotated,
    GatherSlice,
    ReducePanel,
    ReduceSlice,
    ReturnRows,
)
from synth.codegen.signature import Signature
from synth.layer.axes import TENSORS, Axis
from synth.schedule.pass_program import Gather, Reduce, Rows


def bind_group(names: Signature, move: Gather | Reduce, context: str = "context") -> BindGroup:
    """The group of a move, with the traffic counter that `context` is."""
    var, why = names.group(move.tensor), _sentence(move.why())
    return BindGroup(why, var, move.over, context, _phase(move), move.tensor)


def _phase(move: Gather | Reduce) -> str:
    """As words are counted: panels in the loop, whole slices before or after it."""
    if move.scope == "panel":
        return "loop"
    return "expand" if isinstance(move, Gather) else "reduce"


def gather_slice(names: Signature, gather: Gather, wait: bool = False, returned: bool = False) -> GatherSlice:
    """The gather of a whole slice; of the only panel, in a pass without a loop."""
    step = 0 if gather.scope == "panel" else names.program.gathers.index(gather)
    return GatherSlice(*_gathered(names, gather), step=step, wait=wait, returned=returned)


def gather_panel(names: Signature, gather: Gather) -> GatherPanel:
    """The gather of a panel that all ranks of a group use in the same step."""
    return GatherPanel(*_gathered(names, gather), role=gather.role)


def gather_rotated(names: Signature, gather: Gather, tile: str) -> GatherRotated:
    """The gather of a panel where `tile` says what a `peer` works on in a step."""
    return GatherRotated(*_gathered(names, gather), role=gather.role, tile=tile)


def _gathered(names: Signature, gather: Gather) -> tuple[str, str, str, str, str]:
    """The fields of every gather."""
    tensor = gather.tensor
    box, carried = names.touched(tensor), names.carried(tensor)
    return names.var(tensor), box, names.own(tensor), carried, names.group(tensor)


def reduce_slice(names: Signature, move: Reduce, into: str) -> ReduceSlice:
    """The reduction of everything that was written."""
    return ReduceSlice(*_reduced(names, move), into=into)


def reduce_panel(names: Signature, move: Reduce) -> ReducePanel:
    """The reduction of a panel that is complete."""
    return ReducePanel(*_reduced(names, move))


def _reduced(names: Signature, move: Reduce) -> tuple[str, str, str, str]:
    """The fields of every reduction."""
    tensor = move.tensor
    return names.var(tensor), names.touched(tensor), names.carried(tensor), names.group(tensor)


def fetch_rows(names: Signature, rows: Rows) -> FetchRows:
    """The halo exchange before a pass that reads the framed tensor."""
    return FetchRows(
        why=_sentence(rows.why),
        var=names.var(rows.tensor),
        owned=names.owned(rows.tensor),
        carried=names.carried(rows.tensor),
        axes=_neighbour_axes(names, rows),
        tensor=rows.tensor,
        padded=names.padded,
    )


def return_rows(names: Signature, rows: Rows, sums: str, into: str) -> ReturnRows:
    """The halo exchange after a pass that writes the framed tensor."""
    return ReturnRows(
        why=_sentence(rows.why),
        owned=names.owned(rows.tensor),
        carried=names.carried(rows.tensor),
        axes=_neighbour_axes(names, rows),
        tensor=rows.tensor,
        sums=sums,
        into=into,
    )


def _neighbour_axes(names: Signature, rows: Rows) -> str:
    """The axes along which neighbours own rows: those of the group too, if its shards are cut by rows."""
    d = names.plan.distribution
    by_rows = any(dim in rows.axes for dim, _ in d.shard_cuts[rows.tensor])
    group: tuple[Axis, ...] = d.groups[TENSORS.index(rows.tensor)] if by_rows else ()
    axes = [*(axis for axis in rows.axes if getattr(d.grid, axis) > 1), *group]
    quoted = ", ".join(f'"{axis}"' for axis in axes)
    return f"({quoted}{',' * (len(axes) == 1)})"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
