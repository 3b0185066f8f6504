"""The call of the local kernel in a step, and the statements that cut its operands."""

from __future__ import annotations

from typing import NamedTuple

from synth.codegen.parts.signature import WIDTH, Signature
from synth.layer.axes import DIMS, SPATIAL, Tensor
from synth.layer.passes import Pass
from synth.schedule.pass_program import Gather

KERNELS: dict[Pass, str] = {  # on what a pass reads
    "forward": "convolve(F.{conv}, {one}, {other}, block, WINDOWS, context)",
    "backward-data": "input_gradient({one}, {other}, block, WINDOWS, context)",
    "backward-filter": "kernel_gradient({one}, {other}, block, WINDOWS, context)",
}
PRODUCTS: dict[Pass, str] = {  # the same where the layer is Out[b,k] = In[b,c] Ker[k,c]
    "forward": "matrix_product({one}, {other}.mT)",
    "backward-data": "matrix_product({other}, {one})",
    "backward-filter": "matrix_product({other}.mT, {one})",
}
GROUPED: dict[Pass, str] = {  # the same in each group: Out[b,g,k] = In[b,g,c] Ker[g,k,c]
    "forward": 'torch.einsum("bgc,gkc->bgk", {one}, {other})',
    "backward-data": 'torch.einsum("bgk,gkc->bgc", {other}, {one})',
    "backward-filter": 'torch.einsum("bgk,bgc->gkc", {other}, {one})',
}


class KernelExpression(NamedTuple):
    """An operand of the local kernel, or the kernel on its operands."""

    expression: str
    before: tuple[str, ...] = ()  # statements that make it
    reads_block: bool = False  # they name the block of the step


def local_kernel(signature: Signature) -> KernelExpression:
    """The local kernel of a pass on the tile of a step."""
    one, other = (_operand(signature, tensor) for tensor in signature.reads)
    layer, pass_ = signature.plan.layer, signature.program.loop.compute.pass_
    kernels = KERNELS if layer.spatial_axes else GROUPED if layer.groups > 1 else PRODUCTS
    expression = kernels[pass_].format(conv=layer.kind, one=one.expression, other=other.expression)
    reads_block = bool(layer.spatial_axes) or one.reads_block or other.reads_block
    return KernelExpression(expression, (*one.before, *other.before), reads_block)


def tiled(signature: Signature, tensor: Tensor) -> bool:
    """Whether the steps of the loop access different boxes of a tensor."""
    return any(axis in DIMS[tensor] for axis in signature.program.loop.axes)


def _operand(signature: Signature, tensor: Tensor) -> KernelExpression:
    """What the kernel takes of a tensor: its panel, its slice, or the tile of a step in its slice."""
    loop, slice_ = signature.program.loop, signature.slice_(tensor)
    if loop.axes and tensor in {gather.tensor for gather in loop.gathers}:
        return KernelExpression(f'panels["{signature.role(tensor)}"]')
    if not tiled(signature, tensor):
        return KernelExpression(slice_)
    tile, box = f"{signature.var(tensor)}_tile", f"{signature.var(tensor)}_box"
    if tensor == "In" and signature.padded:
        return _of_padded(signature, tile)
    outer = _slice_box(signature, tensor)
    cut = f"{tile} = {slice_}[within({signature.touched(tensor)}(block), {outer})]"
    if len(cut) <= WIDTH - 4:
        return KernelExpression(tile, (cut,), reads_block=True)
    cut = f"{tile} = {slice_}[within({signature.touched(tensor)}(block), {box})]"
    return KernelExpression(tile, (f"{box} = {outer}", cut), reads_block=True)


def _of_padded(signature: Signature, tile: str) -> KernelExpression:
    """A tile of In where zeros are around the slice: they belong to every tile with all its rows."""
    slice_, dims = signature.slice_("In"), len(signature.plan.layer.spatial_axes)
    box = f"within({signature.touched('In')}(block), {signature.carried('In')}(at))"
    if not any(axis in SPATIAL for axis in signature.program.loop.axes):
        cut = f"{tile} = {slice_}[{box}[:-{dims}]]"
        return KernelExpression(tile, ("# all rows, with the zeros around them", cut), reads_block=True)
    rows = f"in_rows = inside({slice_}, explicit_zeros(work(at), WINDOWS))"
    return KernelExpression(tile, (rows, f"{tile} = in_rows[{box}]"), reads_block=True)


def _slice_box(signature: Signature, tensor: Tensor) -> str:
    """The box of the slice, by its variable if this function has gathered it."""
    if not signature.shared(tensor):
        return f"{signature.carried(tensor)}(at)"
    moves = signature.program.collectives()
    gathered = any(isinstance(move, Gather) and move.tensor == tensor for move in moves)
    here = gathered and not signature.prefetches(tensor)
    return f"{signature.var(tensor)}_box" if here else f"{signature.touched(tensor)}(work(at))"
