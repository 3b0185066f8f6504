"""Plan → Program: decide every number, name and statement of the text."""

from __future__ import annotations

from collections.abc import Sequence

from synth.base.errors import UsageError
from synth.codegen.facts import constants, header, title
from synth.codegen.index_functions import panel_place, tensor_texts, work_intervals
from synth.codegen.pass_body import OnePass
from synth.codegen.program import Call, Layer, Operand, Program, Result, SkewedTile
from synth.codegen.quoting import in_docstring
from synth.codegen.signature import Signature
from synth.layer.axes import TENSORS, Tensor
from synth.layer.passes import WRITES, Pass, role_name
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

CLASSES = {
    "conv1d": "DistributedConv1d",
    "conv2d": "DistributedConv2d",
    "conv3d": "DistributedConv3d",
    "matmul": "DistributedLinear",
}


def lower(plan: Plan, command: str, module: bool = False, name: str = "PROGRAM.py") -> Program:
    """The program of a plan. `command` is the line that emits it, `name` its file, for its header.

    With `module` the program of a training plan ends in a `torch.nn.Module` instead of a command line.
    Raises `UsageError` for a module of anything but a training plan, and for a single pass that would find
    tensors kept.
    """
    _look_at(plan, module)
    alone = not plan.later
    forms = [_form(plan, pass_plan, module) for pass_plan in plan.pass_plans]
    functions = tuple(form.function() for form in forms)
    if forms[0].early:
        functions = (forms[0].prefetch(), *functions)
    loops = plan.first.loops()
    tile = "the block" if not loops else "one loop" if len(loops) == 1 else "nested loops"
    if not alone:
        tile = "by pass" if any(form.loops for form in forms) else "the block"
    asked = {tensor for form in forms for tensor in form.touches}
    return Program(
        title=title(plan),
        command=in_docstring(command, "the command"),
        plan=plan.id,
        header=header(plan, name, module),
        constants=constants(plan),
        work=work_intervals(plan),
        skewed=tuple(_skewed(form) for form in forms if form.skewed),
        tile=tile,
        loop_axis=loops[0] if loops else "",
        asks_changes=any(form.asks_changes for form in forms),
        tensors=tensor_texts(plan, asked),
        gathers=any(form.grouped(t) and t not in form.skewed for form in forms for t in form.gathered),
        reduces=any(form.grouped(form.written) for form in forms),
        functions=functions,
        layer=None if alone else _layer(forms, plan.overlap, module),
        module=CLASSES[plan.layer.kind] if module else "",
        operands=_operands(plan),
        results=tuple(_result(plan, pass_) for pass_ in sorted(plan.passes, key="backward-filter".__eq__)),
        windows=plan.layer.kind != "matmul",
        idle=plan.procs > plan.used_procs,
    )


def _form(plan: Plan, pass_plan: PassPlan, module: bool) -> OnePass:
    """A pass; in a module Ker may be on its way before the first one, and sums of dKer after the last."""
    alone = not plan.later
    form = OnePass(plan, pass_plan, alone, overlap=plan.overlap and pass_plan is plan.pass_plans[1])
    late = form.written == "Ker" and form.grouped("Ker")
    early = pass_plan is plan.first and "Ker" in form.at_once
    if module and (late or early):
        form = OnePass(plan, pass_plan, alone, form.overlap or late, early)
    return form


def _skewed(form: Signature) -> SkewedTile:
    """Where each rank begins: the places of its panels of all skewed tensors, added up."""
    one, *others = (panel_place(form.plan, tensor, form.pass_plan) for tensor in form.skewed)
    lines = [f"    first = {one}", *(f"    first += {other}" for other in others)]
    return SkewedTile(
        name=form.block,
        pass_="" if form.alone else form.name,
        first="\n".join(lines),
        tensors=" or ".join(form.role(tensor) for tensor in form.skewed),
    )


def _look_at(plan: Plan, module: bool) -> None:
    if module and not plan.later:
        raise UsageError(
            f"a module needs a training plan, but this one is of the {plan.pass_} pass; plan --pass training"
        )
    if not plan.later and plan.first.reuses | plan.first.saves:
        raise UsageError(
            f"a {plan.pass_} pass alone finds nothing kept, and keeps nothing; plan --pass training"
        )


