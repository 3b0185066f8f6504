"""What a program says of itself before any code: the header and the constants."""

from __future__ import annotations

import shlex
from itertools import groupby
from textwrap import wrap

from synth.codegen.index_functions import carries_more, dims_of, layer_axes
from synth.codegen.quoting import in_docstring, literal
from synth.layer.axes import AXES, DIMS, KERNEL_OF, LACKED_INDEX, LACKS, SPATIAL, TENSORS, Tensor
from synth.layer.passes import GRADIENTS, Pass, role_name
from synth.layer.window import Window
from synth.planning.plan import Plan
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import pass_program
from synth.schedule.volume import received

LISTED = 64  # entries up to which the words of all ranks are listed
SHAPES = "SHAPES = IN_SHAPE, KER_SHAPE, OUT_SHAPE"
WIDTH = 81  # columns beside the labels of the header


def title(plan: Plan) -> str:
    """The first line of the docstring."""
    name = in_docstring(plan.layer.name, "the name of the layer")
    ranks = "1 rank" if plan.used_procs == 1 else f"{plan.used_procs} ranks as a grid {plan.grid.shown()}"
    return f"{name}: {plan.layer.what} {plan.pass_} on {ranks}."


def header(plan: Plan, name: str, module: bool = False) -> tuple[str, ...]:
    """The labelled lines of the docstring."""
    lines = []
    for label, text in _labelled(plan, name, module):
        first, *rest = [piece for line in text for piece in wrap(line, WIDTH)]
        lines += [f"{label:<7}{first}", *(f"       {line}" for line in rest)]
    return tuple(lines)


def _labelled(plan: Plan, name: str, module: bool) -> list[tuple[str, list[str]]]:
    program = in_docstring(shlex.quote(name), "the name of the program")
    run = [f"torchrun --nproc-per-node={plan.used_procs} {program} --check"]
    if plan.procs > plan.used_procs:
        run.append(f"or with {plan.procs} ranks, {plan.procs - plan.used_procs} of them idle")
    use = [f"layer() on all {plan.procs} ranks, once their process group is initialised"]
    return [
        ("Use", use) if module else ("Run", run),
        *([("Layer", [_turned(plan)])] if plan.layer.transposed else []),
        ("Nest", [_formula(plan), _extents(plan)]),
        ("Form", _forms(plan)),
        ("Owned", [_ownership(plan, tensor) for tensor in TENSORS]),
        ("Moves", _moves(plan)),
        ("Memory", [_memory(plan)]),
    ]


def _turned(plan: Plan) -> str:
    """How a transposed convolution is written."""
    return (
        f"the backward-data pass of a {plan.layer.kind}: dOut is what the layer is given, dIn what it gives; "
        "its own gradients go by In and Out"
    )


def _formula(plan: Plan) -> str:
    sizes = plan.nest.loop_extents()
    rows = dict(zip(DIMS["In"], plan.nest.accesses["In"].dims, strict=True))
    inside = []
    for dim in dims_of(plan, "In"):
        tap = KERNEL_OF.get(dim, "")
        text = str(rows[dim])
        inside.append(text.replace(f"+{tap}", "") if tap and sizes[tap] == 1 else text)
    out, ker = (",".join(dims_of(plan, tensor)) for tensor in ("Out", "Ker"))
    return f"Out[{out}] += In[{','.join(inside)}] * Ker[{ker}]"


def _extents(plan: Plan) -> str:
    sizes = plan.nest.loop_extents()
    indices = [*layer_axes(plan), *(KERNEL_OF[a] for a in SPATIAL if a in plan.layer.spatial_axes)]
    text = " ".join(f"{index}={sizes[index]}" for index in indices)
    windows = [plan.nest.windows[axis] for axis in plan.layer.spatial_axes]
    skips = any((w.first, w.step, w.period) != (0, 1, w.run) for w in windows)
    return text + ("; In without the rows that the stride skips" if skips else "")


def _forms(plan: Plan) -> list[str]:
    """The form of every pass."""
    if not plan.later:
        return [f"{plan.algorithm}: {_form(plan.distribution, plan.first)}"]
    travel = f"; its last sums travel under {plan.passes[2]}" if plan.overlap else ""
    forms = [(t.pass_, _form(plan.distribution, t)) for t in plan.pass_plans]
    return [f"{pass_}: {form}{travel if pass_ == plan.passes[1] else ''}" for pass_, form in forms]


