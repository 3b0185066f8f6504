"""Plan → Program: decide every number, name and statement of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.codegen.parts.constants import check_constants, layer_constants, plan_constants
from synth.codegen.parts.header import header, title
from synth.codegen.parts.index_functions import first_panel, tensor_functions, work_intervals
from synth.codegen.parts.pass_body import PassBody, rotated_tile
from synth.codegen.parts.roles import suffix
from synth.codegen.parts.signature import Signature
from synth.codegen.program import Call, Forward, Function, Layer, Operand, Program, Result, RotatedTile
from synth.codegen.quoting import in_docstring
from synth.layer.axes import TENSORS, Tensor
from synth.layer.passes import GRADIENTS, WRITES, Pass, role_name
from synth.planning.plan import Plan
from synth.schedule.pass_plan import ONES
from synth.schedule.pass_program import pass_program

PROTOCOL = 1  # the version of `synth.runtime.layers.layer_program` that modules are emitted for
CLASSES = {
    "conv1d": "DistributedConv1d",
    "conv2d": "DistributedConv2d",
    "conv3d": "DistributedConv3d",
    "matmul": "DistributedLinear",
}


def lower(
    plan: Plan, command: str, module: bool = False, name: str = "PROGRAM.py", described: bool = True
) -> Program:
    """The program of a plan. `command` is the line that emits it, `name` its file, for its header.

    `described`: with the planned words and memory in the header, which take longer than all the rest. With
    `module` the program of a training plan, or of a forward pass with resident Ker, ends in a
    `torch.nn.Module` instead of a command line. Raises `UsageError` for a module of any other plan, and for a
    single pass that reuses or saves a tensor.
    """
    _refuse(plan, module)
    signatures = [_signature(plan, number, module) for number in range(len(plan.pass_plans))]
    loops = plan.first.loops()
    operands = _operands(plan)
    return Program(
        title=title(plan),
        command=in_docstring(command, "the command"),
        plan=plan.id,
        header=header(plan, name, module) if described else (),
        constants=plan_constants(plan),
        functions=_functions(signatures),
        layer=_layer(signatures, plan.overlap, module) if plan.later else None,
        forward=_forward(signatures[0]) if module and not plan.later else None,
        work=work_intervals(plan),
        loop="by pass" if plan.later else "one axis" if len(loops) == 1 else "nested axes",
        loop_axis=loops[0] if loops else "",
        rotated=tuple(_rotated(signature) for signature in signatures if signature.program.loop.rotation),
        index_functions=tensor_functions(plan),
        check_constants=layer_constants(plan) if module else check_constants(plan),
        operands=operands,
        results=tuple(
            _result(plan, pass_)
            for pass_ in sorted(plan.passes, key=lambda pass_: pass_ == "backward-filter")
        ),
        windows=any(operand.windows == ", windows" for operand in operands),
        idle=plan.procs > plan.used_procs,
        limited=plan.limit_bytes is not None,
        module=CLASSES[plan.layer.kind] if module else "",
        protocol=_protocol(plan, signatures[0].prefetched) if module else (),
    )


def _refuse(plan: Plan, module: bool) -> None:
    if module and plan.layer.kind not in CLASSES:
        raise UsageError(
            f"{plan.layer.name}: an einsum has two operands and no weights, so it is no module; "
            "emit a program, or call torch.einsum in a model of `synth.parallelize`"
        )
    if module and not plan.later and not plan.resident:
        raise UsageError(
            f"a module needs a training plan, but this one is of the {plan.pass_} pass; "
            f"plan with {option('pass_', 'training')}"
        )
    if not module:
        refuse_resident(plan)
    refuse_lone_pass(plan)


def refuse_resident(plan: Plan) -> None:
    """Raises `UsageError` for a plan whose weights stay where they are used."""
    if plan.resident:
        raise UsageError(f"{plan.layer.name}: a program of its own has no resident Ker; render a module")


def refuse_lone_pass(plan: Plan) -> None:
    """Raises `UsageError` for a single pass that hands a tensor to a pass that the plan has not."""
    if not plan.later and plan.first.reuses | plan.first.saves:
        raise UsageError(
            f"a single {plan.pass_} pass reuses and saves nothing, but this plan does; "
            f"plan with {option('pass_', 'training')}"
        )


def _signature(plan: Plan, number: int, module: bool) -> Signature:
    """How a pass is called. In a module the sums of dKer are deferred, and Ker may be prefetched."""
    program = pass_program(plan.distribution, plan.pass_plans[number])
    checked = not plan.later and not module
    deferred = plan.overlap and number == 1
    signature = Signature(plan, program, deferred, checked=checked, ghosts=not module)
    if not module:
        return signature
    reduces = bool(program.reduces or program.loop.reduces)
    deferred = signature.deferred or (signature.written == "Ker" and reduces)
    prefetched = number == 0 and any(gather.tensor == "Ker" for gather in signature.slices)
    return Signature(plan, program, deferred, prefetched, ghosts=False)


def _functions(signatures: Sequence[Signature]) -> tuple[Function, ...]:
    """The passes, after the function that prefetches Ker for the first."""
    bodies = [PassBody(signature) for signature in signatures]
    prefetch = [bodies[0].prefetch()] if signatures[0].prefetched else []
    return (*prefetch, *(body.function() for body in bodies))


def _rotated(signature: Signature) -> RotatedTile:
    """At which panel each rank starts: the positions of its shards of all rotated tensors, added up."""
    rotation = signature.program.loop.rotation
    panels = [first_panel(signature.plan, tensor, signature.program.pass_plan) for tensor in rotation]
    roles = " or ".join(signature.role(tensor) for tensor in rotation)
    return RotatedTile(
        name=rotated_tile(signature),
        pass_=signature.pass_name if signature.plan.later else "",
        first=(f"first = {panels[0]}", *(f"first += {other}" for other in panels[1:])),
        why=f"Ranks that share a slice of {roles} start at different panels (rotation).",
    )


# -- a training step --------------------------------------------------------------------------------------


def _layer(signatures: Sequence[Signature], overlap: bool, module: bool) -> Layer:
    """How the passes hand each other what they save."""
    first, *later = signatures
    given: Tensor = "In" if first.written == "Out" else "Out"
    data = next((signature for signature in later if signature.written == given), None)
    filter_ = next((signature for signature in later if signature.written == "Ker"), None)
    made = [_written(signature) for signature in (data, filter_) if signature]
    own = f"{first.var(given)}_own", "ker_own"
    trained = [bool(data), bool(filter_)]
    operands = (f"{var}.detach().requires_grad_()" if t else var for var, t in zip(own, trained, strict=True))
    meanwhile = f"Sums of {_written(later[0])} travel while {_written(later[-1])} is computed."
    result, gradient = first.role(first.written), later[0].role(first.written)
    return Layer(
        given=own[0],
        gradient=f"{later[0].var(first.written)}_own",
        about_forward=f"{result}, from the shards of {first.role(given)} and Ker.",
        about_backward=f"{' and '.join(made)}, from the shard of {gradient}.",
        about_run=f"A training step: this rank's shards of {_listed([result, *made])}.",
        ahead=_call(first),
        back=tuple(_call(signature, module) for signature in later),
        result=first.var(first.written),
        saved=tuple(
            signature.given(read) for signature, read in ((filter_, given), (data, "Ker")) if signature
        ),
        prefetch=module,
        gathers_ker=first.prefetched,
        meanwhile=meanwhile if overlap else "",
        returned=f"{data.var(given) if data else None}, {'dker' if filter_ else None}, None, None, None",
        operands=", ".join(operands),
        asked="given" if all(trained) else f"given[{trained.index(True)}]",
    )


def _forward(signature: Signature) -> Forward:
    """The forward pass of a network in inference."""
    given: Tensor = "In" if signature.written == "Out" else "Out"
    result, operand = signature.role(signature.written), signature.role(given)
    return Forward(
        given=signature.given(given),
        about=f"{result}, from the shard of {operand} and the resident slice of Ker.",
        ahead=_call(signature),
    )


def _written(signature: Signature) -> str:
    return signature.role(signature.written)


def _listed(names: Sequence[str]) -> str:
    """`Out, dIn and dKer`."""
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _call(signature: Signature, module: bool = False) -> Call:
    """A call of a pass with what it binds."""
    result, then = signature.var(signature.written), ""
    if signature.deferred:
        by_network = module and signature.written == "Ker"
        then = f"{result} = ctx.prefetch.defer(finish_ker)" if by_network else f"{result} = finish()"
        result = "finish_ker" if by_network else "finish"
    pass_ = signature.program.pass_plan.pass_
    return Call(
        pass_, signature.name, ", ".join([result, *signature.saved]), ", ".join(signature.parameters), then
    )


def _protocol(plan: Plan, prefetches: bool) -> tuple[tuple[str, str], ...]:
    """What a module declares to the runtime: the fields of `LayerProgram`, after the protocol's version."""
    trains = bool(plan.later)
    return (
        ("protocol", str(PROTOCOL)),
        ("name", "NAME"),
        ("plan", "PLAN"),
        ("dtype", "DTYPE"),
        ("grid", "GRID"),
        ("procs", "PROCS"),
        ("group_axes", "GROUP_AXES"),
        ("in_shape", "IN_SHAPE"),
        ("ker_shape", "KER_SHAPE"),
        ("out_shape", "OUT_SHAPE"),
        ("windows", "WINDOWS" if plan.layer.spatial_axes else "{}"),
        ("transposed_rows", "TRANSPOSED" if plan.layer.transposed else "None"),
        *([("classes", "CLASSES"), ("undivided", "UNDIVIDED")] if plan.classes else []),
        (
            "gradients",
            "()" if not trains else '("In", "Ker")' if plan.gradients == GRADIENTS else "GRADIENTS",
        ),
        ("owned_in", f"owned_{suffix(plan, 'In')}"),
        ("owned_ker", "owned_ker"),
        ("owned_out", f"owned_{suffix(plan, 'Out')}"),
        *_halo_of_in(plan),
        ("function", "Layer"),
        ("prefetch_ker", "prefetch_ker" if prefetches else "None"),
    )


