"""Every move of a schedule tree as a statement: which functions, variables and groups it names."""

from __future__ import annotations

from collections.abc import Sequence

from synth.codegen.parts.signature import Signature
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
from synth.layer.axes import TENSORS, Axis
from synth.schedule.pass_program import Gather, Reduce, Rows


def bind_group(signature: Signature, move: Gather | Reduce, context: str = "context") -> BindGroup:
    """The group of a move, with the traffic counter that `context` is."""
    var, why = signature.group(move.tensor), sentence(move.why())
    return BindGroup(why, var, move.over, context, _phase(move), move.tensor)


def _phase(move: Gather | Reduce) -> str:
    """As words are counted: panels in the loop, whole slices before or after it."""
    if move.scope == "panel":
        return "loop"
    return "expand" if isinstance(move, Gather) else "reduce"


def gather_slice(
    signature: Signature, gather: Gather, wait: bool = False, returned: bool = False
) -> GatherSlice:
    """The gather of a whole slice; of the only panel, in a pass without a loop."""
    step = 0 if gather.scope == "panel" else signature.program.gathers.index(gather)
    return GatherSlice(*_gathered(signature, gather), step=step, wait=wait, returned=returned)


def gather_panel(signature: Signature, gather: Gather) -> GatherPanel:
    """The gather of a panel that all ranks of a group use in the same step."""
    return GatherPanel(*_gathered(signature, gather), role=gather.role)


def gather_rotated(signature: Signature, gather: Gather, tile: str) -> GatherRotated:
    """The gather of a panel where `tile` says what a `peer` works on in a step."""
    return GatherRotated(*_gathered(signature, gather), role=gather.role, tile=tile)


def _gathered(signature: Signature, gather: Gather) -> tuple[str, str, str, str, str]:
    """The fields of every gather."""
    tensor = gather.tensor
    box, carried = signature.touched(tensor), signature.carried(tensor)
    return signature.var(tensor), box, signature.carried_var(tensor), carried, signature.group(tensor)


def reduce_slice(signature: Signature, move: Reduce, into: str) -> ReduceSlice:
    """The reduction of everything that was written."""
    return ReduceSlice(*_reduced(signature, move), into=into)


def reduce_panel(signature: Signature, move: Reduce) -> ReducePanel:
    """The reduction of a panel that is complete."""
    return ReducePanel(*_reduced(signature, move))


def _reduced(signature: Signature, move: Reduce) -> tuple[str, str, str, str]:
    """The fields of every reduction."""
    tensor = move.tensor
    return (
        signature.var(tensor),
        signature.touched(tensor),
        signature.carried(tensor),
        signature.group(tensor),
    )


def fetch_rows(signature: Signature, rows: Rows) -> FetchRows:
    """The halo exchange before a pass that reads a framed tensor."""
    return FetchRows(
        why=sentence(rows.why),
        var=signature.var(rows.tensor),
        owned=signature.owned(rows.tensor),
        carried=signature.carried(rows.tensor),
        axes=quoted(neighbour_axes(signature, rows)),
        tensor=rows.tensor,
        padded=signature.padded and rows.tensor == "In",
        in_room=signature.ghosts or (signature.written == "Out" and not signature.shared("In")),
        step=signature.program.fetches.index(rows),
    )


def return_rows(signature: Signature, rows: Rows, sums: str, into: str) -> ReturnRows:
    """The halo exchange after a pass that writes a framed tensor."""
    return ReturnRows(
        why=sentence(rows.why),
        owned=signature.owned(rows.tensor),
        carried=signature.carried(rows.tensor),
        axes=quoted(neighbour_axes(signature, rows)),
        tensor=rows.tensor,
        sums=sums,
        in_place=signature.ghosts,
        into=into,
    )


def neighbour_axes(signature: Signature, rows: Rows) -> tuple[Axis, ...]:
    """The axes along which neighbours own rows: those of the group too, if its shards are cut by rows."""
    d = signature.plan.distribution
    by_rows = any(dim in rows.axes for dim, _ in d.shard_cuts[rows.tensor])
    group: tuple[Axis, ...] = d.groups[TENSORS.index(rows.tensor)] if by_rows else ()
    return (*(axis for axis in rows.axes if getattr(d.grid, axis) > 1), *group)


def quoted(axes: Sequence[Axis]) -> str:
    """Axes as a tuple of the text."""
    names = ", ".join(f'"{axis}"' for axis in axes)
    return f"({names}{',' * (len(axes) == 1)})"


def sentence(text: str) -> str:
    """A reason as a comment of the text has it."""
    return text[0].upper() + text[1:] + "."
