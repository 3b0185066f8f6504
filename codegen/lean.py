"""Plan → a short program that needs torch alone: what one would copy.

The schedule is that of the plan, and so are all words. Every move is one all-to-all of boxes, and torch's own
errors and time-outs are all there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.codegen.inline_runtime import names_of_text, used_functions
from synth.codegen.lower import refuse_lone_pass, refuse_resident
from synth.codegen.parts.constants import LISTED, dict_text, tuple_text, words_by_rank
from synth.codegen.parts.header import header, title
from synth.codegen.parts.index_functions import dims_of, layer_axes
from synth.codegen.parts.lean_body import LeanBody, LeanFunction
from synth.codegen.parts.moves import quoted
from synth.codegen.parts.signature import Signature
from synth.codegen.quoting import in_docstring, literal
from synth.codegen.render import template
from synth.layer.axes import TENSORS, Axis, Tensor
from synth.layer.window import Window
from synth.planning.plan import Plan
from synth.schedule.pass_program import pass_program

IN_ROWS = 'WINDOWS[dim][0] if tensor == "In" and dim in WINDOWS else N[dim]'
HALF = ("float16", "bfloat16")
WIDTH = 88  # of a line of a program
IMPORTS = {  # names -> the lines that import them
    "math": "import math",
    "sys": "import sys\n",
    "torch": "import torch",
    "dist": "import torch.distributed as dist",
    "F": "import torch.nn.functional as F",
}


@dataclass(frozen=True)
class LeanProgram:
    """Everything that the text of a lean program says."""

    title: str
    command: str
    plan: str
    header: tuple[str, ...]
    constants: tuple[str, ...]
    functions: tuple[LeanFunction, ...]  # the passes
    steps: tuple[LeanFunction, ...]  # what a rank works on in a step, where ranks start at different panels
    calls: tuple[str, ...]  # of the passes, where there are several
    given: str  # the parameters of `run`
    returned: str
    made: str  # the results, for people
    run: str  # the call that makes them, as a tuple
    block_rows: str  # the extents of the axes that are cut into work blocks
    tensor_rows: str  # the extent of a dimension of a tensor
    rows_of_sides: tuple[str, ...]  # the statements for rows that are not those of the block
    dims: int
    conv: str  # of torch.nn.functional
    numbers: str  # what it takes of a block: stride, padding, dilation
    groups_of_map: str
    groups_of_ker: str
    flat_in: str
    flat_ker: str
    flat_dout: str
    ker_size: str
    used_rows: bool
    check_constants: tuple[str, ...]
    started: str  # as many ranks as may be started
    alone: tuple[str, ...]  # the statements of `one_process`
    operands: tuple[str, ...]


def render_lean(plan: Plan, command: str = "synth emit --lean", name: str = "PROGRAM.py") -> str:
    """The text of the lean program of a plan; the same plan, command and name give the same bytes.

    It receives the words of the plan, and checks values and words with `--check`: each rank then computes the
    whole layer. Raises `UsageError` for half types, residue classes, and what `render` refuses.
    """
    program = lowered(plan, command, name)
    end = template("lean_main.py.j2", p=program)
    algorithm = [_function(function) for function in program.functions]
    algorithm += [template("lean_step.py.j2", p=program)] if program.calls else []
    helpers = "".join(f"{_function(function)}\n\n" for function in program.steps)
    halo = any("carried" in text for text in algorithm)
    helpers += template("lean_helpers.py.j2", p=program, halo=halo)
    used = used_functions(helpers, [*algorithm, end], ())
    parts = [
        "\n".join(program.constants),
        *algorithm,
        *used,
        "\n".join(program.check_constants),
        end,
    ]
    text = "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    names = names_of_text(text)
    imports = [line for name, line in IMPORTS.items() if name in names or not name]
    return template("lean_header.py.j2", p=program) + "\n".join(imports) + "\n\n" + text


def _function(function: LeanFunction) -> str:
    paragraphs = ("\n".join(lines) for lines in function.body)
    body = indent("\n\n".join(paragraphs), "    ")
    return template("lean_function.py.j2", f=function, body=body)


def lowered(plan: Plan, command: str, name: str) -> LeanProgram:
    """The lean program of a plan. Raises `UsageError` where there is none."""
    _refuse(plan)
    signatures = [
        Signature(plan, pass_program(plan.distribution, pass_plan)) for pass_plan in plan.pass_plans
    ]
    bodies = [LeanBody(signature) for signature in signatures]
    given = TENSORS if plan.later else plan.first.reads
    roles = {tensor: "dOut" if tensor == "Out" else tensor for tensor in given}
    passes = sorted(signatures, key=lambda signature: signature.written == "Ker")
    made = [signature.role(signature.written) for signature in passes]
    exchanges = dict.fromkeys(axes for body in bodies for axes in body.exchanges())
    own = ", ".join(f"{role.lower()}_own" for role in roles.values())
    results = [f'("{signature.role(signature.written)}", "{signature.written}")' for signature in passes]
    return LeanProgram(
        title=title(plan),
        command=in_docstring(command, "the command"),
        plan=plan.id,
        header=header(plan, name, lean=True),
        constants=_constants(plan, tuple(exchanges)),
        functions=tuple(body.function() for body in bodies),
        steps=tuple(step for body in bodies if (step := body.step())),
        calls=tuple(_call(signature) for signature in signatures) if plan.later else (),
        given=own,
        returned=", ".join(role.lower() for role in made),
        made=f"{', '.join(made[:-1])} and {made[-1]}" if made[1:] else made[0],
        run=f"run({own}, at)" if plan.later else f"(run({own}, at),)",
        block_rows="CUT" if plan.turned else "N",
        tensor_rows=IN_ROWS if plan.layer.spatial_axes else "N[dim]",
        rows_of_sides=_rows_of_sides(plan),
        **_local(plan),
        used_rows=bool(_used_rows(plan)),
        check_constants=(
            *_shapes(plan),
            *_torch_call(plan),
            *_used_rows(plan),
            f"RESULTS = {tuple_text(results)}",
            *_words(plan),
        ),
        started=_started(plan),
        alone=_alone(plan, made),
        operands=tuple(
            f'{role.lower()}_own = sample("{role}", {tensor.upper()}_SHAPE, owned("{tensor}", at))'
            for tensor, role in roles.items()
        ),
    )


def _local(plan: Plan) -> dict[str, Any]:
    """How torch is called on a block, where the layer has rows."""
    grouped, windows = plan.layer.groups > 1, [plan.nest.windows[axis] for axis in plan.layer.spatial_axes]
    strides, dilations = (tuple_text([getattr(w, of) for w in windows]) for of in ("stride", "dilation"))
    return {
        "dims": len(windows),
        "conv": plan.layer.kind,
        "numbers": f"{strides}, 0, {dilations}",
        "groups_of_map": ", made[1]" * grouped,
        "groups_of_ker": ", made[0]" * grouped,
        "flat_in": "in_.flatten(1, 2)" if grouped else "in_",
        "flat_ker": "ker.flatten(0, 1)" if grouped else "ker",
        "flat_dout": "dout.flatten(1, 2)" if grouped else "dout",
        "ker_size": "[made[0] * made[1], *made[2:]]" if grouped else "made",
    }


def _started(plan: Plan) -> str:
    if plan.procs > plan.used_procs:
        return f"{plan.used_procs} to {plan.procs} ranks"
    return "1 rank" if plan.procs == 1 else f"{plan.procs} ranks"


def _call(of: Signature) -> str:
    """The call of a pass by a training step."""
    bound = ", ".join([of.var(of.written), *of.saved])
    return f"{bound} = {of.name}({', '.join([*of.parameters, 'at'])})"


def _rows_of_sides(plan: Plan) -> tuple[str, ...]:
    """Where a block of output rows reads In, and where one of input rows adds to Out."""
    lines = []
    for axis in plan.layer.spatial_axes:
        if axis not in plan.turned:
            lines.append(f'    rows["{axis}"] = input_rows(block["{axis}"], WINDOWS["{axis}"])')
    lines[:0] = ['if tensor == "In":'] if lines else []
    lines += ['if tensor == "Out":'] if plan.turned else []
    for axis in plan.turned:
        lines.append(f'    rows["{axis}"] = output_rows(block["{axis}"], WINDOWS["{axis}"], N["{axis}"])')
    return tuple(lines)


def _refuse(plan: Plan) -> None:
    name, remedy = plan.layer.name, f"leave out {option('lean')}"
    refuse_resident(plan)
    refuse_lone_pass(plan)
    if plan.nest.dtype in HALF:
        raise UsageError(
            f"{name}: a lean program adds in the type of the layer, and {plan.nest.dtype} would be rounded "
            f"once for each rank; plan the layer in float32, or {remedy}"
        )
    if plan.classes:
        counts = ", ".join(f"{axis}={count}" for axis, count in plan.classes)
        free = ",".join(f"{axis}=1" for axis, _ in plan.classes)
        raise UsageError(
            f"{name}: a lean program knows no residue classes, but the plan has {counts}; plan with "
            f"{option('classes', free)}, or {remedy}"
        )


# -- constants --------------------------------------------------------------------------------------------


def _constants(plan: Plan, exchanges: Sequence[tuple[Axis, ...]]) -> tuple[str, ...]:
    """What the algorithm reads, line by line."""
    d, n = plan.distribution, plan.nest.loop_extents()
    axes, dims = layer_axes(plan), {tensor: "".join(dims_of(plan, tensor)) for tensor in TENSORS}
    split = [axis for axis in plan.order if getattr(plan.grid, axis) > 1]
    grid = dict_text((axis, getattr(plan.grid, axis)) for axis in split)
    size = dict_text((dim, n[dim]) for dim in dict.fromkeys([*axes, *dims["Ker"]]))
    halo = {t: "".join(dim for dim in dims[t] if dim in _halo(plan, t)) for t in TENSORS}
    return (
        f"NAME = {literal(plan.layer.name, 'the name of the layer')}",
        f"DTYPE = torch.{plan.nest.dtype}",
        f"GRID = {grid}  # ranks along each axis, the last one fastest",
        f"PROCS = {plan.procs}  # ranks that may be started",
        f"N = {size}",
        f'AXES = "{"".join(axes)}"',
        f"DIMS = {_table(dims)}",
        "# Ranks along these axes share a slice of a tensor, and own parts of it.",
        f"SHARED = {dict_text(zip(TENSORS, map(quoted, d.groups), strict=True))}",
        f"SHARDS = {dict_text((t, dict_text(d.shard_cuts[t])) for t in TENSORS)}",
        *([f"HALO = {_table(halo)}"] if d.row_axes else []),
        *([f'TURNED = "{"".join(plan.turned)}"  # blocks are of input rows'] if plan.turned else []),
        *_windows(plan),
        *(["CUT = N | {axis: WINDOWS[axis][0] for axis in TURNED}"] if plan.turned else []),
        f"EXCHANGES = {tuple_text([quoted(each) for each in exchanges])}  # axes of groups of ranks",
        "GROUPS = {}  # axes -> the ranks along them, torch's group, this rank",
        'RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In',
    )


def _halo(plan: Plan, tensor: Tensor) -> list[str]:
    """The dimensions of a tensor along which a rank carries other rows than it owns."""
    d = plan.distribution
    cuts = dict(d.shard_cuts[tensor])
    return [dim for dim in d.nest.framed(tensor) if dim in cuts or getattr(plan.grid, dim) > 1]


def _table(values: Mapping[Tensor, str]) -> str:
    return dict_text((tensor, f'"{text}"') for tensor, text in values.items())


def _windows(plan: Plan) -> list[str]:
    if not plan.layer.spatial_axes:
        return []
    windows = ((axis, plan.nest.windows[axis]) for axis in plan.layer.spatial_axes)
    numbers = [(axis, str((w.size, w.kernel, w.stride, w.dilation, w.padding))) for axis, w in windows]
    return [
        "# Rows of In that are read, taps, stride, dilation, zeros before.",
        *_in_lines("WINDOWS = ", [f'"{axis}": {text}' for axis, text in numbers]),
    ]


def _in_lines(head: str, entries: Sequence[str]) -> list[str]:
    """A dict in one line, or with a line for each entry."""
    short = f"{head}{{{', '.join(entries)}}}"
    return [short] if len(short) <= WIDTH else [f"{head}{{", *(f"    {entry}," for entry in entries), "}"]


def _used_rows(plan: Plan) -> list[str]:
    """Dimension of In -> the user's rows that windows read, where they do not read all."""
    lead = 3 if plan.layer.groups > 1 else 2
    lines = []
    for dim, axis in enumerate(plan.layer.spatial_axes, lead):
        window = plan.nest.windows[axis]
        if window.is_reduced:
            lines.append(f"    {dim}: {_rows(window)},")
    return (
        ["USED = {  # dimension of In -> the rows that the stride does not skip", *lines, "}"]
        if lines
        else []
    )


