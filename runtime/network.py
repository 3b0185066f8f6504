"""A traced model on shares: what is done for each call of its graph."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn
from torch.nn import functional

from runtime.blocks import Window, shape
from runtime.finite import all_finite, watch
from runtime.layout import Layout, Whole, even
from runtime.mesh import coordinates
from runtime.module import DistributedLayer
from runtime.norm import BatchNorm
from runtime.shares import share_of
from runtime.steps import (
    Flatten,
    Gathered,
    GlobalPool,
    Inside,
    Local,
    Planned,
    Pool,
    Step,
)
from runtime.trace import known, traced
from runtime.words import Words

Make = Callable[[str, nn.Module, tuple[int, ...]], DistributedLayer | None]

ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid),
    *(nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Identity, nn.Dropout),
)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MOST = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
MEANS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
ALONE: dict[Any, Callable[..., Any]] = {  # the same, in place where the model has it so
    **dict.fromkeys((torch.relu, functional.relu, torch.relu_), torch.relu),
    **dict.fromkeys(("relu", "relu_"), torch.relu),
    **dict.fromkeys((torch.sigmoid, "sigmoid"), torch.sigmoid),
    **dict.fromkeys((torch.tanh, "tanh"), torch.tanh),
    **{call: call for call in (functional.gelu, functional.silu)},
    "contiguous": torch.Tensor.contiguous,
}
TOGETHER: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), torch.add),
    **dict.fromkeys((operator.sub, torch.sub, "sub"), torch.sub),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul"), torch.mul),
}


class Network(nn.Module):
    """A model whose activations are shares; see `synth.parallelize`.

    model: the user's, alike on all ranks (rank 0's values are taken).
    make: the planned layer for a name, a module and its input's shape, None for none.
    refuse: raise `ValueError` for a layer that could only be computed from the whole.
    check_finite: look for NaN and infinity in what every step makes and in every
        gradient; all ranks then raise `FloatingPointError` with layer and ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        whole: tuple[int, ...],
        make: Make,
        dtype: torch.dtype = torch.float32,
        refuse: bool = False,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.make, self.refuse, self.words = make, refuse, Words()
        self.check_finite = check_finite
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.plain = dict(model.named_modules())
        for values in (*model.parameters(), *model.buffers()):
            dist.broadcast(values.detach(), src=0)
        self.steps = nn.ModuleDict()
        self.calls: list[tuple[str, tuple[str, ...]]] = []  # step, its inputs
        self.owners: dict[str, str] = {}  # module of the model -> its step
        self.ready: dict[str, DistributedLayer | None] = {}
        self.layouts: dict[str, Layout] = {}
        graph = traced(model, whole, dtype)
        for node in graph.nodes:
            self._place(node)
        del self.plain, self.make, self.ready
        self.names = {step: name for name, step in self.owners.items()}
        if check_finite:
            self._watch_parameters()

    # -- making ---------------------------------------------------------------------

    def _place(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.input, value = node.name, node.meta["value"]
                self.layouts[node.name] = self._entry(node, tuple(value.shape))
            case "output":
                given = known(node.args[0])
                if not isinstance(given, fx.Node):
                    raise ValueError("the model gives no single tensor")
                self.output = given.name
            case "get_attr":
                raise ValueError(
                    f"the model uses the tensor {node.target} outside of its layers;"
                    " move it into a layer of its own"
                )
            case _ if isinstance(node.meta["value"], torch.Tensor):
                self._add(node)

    def _entry(self, node: fx.Node, whole: tuple[int, ...]) -> Layout:
        """Where the first planned layer owns its input, or an even layout."""
        first = next(iter(node.users), None)
        if first is not None and first.op == "call_module":
            name = str(first.target)
            made = self.ready[name] = self.make(name, self.plain[name], whole)
            if made is not None and whole == made.program.IN_SHAPE:
                owned, grid = made.program.owned_in, made.program.GRID
                ranks = range(dist.get_world_size())
                boxes = tuple(owned(coordinates(rank, grid)) for rank in ranks)
                return Layout(whole, boxes)
        return even(whole)

    def _add(self, node: fx.Node) -> None:
        if node.op == "call_module":
            name = str(node.target)
            if name in self.owners and self.plain[name].state_dict():
                raise ValueError(f"{name} is called twice; call a layer of its own")
            self.owners[name] = node.name
            step = self._module(node)
        else:
            step = self._call(node)
        self.steps[node.name] = step = step or self._gathered(node)
        self.calls.append((node.name, tuple(n.name for n in self._tensors(node))))
        self.layouts[node.name] = step.layout

    def _tensors(self, node: fx.Node) -> list[fx.Node]:
        return [each for each in node.all_input_nodes if each.name in self.layouts]

    def _module(self, node: fx.Node) -> Step | None:
        module = self.plain[str(node.target)]
        source = self.layouts[self._tensors(node)[0].name]
        made = self.ready.pop(str(node.target), None)
        made = made or self.make(str(node.target), module, source.whole)
        if made is not None:
            made.load_full_state_dict(
                {n: p.detach() for n, p in module.named_parameters()}
            )
            return Planned(made, source, self._counter(str(node.target)))
        count, out = self._counter(str(node.target)), tuple(node.meta["value"].shape)
        if isinstance(module, ELEMENTWISE):
            module = copy.copy(module)  # the user's stays as it is
            if hasattr(module, "inplace"):
                module.inplace = False
            return Inside(module, source)
        if isinstance(module, NORMS):
            return Inside(BatchNorm(module, source).to(self.device), source)
        if isinstance(module, (*MOST, *MEANS)):
            return _pool(module, source, out, count)
        if isinstance(module, ADAPTIVE) and set(out[2:]) == {1}:
            return GlobalPool(source, True, count)
        flattens = isinstance(module, nn.Flatten)
        if flattens and module.start_dim == 1 and out == _flat(source.whole):
            return Flatten(source, count)
        return None

    def _call(self, node: fx.Node) -> Step | None:
        inputs = [self.layouts[n.name] for n in self._tensors(node)]
        count, out = self._counter(node.name), tuple(node.meta["value"].shape)
        source, target = inputs[0], node.target
        alike = all(each.whole == out for each in inputs)
        if target in ALONE and alike and len(inputs) == 1:
            return Local(ALONE[target], inputs, count)
        if target in TOGETHER and alike and not node.kwargs:
            call, args = TOGETHER[target], known(node.args)
            return Local(_filled(call, args, self._tensors(node)), inputs, count)
        flat = target in (torch.flatten, "flatten", "view", "reshape", torch.reshape)
        if flat and len(inputs) == 1 and out == _flat(source.whole):
            return Flatten(source, count)
        pooled = target == functional.adaptive_avg_pool2d and set(out[2:]) == {1}
        if pooled or (target in (torch.mean, "mean") and _spatial(node, source, out)):
            return GlobalPool(source, len(out) > 2, count)
        return None

    def _gathered(self, node: fx.Node) -> Step:
        if self.refuse:
            raise ValueError(
                f"{node.target} ({node.name}) cannot be computed from shares"
            )
        if dist.get_rank() == 0:
            print(f"{node.name}: gathered, every rank computes it", file=sys.stderr)
        inputs = [self.layouts[n.name] for n in self._tensors(node)]
        count, out = self._counter(node.name), tuple(node.meta["value"].shape)
        args, kwargs = known(node.args), known(node.kwargs)
        if node.op == "call_module":
            module = self.plain[str(node.target)]
            return Gathered(_unused, inputs, out, count, module)
        target: Any = node.target
        if node.op == "call_method":
            target = getattr(torch.Tensor, target)
        return Gathered(
            _filled(target, args, self._tensors(node), kwargs), inputs, out, count
        )

    def _counter(self, name: str) -> Callable[[int], None]:
        return self.words.counter("move", 0, name)

    # -- use ------------------------------------------------------------------------

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of the output, from its share of the input."""
        if share.shape != shape(self.layouts[self.input].mine):
            raise ValueError(
                f"rank {dist.get_rank()} owns an input of"
                f" {shape(self.layouts[self.input].mine)}, but was given"
                f" {tuple(share.shape)}; `scatter(batch)` cuts it"
            )
        values = {self.input: self._looked(self.input, share)}
        for step, sources in self.calls:
            made = self.steps[step](*(values[name] for name in sources))
            values[step] = self._looked(step, made)
        return values[self.output]

    def _looked(self, step: str, values: torch.Tensor) -> torch.Tensor:
        """What a step made, looked at with its gradient to come where that is asked."""
        if self.check_finite:
            name = self.names.get(step, step)
            all_finite(f"{name}: Out", values, _nowhere)
            watch(f"{name}: dOut", values, _nowhere)
        return values

    def _watch_parameters(self) -> None:
        """Look at the gradients of what is not planned; planned layers do so."""
        for key, step in self.steps.items():
            if not isinstance(step, Planned):
                for name, parameter in step.named_parameters():
                    what = f"{self.names.get(key, key)}: d{name.rpartition('.')[2]}"
                    watch(what, parameter, _nowhere)

    def scatter(self, batch: torch.Tensor) -> torch.Tensor:
        """This rank's share of a whole batch, or of whole targets like the output."""
        for name in (self.input, self.output):
            if batch.shape == self.layouts[name].whole:
                return share_of(batch, self.layouts[name].mine)
        raise ValueError(f"a batch of {tuple(batch.shape)} is neither input nor output")

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """The whole output on every rank, from the shares of all.

        Compute the loss from it alike on every rank: its gradient is taken once.
        """
        count = self._counter(self.output)
        whole: torch.Tensor = Whole.apply(share, self.layouts[self.output], count)  # type: ignore[no-untyped-call]
        return whole

    def received(self) -> int:
        """Words that this rank received, between layers and in them."""
        layers = (m for m in self.modules() if isinstance(m, DistributedLayer))
        inside = sum(layer.words.received()["total"] for layer in layers)
        return inside + sum(self.words.steps.values())

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the user's model would save, on every rank."""
        state: dict[str, torch.Tensor] = {}
        for name, key in self.owners.items():
            held: Any = getattr(self.steps[key], "module", None)
            if isinstance(held, DistributedLayer | BatchNorm):
                part = held.full_state_dict()
            else:
                part = {} if held is None else held.state_dict()
            state |= {f"{name}.{entry}": values for entry, values in part.items()}
        return state

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the shares of what the user's model saved."""
        for name, key in self.owners.items():
            held: Any = getattr(self.steps[key], "module", None)
            start = f"{name}."
            part = {k[len(start) :]: v for k, v in state.items() if k.startswith(start)}
            if isinstance(held, DistributedLayer | BatchNorm):
                held.load_full_state_dict(part)
            elif held is not None:
                held.load_state_dict(part)


def _nowhere(rank: int) -> str:
    """A rank's place on the grid, where there is none."""
    return ""


def _flat(whole: tuple[int, ...]) -> tuple[int, ...]:
    size = 1
    for extent in whole[1:]:
        size *= extent
    return whole[0], size


def _unused(*values: torch.Tensor) -> torch.Tensor:
    raise AssertionError(values)


def _filled(
    call: Callable[..., Any], args: Any, nodes: list[fx.Node], kwargs: Any = None
) -> Callable[..., Any]:
    """A call with the tensors that the nodes among its arguments stand for."""

    def run(*tensors: torch.Tensor) -> Any:
        given = dict(zip(nodes, tensors, strict=True))
        filled: Any = fx.node.map_arg((args, kwargs or {}), given.__getitem__)
        return call(*filled[0], **filled[1])

    return run


def _spatial(node: fx.Node, source: Layout, out: tuple[int, ...]) -> bool:
    """Whether a mean is taken over all positions and nothing else."""
    dims = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    total, rest = len(source.whole), set(range(2, len(source.whole)))
    given = {dims} if isinstance(dims, int) else set(dims or ())  # type: ignore[arg-type]
    return {int(str(dim)) % total for dim in given} == rest and len(rest) > 0


def _pool(
    module: Any, source: Layout, out: tuple[int, ...], count: Callable[[int], None]
) -> Step | None:
    dims = len(source.whole) - 2

    def each(value: Any) -> tuple[int, ...]:
        return tuple(value) if isinstance(value, tuple | list) else (value,) * dims

    average = isinstance(module, MEANS)
    if getattr(module, "return_indices", False) or (average and module.ceil_mode):
        return None
    if getattr(module, "divisor_override", None) is not None:
        return None
    numbers = zip(
        source.whole[2:],
        each(module.kernel_size),
        each(module.stride),
        each(getattr(module, "dilation", 1)),
        each(module.padding),
        strict=True,
    )
    windows = [Window(*each_dim) for each_dim in numbers]
    padded = getattr(module, "count_include_pad", True)
    return Pool(source, windows, out[2:], count, average, padded)
