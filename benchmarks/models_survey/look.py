"""What one process can say of a model: is it accepted, what is gathered, how long does planning take?"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.models_survey.entry import Entry
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import TracedModel, trace_model
from synth.parallel.self_check.automatic import automatic_limit
from synth.parallel.self_check.comparison import Comparison
from synth.runtime.model.self_check.deadline import Deadline
from synth.runtime.operators.table import Operators
from synth.runtime.tracing.expressions import is_expression
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.unsupported import plain_copies


def look(entry: Entry, procs: int, planned: bool) -> dict[str, Any]:
    """accepted or refused (the sentence), operations, gathered (share by name), seconds of each stage.

    planned: whether to plan, too. A refusal in training and one in evaluation are both looked for: the model
    is traced in training, and where that is refused, in evaluation.
    """
    torch.manual_seed(0)
    model = entry.make()
    found: dict[str, Any] = {"parameters": sum(values.numel() for values in model.parameters())}
    start, traced = time.perf_counter(), None
    for mode in (True, False) if entry.trains else (False,):
        try:
            traced = trace_model(model.train(mode), entry.input)
            break
        except ValueError as error:
            found["refused" if not mode else "refused in training"] = sentence(error)
    found["trace s"] = time.perf_counter() - start
    if traced is None:
        return found
    found["mode"] = "training" if model.training else "evaluation"
    found |= gathered_in(traced, model)
    if planned and traced.network.planned:
        start = time.perf_counter()
        plan_network(traced.network, NetworkRequest(procs, training=True, exact_procs=True))
        found["plan s"] = time.perf_counter() - start
    return found


def checked(entry: Entry) -> dict[str, Any]:
    """What the self-check that `parallelize` makes by itself says of a model, and how long it takes.

    check: its line. check s: seconds. check limit s: those that it may take. Both are of the processor, so
    that other work beside it does not count.
    """
    torch.manual_seed(0)
    model, inputs = entry.make().train(entry.trains), Inputs.of(entry.input)
    try:
        traced = trace_model(model, inputs)
    except ValueError:  # accepted in evaluation alone
        traced = trace_model(model.eval(), inputs)
    start, clock = time.process_time(), Deadline(time.process_time)
    said = Comparison(model, inputs, traced, False, False, "global", automatic_limit, clock).result()
    return {
        "check": str(said),
        "compared": said.done,
        "check s": time.process_time() - start,
        "check limit s": clock.seconds,
    }


def sentence(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def gathered_in(traced: TracedModel, model: nn.Module, steps: Any = None) -> dict[str, Any]:
    """operations: multiply-adds of a forward pass. gathered: name of a call -> its share of them.

    steps: the names of the calls that ranks really gather; None for what the operator table says. What is
    computed from parameters alone counts as gathered, since every rank computes it.
    """
    modules = dict(model.named_modules())
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    operators = Operators(modules, tensors)
    empty = dict(_on_meta(model).named_modules())
    total, gathered = 0, dict[str, int]()
    for node in traced.graph.nodes:
        if not node.op.startswith("call") or node.meta.get("expression"):
            continue  # of parameters alone
        count = operations_of(node, empty)
        total += count
        everywhere = is_expression(node)  # of parameters alone
        everywhere |= _is_gathered(node, operators) if steps is None else node.name in steps
        if everywhere:
            gathered[_shown(node, modules)] = gathered.get(_shown(node, modules), 0) + count
    shares = {name: count / max(total, 1) for name, count in gathered.items()}
    return {"operations": total, "gathered": dict(sorted(shares.items(), key=lambda pair: -pair[1]))}


def _is_gathered(node: fx.Node, operators: Operators) -> bool:
    return operators.operator(operators.call(node)).kind == "gathered"


def operations_of(node: fx.Node, modules: dict[str, nn.Module]) -> int:
    """Multiply-adds of convolutions and products that a call makes; one for each other word of its result."""
    values = fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["value"])
    made = node.meta.get("value")
    words = math.prod(made.shape) if isinstance(made, torch.Tensor) else 0
    call: Any = modules[str(node.target)] if node.op == "call_module" else node.target
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call(*values[0], **values[1])
    except Exception:  # a call that does not run by itself on tensors without values
        return words
    return counter.get_total_flops() // 2 or words


def _on_meta(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model, plain_copies(model)).to("meta")


def _shown(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """What is called, for a table."""
    if node.op == "call_module":
        return f"{type(modules[str(node.target)]).__name__} {node.target}"
    return str(getattr(node.target, "__name__", node.target)).strip("_")
