"""A model as a graph of calls with the shape of every result; nothing is computed.

The model runs once on "meta" tensors, which have shapes and no values. What it calls is
written down as it happens, so loops, conditions and checks of shapes may be any Python.
A layer of `torch.nn` is one call; everything else is followed into its torch functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from synth.runtime.model.modes import modes
from synth.runtime.model.unsupported import judge, whole_functions


def traced(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph:
    """The graph of a model; `meta["value"]` of a node is what it gives, on "meta".

    Nodes are the input, calls of layers ("call_module", by name) and of functions, and
    parameters used outside of layers ("get_attr"); `meta["grad"]` of a call says
    whether gradients are asked for, see `modes` for the rest. Raises `ValueError`
    where the model does not run on this input, gives no single tensor, or does what a
    graph does not show.
    """
    judge(model)
    graph = _graph(model, shape, dtype, None)
    modes(model, graph, lambda mode: _graph(model, shape, dtype, mode))
    return graph


def _graph(
    model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, mode: bool | None
) -> fx.Graph:
    """The graph of one run, in training (True), in evaluation or as the model is."""
    # copied before it is moved: the user's model keeps its values
    empty = copy.deepcopy(model).to("meta")
    if mode is not None:
        empty.train(mode)
    for module in empty.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = module.momentum or 0.0  # None would count batches
    recorder = Recorder(empty)
    batch = torch.empty(shape, dtype=dtype, device="meta")
    try:
        with torch.enable_grad():
            return recorder.graph_of(empty, batch)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} has no graph for an input of {shape}: {reason}"
        ) from error


SETS = ("set", "register_hook", "register_post_accumulate_grad_hook", "backward")


class Recorder(TorchFunctionMode):
    """Writes down the calls that are made with tensors while the model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        # id of a tensor -> what gave it, and how often it had been changed by then
        self.nodes: dict[int, tuple[fx.Node, int]] = {}
        self.alive: list[torch.Tensor] = []  # so that no id is given twice
        self.inside = 0  # layers that are being run
        self.given: Any = ()  # to the outermost of them
        self.held = dict(_held(model))
        self.made_of: dict[int, str] = {}  # id of a tensor -> what it is computed from

    def graph_of(self, model: nn.Module, batch: torch.Tensor) -> fx.Graph:
        """The graph of one run."""
        self._keep(batch, self.graph.placeholder("x"))
        for name, module in model.named_modules():
            if module.__module__.startswith("torch.nn") and _is_layer(module):
                module.register_forward_pre_hook(self._enter, with_kwargs=True)
                module.register_forward_hook(partial(self._leave, name))
        with self, whole_functions(self._function):
            given = model(batch)
        for key, name in _held(model):
            if self.held.get(key) != name:
                raise ValueError(
                    f"forward puts another tensor in the place of {name}, which the"
                    " ranks would not do; compute it outside of the model"
                )
        found = list(_tensors(given))
        if len(found) != 1:
            raise ValueError(
                f"the model gives {len(found)} tensors, not a single one;"
                " wrap it in a module that returns the one that is wanted"
            )
        if found[0].dim() == 0:
            raise ValueError(
                "the model gives a single number, of which ranks have no shares;"
                " give the tensor that it is computed from"
            )
        self.graph.output(self._node(found[0]))
        return self.graph

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function and write it down."""
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        used = list(_tensors((args, kwargs)))
        known = any(self._computed(t) for t in used)
        nodes = self._replaced((args, kwargs)) if known else None
        before = [values._version for values in used]
        given = func(*args, **kwargs)
        results = list(_tensors(given))
        for values, version in zip(used, before, strict=True):
            if values._version != version:
                self._changed(values, func, results)
        if not results and _called(func) in SETS:
            for values in used:
                if self._computed(values) or self._source(values):
                    self._refuse(values, func)
        if nodes is None or not results:
            self._note(used, results)
            return given
        for index, result in enumerate(results):
            call = func if len(results) == 1 else _picked(func, index)
            name = _named(_called(call))
            made = self._made("call_function", call, nodes, name)
            self._keep(result, made)
        return given

    def _function(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A `torch.autograd.Function`, whose own calls are not written down."""
        with torch._C.DisableTorchFunction():
            return self.__torch_function__(call, (), args, kwargs)

    def _changed(
        self, values: torch.Tensor, func: Any, results: list[torch.Tensor]
    ) -> None:
        """Refuse a change in place that the graph does not show."""
        returned = any(values is each for each in results)
        recorded = id(values) in self.nodes
        if self._source(values) is not None:
            # what gives something else, as batch_norm does, is run with the buffer
            seen = recorded and bool(results) and not returned
        else:  # `x.data` shares its words unseen; what is in no call may change
            data = recorded and _called(self.nodes[id(values)][0].target) == "get"
            seen = not recorded or (returned and not data)
        if not seen:
            self._refuse(values, func)

    def _refuse(self, values: torch.Tensor, func: Any) -> None:
        what = self._source(values) or f"a tensor of {tuple(values.shape)}"
        raise ValueError(
            f"forward changes {what} in place by {_called(func)}, which the ranks would"
            " not do; compute a new tensor, as by torch.where or torch.cat"
        )

    def _note(self, used: list[torch.Tensor], results: list[torch.Tensor]) -> None:
        """Remember what is computed from parameters and buffers alone."""
        source = next(filter(None, map(self._source, used)), None)
        for result in results:
            if source and id(result) not in self.held:
                self.made_of[id(result)] = source
                self.alive.append(result)

    def _computed(self, values: torch.Tensor) -> bool:
        """Whether a tensor is the input or computed from it."""
        node, _ = self.nodes.get(id(values), (None, 0))
        return node is not None and node.op != "get_attr"

    def _source(self, values: torch.Tensor) -> str | None:
        """The parameter or buffer that a tensor is, or is computed from."""
        return self.held.get(id(values)) or self.made_of.get(id(values))

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.inside:
            with torch._C.DisableTorchFunction():
                self.given = self._replaced((args, kwargs))
        self.inside += 1

    def _leave(self, name: str, module: nn.Module, args: Any, given: Any) -> None:
        self.inside -= 1
        if self.inside:
            return
        if not isinstance(given, torch.Tensor):
            raise ValueError(
                f"{name or 'the model'}, a {type(module).__name__}, gives no single"
                " tensor; give what it gives to a module that returns the one wanted"
            )
        node = self._made("call_module", name, self.given, _named(name))
        with torch._C.DisableTorchFunction():
            self._keep(given, node)

    def _made(self, kind: str, target: Any, given: Any, name: str) -> fx.Node:
        args, kwargs = given
        node = self.graph.create_node(kind, target, args, kwargs, name=name)
        node.meta["grad"] = torch.is_grad_enabled()
        return node

    def _keep(self, value: torch.Tensor, node: fx.Node) -> None:
        node.meta["value"] = torch.empty(
            value.shape, dtype=value.dtype, device=value.device
        )
        self.alive.append(value)
        self.nodes[id(value)] = node, value._version

    def _node(self, value: torch.Tensor) -> fx.Node:
        """What gave a tensor."""
        if id(value) not in self.nodes:
            self._keep(value, self.graph.create_node("get_attr", self._name(value)))
        node, version = self.nodes[id(value)]
        if value._version != version:
            raise ValueError(
                f"a tensor of {tuple(value.shape)} from {node.name} is used after"
                " another call changed it in place; compute a new tensor there"
            )
        return node

    def _name(self, value: torch.Tensor) -> str:
        """The name of a parameter or buffer."""
        name, source = self.held.get(id(value)), self._source(value)
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

    def _replaced(self, given: Any) -> Any:
        """Arguments with nodes for tensors."""
        if isinstance(given, torch.Tensor):
            return self._node(given)
        if isinstance(given, tuple | list):
            kind = list if isinstance(given, list) else tuple
            return kind(self._replaced(each) for each in given)
        if isinstance(given, dict):
            return {key: self._replaced(each) for key, each in given.items()}
        return given


def _held(model: nn.Module) -> Iterator[tuple[int, str]]:
    """The ids of parameters and buffers, and their names."""
    for values_of in (model.named_parameters, model.named_buffers):
        for name, values in values_of():
            yield id(values), name


def _called(func: Any) -> str:
    return str(getattr(func, "__name__", "call")).strip("_")


def _named(name: str) -> str:
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
    """One of several tensors that a function gives."""

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        return list(_tensors(func(*args, **kwargs)))[index]

    run.__name__ = f"{getattr(func, '__name__', 'call')}_{index}"
    return run
