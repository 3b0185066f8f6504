"""Whether a model does the same in training and in evaluation, but for its layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

DROPS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
WORDS = {True: "training", False: "evaluation"}


def modes(model: nn.Module, graph: fx.Graph, run: Callable[[bool], fx.Graph]) -> None:
    """Write into a graph which modes it holds in.

    graph: of the model as it is; `run` makes that of a mode. The output's "refused" is
    mode -> why a network of this graph cannot be put into it. A dropout function that
    follows its module's mode gets "training", what it was asked for, and always drops.
    """
    refused: dict[bool, str] = {}
    asked: dict[fx.Node, dict[bool, bool]] = {n: {} for n in graph.nodes if _drops(n)}
    for mode, word in WORDS.items():
        other, remedy = graph, _anew(mode)
        try:
            if any(module.training != mode for module in model.modules()):
                other = run(mode)
            call = _unlike(graph, other)
        except Exception as error:  # whatever forward raises in that mode
            refused[mode] = f"in {word} {error}; {remedy}"
            continue
        if call is not None:
            refused[mode] = f"forward does otherwise in {word}, at {call}; {remedy}"
            continue
        for node, twin in zip(graph.nodes, other.nodes, strict=True):
            if node in asked:
                asked[node][mode] = _asked(twin)
    for node, by_mode in asked.items():
        now = _asked(node)
        if by_mode.get(False, False):
            refused[False] = (
                f"{node.name} drops words in evaluation, too; {_anew(False)}"
            )
        if now and not by_mode.get(True, True):
            refused[True] = f"{node.name} drops no words in training; {_anew(True)}"
        if by_mode.get(True, now):
            node.meta["training"] = now
            node.args, node.kwargs = _without(node)
    for node in graph.nodes:
        if node.op == "output":
            node.meta["refused"] = refused


def _anew(mode: bool) -> str:
    return f"parallelize a model that is in {WORDS[mode]}, and load the state"


def _drops(node: fx.Node) -> bool:
    """Whether a node is a dropout function."""
    name = str(getattr(node.target, "__name__", "")).strip("_")
    return node.op == "call_function" and name in DROPS


def _asked(node: fx.Node) -> bool:
    """Whether a dropout function is told to drop."""
    given = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return bool(given)


def _without(node: fx.Node) -> tuple[Any, Any]:
    """The arguments of a dropout function but for whether it drops."""
    kwargs = {key: value for key, value in node.kwargs.items() if key != "training"}
    return node.args[:2], kwargs


def _unlike(one: fx.Graph, other: fx.Graph) -> str | None:
    """The first call in which two graphs differ."""
    if one is other:
        return None
    first, second = ([_told(node) for node in graph.nodes] for graph in (one, other))
    for mine, its in zip(first, second, strict=False):
        if mine != its:
            return str(mine[0])
    more = max(first, second, key=len)[min(len(first), len(second)) :]
    return str(more[0][0]) if more else None


def _told(node: fx.Node) -> tuple[Any, ...]:
    """What a node is, apart from its graph."""
    target = getattr(node.target, "__name__", node.target)
    args, kwargs = _without(node) if _drops(node) else (node.args, node.kwargs)
    args, kwargs = fx.node.map_arg((args, kwargs), lambda each: each.name)
    value = node.meta.get("value")
    shape = value.shape if isinstance(value, torch.Tensor) else None
    return node.name, node.op, target, args, kwargs, shape, node.meta.get("grad")
