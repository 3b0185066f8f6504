"""A sample of a database between planned layers: what it reads is computed by them.

Each tensor that a layer makes is the sample's own plus a hundredth of the layer's result, so that values stay
where a function is defined. The layer has the shape of the tensor, or is reshaped to it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree

from benchmarks.judges.cuts import extents_of
from benchmarks.judges.databases import Sample, Target, seed

CHANNELS = 4  # of the layers' inputs
INSIDE = ("buffer", "layer", "parameter", "made", "attribute", "same", "input")
OUTSIDE = ("buffer", "layer", "same", "input")
CONVS: dict[int, type[nn.Module]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
MOST_INPUTS = 6
MOST_WRITTEN = 10_000  # words of a tensor that forward makes of numbers


class Source(nn.Module):
    """A planned layer, and what makes a tensor like `base` of its result. rows: of a matrix, samples."""

    def __init__(self, base: torch.Tensor, dtype: torch.dtype, rows: bool) -> None:
        super().__init__()
        self.register_buffer("base", base)
        shape, dims = tuple(base.shape), base.dim()
        self.shape = shape
        if dims in CONVS:
            given, filters, self.how = (shape[0], CHANNELS, *shape[2:]), shape[1], ""
        elif dims > 5:
            given, filters, self.how = (shape[0], CHANNELS, *shape[2:4], prod(shape[4:])), shape[1], "reshape"
        elif dims == 2:
            given = (shape[0], CHANNELS) if rows else (shape[0], CHANNELS, shape[1])
            filters, self.how = (shape[1], "") if rows else (1, "squeeze")
        elif dims == 1:
            given = (1, CHANNELS) if rows else (1, CHANNELS, shape[0])
            filters, self.how = (shape[0] if rows else 1), "reshape"
        else:
            given, filters, self.how = (4, CHANNELS, 6), 4, "mean"
        self.given = given
        self.extents = extents_of(given, CHANNELS, filters)
        kind = CONVS.get(len(given))
        self.layer: nn.Module = (
            nn.Linear(CHANNELS, filters, dtype=dtype)
            if kind is None
            else kind(CHANNELS, filters, 3, padding=1, dtype=dtype)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        if self.how == "squeeze":
            y = y.squeeze(1)
        elif self.how == "reshape":
            y = y.reshape(self.shape)
        elif self.how == "mean":
            y = y.mean()
        return _with_layer(self.get_buffer("base"), y)


def _with_layer(values: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Values with a hundredth of what a layer makes; integers and truth values stay what they are."""
    if y.dim() and y.shape != values.shape:
        y = (y.abs() if y.is_complex() else y).double().mean()
    if values.is_floating_point():
        return values + (0.01 * y).to(values.dtype)
    return values & (y == y) if values.dtype == torch.bool else values + (0.0 * y).to(values.dtype)


