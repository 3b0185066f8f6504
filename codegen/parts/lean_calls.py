"""How a lean program calls torch: on a block, and on the whole layer for its check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synth.codegen.line_breaks import WIDTH
from synth.codegen.parts.constants import dict_text, tuple_text
from synth.codegen.parts.index_functions import dims_of
from synth.codegen.parts.lean_rows import may_be_empty, needs_zeros
from synth.layer.axes import DIMS
from synth.layer.layer import Layer
from synth.layer.window import Window
from synth.planning.plan import Plan


def block_call(plan: Plan) -> dict[str, Any]:
    """How torch is called on a block, where the layer has rows: fields of `LeanProgram`."""
    grouped, dims, pads = plan.layer.groups > 1, len(plan.layer.spatial_axes), needs_zeros(plan)
    in_, ker = ("in_.flatten(1, 2)", "ker.flatten(0, 1)") if grouped else ("in_", "ker")
    channels = f"made[0], {'made[1] * made[2]' if grouped else 'made[1]'}"
    around = "zeros(block)" if len(plan.pass_plans) > 1 else "around"
    din = f"F.pad(din, [-n for n in {around}])" if pads else "din"
    return {
        "empty": may_be_empty(plan),
        "pads": pads,
        "grouped": grouped,
        "conv": plan.layer.kind,
        "numbers": _block_numbers(plan),
        "flat_ker": ker,
        "wide_in": f"F.pad({in_}, {around})" if pads else in_,
        "in_size": f"[{channels}, *{'read' if pads else f'made[-{dims}:]'}]",
        "read_rows": 'touched("Out", block)[axis]' if plan.turned else "block[axis]",
        "din": f"{din}.reshape(made)" if grouped else din,
    }


def bare_call(plan: Plan) -> str | None:
    """The call of torch that is all of a forward pass on a block, if nothing else is needed."""
    if not plan.layer.spatial_axes or plan.layer.groups > 1 or needs_zeros(plan) or may_be_empty(plan):
        return None
    return f"F.{plan.layer.kind}({{one}}, {{other}}{_block_numbers(plan)})"


def _block_numbers(plan: Plan) -> str:
    windows = [plan.nest.windows[axis] for axis in plan.layer.spatial_axes]
    return _numbers([w.stride for w in windows], [w.dilation for w in windows])


def _numbers(strides: Sequence[int], dilations: Sequence[int]) -> str:
    """Stride and dilation as arguments of torch, where they are not 1."""
    return _keyword("stride", strides, 1) + _keyword("dilation", dilations, 1)


def _keyword(name: str, values: Sequence[int], usual: int) -> str:
    """An argument of torch with a number for each dimension, or one for all; nothing where it is as usual."""
    if {*values} <= {usual}:
        return ""
    return f", {name}={tuple_text(values) if len({*values}) > 1 else values[0]}"


# -- the layer in one process -----------------------------------------------------------------------------


def whole_call(plan: Plan, made: Sequence[str]) -> tuple[str, ...]:
    """The statements that compute the whole layer from its own numbers; the plan is not used."""
    gradients = [role for role in made if role != "Out"]
    lines = ['in_, ker = sample("In", WHOLE["In"]), sample("Ker", WHOLE["Ker"])']
    if gradients:
        lines += ['dout = sample("dOut", WHOLE["Out"])', "in_.requires_grad_(), ker.requires_grad_()"]
    before, out = _one_call(plan)
    lines += before
    short = f'return {{"Out": {out}}}'
    if not gradients and len(short) <= WIDTH - 4:
        return (*lines, short)
    lines.append(f"out = {out}")
    if gradients:
        operands = ["in_" if role == "dIn" else "ker" for role in gradients]
        bound = [role.lower() for role in gradients]
        left = tuple_text(bound) if len(bound) == 1 else ", ".join(bound)
        lines.append(f"{left} = torch.autograd.grad(out, {tuple_text(operands)}, dout)")
    results = [(role, "out.detach()" if role == "Out" and gradients else role.lower()) for role in made]
    return (*lines, f"return {dict_text(results)}")


def _one_call(plan: Plan) -> tuple[list[str], str]:
    """The call of torch that makes Out of the whole layer, and the statements before it."""
    layer, grouped = plan.layer.conv, plan.layer.groups > 1
    if not layer.spatial_axes:
        return [], 'torch.einsum("bgc,gkc->bgk", in_, ker)' if grouped else "in_ @ ker.mT"
    lines, zeros = _spread(plan), _zeros(layer)
    in_ = "wide" if lines else "in_"
    in_, ker = (f"{in_}.flatten(1, 2)", "ker.flatten(0, 1)") if grouped else (in_, "ker")
    if any(before != after for before, after in zeros):
        numbers, ends = "", [end for pair in reversed(zeros) for end in pair]
        in_ = f"F.pad({in_}, {tuple_text(ends)})"
    else:
        numbers = _keyword("padding", [before for before, _ in zeros], 0)
    numbers += _numbers(layer.stride, layer.dilation) + f", groups={layer.groups}" * grouped
    call = f"F.{layer.kind}({in_}, {ker}{numbers})"
    if not grouped:
        return lines, call
    return [*lines, f"out = {call}"], f"out.unflatten(1, ({layer.groups}, -1))"


def _zeros(layer: Layer) -> list[tuple[int, int]]:
    """Zeros before and after each dimension: after it as many as rows of Out read, if all ask for more."""
    rows = zip(layer.input[2:], layer.kernel, layer.output_shape[2:], strict=True)
    steps = zip(layer.stride, layer.dilation, layer.zeros, strict=True)
    found = []
    for (size, taps, made), (stride, dilation, (before, _)) in zip(rows, steps, strict=True):
        read = stride * (made - 1) + dilation * (taps - 1) + 1
        same = (size + 2 * before - dilation * (taps - 1) - 1) // stride + 1 == made
        found.append((before, before if same else max(0, read - before - size)))
    return found


def _spread(plan: Plan) -> list[str]:
    """The statements that lay the rows of In that are read into the user's In; others do not matter."""
    lines, lead = list[str](), 3 if plan.layer.groups > 1 else 2
    sizes = dict(zip(DIMS["In"], plan.nest.shapes["In"], strict=True))
    shape = [sizes[dim] for dim in dims_of(plan, "In")]
    for dim, axis in enumerate(plan.layer.spatial_axes, lead):
        window, size = plan.nest.windows[axis], plan.layer.conv.input[dim - lead + 2]
        if window.is_reduced or window.size != size:
            shape[dim] = size
            all_, values = ", ".join(map(str, shape)), "wide" if lines else "in_"
            lines += [f"rows = {_rows(window)}"]
            lines += [f"wide = in_.new_zeros({all_}).index_copy({dim}, torch.tensor(rows), {values})"]
    return [*(["# What the stride skips is zero here."] if lines else []), *lines]


def _rows(window: Window) -> str:
    """The rows of the user's tensor, as an expression."""
    if window.period == len(window.kept):
        end = window.first + window.step * window.size
        return f"range({window.first}, {end}, {window.step})"
    every, end = window.step * window.period, window.source(window.size - 1) + 1
    kept = tuple_text([window.step * row for row in window.kept])
    return f"[n for n in range({end}) if (n + {-window.first % every}) % {every} in {kept}]"
