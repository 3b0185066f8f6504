"""Records the calls that a model makes with tensors while it runs on "meta"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from synth.runtime.model.autocast_regions import AutocastRegions
from synth.runtime.model.checkpoint_regions import CheckpointRegions
from synth.runtime.model.inputs import Arguments
from synth.runtime.model.outputs import Structure
from synth.runtime.model.unsupported import record_autograd_functions

# methods without a result that change what a tensor is or does
SETTERS = ("set", "register_hook", "register_post_accumulate_grad_hook", "backward")
# functions that return their operand where it has the dtype that is asked for
CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16")


class Recorder(TorchFunctionMode):
    """Records one run of a model as a graph.

    model: on "meta". device: the kind that it is on when the ranks run it.
    """

    def __init__(self, model: nn.Module, device: str = "cpu") -> None:
        super().__init__()
        self.graph = fx.Graph()
        # id of a tensor -> the node that made it, and its version at that time
        self.nodes: dict[int, tuple[fx.Node, int]] = {}
        self.alive: list[torch.Tensor] = []  # keeps every id unique
        self.depth = 0  # layers of torch.nn that are running
        self.arguments: Any = ()  # of the outermost of them
        self.stored = dict(_stored(model))  # id of a parameter or buffer -> name
        self.regions, self.autocast = CheckpointRegions(), AutocastRegions(device)
        self.derived: dict[int, str] = {}  # id -> the parameter it is computed from

    def graph_of(
        self, model: nn.Module, arguments: Arguments, dtype: torch.dtype
    ) -> fx.Graph:
        """The graph of one run. Raises `ValueError` for what a graph cannot show.

        dtype: of the model's parameters.
        """
        tensors = arguments.tensors(dtype)
        for name, values in zip(arguments.names, tensors, strict=True):
            word = "x" if len(tensors) == 1 else _node_name(name)
            self._remember(values, self.graph.placeholder(word))
        args, kwargs = arguments.filled(tensors)
        for name, module in model.named_modules():
            if module.__module__.startswith("torch.nn") and _is_layer(module):
                module.register_forward_pre_hook(self._enter, with_kwargs=True)
                module.register_forward_hook(partial(self._leave, name))
        with (
            self,
            self.regions,
            self.autocast,
            record_autograd_functions(self._autograd_function),
        ):
            result = model(*args, **kwargs)
        for key, name in _stored(model):
            if self.stored.get(key) != name:
                raise ValueError(
                    f"forward puts another tensor in the place of {name}, which the"
                    " ranks would not do; compute it outside of the model"
                )
        self._give(Structure(result))
        return self.graph

    def _give(self, given: Structure) -> None:
        """What the model gives: the nodes of its tensors, and their structure."""
        nodes = [self._node(values) for values in given.tensors]
        if not nodes:
            raise ValueError("the model gives no tensor; let its forward return one")
        for name, node in zip(given.names, nodes, strict=True):
            if node.op == "get_attr":
                raise ValueError(
                    f"the model gives {node.target} as {name}, which is no result of"
                    " its input; read it from the network"
                )
        node = self.graph.output(tuple(nodes))
        node.meta["structure"] = given.without_tensors()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function and record it."""
        kwargs = kwargs or {}
        if self.depth:
            return func(*args, **kwargs)
        used = list(_tensors((args, kwargs)))
        known = any(self._computed(t) for t in used)
        nodes = self._with_nodes((args, kwargs)) if known else None
        before = [values._version for values in used]
        result = func(*args, **kwargs)
        if _function_name(func) in CASTS and self._computed(result):
            with torch._C.DisableTorchFunction():  # another dtype under autocast
                result = result.view_as(result)
        results = list(_tensors(result))
        for values, version in zip(used, before, strict=True):
            if values._version != version:
                self._check_change(values, func, results)
        if not results and _function_name(func) in SETTERS:
            for values in used:
                if self._computed(values) or self._source(values):
                    self._refuse_change(values, func)
        if nodes is None or not results:
            self._derive(used, results)
            return result
        for index, values in enumerate(results):
            call = func if len(results) == 1 else _picked(func, index)
            name = _node_name(_function_name(call))
            node = self._create("call_function", call, nodes, name)
            self._remember(values, node)
        return result

    def _autograd_function(
        self, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Record a `torch.autograd.Function` as one call."""
        with torch._C.DisableTorchFunction():
            return self.__torch_function__(call, (), args, kwargs)

    def _check_change(
        self, values: torch.Tensor, func: Any, results: list[torch.Tensor]
    ) -> None:
        """Refuse a change in place that the graph does not show."""
        returned = any(values is each for each in results)
        recorded = id(values) in self.nodes
        if self._source(values) is not None:
            # a call with another result, such as batch_norm, runs with the buffer
            shown = recorded and bool(results) and not returned
        else:
            # a tensor of no recorded call may change; `x.data` shares words unseen
            data = (
                recorded and _function_name(self.nodes[id(values)][0].target) == "get"
            )
            shown = not recorded or (returned and not data)
        if not shown:
            self._refuse_change(values, func)

    def _refuse_change(self, values: torch.Tensor, func: Any) -> None:
        what = self._source(values) or f"a tensor of {tuple(values.shape)}"
        raise ValueError(
            f"forward changes {what} in place by {_function_name(func)}, which the"
            " ranks would not do; compute a new tensor, as by torch.where or torch.cat"
        )

    def _derive(self, used: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Remember which results are computed from parameters and buffers alone."""
        source = next(filter(None, map(self._source, used)), None)
        for result in results:
            if source and id(result) not in self.stored:
                self.derived[id(result)] = source
                self.alive.append(result)

    def _computed(self, values: torch.Tensor) -> bool:
        """Whether a tensor is the input or computed from it."""
        node, _ = self.nodes.get(id(values), (None, 0))
        return node is not None and node.op != "get_attr"

    def _source(self, values: torch.Tensor) -> str | None:
        """The parameter or buffer that a tensor is, or is computed from."""
        return self.stored.get(id(values)) or self.derived.get(id(values))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.depth:
            with torch._C.DisableTorchFunction():
                self.arguments = self._with_nodes((args, kwargs))
        self.depth += 1

    def _leave(self, name: str, module: nn.Module, args: Any, result: Any) -> None:
        self.depth -= 1
        if self.depth:
            return
        if not isinstance(result, torch.Tensor):
            raise ValueError(
                f"{name or 'the model'}, a {type(module).__name__}, gives no single"
                " tensor; give what it gives to a module that returns the one wanted"
            )
        node = self._create("call_module", name, self.arguments, _node_name(name))
        with torch._C.DisableTorchFunction():
            self._remember(result, node)

    def _create(self, kind: str, target: Any, given: Any, name: str) -> fx.Node:
        args, kwargs = given
        node = self.graph.create_node(kind, target, args, kwargs, name=name)
        node.meta["grad"] = torch.is_grad_enabled()
        node.meta["region"] = self.regions.current
        node.meta["autocast"] = self.autocast.current
        return node

    def _remember(self, value: torch.Tensor, node: fx.Node) -> None:
        """Note that a node made a tensor."""
        node.meta["value"] = torch.empty(
            value.shape, dtype=value.dtype, device=value.device
        )
        self.alive.append(value)
        self.nodes[id(value)] = node, value._version

    def _node(self, value: torch.Tensor) -> fx.Node:
        """The node that made a tensor; a new one for a parameter or buffer."""
        if id(value) not in self.nodes:
            self._remember(value, self.graph.create_node("get_attr", self._name(value)))
        node, version = self.nodes[id(value)]
        if value._version != version:
            raise ValueError(
                f"a tensor of {tuple(value.shape)} from {node.name} is used after"
                " another call changed it in place; compute a new tensor there"
            )
        return node

    def _name(self, value: torch.Tensor) -> str:
        """The name of a parameter or buffer."""
        name, source = self.stored.get(id(value)), self._source(value)
        if name is None and source is not None:
            raise ValueError(
                f"the model computes a tensor of {tuple(value.shape)} from {source};"
                " a function of a parameter is not supported outside of the layers of"
                " torch.nn, so give the model the result as a parameter"
            )
        if name is None:
            raise ValueError(
                f"the model makes a tensor of {tuple(value.shape)} by itself;"
                " register it as a buffer"
            )
        return name

    def _with_nodes(self, given: Any) -> Any:
        """Arguments with nodes in the place of tensors."""
        if isinstance(given, torch.Tensor):
            return self._node(given)
        if isinstance(given, tuple | list):
            kind = list if isinstance(given, list) else tuple
            return kind(self._with_nodes(each) for each in given)
        if isinstance(given, dict):
            return {key: self._with_nodes(each) for key, each in given.items()}
        return given


def _stored(model: nn.Module) -> Iterator[tuple[int, str]]:
    """The ids of parameters and buffers, and their names."""
    for values_of in (model.named_parameters, model.named_buffers):
        for name, values in values_of():
            yield id(values), name


def _function_name(func: Any) -> str:
    return str(getattr(func, "__name__", "call")).strip("_")


def _node_name(name: str) -> str:
    """A name for a node that can be a key of a `ModuleDict`."""
    name = name.strip("_").replace(".", "_") or "model"
    return f"{name}_call" if hasattr(nn.ModuleDict, name) else name


def _is_layer(module: nn.Module) -> bool:
    """Whether a module of torch computes something itself."""
    return not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    """All tensors in a structure of tuples, lists and dicts, each once."""
    if isinstance(given, torch.Tensor):
        yield given
        return
    parts: Iterable[Any] = ()
    if isinstance(given, dict):
        parts = given.values()
    elif isinstance(given, tuple | list):
        parts = given
    seen: set[int] = set()
    for part in parts:
        for tensor in _tensors(part):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _picked(func: Callable[..., Any], index: int) -> Callable[..., Any]:
    """A function that gives one of several results of another."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        return list(_tensors(func(*args, **kwargs)))[index]

    run.__name__ = f"{getattr(func, '__name__', 'call')}_{index}"
    run.picked = getattr(func, "__name__", "").strip("_"), index  # type: ignore[attr-defined]
    return run