def _rows(window: Window) -> str:
    """The rows of the user's tensor, as an expression."""
    if window.period == len(window.kept):
        end = window.first + window.step * window.size
        return f"range({window.first}, {end}, {window.step})"
    return str([window.source(row) for row in range(window.size)])


def _shapes(plan: Plan) -> list[str]:
    """The shapes of the layer's own tensors, as torch has them."""
    layer, n = plan.layer.conv, plan.nest.loop_extents()
    shapes = {tensor: [n[dim] for dim in dims_of(plan, tensor)] for tensor in TENSORS}
    if layer.spatial_axes:
        shapes["In"][-len(layer.spatial_axes) :] = layer.input[2:]
    needed = [t for t in TENSORS if t != "Out" or plan.task != "forward" or plan.layer.groups > 1]
    return [f"{tensor.upper()}_SHAPE = {tuple_text(shapes[tensor])}" for tensor in needed]


def _torch_call(plan: Plan) -> list[str]:
    """What torch takes for the whole layer; zeros as F.pad has them, as many as all rows of Out read."""
    layer = plan.layer.conv
    if not layer.spatial_axes:
        return []
    zeros: list[int] = []
    rows = zip(layer.input[2:], layer.kernel, layer.output_shape[2:], strict=True)
    steps = zip(layer.stride, layer.dilation, layer.zeros, strict=True)
    for (size, taps, made), (stride, dilation, (before, _)) in zip(rows, steps, strict=True):
        read = stride * (made - 1) + dilation * (taps - 1) + 1
        zeros = [before, max(0, read - before - size), *zeros]
    numbers = ", ".join(map(tuple_text, (layer.stride, layer.dilation, zeros)))
    return [f"STRIDE, DILATION, ZEROS = {numbers}"]