def _form(distribution: Distribution, pass_plan: PassPlan) -> str:
    pass_, stays, stream = pass_plan.pass_, pass_plan.stationary, pass_plan.stream
    others = " and ".join(
        role_name(pass_, tensor) for tensor in pass_plan.streaming if pass_plan.structure.streams(tensor)
    )
    panels = "in one panel" if pass_plan.panels == 1 else f"in {pass_plan.panels} panels along {stream}"
    rotation = pass_program(distribution, pass_plan).loop.rotation
    apart = " or ".join(role_name(pass_, tensor) for tensor in rotation)
    panels += f", ranks that share {apart} at different ones" if apart else ""
    inner = [a for a in pass_plan.loops() if a not in LACKS[stays]]
    found = _named(pass_, "found", pass_plan.reuses)
    kept = _named(pass_, "kept", pass_plan.saves)
    passing = f", {others} pass{'es' * (' and ' not in others)} {panels}" if others else ""
    tiled = f"; tiles along {', '.join(inner)} inside" if inner else ""
    return f"{role_name(pass_, stays)} stays{passing}{tiled}{found}{kept}"


def _named(pass_: Pass, verb: str, tensors: frozenset[Tensor]) -> str:
    names = " and ".join(role_name(pass_, tensor) for tensor in TENSORS if tensor in tensors)
    return f"; {names} {verb}" if names else ""


def _ownership(plan: Plan, tensor: Tensor) -> str:
    share, line = dict(plan.distribution.shares[tensor]), LACKED_INDEX[tensor]
    cuts = []
    for dim in dims_of(plan, tensor):
        over = [dim] if getattr(plan.grid, dim, 1) > 1 else []
        if dim in share:
            over.append(line if len(share) == 1 else f"{share[dim]} parts of {line}")
        if over:
            cuts.append(f"{dim} over " + " then ".join(over))
    group = [axis for axis in LACKS[tensor] if getattr(plan.grid, axis) > 1]
    named = f" (x: {', '.join(group)})" if tensor == "Ker" and group else ""
    written = tensor in {pass_plan.written for pass_plan in plan.pass_plans}
    partial = f"; partial sums along {line} until reduced" if written and group else ""
    return f"{tensor}: {', '.join(cuts) or 'one rank has all'}{named}{partial}"


def _moves(plan: Plan) -> list[str]:
    whole = f"{_received(plan, plan.words)}: at most {plan.words['total']} words received per rank"
    if not plan.later:
        return [whole]
    passes = ((t.pass_, received(plan.distribution, t).most()) for t in plan.pass_plans)
    return [*(f"{pass_}: {_received(plan, words)}" for pass_, words in passes), f"together: {whole}"]


def _received(plan: Plan, words: dict[str, int]) -> str:
    halo = f" (halo {words['halo']})" if carries_more(plan) else ""
    return f"In {words['in']}{halo}, Ker {words['ker']}, Out {words['out']}"


def _memory(plan: Plan) -> str:
    words = plan.used_words
    return f"at most {words} words of {plan.nest.word_bytes} bytes per rank"


# -- constants ----------------------------------------------------------------------------------------


