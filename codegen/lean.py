"""Plan → a short program that needs torch alone: what one would copy.

The schedule is that of the plan, and so are all words. Every move is one all-to-all of boxes, and torch's own
errors and time-outs are all there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

from synth.base.doors import option
from synth.base.errors import UsageError
from synth.codegen.inline_runtime import names_of_text, used_functions
from synth.codegen.lower import refuse_lone_pass, refuse_resident
from synth.codegen.parts.constants import dict_text, tuple_text
from synth.codegen.parts.header import header, title
from synth.codegen.parts.index_functions import dims_of
from synth.codegen.parts.lean_body import LeanBody, LeanFunction
from synth.codegen.parts.lean_calls import block_call, whole_call
from synth.codegen.parts.lean_rows import reads_its_rows, turned_axes
from synth.codegen.parts.moves import quoted
from synth.codegen.parts.signature import Signature
from synth.codegen.quoting import in_docstring, literal
from synth.codegen.render import template
from synth.layer.axes import DIMS, TENSORS, Axis
from synth.planning.plan import Plan
from synth.schedule.pass_program import pass_program

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
    rows_of_sides: tuple[str, ...]  # the statements for rows that are not those of the block
    loops: bool  # in some pass the ranks of a step work on like tiles
    turned: bool  # some blocks are of input rows
    several: bool  # kernels
    halo: str  # the dimensions along which a rank carries all rows that it needs
    empty: bool  # some block may have no words
    pads: bool  # the kernels lay zeros around In
    grouped: bool
    conv: str  # of torch.nn.functional
    numbers: str  # what it takes beside the operands: stride, dilation
    flat_ker: str
    wide_in: str  # In as torch takes it
    in_size: str
    read_rows: str  # the output rows of a block along an axis
    din: str  # the gradient as the block has it
    check_constants: tuple[str, ...]
    gradients: bool  # some results are dIn or dKer
    idle: bool  # ranks may be started that have no work
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
    helpers += template("lean_helpers.py.j2", p=program)
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
        rows_of_sides=_rows_of_sides(plan),
        loops=any(body.loop.axes and not body.loop.rotation for body in bodies),
        turned=bool(plan.turned),
        several=len(bodies) > 1,
        halo=_halo(plan),
        **block_call(plan),
        check_constants=_words(plan),
        gradients=plan.task != "forward",
        idle=plan.procs > plan.used_procs,
        started=_started(plan),
        alone=whole_call(plan, made),
        operands=tuple(
            f'{role.lower()}_own = sample("{role}", owned("{tensor}", at))' for tensor, role in roles.items()
        ),
    )


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
    for tensor, function, turned in (("In", "read_by", False), ("Out", "readers_of", True)):
        axes = [axis for axis in plan.layer.spatial_axes if (axis in turned_axes(plan)) == turned]
        if axes and not reads_its_rows(plan):
            each = "WINDOWS" if len(axes) == len(plan.layer.spatial_axes) else quoted(axes)
            rows = f"rows |= {{axis: {function}(axis, block[axis]) for axis in {each}}}"
            lines += [f'if tensor == "{tensor}":', f"    {rows}"]
    return tuple(lines)


def _halo(plan: Plan) -> str:
    """The dimensions along which a rank carries all rows that it needs; empty if its group shares some."""
    d, spatial = plan.distribution, plan.layer.spatial_axes
    carried = [tensor for tensor in TENSORS if d.halo_axes(tensor) and d.group_size(tensor) > 1]
    cut = {tensor: {axis for axis in spatial if axis in dict(d.shard_cuts[tensor])} for tensor in carried}
    if not any(cut.values()):
        return "WINDOWS"
    framed = [axis for tensor in carried for axis in spatial if axis in d.nest.framed(tensor)]
    one = len(carried) == 1 and not cut[carried[0]] & {*framed}
    return quoted(framed) if one else ""


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
    d = plan.distribution
    split = [axis for axis in plan.order if getattr(plan.grid, axis) > 1]
    grid = dict_text((axis, getattr(plan.grid, axis)) for axis in split)
    shards = [f'"{tensor}": {dict_text(d.shard_cuts[tensor])}' for tensor in TENSORS]
    return (
        f"NAME = {literal(plan.layer.name, 'the name of the layer')}",
        f"DTYPE = torch.{plan.nest.dtype}",
        *_noted(f"GRID = {grid}", "ranks along each axis, the last one fastest"),
        *([f"PROCS = {plan.procs}  # ranks that may be started"] if plan.procs > plan.used_procs else []),
        "# Boxes of tensors and blocks of the nest are dicts: index -> range.",
        *_in_lines("SHAPES = ", _shapes(plan)),
        "WHOLE = {name: {dim: range(n) for dim, n in SHAPES[name].items()} for name in SHAPES}",
        *_nest(plan),
        "# Ranks along these axes share a slice of a tensor, and own parts of it.",
        f"SHARED = {dict_text(zip(TENSORS, map(quoted, d.groups), strict=True))}",
        *_in_lines("SHARDS = ", shards),
        *_windows(plan),
        *_groups(exchanges),
        'RECEIVED = {"In": 0, "Ker": 0, "Out": 0}  # words; dIn counts as In',
    )


def _nest(plan: Plan) -> list[str]:
    """The box of the loops: of the rows of In where blocks are cut by these, else of those of Out."""
    turned = turned_axes(plan)
    if turned and len(turned) == len(plan.layer.spatial_axes):
        return ['NEST = WHOLE["Ker"] | WHOLE["Out"] | WHOLE["In"]  # loops over rows of In']
    line, windows = 'NEST = WHOLE["In"] | WHOLE["Ker"] | WHOLE["Out"]', plan.distribution.nest.windows
    rows = dict_text((axis, f"range({windows[axis].out})") for axis in turned)
    return _noted(f"{line} | {rows}", "over rows of In") if turned else [f"{line}  # the loops"]


def _groups(exchanges: Sequence[tuple[Axis, ...]]) -> list[str]:
    """The axes of all exchanges."""
    if not exchanges:
        return ["GROUPS = {}  # no exchanges"]
    axes = tuple_text([quoted(each) for each in exchanges])
    return _noted(f"GROUPS = dict.fromkeys({axes})", "axes of exchanges")


def _noted(line: str, note: str) -> list[str]:
    """A statement with a comment behind it, or above it."""
    short = f"{line}  # {note}"
    return [short] if len(short) <= WIDTH else [f"# {note[0].upper()}{note[1:]}.", line]


def _shapes(plan: Plan) -> list[str]:
    """Tensor -> dimension -> its extent, in storage order; In has the rows that are read."""
    rows = []
    for tensor in TENSORS:
        sizes = dict(zip(DIMS[tensor], plan.nest.shapes[tensor], strict=True))
        rows.append(f'"{tensor}": {dict_text((dim, sizes[dim]) for dim in dims_of(plan, tensor))}')
    return rows


def _windows(plan: Plan) -> list[str]:
    if reads_its_rows(plan):
        return []
    windows = ((axis, plan.nest.windows[axis]) for axis in plan.layer.spatial_axes)
    numbers = [(axis, (w.span, w.stride, w.padding)) for axis, w in windows]
    return _noted(f"WINDOWS = {dict_text(numbers)}", "rows of a window, stride, zeros before")


def _in_lines(head: str, entries: Sequence[str]) -> list[str]:
    """A dict in one line, or with a line for each entry."""
    short = f"{head}{{{', '.join(entries)}}}"
    return [short] if len(short) <= WIDTH else [f"{head}{{", *(f"    {entry}," for entry in entries), "}"]


def _words(plan: Plan) -> tuple[str, ...]:
    """The planned words of the rank that receives most, and of all ranks."""
    d = plan.distribution
    received = [plan.received.at(d.at(rank)) for rank in d.ranks]
    by_all = dict_text((tensor, sum(words[tensor.lower()] for words in received)) for tensor in TENSORS)
    return (
        "# Planned words: of the rank that receives most, and of all ranks together.",
        f"MOST, BY_ALL = {plan.words['total']}, {by_all}",
    )
