"""The layer in one process, by torch and its autograd, on the sample values that emitted programs use."""

from __future__ import annotations

from typing import Any

from synth.layer.axes import DIMS, SPATIAL, Tensor
from synth.layer.einsum import Contraction
from synth.layer.layer import Layer
from synth.layer.passes import WRITES, role_name
from synth.planning.plan import Plan


def shapes(layer: Layer) -> dict[Tensor, tuple[int, ...]]:
    """Shapes of the tensors as a program holds them: groups are a dimension of their own."""
    layer, nest = layer.conv, layer.nest.extents
    if layer.kind == "matmul":
        return {"In": (nest.b, nest.c), "Ker": (nest.k, nest.c), "Out": (nest.b, nest.k)}
    grouped = (nest.g,) if layer.groups > 1 else ()
    positions = tuple(getattr(nest, axis) for axis in SPATIAL if axis in layer.spatial_axes)
    return {
        "In": (nest.b, *grouped, nest.c, *layer.input[2:]),
        "Ker": (*grouped, nest.k, nest.c, *layer.kernel),
        "Out": (nest.b, *grouped, nest.k, *positions),
    }


def expected(plan: Plan) -> dict[str, Any]:
    """What the passes of a plan make of the whole layer: "Out", "dIn" or "dKer" -> a torch tensor.

    The shapes are those of a program; dIn has the rows that the layer reads. Half types are computed in
    float32. With residue classes their filler is NaN.
    """
    import torch

    from synth.runtime.program.sample_data import sample

    dtype: torch.dtype = getattr(torch, plan.layer.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    names, dims = {"In": "In", "Ker": "Ker", "Out": "dOut"}, len(plan.layer.spatial_axes)
    inputs, ker, dout = (
        sample(names[tensor], shape, [range(n) for n in shape], dtype, torch.device("cpu"), dims).to(wide)
        for tensor, shape in shapes(plan.layer).items()
    )
    out = _layer(plan.layer.conv, inputs.requires_grad_(), ker.requires_grad_()).reshape(dout.shape)
    made = {"Out": out.detach()}
    if plan.task != "forward":
        din, made["dKer"] = torch.autograd.grad(out, (inputs, ker), dout)
        made["dIn"] = din if plan.classes else _read_rows(plan.layer, din)
    if plan.classes:
        made |= {role: _of_classes(plan, role, made[role]) for role in ("Out", "dIn") if role in made}
    roles = (role_name(pass_plan.pass_, WRITES[pass_plan.pass_]) for pass_plan in plan.pass_plans)
    return {role: made[role] for role in roles}


def _of_classes(plan: Plan, role: str, whole: Any) -> Any:
    """Out or dIn of the user's tensors with residue classes as samples."""
    import torch

    from synth.runtime.grid.residue_classes import Classes, divide

    classes = []
    for axis in plan.layer.spatial_axes:
        window, count = plan.layer.nest.windows[axis], dict(plan.classes).get(axis, 1)
        first = window.first - window.step * (window.padding % count)
        classes.append(Classes(count) if role == "Out" else Classes(count, first, window.step))
    tensor: Tensor = "Out" if role == "Out" else "In"
    rows = dict(zip(DIMS[tensor], plan.nest.shapes[tensor], strict=True))
    if role == "dIn":  # without the rows that the stride skips along the other axes
        for dim, (axis, each) in enumerate(zip(plan.layer.spatial_axes, classes, strict=True), -len(classes)):
            if each.parts == 1:
                window = plan.layer.nest.windows[axis]
                read = [window.source(row) for row in range(window.size)]
                whole = whole.index_select(whole.dim() + dim, torch.tensor(read, dtype=torch.int64))
    return divide(whole, classes, [rows[axis] for axis in plan.layer.spatial_axes], float("nan"))


def _layer(layer: Layer, inputs: Any, ker: Any) -> Any:
    from torch.nn import functional

    if layer.kind == "matmul":
        return inputs @ ker.T
    if layer.kind == "einsum":
        return _einsum(layer.contraction, inputs, ker)
    if layer.groups > 1:
        inputs, ker = inputs.flatten(1, 2), ker.flatten(0, 1)
    conv = getattr(functional, layer.kind)
    zeros = [n for ends in reversed(layer.zeros) for n in ends]
    inputs = functional.pad(inputs, zeros)
    return conv(inputs, ker, None, layer.stride, 0, layer.dilation, layer.groups)


def _einsum(found: Contraction, inputs: Any, ker: Any) -> Any:
    """`torch.einsum` on the user's operands; given and returned with folded indices."""
    import torch

    given, weights, made = found.folds

    def unfolded(values: Any, folded: str, wanted: str) -> Any:
        return torch.einsum(f"{folded}->{wanted}", values.reshape(found.sizes(folded)))

    one, other = unfolded(inputs, given, found.one), unfolded(ker, weights, found.other)
    return torch.einsum(f"{found.out}->{made}", torch.einsum(found.equation, one, other))


def _read_rows(layer: Layer, din: Any) -> Any:
    """dIn without the rows that the stride skips."""
    import torch

    axes = [axis for axis in SPATIAL if axis in layer.spatial_axes]
    for dim, axis in enumerate(axes, din.dim() - len(axes)):
        window = layer.nest.windows[axis]
        rows = [window.source(row) for row in range(window.size)]
        din = din.index_select(dim, torch.tensor(rows, dtype=torch.int64))
    return din
