"""Smaller inputs that a model takes, and for which it makes the same calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import fx

    from synth.runtime.tracing.inputs import Inputs, Spec

SAMPLES = 2  # that tell a mean over the batch from one over a sample
LEAST = {1: 64, 2: 32, 3: 16}  # spatial dimensions -> extent that is not made smaller
FACTORS = (32, 16, 8, 4, 2)


def smaller(inputs: Inputs, specs: Sequence[Spec], wide: torch.dtype | None) -> Iterator[Inputs]:
    """Inputs to try in turn, the smallest first, and at last those of the user.

    specs: of the tensors in the inputs. wide: the dtype of real numbers; None for their own.

    The last spatial extent of the first ones is another than those before it, so that a mistake of their
    order shows.
    """
    before = list[tuple[Any, ...]]()
    for factor, apart in _cuts(specs):
        sizes = _sizes(specs, factor, apart)
        shapes = tuple(_smaller(each, specs[0].shape[:1], sizes) for each in specs)
        if shapes not in before:
            before.append(shapes)
            yield inputs.mapped(_with(dict(zip(specs, shapes, strict=True)), wide))
    yield inputs.mapped(_with({}, wide))


def words(specs: Sequence[Spec]) -> int:
    """Words of all inputs."""
    return sum(math.prod(each.shape) for each in specs)


def same_calls(graph: fx.Graph, other: fx.Graph) -> bool:
    """Whether two graphs make the same calls in the same order."""
    return _calls(graph) == _calls(other)


def _cuts(specs: Sequence[Spec]) -> Iterator[tuple[int, bool]]:
    extents = _spatial(specs[0])
    least = LEAST.get(len(extents), 32)
    factors = [each for each in FACTORS if all(extent // each >= least for extent in extents)]
    first = (factors or [1])[0] if extents else 1
    if len(extents) > 1 and len(set(extents)) < len(extents):
        yield first, True
    yield from ((each, False) for each in (*factors, 1) if extents or each == 1)


def _sizes(specs: Sequence[Spec], factor: int, apart: bool) -> dict[int, tuple[int, int]]:
    """Spatial extent -> what it becomes, and what it becomes as the last one."""
    found = {}
    for extent in (each for spec in specs for each in _spatial(spec)):
        made = max(1, extent // factor)
        found[extent] = made, made * 3 // 4 if apart and made > 3 else made
    return found


def _spatial(spec: Spec) -> tuple[int, ...]:
    return spec.shape[2:]


def _smaller(spec: Spec, batch: tuple[int, ...], sizes: dict[int, tuple[int, int]]) -> tuple[int, ...]:
    shape = list(spec.shape)
    if tuple(shape[:1]) == batch:
        shape[0] = min(shape[0], SAMPLES)
    first = 1 if len(shape) == 3 and all(each in sizes for each in shape[1:]) else 2
    for dim in range(first, len(shape)):
        usual, last = sizes.get(shape[dim], (shape[dim], shape[dim]))
        shape[dim] = last if dim == len(shape) - 1 else usual
    return tuple(shape)


def _with(shapes: dict[Spec, tuple[int, ...]], wide: torch.dtype | None) -> Any:
    def change(spec: Spec) -> Spec:
        dtype = spec.dtype
        if wide is not None and dtype is not None and dtype.itemsize < wide.itemsize * (1 + dtype.is_complex):
            if dtype.is_complex:
                dtype = wide.to_complex()
            elif dtype.is_floating_point:
                dtype = wide
        return spec._replace(shape=shapes.get(spec, spec.shape), dtype=dtype)

    return change


def _calls(graph: fx.Graph) -> list[tuple[str, str]]:
    made = (node for node in graph.nodes if node.op.startswith("call"))
    return [(node.op, str(getattr(node.target, "__name__", node.target))) for node in made]