def _halo_of_in(plan: Plan) -> Iterator[tuple[str, str]]:
    """Where the forward pass fetches rows to: a shard may be kept in a buffer that has room for them."""
    forward, d = plan.first, plan.distribution
    if forward.pass_ != "forward" or not d.halo_axes("In") or d.group_size("In") > 1:
        return
    yield "carried_in", f"carried_{suffix(plan, 'In')}"
    if d.keeps_zeros or forward.counts == ONES:
        yield "work", "work"


# -- the self-check ---------------------------------------------------------------------------------------


def _operands(plan: Plan) -> tuple[Operand, ...]:
    """What the program is given: sample values of the tensors that it reads."""
    given: tuple[Tensor, ...] = TENSORS if plan.later else plan.first.reads
    spatial = bool(plan.layer.spatial_axes)
    half = plan.nest.dtype in ("float16", "bfloat16")  # sample values know their spatial dimensions
    dims = f", dims={len(plan.layer.spatial_axes)}" if half and spatial else ""
    gradient = {"Out": "dOut"}  # the only gradient that is given
    operands = []
    for tensor in given:
        role = gradient.get(tensor, tensor)
        windows = (", windows" if spatial else "") if tensor == "In" else dims
        divided = bool(plan.classes) and tensor != "Ker"
        windows = f", CLASSES, WINDOWS{dims}" if divided else windows
        owned, shape = f"owned_{suffix(plan, tensor)}", f"{tensor.upper()}_SHAPE"
        carried = f"carried_{suffix(plan, tensor)}" if plan.distribution.halo_axes(tensor) else ""
        padded = tensor == "In" and plan.distribution.keeps_zeros
        sample = "sample_classes" if divided else "sample_box"
        operands.append(Operand(role, role.lower(), owned, shape, windows, sample, carried, padded))
    return tuple(operands)


def _result(plan: Plan, pass_: Pass) -> Result:
    """What a pass makes, and the torch call that makes the same."""
    written, layer = WRITES[pass_], plan.layer
    role = role_name(pass_, written)
    conv, spatial = "None", tuple[str, ...]()
    if layer.spatial_axes:
        conv, spatial = f"F.{layer.kind}", ("STRIDE", "PADDING", "DILATION")
    if pass_ == "forward":
        arguments = [conv, "IN_SHAPE", "KER_SHAPE", "box", "DTYPE", "device", *spatial]
        call = "reference"
        if plan.classes:
            arguments = ["CLASSES", "WINDOWS", conv, "SHAPES", *arguments[3:]]
            call = "class_reference"
    elif plan.classes and written == "In":
        arguments = ["CLASSES", "WINDOWS", f'"{role}"', conv, "SHAPES", "box", "DTYPE", "device", *spatial]
        call = "class_gradient"
    else:
        arguments = [f'"{role}"', conv, "SHAPES", "box", "DTYPE", "device", *spatial]
        arguments += ["WINDOWS"] if spatial else []
        call = "gradient"
    return Result(role, role.lower(), f"owned_{suffix(plan, written)}", f"{call}({', '.join(arguments)})")
