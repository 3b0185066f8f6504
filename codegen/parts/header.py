"""The docstring of a program: how to run it, its formula, its algorithm, and the planned words and memory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from textwrap import wrap

from synth.codegen.parts.index_functions import dims_of, exchanges_rows, layer_axes
from synth.codegen.parts.roles import role_names
from synth.codegen.quoting import in_docstring
from synth.layer.axes import DIMS, KERNEL_OF, LACKED_INDEX, LACKS, SPATIAL, TENSORS, Tensor
from synth.layer.layer import Layer
from synth.layer.passes import WRITES, Pass, reads, role_name
from synth.planning.decisions import phrases
from synth.planning.one_line import one_line
from synth.planning.plan import Plan
from synth.schedule.pass_program import PassProgram, pass_program
from synth.schedule.volume import received

WIDTH = 81  # columns beside the labels of the header


def title(plan: Plan) -> str:
    """The first line of the docstring."""
    name = in_docstring(plan.layer.name, "the name of the layer")
    ranks = "1 rank" if plan.used_procs == 1 else f"{plan.used_procs} ranks as a grid {plan.grid.shown()}"
    return f"{name}: {plan.layer.what} {plan.pass_} on {ranks}."


def header(plan: Plan, name: str, module: bool = False, lean: bool = False) -> tuple[str, ...]:
    """The labelled lines of the docstring. `name` is the file of the program.

    lean: of a program that hides no messages behind computing, and promises no memory.
    """
    lines = []
    for label, text in _labelled(plan, name, module, lean):
        first, *rest = [piece for line in text for piece in wrap(line, WIDTH, break_on_hyphens=False)]
        lines += [f"{label:<7}{first}", *(f"       {line}" for line in rest)]
    return tuple(lines)


def _labelled(plan: Plan, name: str, module: bool, lean: bool) -> list[tuple[str, list[str]]]:
    program = in_docstring(shlex.quote(name), "the name of the program")
    run = [f"torchrun --nproc-per-node={plan.used_procs} {program} --check"]
    if plan.procs > plan.used_procs:
        run.append(f"or with {plan.procs} ranks, {plan.procs - plan.used_procs} of them idle")
    use = [f"call layer() on all {plan.procs} ranks after init_process_group"]
    return [
        ("Use", use) if module else ("Run", run),
        ("Plan", _named_schedule(plan, lean)),
        *([("Layer", [_transposed(plan)])] if plan.layer.transposed else []),
        *([("Layer", _contraction(plan.layer))] if plan.layer.kind == "einsum" else []),
        ("Nest", [*(_formula(plan, pass_) for pass_ in plan.passes), _extents(plan)]),
        ("Form", [*_forms(plan, plan.overlap and not lean), *phrases(plan)]),
        ("Owned", [_ownership(plan, tensor) for tensor in TENSORS]),
        ("Moves", _moves(plan)),
        *([] if lean else [("Memory", [_memory(plan, module)])]),
    ]


def _named_schedule(plan: Plan, lean: bool) -> list[str]:
    """The schedule as one line, and who reads it."""
    line = f'--as "{one_line(plan)}"'
    if lean:
        return [f"{line} of `synth emit`; change it there"]
    return [line, "of `synth emit` names the schedule; change it there"]


def _transposed(plan: Plan) -> str:
    """How a transposed convolution is written."""
    return (
        f"the backward-data pass of a {plan.layer.kind}: the input of the layer is dOut, its output dIn; "
        "the gradients of these two are Out and In"
    )


def _contraction(layer: Layer) -> list[str]:
    """An einsum, and which of its indices are folded into one dimension."""
    return [str(layer), f"{layer.contraction}; indices side by side are one dimension"]


def _formula(plan: Plan, pass_: Pass) -> str:
    """The statement of the innermost loop."""
    dims = {tensor: ",".join(_indices(plan, tensor)) for tensor in TENSORS}
    written, factors = WRITES[pass_], reads(pass_)
    factors = factors if pass_ == "forward" else factors[::-1]
    right = " * ".join(f"{role_name(pass_, tensor)}[{dims[tensor]}]" for tensor in factors)
    return f"{role_name(pass_, written)}[{dims[written]}] += {right}"


def _indices(plan: Plan, tensor: Tensor) -> list[str]:
    """The index of each dimension of a tensor, without taps of which there is one."""
    if tensor != "In":
        return list(dims_of(plan, tensor))
    sizes = plan.nest.loop_extents()
    access = dict(zip(DIMS["In"], plan.nest.accesses["In"].dims, strict=True))
    indices = []
    for dim in dims_of(plan, "In"):
        tap = KERNEL_OF.get(dim, "")
        text = str(access[dim])
        indices.append(text.replace(f"+{tap}", "") if tap and sizes[tap] == 1 else text)
    return indices


def _extents(plan: Plan) -> str:
    sizes = plan.nest.loop_extents()
    indices = [*layer_axes(plan), *(KERNEL_OF[a] for a in SPATIAL if a in plan.layer.spatial_axes)]
    text = " ".join(f"{index}={sizes[index]}" for index in indices)
    skips = any(plan.nest.windows[axis].is_reduced for axis in plan.layer.spatial_axes)
    return text + ("; In without the rows that the stride skips" if skips else "")


def _forms(plan: Plan, overlaps: bool) -> list[str]:
    """The algorithm of every pass."""
    programs = [pass_program(plan.distribution, pass_plan) for pass_plan in plan.pass_plans]
    if not plan.later:
        return [f"{plan.algorithm}: {_form(programs[0])}"]
    overlap = f"; reduce overlaps {plan.passes[2]}" if overlaps else ""
    forms = [(program.pass_plan.pass_, _form(program)) for program in programs]
    return [f"{pass_}: {form}{overlap if pass_ == plan.passes[1] else ''}" for pass_, form in forms]


def _form(program: PassProgram) -> str:
    """The stationary tensor, the streamed ones and the tiles of one pass."""
    pass_plan, pass_ = program.pass_plan, program.pass_plan.pass_
    streamed = {tensor for tensor in TENSORS if pass_plan.structure.streams(tensor)}
    inner = [axis for axis in program.loop.axes if axis not in LACKS[pass_plan.stationary]]
    parts = [
        f"{role_name(pass_, pass_plan.stationary)} stationary",
        *([f", {_roles(pass_, streamed)} streamed {_panels(program, streamed)}"] if streamed else []),
        *([f"; inner tiles along {', '.join(inner)}"] if inner else []),
        *([f"; reuses {_roles(pass_, pass_plan.reuses)}"] if pass_plan.reuses else []),
        *([f"; saves {_roles(pass_, pass_plan.saves)}"] if pass_plan.saves else []),
    ]
    return "".join(parts)


def _panels(program: PassProgram, streamed: set[Tensor]) -> str:
    """How many panels a streamed tensor has, and whose panels are rotated."""
    pass_plan, rotation = program.pass_plan, program.loop.rotation
    if pass_plan.panels == 1:
        return "in one panel"
    which = "rotated" if {*rotation} == streamed else f"{_roles(pass_plan.pass_, {*rotation})} rotated"
    return f"in {pass_plan.panels} panels along {pass_plan.stream}" + (f" ({which})" if rotation else "")


def _roles(pass_: Pass, tensors: frozenset[Tensor] | set[Tensor]) -> str:
    return " and ".join(role_name(pass_, tensor) for tensor in TENSORS if tensor in tensors)


def _ownership(plan: Plan, tensor: Tensor) -> str:
    parts, index = dict(plan.distribution.shard_cuts[tensor]), LACKED_INDEX[tensor]
    cuts = []
    for dim in dims_of(plan, tensor):
        over = [dim] if getattr(plan.grid, dim, 1) > 1 else []
        if dim in parts:
            over.append(index if len(parts) == 1 else f"{parts[dim]} parts of {index}")
        if over:
            cuts.append(f"{dim} over " + " then ".join(over))
    group = [axis for axis in plan.distribution.lacked(tensor) if getattr(plan.grid, axis) > 1]
    named = f" (x: {', '.join(group)})" if tensor == "Ker" and group else ""
    whole = "every rank has all" if tensor in plan.resident else "one rank has all"
    return (
        f"{role_names(plan, tensor)}: {', '.join(cuts) or whole}{named}"
        f"{_partial_sums(plan, tensor) if group else ''}"
    )


def _partial_sums(plan: Plan, tensor: Tensor) -> str:
    """What is said of a tensor of which several ranks hold partial sums."""
    for pass_plan in plan.pass_plans:
        if pass_plan.written == tensor:
            role = f" of {role_name(pass_plan.pass_, tensor)}" if plan.later else ""
            return f"; partial sums{role} along {LACKED_INDEX[tensor]} until reduced"
    return ""


def _moves(plan: Plan) -> list[str]:
    names = {tensor: role_names(plan, tensor) for tensor in TENSORS}
    whole = f"{_received(plan, names, plan.words)}: at most {plan.words['total']} words received per rank"
    if not plan.later:
        return [whole]
    lines = []
    for pass_plan in plan.pass_plans:
        names = {tensor: role_name(pass_plan.pass_, tensor) for tensor in TENSORS}
        words = received(plan.distribution, pass_plan).most()
        lines.append(f"{pass_plan.pass_}: {_received(plan, names, words)}")
    return [*lines, f"together: {whole}"]


def _received(plan: Plan, names: Mapping[Tensor, str], words: dict[str, int]) -> str:
    halo = f"halo {words['halo']}" if exchanges_rows(plan) else ""
    in_, ker, out = (f"{names[tensor]} {words[tensor.lower()]}" for tensor in TENSORS)
    if plan.turned:
        return f"{in_}, {ker}, {out} ({halo} of In and Out)"
    return f"{in_}{f' ({halo})' if halo else ''}, {ker}, {out}"


def _memory(plan: Plan, module: bool) -> str:
    words = replace(plan, ghosts=not module).held_words  # a module copies the shards that it is given
    return f"at most {words} words of {plan.nest.word_bytes} bytes per rank"
