"""Makes what a case runs: a network, its inputs, and how its layers are divided."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.judges import cuts
from benchmarks.judges.cases import Case
from benchmarks.judges.databases import samples, seed
from benchmarks.judges.embedded import Embedded, embedded
from benchmarks.judges.grids import layers


@dataclass(frozen=True)
class Prepared:
    """A network in one process. plan: for `synth.parallelize`; None for a free one. grid: as text."""

    model: nn.Module
    inputs: list[torch.Tensor]
    plan: dict[str, dict[str, int]] | None
    grid: str


def prepared(case: Case) -> Prepared:
    """What a case runs, the same in every process. Raises `ValueError` where there is nothing to run."""
    number = zlib.crc32(repr(case).encode()) % 10000
    if case.base == "layers":
        return _of_grid(case, number)
    found = samples(case.base, case.name, case.dtype)
    if case.sample >= len(found):
        raise ValueError(f"it has {len(found)} samples in {case.dtype}")
    sample = found[case.sample]
    if case.call not in sample.forms:
        raise ValueError(f"it is not called {case.call}")
    rows = case.cut in ("batch", "filters") or (case.cut == "mixed" and number % 2 == 0)
    inside = case.base != "outputs"
    model, inputs = embedded(sample, case.call, case.further, case.dtype, rows, inside, case.after, number)
    return Prepared(model.train(case.training), inputs, *_divided(model, case.cut, number))


def _divided(model: Embedded, cut: str, turn: int) -> tuple[dict[str, dict[str, int]] | None, str]:
    """The plan of the layers that make what the call reads, and the grid of the first.

    Raises `ValueError` where that layer cannot be cut so.
    """
    found = {
        f"sources.{name}.layer": cuts.grid(cut, source.extents, turn)  # type: ignore[arg-type]
        for name, source in model.sources.items()
    }
    first = next(iter(found.values()))
    if first is None:
        raise ValueError(f"the layer before it has no cut {cut}")
    if not first:
        return None, "free"
    return {name: grid for name, grid in found.items() if grid}, cuts.shown(first)


def _of_grid(case: Case, number: int) -> Prepared:
    layer = layers()[case.name][case.sample]
    dtype = getattr(torch, case.dtype)
    seed(number)
    model = layer.model().to(dtype)
    return Prepared(model, [torch.randn(layer.extents, dtype=dtype)], {"0": cuts.read(layer.cut)}, layer.cut)


def doubled(made: Prepared) -> tuple[nn.Module, list[torch.Tensor]]:
    """The same network and inputs in float64."""
    model: Any = made.model
    if isinstance(model, Embedded):
        model.double_values()
    return model.double(), [each.double() if each.is_floating_point() else each for each in made.inputs]
