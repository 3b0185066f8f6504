"""Traces a model: a graph of its calls with the shape of every result.

The model runs once on "meta" tensors, which have shapes and no values. The recorder
writes down the calls as they happen, so loops, conditions and checks of shapes may be
any Python. A layer of `torch.nn` is one call; other modules are followed into their
torch functions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.grid.log import first_line
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tracing.attributes import Attributes, is_plain
from synth.runtime.tracing.expressions import keep_used
from synth.runtime.tracing.facts import Description
from synth.runtime.tracing.inputs import Arguments, Inputs
from synth.runtime.tracing.kept_state import (
    require_no_numbers,
    require_no_tensors,
    require_not_read,
)
from synth.runtime.tracing.left_calls import give_left
from synth.runtime.tracing.left_values import LeftParts
from synth.runtime.tracing.modes import difference, joined_modes
from synth.runtime.tracing.recorded import function_name
from synth.runtime.tracing.recorder import Recorder
from synth.runtime.tracing.surroundings import (
    Kept,
    drawn_from,
    outside,
    require_no_iterators,
)
from synth.runtime.tracing.switches import (
    OF_RUNS,
    require_in_order,
    take_autocast,
    trained,
)
from synth.runtime.tracing.unsupported import check_supported, place_of, plain_copies

# what torch says of a function that gives as many words as values ask for
UNKNOWN_SHAPE = (
    r"aten::(\w+).* no fake impl or Meta kernel"
    r"|The register_meta function for torch\.(\w+)"
)

READS_VALUES = "forward reads the values of tensors in Python"


def traced(
    model: nn.Module, inputs: Any, dtype: torch.dtype, device: str | None = None
) -> fx.Graph:
    """The graph of a model for inputs of one shape.

    inputs: what `Inputs.of` takes. dtype: of the model's parameters. device: the kind
    on which it runs if the model is on "meta".
    Nodes are the inputs, calls of layers ("call_module", by name) and of functions
    ("call_function"), and parameters or buffers used outside of layers ("get_attr").
    Metadata of a node: "value" is its result on "meta"; "grad" says whether the call
    records gradients; "expression" says whether it does not depend on the input;
    "module" is the module that makes the call, "place" its line in the user's code;
    "regions" maps a mode to the checkpoints that the call is in, outermost first;
    "autocast" has the model's own autocast regions around the call. `joined_modes`
    adds what depends on the mode. The output's "refused" maps a mode to the reason why
    the graph is not that of it.

    The output's "structure" says how the model gives its tensors, and its
    "attributes" which attributes of modules it reads. Behind these tensors are others
    that it leaves in attributes; "left" says where, by the mode of the module.

    Raises `ValueError` where the model does not run on this input, gives no tensor, or
    does what a graph does not show.
    """
    check_supported(model)
    given = Arguments(model, Inputs.of(inputs))
    kinds = [device, *(each.device.type for each in model.parameters()), "cpu"]
    device = next(each for each in kinds if each not in (None, "meta"))
    seen = Attributes(outside(model))
    graph = joined_modes(
        model,
        lambda mode: _run(partial(recorded, model, given, dtype, mode, device, seen)),
    )
    require_no_numbers(
        model,
        lambda each: recorded(
            each, given, dtype, None, device, Attributes(seen.outside)
        ),
        seen,
    )
    if any(name in OF_RUNS for name, _ in seen.switches):
        runs = [
            _without_grad(model, given, dtype, device, Attributes(seen.outside), turned)
            for turned in (False, True)
        ]
        for name in OF_RUNS:
            known = seen.switches.pop((name, ()), None)
            if known is not None and difference(*runs):
                state = trained(model) if known[0] is None else known[0]
                seen.switches[name, ()] = state, known[1]
    require_in_order(seen.switches, model)
    seen.dtypes |= take_autocast(seen.switches, device)
    (output,) = graph.find_nodes(op="output")
    output.meta["attributes"] = seen
    give_left(output)
    return graph


def _without_grad(
    model: nn.Module,
    given: Arguments,
    dtype: torch.dtype,
    device: str,
    seen: Attributes,
    turned: bool,
) -> fx.Graph:
    """The graph of a run, which does not say where gradients are recorded."""
    try:
        graph = recorded(model, given, dtype, None, device, seen, turned)
    except ValueError:
        return fx.Graph()
    for node in [*graph.nodes]:
        node.meta.pop("grad", None)
        if function_name(node.target) == "contiguous":  # which changes no word
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    return graph


def _run(record: Callable[[], fx.Graph]) -> fx.Graph:
    """The graph that is recorded.

    Where forward reads values, it runs again as it does for `torch.export`. Libraries
    then leave out shorter ways that they take for some values alone, as those of a mask
    that hides nothing.
    """
    try:
        return record()
    except ValueError as error:
        if READS_VALUES not in str(error):
            raise
        try:
            with _as_exported():
                return record()
        except ValueError as further:  # what is read even then has to be changed
            said = further if READS_VALUES in str(further) else error
            raise said from said.__cause__


@contextmanager
def _as_exported() -> Iterator[None]:
    """`torch.compiler.is_exporting()` is true in here."""
    compiler: Any = torch.compiler
    before, compiler._is_exporting_flag = compiler._is_exporting_flag, True
    try:
        yield
    finally:
        compiler._is_exporting_flag = before


def recorded(
    model: nn.Module,
    given: Arguments,
    dtype: torch.dtype,
    mode: bool | None,
    device: str,
    seen: Attributes,
    turned: bool = False,
) -> fx.Graph:
    """The graph of one run: in training (True), in evaluation, or as the model is.

    turned: without gradients of what it computes, and with others of what it is given.
    seen: takes what the run reads and writes.
    """
    # copied before the move to "meta": the user's model keeps its values
    empty = copy.deepcopy(model, plain_copies(model)).to("meta")
    if mode is not None:
        empty.train(mode)
    for module in empty.modules():
        own = type(module).__module__.startswith("torch.nn.modules")
        if own and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = module.momentum or 0.0  # None would count batches
    for values in empty.parameters() if turned else ():
        if is_trainable(values):
            values.requires_grad_(not values.requires_grad)
    around, reads = Kept(empty, seen.outside), Attributes(seen.outside)
    try:
        return _graph_of(empty, given, dtype, device, reads, around, turned)
    finally:
        around.put_back()
        seen.take_run(reads)


def _graph_of(
    empty: nn.Module,
    given: Arguments,
    dtype: torch.dtype,
    device: str,
    seen: Attributes,
    around: Kept,
    turned: bool,
) -> fx.Graph:
    """The graph of one run of a model on "meta" tensors."""
    facts = Description(empty, places=seen.outside).facts
    recorder = Recorder(empty, device, turned=turned)
    drawn = drawn_from(facts.values())
    try:
        gradients = torch.set_grad_enabled(not turned)
        with gradients, seen.seen(empty, lambda: recorder.depth > 0):
            recorder.run(empty, given, dtype)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise ValueError(
            f"{type(empty).__name__} has no graph for an input of {given.inputs}:"
            f" {_reason(error)}{place_of(error)}"
        ) from error
    seen.called |= recorder.called
    seen.dtypes |= recorder.dtypes
    seen.kinds |= recorder.kinds
    seen.changed |= recorder.changed_inputs
    require_no_tensors(seen, recorder.computed, recorder.reads_words)
    changed = around.note_changes(seen)
    left = LeftParts(seen, recorder.left_node, recorder.is_made_anew)
    graph = recorder.keep(left.tensors_now(empty))
    if changed or not all(is_plain(new) for _, new in seen.changes.values()):
        again = Recorder(empty, device, recorder, turned)

        def repeated() -> fx.Graph:
            again.run(empty, given, dtype)
            return again.keep(left.tensors_now(empty))

        require_not_read(empty, graph, repeated, changed)
    (output,) = graph.find_nodes(op="output")
    output.meta["left"] = found = left.found()
    keep_used(graph, {node for each in found for node in each.nodes})
    seen.forget_values()
    require_no_iterators(seen, facts)
    if drawn_from(facts.values()) != drawn:
        raise ValueError(
            f"{type(empty).__name__} draws from random numbers of Python or numpy in"
            " forward, which would be drawn once, when it is traced; draw with torch"
        )
    return graph


def _reason(error: Exception) -> str:
    """Why a model cannot be recorded, and what to do where it is known."""
    reason = first_line(error)
    unknown = re.match(UNKNOWN_SHAPE, reason)
    if unknown:
        name = unknown[1] or unknown[2]
        places = "index by numbers that are made before (mask.nonzero()), or "
        return (
            f"torch knows the shape of what {name} gives only from values;"
            f" {places if name == 'nonzero' else ''}call it on what the network gives,"
            " outside of the model"
        )
    if "c10::complex" in reason:
        return (
            f"{reason}; a shape stands for a tensor of real numbers: where the model"
            " takes complex ones, give a complex example tensor instead"
        )
    if re.search("meta tensor|it's on meta", reason):  # which has no values
        return (
            f"{reason}; {READS_VALUES}, which a graph does not show: compute with"
            " tensors instead, as by torch.where, or read the values before"
        )
    return (
        f"{reason}; if the model runs on such an input in one process, make this call"
        " outside of it, on what the network gives"
    )
