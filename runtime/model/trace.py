"""Traces a model: a graph of its calls with the shape of every result.

The model runs once on "meta" tensors, which have shapes and no values. The recorder
writes down the calls as they happen, so loops, conditions and checks of shapes may be
any Python. A layer of `torch.nn` is one call; other modules are followed into their
torch functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.model.inputs import Arguments, Inputs
from synth.runtime.model.recorder import Recorder
from synth.runtime.model.unsupported import check_supported

DROPOUT_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
MODES = {True: "training", False: "evaluation"}


def traced(model: nn.Module, inputs: Any, dtype: torch.dtype) -> fx.Graph:
    """The graph of a model for inputs of one shape.

    inputs: what `Inputs.of` takes. dtype: of the model's parameters.
    Nodes are the inputs, calls of layers ("call_module", by name) and of functions
    ("call_function"), and parameters or buffers used outside of layers ("get_attr").
    Metadata of a node: "value" is its result on "meta"; "grad" says whether the call
    records gradients; "training" of a dropout function says whether it drops now;
    "regions" maps a mode to the checkpoints that the call is in, outermost first;
    "autocast" has the model's own autocast regions around the call. The output's
    "refused" maps a mode to the reason why it cannot be entered.

    The output's "structure" says how the model gives its tensors.

    Raises `ValueError` where the model does not run on this input, gives no tensor, or
    does what a graph does not show.
    """
    check_supported(model)
    given = Arguments(model, Inputs.of(inputs))
    graph = _run(model, given, dtype, None)
    _compare_modes(model, graph, lambda mode: _run(model, given, dtype, mode))
    return graph


def _run(
    model: nn.Module, given: Arguments, dtype: torch.dtype, mode: bool | None
) -> fx.Graph:
    """The graph of one run: in training (True), in evaluation, or as the model is."""
    # copied before the move to "meta": the user's model keeps its values
    empty = copy.deepcopy(model).to("meta")
    if mode is not None:
        empty.train(mode)
    for module in empty.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = module.momentum or 0.0  # None would count batches
    device = next((each.device.type for each in model.parameters()), "cpu")
    recorder = Recorder(empty, device)
    try:
        with torch.enable_grad():
            return recorder.graph_of(empty, given, dtype)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} has no graph for an input of {given.inputs}:"
            f" {reason}"
        ) from error


# -- training and evaluation ---------------------------------------------------


def _compare_modes(
    model: nn.Module, graph: fx.Graph, run: Callable[[bool], fx.Graph]
) -> None:
    """Write into a graph the modes in which it holds.

    graph: of the model as it is; `run(mode)` traces the model in a mode.
    A mode is refused where its graph differs. A dropout function may follow the mode:
    its node then loses the argument `training` and gets the metadata "training".
    """
    refused: dict[bool, str] = {}
    drops: dict[fx.Node, dict[bool, bool]]
    drops = {node: {} for node in graph.nodes if _is_dropout(node)}
    for mode, word in MODES.items():
        other, remedy = graph, _remedy(mode)
        try:
            if any(module.training != mode for module in model.modules()):
                other = run(mode)
            call = _first_difference(graph, other)
        except Exception as error:  # whatever forward raises in that mode
            refused[mode] = f"in {word} {error}; {remedy}"
            continue
        if call is not None:
            refused[mode] = f"forward does otherwise in {word}, at {call}; {remedy}"
            continue
        for node, twin in zip(graph.nodes, other.nodes, strict=True):
            if twin.meta.get("region"):
                node.meta.setdefault("regions", {})[mode] = twin.meta["region"]
            if node in drops:
                drops[node][mode] = _drops_now(twin)
    for node, by_mode in drops.items():
        now = _drops_now(node)
        if by_mode.get(False, False):
            refused[False] = (
                f"{node.name} drops words in evaluation, too; {_remedy(False)}"
            )
        if now and not by_mode.get(True, True):
            refused[True] = f"{node.name} drops no words in training; {_remedy(True)}"
        if by_mode.get(True, now):
            node.meta["training"] = now
            node.args, node.kwargs = _without_mode(node)
    for node in graph.nodes:
        if node.op == "output":
            node.meta["refused"] = refused


def _remedy(mode: bool) -> str:
    return f"parallelize a model that is in {MODES[mode]}, and load the state"


def _is_dropout(node: fx.Node) -> bool:
    """Whether a node calls a dropout function."""
    name = str(getattr(node.target, "__name__", "")).strip("_")
    return node.op == "call_function" and name in DROPOUT_FUNCTIONS


def _drops_now(node: fx.Node) -> bool:
    """The argument `training` of a dropout function."""
    given = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return bool(given)


def _without_mode(node: fx.Node) -> tuple[Any, Any]:
    """The arguments of a dropout function without `training`."""
    kwargs = {key: value for key, value in node.kwargs.items() if key != "training"}
    return node.args[:2], kwargs


def _first_difference(one: fx.Graph, other: fx.Graph) -> str | None:
    """The first call in which two graphs differ; None where they are equal."""
    if one is other:
        return None
    first, second = ([_content(node) for node in graph.nodes] for graph in (one, other))
    for mine, its in zip(first, second, strict=False):
        if mine != its:
            return str(mine[0])
    more = max(first, second, key=len)[min(len(first), len(second)) :]
    return str(more[0][0]) if more else None


def _content(node: fx.Node) -> tuple[Any, ...]:
    """Everything that a node says, without references to its graph."""
    target = getattr(node.target, "__name__", node.target)
    args, kwargs = (
        _without_mode(node) if _is_dropout(node) else (node.args, node.kwargs)
    )
    args, kwargs = fx.node.map_arg((args, kwargs), lambda each: each.name)
    value = node.meta.get("value")
    shape = value.shape if isinstance(value, torch.Tensor) else None
    return node.name, node.op, target, args, kwargs, shape, node.meta.get("grad")