def constants(plan: Plan) -> tuple[str, ...]:
    """The constants of the program, line by line."""
    return (
        f"NAME = {literal(plan.layer.name, 'the name of the layer')}",
        f'PLAN = "{plan.id}"',
        f"DTYPE = torch.{plan.nest.dtype}",
        "",
        *_grid(plan),
        "",
        *_extent_constants(plan),
        *_windows(plan),
        *_tiles(plan),
        "",
        *_shapes(plan),
        *_gradients(plan),
        f"FLOPS = {2 * plan.nest.work * len(plan.pass_plans):_}  # of the whole layer",
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
    grid = ", ".join(f'"{axis}": P_{axis}' for axis in plan.order if axis in split)
    lines.append(f"GRID = {{{grid}}}  # the last axis varies fastest over the ranks")
    lines.append(f"PROCS = {plan.procs}  # ranks that may be started")
    shared = []
    for tensor in TENSORS:
        along = [axis for axis in LACKS[tensor] if getattr(plan.grid, axis) > 1]
        if along:
            text = ", ".join(f'"{axis}"' for axis in along) + ("," if len(along) == 1 else "")
            shared.append(f'    "{LACKED_INDEX[tensor]}": ({text}),  # a slice of {tensor}')
    if shared:
        return [*lines, "GROUP_AXES = {  # the ranks that differ only along these axes share", *shared, "}"]
    return [*lines, "GROUP_AXES = {}  # no two ranks share a slice"]


def _extent_constants(plan: Plan) -> list[str]:
    n, sizes = plan.nest.extents, plan.nest.loop_extents()
    spatial = plan.layer.spatial_axes
    grouped = plan.layer.groups > 1
    kinds = "samples, groups, input and output channels" if grouped else "samples, input and output channels"
    if plan.layer.kind == "matmul":
        kinds = "rows of Out, terms of a sum, columns of Out"
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
        lines.append(f'    "{axis}": {_window(axis, plan.nest.windows[axis])},')
    return [*lines, "}"]


def _window(axis: str, window: Window) -> str:
    plain = Window(1)
    names = ("stride", "dilation", "padding", "first", "step", "period", "run")
    extra = [f", {n}={getattr(window, n)}" for n in names if getattr(window, n) != getattr(plain, n)]
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
    steps = ", ".join(f'"{names[pass_plan]}": {pass_plan.steps}' for pass_plan in tiled)
    return [
        "TILES = {  # of a work block in each pass, outermost loop first",
        *(f'    "{names[pass_plan]}": {_counts(pass_plan)},' for pass_plan in tiled),
        "}",
        f"STEPS = {{{steps}}}",
    ]


def _counts(pass_plan: PassPlan) -> str:
    tiles = ", ".join(f'"{axis}": {getattr(pass_plan.counts, axis)}' for axis in pass_plan.loops())
    return f"{{{tiles}}}"


def _shapes(plan: Plan) -> list[str]:
    layer, gradients = plan.layer.conv, plan.task != "forward"
    if layer.kind == "matmul":
        lines = ["IN_SHAPE, KER_SHAPE = (N_b, N_c), (N_k, N_c)  # Ker as torch's linear has it"]
        return lines + ["OUT_SHAPE = (N_b, N_k)", SHAPES] * gradients
    group = "N_g, " if layer.groups > 1 else ""
    rows = ", ".join(str(size) for size in layer.input[2:])
    turned = plan.layer.transposed
    taps = ", ".join(f"N_{KERNEL_OF[axis]}" for axis in layer.spatial_axes)
    positions = ", ".join(f"N_{axis}" for axis in layer.spatial_axes)

    def numbers(values: tuple[int, ...]) -> str:
        return f"({', '.join(map(str, values))}{',' * (len(values) == 1)})"

    return [
        f"# The {'convolution' if plan.layer.transposed else 'layer'} in its own numbers:"
        " for sample values and the check.",
        f"IN_SHAPE = (N_b, {group}N_c, {rows})",
        f"KER_SHAPE = ({group}N_k, N_c, {taps})",
        *([f"OUT_SHAPE = (N_b, {group}N_k, {positions})", SHAPES] if gradients else []),
        f"STRIDE, PADDING, DILATION = {numbers(layer.stride)}, {numbers(layer.padding)}, "
        f"{numbers(layer.dilation)}",
        *([f"TRANSPOSED = {numbers(layer.input[2:])}  # rows of In, read or not"] if turned else []),
    ]


def _gradients(plan: Plan) -> list[str]:
    """Which gradients a training step makes, where that is not both."""
    if not plan.later or plan.gradients == GRADIENTS:
        return []
    return [f'GRADIENTS = ("{plan.gradients[0]}",)  # that a step makes']


def _words(plan: Plan) -> list[str]:
    names = ("In", "Ker", "Out", "halo", "total")

    def entry(words: dict[str, int]) -> str:
        return "{" + ", ".join(f'"{name}": {words[name.lower()]}' for name in names) + "}"

    d = plan.distribution
    entries = ((rank, entry(plan.received.at(d.at(rank)))) for rank in d.ranks)
    changes = [next(same) for _, same in groupby(entries, key=lambda pair: pair[1])]
    lines = ["# Words received, as planned: by the rank that receives most, and by each rank."]
    lines.append(f"MOST = {entry(plan.words)}")
    if len(changes) > LISTED:
        return [*lines, "WORDS = {}  # too many different ranks to list"]
    rows = [f"    {rank}: {text}," for rank, text in changes]
    lines.append("# An entry of WORDS holds for the rank that it names and for all before the next entry.")
    return [*lines, "WORDS = {", *rows, "}"]