def _words(plan: Plan) -> list[str]:
    """The planned words: the most of any rank, and those of each rank."""
    _, changes = words_by_rank(plan, (), TENSORS)
    most = f"MOST = {plan.words['total']}  # words that a rank receives"
    if len(changes) > LISTED:
        return [most, "WORDS = {0: {}}  # too many different ranks to list"]
    rows = [f"{rank}: {text}" for rank, text in changes]
    about = "# Words received by a rank, and by all up to the next one."
    return [most, about, *_in_lines("WORDS = ", rows)]


# -- the layer in one process -----------------------------------------------------------------------------


def _alone(plan: Plan, made: Sequence[str]) -> tuple[str, ...]:
    """The statements that compute the whole layer from its own numbers; the plan is not used."""
    layer, grouped = plan.layer.conv, plan.layer.groups > 1
    lines = ['in_, ker = sample("In", IN_SHAPE), sample("Ker", KER_SHAPE)']
    gradients = [role for role in made if role != "Out"]
    if gradients:
        lines += ['dout = sample("dOut", OUT_SHAPE)', "in_.requires_grad_(), ker.requires_grad_()"]
    if layer.spatial_axes:
        flat = ("in_.flatten(1, 2)", "ker.flatten(0, 1)") if grouped else ("in_", "ker")
        numbers = "STRIDE, 0, DILATION" + ', N["g"]' * grouped
        lines.append(f"out = F.{layer.kind}(F.pad({flat[0]}, ZEROS), {flat[1]}, None, {numbers})")
        lines += ["out = out.view(OUT_SHAPE)"] if grouped else []
    elif grouped:
        lines.append('out = torch.einsum("bgc,gkc->bgk", in_, ker)')
    else:
        lines.append("out = in_ @ ker.mT")
    if gradients:
        operands = ["in_" if role == "dIn" else "ker" for role in gradients]
        lines.append(f"{_bound(gradients)} = torch.autograd.grad(out, {tuple_text(operands)}, dout)")
    if "dIn" in gradients and _used_rows(plan):
        lines += [
            "for dim, rows in USED.items():",
            "    din = din.index_select(dim, torch.tensor(list(rows)))",
        ]
    results = ["out.detach()" if role == "Out" and gradients else role.lower() for role in made]
    return (*lines, f"return {tuple_text(results) if len(results) == 1 else ', '.join(results)}")


def _bound(roles: Sequence[str]) -> str:
    names = [role.lower() for role in roles]
    return tuple_text(names) if len(names) == 1 else ", ".join(names)
