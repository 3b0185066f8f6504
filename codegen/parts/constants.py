"""The constants of a program: those of the plan before the algorithm, those of the self-check after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from synth.codegen.parts.roles import role_names
from synth.codegen.quoting import literal
from synth.layer.axes import AXES, KERNEL_OF, LACKED_INDEX, TENSORS
from synth.layer.passes import GRADIENTS
from synth.layer.window import Window
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan

LISTED = 64  # entries up to which the words of all ranks are listed


def plan_constants(plan: Plan) -> tuple[str, ...]:
    """What the algorithm reads, line by line: grid, extents, windows, tiles."""
    return (
        f"NAME = {literal(plan.layer.name, 'the name of the layer')}",
        f'PLAN = "{plan.id}"',
        f"DTYPE = torch.{plan.nest.dtype}",
        "",
        *_grid(plan),
        "",
        *_extents(plan),
        *_windows(plan),
        *_classes(plan),
        *_tiles(plan),
    )


def layer_constants(plan: Plan) -> tuple[str, ...]:
    """What a module declares of its layer, line by line."""
    return (*_shapes(plan), *_undivided(plan), *_transposed(plan), *_gradients(plan))


def check_constants(plan: Plan) -> tuple[str, ...]:
    """What sample values, the check and the timing read, line by line."""
    return (
        *(_user_shapes(plan) if plan.classes else _shapes(plan)),
        *_torch_call(plan),
        f"FLOPS = {2 * plan.layer.nest.work * len(plan.pass_plans):_}  # of the whole layer",
        "",
        *_words(plan),
    )


def _grid(plan: Plan) -> list[str]:
    split = [axis for axis in AXES if getattr(plan.grid, axis) > 1]
    lines = []
    if split:
        names = ", ".join(f"P_{axis}" for axis in split)
        parts = ", ".join(str(getattr(plan.grid, axis)) for axis in split)
        lines.append(f"{names} = {parts}  # ranks along each axis")
    grid = dict_text((axis, f"P_{axis}") for axis in plan.order if axis in split)
    lines.append(f"GRID = {grid}  # the last axis varies fastest over the ranks")
    lines.append(f"PROCS = {plan.procs}  # ranks that may be started")
    groups = []
    for tensor in TENSORS:
        along = [axis for axis in plan.distribution.lacked(tensor) if getattr(plan.grid, axis) > 1]
        if along:
            text = ", ".join(f'"{axis}"' for axis in along) + ("," if len(along) == 1 else "")
            of = role_names(plan, tensor)
            groups.append(f'    "{LACKED_INDEX[tensor]}": ({text}),  # a slice of {of}')
    if groups:
        return [*lines, "GROUP_AXES = {  # the ranks that differ only along these axes share", *groups, "}"]
    return [*lines, "GROUP_AXES = {}  # no two ranks share a slice"]


def _extents(plan: Plan) -> list[str]:
    n, sizes = plan.nest.extents, plan.nest.loop_extents()
    spatial = plan.layer.spatial_axes
    grouped = plan.layer.groups > 1
    kinds = "samples, groups, input and output channels" if grouped else "samples, input and output channels"
    kinds = kinds.replace("samples", "samples of classes" if plan.classes else "samples")
    if not spatial:
        groups = "groups, " * grouped
        kinds = f"rows of Out, {groups}terms of a sum, columns of Out"
    channels = ["b", *("g" * grouped), "c", "k"]

    def line(prefix: str, names: list[str], values: list[int], what: str) -> str:
        left = ", ".join(f"{prefix}_{name}" for name in names)
        return f"{left} = {', '.join(map(str, values))}  # {what}"

    lines = [line("N", channels, [getattr(n, a) for a in channels], kinds)]
    if spatial:
        taps = [KERNEL_OF[axis] for axis in spatial]
        rows = [plan.nest.windows[axis].size for axis in spatial]
        lines.append(line("N", [*spatial], [sizes[a] for a in spatial], "output positions"))
        lines.append(line("N", taps, [sizes[t] for t in taps], "kernel taps"))
        lines.append(line("I", [*spatial], rows, "input positions that are read"))
    return lines


def _windows(plan: Plan) -> list[str]:
    if not plan.layer.spatial_axes:
        return []
    lines = ["WINDOWS = {  # how output positions read input positions"]
    for axis in plan.layer.spatial_axes:
        lines.append(f'    "{axis}": {_window(axis, plan.nest.windows[axis], axis in plan.turned)},')
    return [*lines, "}"]


def _classes(plan: Plan) -> list[str]:
    """How rows of residue classes are rows of the user's tensors."""
    lines = []
    for axis, count in plan.classes:
        window = plan.layer.nest.windows[axis]
        first = window.first - window.step * (window.padding % count)
        extra = f", first={first}" * (first != 0) + f", step={window.step}" * (window.step != 1)
        lines.append(f'    "{axis}": Classes({count}{extra}),')
    return (
        ["CLASSES = {  # samples; row i of class j is row first + step * (parts * i + j)", *lines, "}"]
        if lines
        else []
    )


