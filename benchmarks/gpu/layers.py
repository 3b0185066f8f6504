"""The suite's layers as emitted programs on one rank, beside torch's own operator under autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

import synth
from benchmarks.gpu.timing import emptied, in_turns, median, peak_bytes, ratio, settings
from benchmarks.suite.contenders.kernels import Kernel, operations, shapes
from benchmarks.suite.lines import LAYERS as SUITE
from benchmarks.suite.lines import ROOT
from synth.codegen.module import imported
from synth.codegen.render import render
from synth.layer.layer import Layer, load_layer
from synth.machine.file import load_machine
from synth.machine.hierarchy import Machine
from synth.planning.plan import Plan
from synth.runtime.kernels.context import Context

OURS, PLAIN = "ours", "torch"
LAYERS = (
    *SUITE,
    "examples/resnet50/conv1_7x7.yaml",
    "examples/resnet50/conv2_x_3x3.yaml",
    "examples/vgg16/conv1_2.yaml",
    "examples/cosmoflow/conv1.yaml",
    "examples/cosmoflow/conv3.yaml",
    "examples/grouped.yaml",
)
MODES = {"float32": ("float32", False), "TF32": ("float32", True), "bf16": ("bfloat16", True)}
WORKS = ("training", "forward")
TF32 = 2.47e14  # half the peak of the data sheet, as the other rates of the machine file


def priced(machine: Machine, mode: str) -> Machine:
    """The machine as it computes in a mode: the file has no rate of TF32."""
    if mode != "TF32":
        return machine
    return replace(machine, compute=replace(machine.compute, rate=TF32))


def measured(
    path: str, mode: str, work: str, device: torch.device, rounds: int, small: bool
) -> dict[str, Any]:
    """A line of the table. small: one sample, for a try on a processor.

    Raises `ValueError` where our values are not torch's.
    """
    dtype, tf32 = MODES[mode]
    layer = replace(load_layer(ROOT / path), dtype=dtype)
    if small:
        edges = tuple(min(each, 64) for each in layer.input[1:])
        product = layer.kind == "matmul"
        filters = edges[0] if product else layer.out_channels
        layer = replace(layer, input=(1, *edges), out_channels=filters)
    plan = synth.plan(layer, 1, pass_=work, objective="time", machine="h100")
    steps = {OURS: program(plan, device), PLAIN: torch_step(layer, work, device)}
    with settings(tf32):
        difference = apart(steps[OURS](), steps[PLAIN]())
        if not difference < (0.05 if mode == "bf16" else 5e-3):
            raise ValueError(f"{path}, {mode}, {work}: values differ by {difference:.1g} of the largest")
        times = in_turns(steps, rounds, device)
        peak = {name: peak_bytes(step, device) for name, step in steps.items()}
    passes = len(plan.pass_plans)
    machine = priced(load_machine("h100"), mode)
    predicted = sum(passes_seconds(layer, machine, each.pass_) for each in plan.pass_plans)
    del steps
    emptied(device)
    return {
        "layer": layer.name,
        "mode": mode,
        "work": work,
        "flops": passes * operations(layer),
        "seconds": median(times),
        "ratio": ratio(times, PLAIN, OURS),
        "predicted": predicted,
        "difference": difference,
        "peak": peak,
        "planned": plan.used_words * plan.nest.word_bytes,
    }


def passes_seconds(layer: Layer, machine: Machine, pass_: str) -> float:
    """Seconds of one pass on one rank, by the time model."""
    from synth.layer.axes import PerAxis
    from synth.machine.layer_time import compute_seconds

    nest = layer.nest
    work = PerAxis(**{axis: getattr(nest.extents, axis) for axis in PerAxis._fields})
    return float(compute_seconds(machine, nest, work, True))


def program(plan: Plan, device: torch.device) -> Callable[[], Any]:
    """The timed step of the emitted program: it has In, Ker and dOut, and makes the results."""
    made = imported(render(plan), f"synth_bench_{plan.id}")
    context, layer = Context(), plan.layer
    tensors = whole(layer, device)
    stored = made.IN_SHAPE, made.KER_SHAPE
    given = [tensors["In"].view(stored[0]), tensors["Ker"].view(stored[1])]
    if plan.pass_ == "training":
        given.append(tensors["Out"].view(made.OUT_SHAPE))
    return lambda: made.run(*given, {}, {}, context)


def torch_step(layer: Layer, work: str, device: torch.device) -> Callable[[], Any]:
    """The same by torch's operator and autograd."""
    kernel, tensors = Kernel(layer), whole(layer, device)

    def step() -> Any:
        if work == "forward":
            with torch.no_grad():
                return kernel.forward(tensors["In"], tensors["Ker"])
        given = [tensors[name].detach().requires_grad_() for name in ("In", "Ker")]
        out = kernel.forward(given[0], given[1])
        return out.detach(), *torch.autograd.grad(out, given, tensors["Out"])

    return step


def whole(layer: Layer, device: torch.device) -> dict[str, torch.Tensor]:
    """In, Ker and (as dOut) Out of a layer, the same at each call."""
    torch.manual_seed(0)
    dtype = getattr(torch, layer.dtype)
    return {name: torch.randn(size, device=device, dtype=dtype) for name, size in shapes(layer).items()}


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference of two results, as a share of the largest value."""
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    shares = []
    for one, other in pairs:
        wide = other.double()
        shares.append(float((one.double().view(wide.shape) - wide).abs().max() / wide.abs().max()))
    return max(shares)
