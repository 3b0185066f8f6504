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


def traced(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph:
    """The graph of a model; `meta["value"]` of a node is what it gives, on "meta".

    Nodes are the input, calls of layers ("call_module", by name) and of functions, and
    parameters used outside of layers ("get_attr"). Raises `ValueError` where the model
    does not run on this input or gives no single tensor.
    """
    # copied before it is moved: the user's model keeps its values
    empty = copy.deepcopy(model).to("meta")
    recorder = Recorder(empty)
    batch = torch.empty(shape, dtype=dtype, device="meta")
    try:
        return recorder.graph_of(empty, batch)
    except (TypeError, RuntimeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{type(model).__name__} has no graph for an input of {shape}: {reason}"
        ) from error


class Recorder(TorchFunctionMode):
    """Writes down the calls that are made with tensors while the model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.nodes: dict[int, fx.Node] = {}  # id of a tensor -> what gave it
        self.alive: list[torch.Tensor] = []  # so that no id is given twice
        self.inside = 0  # layers that are being run
        self.held = {
            id(values): name
            for values_of in (model.named_parameters, model.named_buffers)
            for name, values in values_of()
        }

    def graph_of(self, model: nn.Module, batch: torch.Tensor) -> fx.Graph:
        """The graph of one run."""
        self._keep(batch, self.graph.placeholder("x"))
        for name, module in model.named_modules():
            if module.__module__.startswith("torch.nn") and _is_layer(module):
                module.register_forward_pre_hook(self._enter)
                leave = partial(self._leave, name)
                module.register_forward_hook(leave, with_kwargs=True)
        with self:
            given = model(batch)
        found = list(_tensors(given))
        if len(found) != 1:
            raise ValueError(
                f"the model gives {len(found)} tensors, not a single one;"
                " wrap it in a module that returns the one that is wanted"
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
        known = any(id(t) in self.nodes for t in _tensors((args, kwargs)))
        nodes = self._replaced((args, kwargs)) if known else None
        given = func(*args, **kwargs)
        results = list(_tensors(given))
        if nodes is None or not results:
            return given
        for index, result in enumerate(results):
            call = func if len(results) == 1 else _picked(func, index)
            name = _named(getattr(call, "__name__", "call"))
            made = self._made("call_function", call, nodes, name)
            self._keep(result, made)
        return given

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.inside += 1

    def _leave(
        self, name: str, module: nn.Module, args: Any, kwargs: Any, given: Any
    ) -> None:
        self.inside -= 1
        if self.inside:
            return
        if not isinstance(given, torch.Tensor):
            raise ValueError(f"{name} gives no single tensor; {type(module).__name__}")
        with torch._C.DisableTorchFunction():
            nodes = self._replaced((args, kwargs))
        node = self._made("call_module", name, nodes, _named(name))
        self._keep(given, node)

    def _made(self, kind: str, target: Any, given: Any, name: str) -> fx.Node:
        args, kwargs = given
        return self.graph.create_node(kind, target, args, kwargs, name=name)

    def _keep(self, value: torch.Tensor, node: fx.Node) -> None:
        node.meta["value"] = torch.empty(
            value.shape, dtype=value.dtype, device=value.device
        )
        self.alive.append(value)
        self.nodes[id(value)] = node

    def _node(self, value: torch.Tensor) -> fx.Node:
        if id(value) not in self.nodes:
            name = self.held.get(id(value))
            if name is None:
                raise ValueError(
                    f"the model makes a tensor of {tuple(value.shape)} by itself;"
                    " register it as a buffer"
                )
            self._keep(value, self.graph.create_node("get_attr", name))
        return self.nodes[id(value)]

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