def _window(axis: str, window: Window, turned: bool) -> str:
    plain = Window(1)
    names = ("stride", "dilation", "padding", "first", "step", "period", "kept")
    extra = [f", {n}={getattr(window, n)}" for n in names if getattr(window, n) != getattr(plain, n)]
    extra += [f", turned=N_{axis}"] * turned  # blocks are cut by input rows
    return f"Window(I_{axis}, N_{KERNEL_OF[axis]}{''.join(extra)})"


def _tiles(plan: Plan) -> list[str]:
    if plan.later:
        return _tiles_by_pass(plan)
    loops = plan.first.loops()
    if not loops:
        return []
    if len(loops) == 1:
        return [f"STEPS = {plan.first.steps}  # tiles of a work block along {loops[0]}"]
    return [
        f"TILES = {_counts(plan.first)}  # of a work block, outermost loop first",
        f"STEPS = {plan.first.steps}",
    ]


def _tiles_by_pass(plan: Plan) -> list[str]:
    tiled = [pass_plan for pass_plan in plan.pass_plans if pass_plan.loops()]
    if not tiled:
        return []
    names = {pass_plan: pass_plan.pass_.replace("-", "_") for pass_plan in tiled}
    return [
        "TILES = {  # of a work block in each pass, outermost loop first",
        *(f'    "{names[pass_plan]}": {_counts(pass_plan)},' for pass_plan in tiled),
        "}",
        f"STEPS = {dict_text((names[pass_plan], pass_plan.steps) for pass_plan in tiled)}",
    ]


def _counts(pass_plan: PassPlan) -> str:
    return dict_text((axis, getattr(pass_plan.counts, axis)) for axis in pass_plan.loops())


def _shapes(plan: Plan) -> list[str]:
    """The shapes of all tensors that the program is given, as torch has them."""
    layer, gradients = plan.layer.conv, plan.task != "forward" or bool(plan.resident)
    if layer.kind == "matmul":
        lines = ["IN_SHAPE, KER_SHAPE = (N_b, N_c), (N_k, N_c)  # Ker as torch's linear has it"]
        return [*lines, *["OUT_SHAPE = (N_b, N_k)"] * gradients]
    if layer.kind == "einsum":
        g = "N_g, " if layer.groups > 1 else ""
        lines = [f"IN_SHAPE, KER_SHAPE = (N_b, {g}N_c), ({g}N_k, N_c)"]
        return [*lines, *[f"OUT_SHAPE = (N_b, {g}N_k)"] * gradients]
    group = "N_g, " if layer.groups > 1 else ""
    read = zip(layer.spatial_axes, layer.input[2:], strict=True)
    rows = ", ".join(f"I_{axis}" if axis in dict(plan.classes) else str(size) for axis, size in read)
    taps = ", ".join(f"N_{KERNEL_OF[axis]}" for axis in layer.spatial_axes)
    positions = ", ".join(f"N_{axis}" for axis in layer.spatial_axes)
    what = "convolution" if plan.layer.transposed else "layer"
    return [
        f"# The {what} of the classes." if plan.classes else f"# The {what} as torch has it.",
        f"IN_SHAPE = (N_b, {group}N_c, {rows})",
        f"KER_SHAPE = ({group}N_k, N_c, {taps})",
        *[f"OUT_SHAPE = (N_b, {group}N_k, {positions})"] * gradients,
    ]