class Constant:
    """Makes a tensor of given values in forward."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.dtype, self.shape = values.tolist(), values.dtype, tuple(values.shape)

    def __call__(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=self.dtype).reshape(self.shape)


@dataclass(frozen=True)
class Fixed:
    """What copies of a network share: the function, and the structure of its arguments."""

    function: Target
    spec: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Fixed:
        return self


class Embedded(nn.Module):
    """A call whose first tensor a planned layer makes, and the others come from where `further` says.

    inside: the call is in the network; else the network gives the tensors of the layers, and `called` makes
    the call on them. given: by input of the network, its shape, or its values. beside: the results that do
    not depend on what the layers make, to which it is added.
    """

    def __init__(
        self, sample: Sample, form: str, further: str, dtype: torch.dtype, rows: bool, inside: bool
    ) -> None:
        super().__init__()
        self.inside, self.dtype = inside, dtype
        target = sample.forms[form]()
        self.module = target if isinstance(target, nn.Module) else None
        args, kwargs = _copied((sample.args, sample.kwargs))
        if form == "named":
            names = list(inspect.signature(target.forward).parameters)  # type: ignore[attr-defined]
            args, kwargs = (), {**dict(zip(names, args, strict=False)), **kwargs}
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        self.fixed = Fixed(target, spec)
        self.beside: set[int] = set()
        self.sources, self.params = nn.ModuleDict(), nn.ParameterDict()
        self.after: nn.Module | None = None
        self.shape_after: tuple[int, ...] = ()
        self.attributes: dict[str, torch.Tensor] = {}
        self.constants: dict[str, Constant] = {}
        self.given: list[tuple[int, ...] | torch.Tensor] = []
        self.leaves = [each if not isinstance(each, torch.Tensor) else None for each in leaves]
        self.places: dict[int, tuple[str, int | str]] = {}
        first: tuple[int, torch.Tensor] | None = None
        tensors = [(n, each) for n, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        main = next((n for n, each in tensors if each.dtype == dtype), tensors[0][0] if tensors else -1)
        for n, values in sorted(tensors, key=lambda pair: pair[0] != main):
            if n == main:
                first = n, values
                self._of_layer(n, values, rows)
            else:
                assert first is not None
                same = further == "same" and (values.shape, values.dtype) == (first[1].shape, first[1].dtype)
                self._further(n, values, "same" if same else further, rows, first[0])

    def _of_layer(self, n: int, values: torch.Tensor, rows: bool) -> None:
        self.sources[str(n)] = source = Source(values, self.dtype, rows)
        self.places[n] = "layer", len(self.given)
        self.given.append(source.given)

    def _further(self, n: int, values: torch.Tensor, further: str, rows: bool, first: int) -> None:
        key = f"tensor{n}"
        if further == "same" and values.dtype == self.dtype:
            self.places[n] = self.places[first]
        elif further == "layer" and all(values.shape) and not values.is_complex():
            self._of_layer(n, values, rows)
        elif further == "parameter" and values.dtype.is_floating_point:
            self.params[key] = nn.Parameter(values)
            self.places[n] = "parameter", key
        elif further == "made" and values.numel() <= MOST_WRITTEN:
            self.constants[key] = Constant(values)
            self.places[n] = "made", key
        elif further == "input":
            self.places[n] = "input", len(self.given)
            self.given.append(values)
        elif further == "attribute" or not self.inside:
            self.attributes[key] = values
            self.places[n] = "attribute", key
        else:
            self.register_buffer(key, values)
            self.places[n] = "buffer", key

    def made(self, inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
        """What the layers make, by input."""
        numbers = dict.fromkeys(k for kind, k in self.places.values() if kind == "layer")
        sources = list(self.sources.values())
        return {int(k): sources[n](inputs[int(k)]) for n, k in enumerate(numbers)}

    def called(self, made: dict[int, torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors that the call gives."""
        results = self.results(self.arguments(made, inputs))
        anchor = next(iter(made.values()))
        return [_with_layer(each, anchor) if n in self.beside else each for n, each in enumerate(results)]

    def arguments(self, made: dict[int, torch.Tensor], inputs: Sequence[Any]) -> list[Any]:
        """The leaves of the arguments of the call."""
        leaves = list[Any](self.leaves)
        for n, (kind, key) in self.places.items():
            if kind == "layer":
                leaves[n] = made[int(key)]
            elif kind == "input":
                leaves[n] = inputs[int(key)]
            elif kind == "parameter":
                leaves[n] = self.params[str(key)]
            elif kind == "attribute":
                leaves[n] = self.attributes[str(key)]
            elif kind == "made":
                leaves[n] = self.constants[str(key)]()
            else:
                leaves[n] = getattr(self, str(key))
        return leaves

    def results(self, leaves: list[Any]) -> list[torch.Tensor]:
        """The tensors that the call gives for the leaves of its arguments."""
        args, kwargs = _pytree.tree_unflatten(leaves, self.fixed.spec)
        target = self.fixed.function if self.module is None else self.module
        return [
            each for each in _pytree.tree_leaves(target(*args, **kwargs)) if isinstance(each, torch.Tensor)
        ]

    def find_beside(self, leaves: list[Any], results: list[torch.Tensor], reads: bool) -> None:
        """Note the results that no layer makes: arguments given back, or all where it reads no values."""
        others = [leaves[n] for n, (kind, _) in self.places.items() if kind not in ("layer", "input")]
        memory = {each.untyped_storage().data_ptr() for each in others}
        for n, each in enumerate(results):
            if not reads or each.untyped_storage().data_ptr() in memory:
                self.beside.add(n)

    def with_layer_after(self, result: torch.Tensor) -> None:
        """Let a planned layer read the first result, which is like the given one."""
        shape = tuple(result.shape) if result.dim() in (2, *CONVS) else (1, 1, result.numel())
        kind = CONVS.get(len(shape))
        self.after = (
            nn.Linear(shape[1], 3, dtype=self.dtype)
            if kind is None
            else kind(shape[1], 3, 3, padding=1, dtype=self.dtype)
        )
        self.shape_after = shape

    def double_values(self) -> None:
        """Let the values that are no parameters and no buffers be of float64."""
        self.dtype = torch.float64
        self.attributes = {
            key: each.double() if each.is_floating_point() else each for key, each in self.attributes.items()
        }
        for constant in self.constants.values():
            if constant.dtype.is_floating_point:
                constant.dtype = torch.float64

    def forward(
        self, t0: Any, t1: Any = None, t2: Any = None, t3: Any = None, t4: Any = None, t5: Any = None
    ) -> Any:
        inputs = [t0, t1, t2, t3, t4, t5]
        made = self.made(inputs)
        if not self.inside:
            return tuple(made.values())
        results = self.called(made, inputs)
        if self.after is not None:
            first = results[0]
            if first.dim() != len(self.shape_after):
                first = first.reshape(self.shape_after)
            results[0] = self.after(first.to(self.dtype))
        return tuple(results)


def embedded(
    sample: Sample, form: str, further: str, dtype: str, rows: bool, inside: bool, after: bool, number: int
) -> tuple[Embedded, list[torch.Tensor]]:
    """The network of a sample, and its inputs. number: of its seed.

    Raises `ValueError` where there is nothing to compare: no tensor goes in or comes out, or torch itself
    refuses the call.
    """
    seed(number)
    kind = getattr(torch, dtype)
    model = Embedded(sample, form, further, kind, rows, inside)
    if not 0 < len(model.given) <= MOST_INPUTS:
        raise ValueError(f"it takes {len(model.given)} inputs")
    if not all(all(source.shape) for source in model.sources.values()):  # type: ignore[arg-type]
        raise ValueError("it is called with an empty tensor")
    inputs = [
        each if isinstance(each, torch.Tensor) else torch.randn(each, dtype=kind) for each in model.given
    ]
    before = copy.deepcopy(model.state_dict())
    try:
        with torch.no_grad():
            leaves = model.arguments(model.made(inputs), inputs)
            results = model.results(leaves)
    except Exception as error:
        raise ValueError(f"torch refuses it: {error}") from error
    model.load_state_dict(before)
    if not results or not all(all(each.shape) and each.layout == torch.strided for each in results):
        raise ValueError("it gives no tensor, an empty one, or a sparse one")
    if inside:
        model.find_beside(leaves, results, sample.reads)
    if after and inside and not results[0].is_complex():
        seed(number + 1)
        model.with_layer_after(results[0])
    return model, inputs


def _copied(tree: Any) -> Any:
    return _pytree.tree_map(lambda t: t.detach().clone() if isinstance(t, torch.Tensor) else t, tree)
