"""Training and evaluation: one graph that has the calls of both.

A model may make some calls in training only, as stochastic depth does, and some with
other arguments, as dropout and batch normalization do. The graph is that of the mode
with more calls. A call that the other mode does not make passes its input on there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from synth.runtime.tracing.expressions import is_computed
from synth.runtime.tracing.left_values import Left

Run = Callable[[bool | None], fx.Graph]
Twins = dict[fx.Node, fx.Node]  # call of a graph -> the same call of another
MODES = {True: "training", False: "evaluation"}
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
# function -> the argument that says whether it trains, and its place
TRAINS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(DROPOUTS, ("training", 2)),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), ("training", 2)),
    "batch_norm": ("training", 5),
    "instance_norm": ("use_input_stats", 5),
}


def joined_modes(model: nn.Module, run: Run) -> fx.Graph:
    """The graph of a model in both modes; `run` traces it in one, or as it is (None).

    Metadata of its nodes: "only" is the mode in which a call is made that the other
    does not make, and "passes" the node that stands for it there, None if nobody reads
    it. "trains" maps a mode to the argument of that name, "arguments" to all arguments
    where they differ, "regions" to checkpoints, and "saving" to whether the call saves
    a tensor in them. "differs" says whether other arguments than that one do. The
    output's "refused" maps a mode that has another graph, or none, to the reason, and
    its "left" a mode to what modules in it leave in attributes.

    The mode of a call is that of the module that makes it.
    """
    as_is = run(None)
    graphs, refused = {}, dict[bool, str]()
    for mode, word in MODES.items():
        try:
            same = all(module.training == mode for module in model.modules())
            graphs[mode] = as_is if same else run(mode)
        except Exception as error:  # whatever forward raises in that mode
            refused[mode] = f"in {word} {error}"
    found = _joined(as_is, graphs, model)
    if isinstance(found, _Joined):
        graph, twins = found
    else:  # the modes differ: the calls of the model as it is are those that are made
        graph, twins = as_is, {}
        for mode, other in graphs.items():
            twin = (
                _matched(graph, other) if len(other.nodes) == len(graph.nodes) else ""
            )
            if isinstance(twin, dict):
                twins[mode] = twin
            else:
                call, word = _first_difference(graph, other), MODES[mode]
                refused[mode] = f"forward does otherwise in {word}, at {call}"
    _annotate(graph, twins)
    found_left = {
        mode: _left(graphs[mode], twins[mode]) if mode in twins else _left(as_is, {})
        for mode in MODES
    }
    (output,) = graph.find_nodes(op="output")
    output.meta["refused"], output.meta["left"] = refused, found_left
    return graph


def _left(graph: fx.Graph, twins: Twins) -> list[Left]:
    """What the run of a graph leaves in attributes, with nodes of the joined graph.

    twins: call of that graph -> the same call of this one.
    """
    (output,) = graph.find_nodes(op="output")
    back = {twin: node for node, twin in twins.items()} or {n: n for n in graph.nodes}
    return [
        each._replace(nodes=tuple(map(back.get, each.nodes)))
        for each in output.meta["left"]
    ]


def trains(node: fx.Node, mode: bool) -> bool:
    """Whether a call trains, if the module that makes it is in a mode."""
    return bool(node.meta.get("trains", {}).get(mode, mode))


# -- one graph for both ----------------------------------------------------------------


class _Joined(NamedTuple):
    graph: fx.Graph
    twins: dict[bool, Twins]


def _joined(
    as_is: fx.Graph, graphs: Mapping[bool, fx.Graph], model: nn.Module
) -> _Joined | None:
    """The graph that has the calls of both modes; None where there is none."""
    if len(graphs) < 2:
        return None
    mode = len(graphs[True].nodes) >= len(graphs[False].nodes)
    if len(graphs[True].nodes) == len(graphs[False].nodes):
        mode = as_is is not graphs[False]
    graph = graphs[mode]
    other = _matched(graph, graphs[not mode])
    if isinstance(other, str):
        return None
    twins = {mode: {node: node for node in graph.nodes}, not mode: other}
    for node in graph.nodes:
        if node not in other and node.op.startswith("call"):
            node.meta["only"], node.meta["passes"] = mode, _passed(node)
    if as_is is graphs[True] or as_is is graphs[False]:
        return _Joined(graph, twins)
    mixed = _matched(graph, as_is)
    fits = isinstance(mixed, dict) and _follows(graph, mixed, twins, model)
    if not fits:
        for node in graph.nodes:
            node.meta.pop("only", None)
    return _Joined(graph, twins) if fits else None


def _follows(
    graph: fx.Graph, mixed: Twins, twins: Mapping[bool, Twins], model: nn.Module
) -> bool:
    """Whether the modes of the modules decide the calls of a model as it is."""
    modules = dict(model.named_modules())
    for node in graph.nodes:
        if not node.op.startswith("call"):
            continue
        mode = modules[str(node.meta["module"])].training
        made = node.meta.get("only", mode) == mode
        if made != (node in mixed):
            return False
        if made and _constants(mixed[node]) != _constants(twins[mode][node]):
            return False
    return True


def _annotate(graph: fx.Graph, twins: Mapping[bool, Twins]) -> None:
    """Write into the nodes what depends on the mode."""
    for node in graph.nodes:
        node.meta["trains"] = {}
        same = {mode: pairs[node] for mode, pairs in twins.items() if node in pairs}
        for mode, twin in same.items():
            if twin.meta.get("region"):
                node.meta.setdefault("regions", {})[mode] = twin.meta["region"]
                node.meta.setdefault("saving", {})[mode] = twin.meta["saves"]
            if _word(node) in TRAINS:
                node.meta["trains"][mode] = _trains_now(twin)
        if _word(node) in TRAINS:
            node.meta["trains"] = node.meta["trains"] or dict.fromkeys(
                MODES, _trains_now(node)
            )
        if len({_constants(twin, every=True) for twin in same.values()}) > 1:
            node.meta["arguments"] = {
                mode: _arguments(twin, twins[mode]) for mode, twin in same.items()
            }
            node.meta["differs"] = len({*map(_constants, same.values())}) > 1


def _arguments(twin: fx.Node, twins: Twins) -> Any:
    """The arguments of a call of another graph, with the nodes of the one."""
    back = {other: own for own, other in twins.items()}
    return fx.node.map_arg((twin.args, twin.kwargs), back.__getitem__)


# -- one graph in another --------------------------------------------------------------


def _matched(graph: fx.Graph, other: fx.Graph) -> Twins | str:
    """Call of a graph -> that call of another, which makes no others; in order.

    The name of the first call that differs where there is none.
    """
    if graph is other:
        return {node: node for node in graph.nodes}
    places = {str(n.target): n for n in other.nodes if n.op == "get_attr"}
    left = deque(node for node in other.nodes if node.op != "get_attr")
    twins: Twins = {}
    stands: dict[fx.Node, fx.Node | None] = {}  # for a value, in the other graph
    for node in graph.nodes:
        if node.op == "get_attr":
            stands[node] = places.get(str(node.target))
            if str(node.target) in places:
                twins[node] = places[str(node.target)]
        elif left and _same(node, left[0], stands):
            stands[node] = twins[node] = left.popleft()
        elif node.op.startswith("call"):
            passed = _passed(node)
            stands[node] = None if passed is None else stands[passed]
        else:
            return str(node.name)
    return twins if not left else str(left[0].name)


def _same(
    node: fx.Node, twin: fx.Node, stands: Mapping[fx.Node, fx.Node | None]
) -> bool:
    """Whether two calls are the same in two graphs."""
    if _facts(node) != _facts(twin):
        return False
    mine = [stands[each] for each in _operands(node)]
    if mine != _operands(twin):
        return False
    if _constants(node) == _constants(twin):
        return True
    here = (node.meta.get("place"), node.meta.get("module"))
    return here == (twin.meta.get("place"), twin.meta.get("module"))


def _passed(node: fx.Node) -> fx.Node | None:
    """The operand that stands for a call that is not made: it has the same shape."""
    value = node.meta.get("value")
    if value is None:
        return None
    kind = is_computed(node)
    fits = (each for each in node.all_input_nodes if is_computed(each) == kind)
    return next((n for n in fits if n.meta["value"].shape == value.shape), None)


def _first_difference(one: fx.Graph, other: fx.Graph) -> str:
    """The first call in which two graphs differ."""
    pairs = zip(one.nodes, other.nodes, strict=False)
    for node, twin in pairs:
        if _facts(node) != _facts(twin) or repr(_constants(node)) != repr(
            _constants(twin)
        ):
            return str(node.name)
    return "output"


def difference(one: fx.Graph, other: fx.Graph) -> str:
    """The first call in which two graphs differ; "" where they are the same."""
    twins = _matched(one, other)
    if isinstance(twins, str) or len(twins) < len(one.nodes):
        return _first_difference(one, other)
    pairs = twins.items()
    apart = (n.name for n, t in pairs if _constants(n, True) != _constants(t, True))
    return next(apart, "")


def _facts(node: fx.Node) -> tuple[Any, ...]:
    """What a node says, without its arguments."""
    target = getattr(node.target, "__name__", node.target)
    value = node.meta.get("value")
    shape = value.shape if isinstance(value, torch.Tensor) else None
    names = getattr(node.meta.get("structure"), "names", None)  # of the output
    return node.op, target, shape, node.meta.get("grad"), names


def _operands(node: fx.Node) -> list[fx.Node]:
    """The nodes among the arguments, in order and as often as they are there."""
    found = list[fx.Node]()
    fx.node.map_arg((node.args, node.kwargs), found.append)
    return found


def _constants(node: fx.Node, every: bool = False) -> str:
    """The other arguments.

    every: also the one that says whether the call trains.
    """
    args, kwargs = list(node.args), dict(node.kwargs)
    if _word(node) in TRAINS and not every:
        name, place = TRAINS[_word(node)]
        args[place : place + 1] = [None] if len(args) > place else []
        kwargs.pop(name, None)
    return str(fx.node.map_arg((tuple(args), kwargs), lambda each: "a tensor"))


def _trains_now(node: fx.Node) -> bool:
    """The argument of a function that says whether it trains."""
    name, place = TRAINS[_word(node)]
    default = _word(node) != "batch_norm"
    given = (
        node.args[place] if len(node.args) > place else node.kwargs.get(name, default)
    )
    return bool(given)


def _word(node: fx.Node) -> str:
    """The name of the function of a node, without the _ of its in-place form."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "__name__", "")).strip("_")