def _user_shapes(plan: Plan) -> list[str]:
    """The shapes of the user's tensors, which have no residue classes."""
    layer, n = plan.layer.conv, plan.layer.nest.extents
    group = "N_g, " if layer.groups > 1 else ""
    taps = ", ".join(f"N_{KERNEL_OF[axis]}" for axis in layer.spatial_axes)
    positions = ", ".join(str(getattr(n, axis)) for axis in layer.spatial_axes)
    return [
        f"# The {'convolution' if plan.layer.transposed else 'layer'} as torch has it.",
        f"IN_SHAPE = ({n.b}, {group}N_c, {', '.join(map(str, layer.input[2:]))})",
        f"KER_SHAPE = ({group}N_k, N_c, {taps})",
        f"OUT_SHAPE = ({n.b}, {group}N_k, {positions})",
    ]


def _undivided(plan: Plan) -> list[str]:
    """The shapes of In and Out without residue classes."""
    if not plan.classes:
        return []
    in_shape, _, out_shape = (line.partition(" = ")[2] for line in _user_shapes(plan)[1:])
    return [f'UNDIVIDED = {{"In": {in_shape}, "Out": {out_shape}}}  # without classes']


def _torch_call(plan: Plan) -> list[str]:
    """What the torch call takes that the results are compared with."""
    layer = plan.layer.conv
    several = plan.task != "forward" or plan.classes
    lines = ["SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE"] if several else []
    if not layer.spatial_axes:
        return lines
    zeros = tuple(before for before, _ in layer.zeros)
    numbers = ", ".join(map(tuple_text, (layer.stride, zeros, layer.dilation)))
    return [*lines, f"STRIDE, PADDING, DILATION = {numbers}"]


def tuple_text(values: Sequence[object]) -> str:
    """A tuple of numbers, or of expressions."""
    return f"({', '.join(map(str, values))}{',' * (len(values) == 1)})"


def dict_text(entries: Iterable[tuple[str, object]]) -> str:
    """A dictionary from words to numbers, or to expressions."""
    return "{" + ", ".join(f'"{key}": {value}' for key, value in entries) + "}"


def _transposed(plan: Plan) -> list[str]:
    """The output extents of a transposed convolution."""
    if not plan.layer.transposed:
        return []
    rows = plan.layer.conv.input[2:]
    if plan.classes:
        divided = {axis: plan.nest.windows[axis].size for axis, _ in plan.classes}
        rows = tuple(divided.get(a, n) for a, n in zip(plan.layer.spatial_axes, rows, strict=True))
    return [f"TRANSPOSED = {tuple_text(rows)}  # rows of In, read or not"]


def _gradients(plan: Plan) -> list[str]:
    """Which gradients a training step makes, where that is not both."""
    if not plan.later or plan.gradients == GRADIENTS:
        return []
    return [f'GRADIENTS = ("{plan.gradients[0]}",)  # that a step makes']


def _words(plan: Plan) -> list[str]:
    d = plan.distribution
    entries = ((rank, _entry(plan.received.at(d.at(rank)))) for rank in d.ranks)
    changes = [next(same) for _, same in groupby(entries, key=lambda pair: pair[1])]
    lines = ["# Words received, as planned: by the rank that receives most, and by each rank."]
    if plan.task != "forward":
        lines.append("# A gradient counts as its tensor: dIn as In.")
    lines.append(f"MOST = {_entry(plan.words)}")
    if len(changes) > LISTED:
        return [*lines, "WORDS = {}  # too many different ranks to list"]
    rows = [f"    {rank}: {text}," for rank, text in changes]
    lines.append("# An entry of WORDS holds for the rank that it names and for all before the next entry.")
    return [*lines, "WORDS = {", *rows, "}"]


def _entry(words: Mapping[str, int]) -> str:
    return dict_text((name, words[name.lower()]) for name in (*TENSORS, "halo", "total"))
