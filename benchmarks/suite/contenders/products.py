"""Peers of matrix products: DTensor by columns and by rows (torch's tensor parallelism), and SUMMA."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from benchmarks.suite.contenders.channels import by_hand
from benchmarks.suite.contenders.collectives import gathering, scattering
from benchmarks.suite.contenders.contender import Contender, NotApplicableError, Whole, even, split
from benchmarks.suite.contenders.data_parallel import OnMesh
from benchmarks.suite.contenders.kernels import shapes
from synth.layer.layer import Layer


def _product(layer: Layer) -> dict[str, tuple[int, ...]]:
    if layer.kind != "matmul":
        raise NotApplicableError("it is for matrix products")
    return shapes(layer)


def _on_mesh(layer: Layer, whole: Whole, name: str, dims: dict[str, int]) -> Contender:
    """A product on DTensors. dims: the split dimensions of In, Ker and Out."""
    sizes, procs = _product(layer), dist.get_world_size()
    for tensor, dim in dims.items():
        even(sizes[tensor], dim, procs)
    boxes = {tensor: split(sizes[tensor], {dim: (procs, dist.get_rank())}) for tensor, dim in dims.items()}
    mesh = init_device_mesh("cpu", (procs,))
    weight = distribute_tensor(whole["Ker"], mesh, [Shard(dims["Ker"])])
    given, made = (Replicate(), None) if dims["Ker"] == 0 else (None, Shard(dims["Out"]))

    def enter(share: torch.Tensor, tensor: str) -> Any:
        return DTensor.from_local(share, mesh, [Shard(dims[tensor])], run_check=False)

    return Contender(name, OnMesh(layer, weight, given, made), boxes, enter=enter)


def columns(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Weights are split by output features; In, split by rows, is gathered; Out is split by columns."""
    return _on_mesh(layer, whole, "DTensor column", {"In": 0, "Ker": 0, "Out": 1})


def rows(layer: Layer, whole: Whole, training: bool) -> Contender:
    """Weights and In are split by input features; Out is reduce-scattered by rows."""
    return _on_mesh(layer, whole, "DTensor row", {"In": 1, "Ker": 1, "Out": 0})


class Summa(torch.autograd.Function):
    """Out[i,j] = In[i,:] Ker[j,:]' on a grid: In is gathered along rows of ranks, Ker along columns.

    All panels travel at once, in two concurrent collectives, and are saved for the backward pass.
    The backward pass only reduce-scatters: dIn along the rows, dKer along the columns.
    """

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, weight: torch.Tensor, row: Any, column: Any) -> torch.Tensor:
        """[m/r, k/c] and [n/c, k/r] to [m/r, n/c] on r x c ranks."""
        pending = gathering(share, 1, row), gathering(weight, 1, column)
        inputs, weights = pending[0](), pending[1]()
        ctx.groups = row, column
        ctx.save_for_backward(inputs, weights)
        return inputs @ weights.t()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """The terms of dIn travel while dKer is computed."""
        inputs, weights = ctx.saved_tensors
        row, column = ctx.groups
        din = scattering(dout @ weights, 1, row)
        dker = scattering(dout.t() @ inputs, 1, column)
        return din(), dker(), None, None


def best_grid(sizes: tuple[int, ...], procs: int) -> tuple[int, int]:
    """(rows, columns) of the 2-D grid, both more than one, that gathers the fewest words of (m, n, k)."""
    m, n, k = sizes
    grids = [(r, procs // r) for r in range(2, procs) if procs % r == 0]
    grids = [(r, c) for r, c in grids if m % r == 0 and n % c == 0 and k % r == 0 and k % c == 0]
    if not grids:
        raise NotApplicableError(f"{procs} ranks make no grid of two dimensions that cuts {m}x{n}x{k} evenly")
    return min(grids, key=lambda g: (m * k * (g[1] - 1) + n * k * (g[0] - 1), g))


def summa(layer: Layer, whole: Whole, training: bool) -> Contender:
    """SUMMA with Out stationary."""
    sizes, procs, rank = _product(layer), dist.get_world_size(), dist.get_rank()
    r, c = best_grid(layer.input, procs)
    i, j = divmod(rank, c)
    groups = [dist.new_group([a * c + b for b in range(c)]) for a in range(r)]
    groups += [dist.new_group([a * c + b for a in range(r)]) for b in range(c)]
    boxes = {
        "In": split(sizes["In"], {0: (r, i), 1: (c, j)}),
        "Ker": split(sizes["Ker"], {0: (c, j), 1: (r, i)}),
        "Out": split(sizes["Out"], {0: (r, i), 1: (c, j)}),
    }
    return by_hand(f"SUMMA {r}x{c}", Summa, boxes, whole, groups[i], groups[r + j])