def _layer(forms: Sequence[Signature], overlap: bool, module: bool) -> Layer:
    """How the passes hand each other what they keep."""
    first, *later = forms
    given: Tensor = "In" if first.written == "Out" else "Out"
    data = next((form for form in later if form.written == given), None)
    filter_ = next((form for form in later if form.written == "Ker"), None)
    made = [_written(form) for form in (data, filter_) if form]
    own = f"{first.var(given)}_own", "ker_own"
    trained = [bool(data), bool(filter_)]
    operands = (f"{var}.detach().requires_grad_()" if t else var for var, t in zip(own, trained, strict=True))
    return Layer(
        given=own[0],
        gradient=f"{later[0].var(first.written)}_own",
        roles=(
            first.role(given),
            first.role(first.written),
            " and ".join(made),
            later[0].role(first.written),
        ),
        ahead=_call(first),
        back=tuple(_call(form, module) for form in later),
        saved=tuple(form.given(read) for form, read in ((filter_, given), (data, "Ker")) if form),
        early=module,
        brings=first.early,
        overlap=overlap,
        meanwhile=f"Sums of {_written(later[0])} travel while {_written(later[-1])} is computed.",
        returned=f"{data.var(given) if data else None}, {'dker' if filter_ else None}, None, None, None",
        operands=", ".join(operands),
        asked="given" if all(trained) else f"given[{trained.index(True)}]",
    )


def _written(form: Signature) -> str:
    return form.role(form.written)


def _call(form: Signature, module: bool = False) -> Call:
    """A call of a pass with what it binds."""
    result, then = form.var(form.written), ""
    if form.overlap:
        late = module and form.written == "Ker"
        then = f"{result} = ctx.prefetch.defer(finish_ker)" if late else f"{result} = finish()"
        result = "finish_ker" if late else "finish"
    name = form.pass_plan.pass_
    return Call(name, form.name, ", ".join([result, *form.kept]), ", ".join(form.parameters), then)


def _operands(plan: Plan) -> tuple[Operand, ...]:
    """What the program is given: sample values of the tensors that it reads."""
    given: tuple[Tensor, ...] = TENSORS if plan.later else plan.first.reads
    windows = ", windows" if plan.layer.kind != "matmul" else ""
    half = plan.nest.dtype in ("float16", "bfloat16")  # sample values know their spatial dimensions
    dims = f", dims={len(plan.layer.spatial_axes)}" if half and windows else ""
    gradient = {"Out": "dOut"}  # the only gradient that is given
    operands = []
    for tensor in given:
        role = gradient.get(tensor, tensor)
        rows = windows if tensor == "In" else dims
        owned, shape = f"owned_{tensor.lower()}", f"{tensor.upper()}_SHAPE"
        operands.append(Operand(role, role.lower(), owned, shape, rows))
    return tuple(operands)


def _result(plan: Plan, pass_: Pass) -> Result:
    """What a pass makes, and the torch call that makes the same."""
    written, layer = WRITES[pass_], plan.layer
    role = role_name(pass_, written)
    conv = "None" if layer.kind == "matmul" else f"F.{layer.kind}"
    spatial = () if layer.kind == "matmul" else ("STRIDE, PADDING, DILATION",)
    return Result(role, role.lower(), f"owned_{written.lower()}", _expected(pass_, conv, spatial))


def _expected(pass_: Pass, conv: str, spatial: tuple[str, ...]) -> tuple[str, ...]:
    """The statements that judge a share, in the lines that a formatter makes of them."""
    if pass_ == "forward":
        arguments = (conv, "IN_SHAPE", "KER_SHAPE", "box", "DTYPE", "device", *spatial)
        call = "reference"
    else:
        role = role_name(pass_, WRITES[pass_])
        windows = ("WINDOWS",) if spatial else ()
        arguments = (f'"{role}"', conv, "SHAPES", "box", "DTYPE", "device", *spatial, *windows)
        call = "gradient"
    line = f"return {call}({', '.join(arguments)})"
    if len(line) <= 84:
        return (line,)
    return (f"return {call}(", f"    {', '.join(arguments)}", ")")
