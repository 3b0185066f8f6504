"""Layers of training plans as `torch.nn.Module`s: weight, input, output are shares.

The passes are those of an emitted program, which builds its layer by `layer()`. A rank
gives its share of In, the words of `given.mine`, and gets its share of Out; DTensors go
in and out where their placements say the same. The weight is the own box of Ker, the
bias the own channels of Out, held alike by the ranks that own the same ones. Ranks that
the plan leaves idle take part with shares that are empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from synth.runtime.comm.gradient_buckets import Shared
from synth.runtime.comm.prefetch import Prefetch, PrefetchedWeight
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.dtensor_placements import expressed, refused
from synth.runtime.grid.process_grid import (
    At,
    coordinates,
    grid_size,
    know_world,
    make_groups,
    place_at,
    rank_of,
    ranks_group,
)
from synth.runtime.grid.scatter_gather import gather_shares, share_of
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.layers.finite_check import all_finite, watch
from synth.runtime.layers.layer_io import by_rank, sides, spread
from synth.runtime.layers.layer_state import take_parameters, whole_parameters


class DistributedLayer(nn.Module):
    """One layer on all ranks of the default process group; see its subclasses.

    program: what was emitted for a training plan, as an imported module.
    bias: whether the layer adds one number to each output channel.
    check_finite: look for NaN and infinity in all that goes in and out; a
        `FloatingPointError` then names layer, tensor and ranks, on every rank.

    Raises `ValueError` where the ranks are not as many as the plan's grid has.
    """

    kernel_dims: int

    def __init__(
        self,
        program: Any,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        self.program, self.name, self.check_finite = program, program.NAME, check_finite
        if len(program.KER_SHAPE) - self.kernel_dims not in (2, 3):
            raise ValueError(f"{self.name} is no layer for a {type(self).__name__}")
        ranks = grid_size(program.GRID)
        know_world()
        if dist.get_world_size() not in (ranks, program.PROCS):
            raise ValueError(
                f"{self.name} is planned for {ranks} ranks, but"
                f" {dist.get_world_size()} run; plan it for as many, with exact_procs"
            )
        self.idle = dist.get_rank() >= ranks  # the grid has no place for this rank
        self.at: At = {}
        self.groups: dict[str, Any] = {}
        if not self.idle:
            self.at = coordinates(dist.get_rank(), program.GRID)
            self.groups = make_groups(self.at, program.GRID, program.GROUP_AXES)
        self.given, self.result = sides(program)
        self.kernels = by_rank(program.owned_ker, program.GRID)
        self.traffic = TrafficCounter()  # received since the layer was made
        like = {"dtype": program.DTYPE, "device": device}
        mine = dist.get_rank()
        # for the next call
        self.prefetched: tuple[torch.Tensor, Prefetch] | None = None
        self.made = getattr(program, "GRADIENTS", ("In", "Ker"))
        weight = torch.empty(shape(self.kernels[mine]), **like)
        self.weight = nn.Parameter(weight, requires_grad="Ker" in self.made)
        self.bias: nn.Parameter | None = None
        if bias:
            own = self.channels_of(self.result.mine)
            self.bias = nn.Parameter(torch.empty(shape(own), **like))
        self.bias_ranks = self._bias_ranks()
        self.bias_group = ranks_group(self.bias_ranks) if bias else None
        self.reset_parameters()
        if check_finite:
            for role, tensor in (("dKer", self.weight), ("dBias", self.bias)):
                self._watch(tensor, role)

    def channels(self, at: At) -> Box:
        """The output channels (groups and channels) that the rank at `at` owns."""
        return self.channels_of(self.result.boxes[rank_of(at, self.program.GRID)])

    def channels_of(self, box: Box) -> Box:
        """The channels in a box of Out."""
        return box[1 : len(box) - self.kernel_dims]

    def _bias_ranks(self) -> tuple[int, ...]:
        """The ranks that own the same output channels, of other samples or rows."""
        mine = self.channels_of(self.result.mine)
        boxes = enumerate(self.result.boxes)
        return tuple(rank for rank, box in boxes if self.channels_of(box) == mine)

    def hand_over(self) -> list[Shared]:
        """The parameters whose gradients the caller sums from now on; see `Buckets`."""
        self.bias_group = None
        if self.bias is None or self.bias.numel() == 0:
            return []
        return [Shared(self.bias, self.bias_ranks)]

    def reset_parameters(self) -> None:
        """Values as torch's own layers begin with: uniform, from rank 0's generator."""
        seed = [int(torch.randint(2**31, ()))]
        dist.broadcast_object_list(seed, src=0)
        bound = 1 / math.sqrt(
            math.prod(self.program.KER_SHAPE[-self.kernel_dims - 1 :])
        )
        own = self.channels_of(self.result.mine)
        first = sum(low * 2**i for i, (low, _) in enumerate(own))
        seeds = (self.weight, dist.get_rank()), (self.bias, 2**20 + first)
        for parameter, offset in seeds:
            if parameter is not None:
                generator = torch.Generator().manual_seed(seed[0] + offset)
                values = torch.rand(parameter.shape, generator=generator) * 2 - 1
                with torch.no_grad():
                    parameter.copy_(values * bound)

    # -- one step -------------------------------------------------------------------

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of Out, from its share of In."""
        if isinstance(share, DTensor):
            return self._between_dtensors(share)
        wanted = shape(self.given.mine)
        if share.shape != wanted or share.dtype != self.weight.dtype:
            place = place_at(None if self.idle else self.at)
            raise ValueError(
                f"{self.name}: rank {dist.get_rank()} ({place}) owns In of"
                f" shape {wanted} and {self.weight.dtype}, but was given"
                f" {tuple(share.shape)} of {share.dtype}; `layer.share(whole)` cuts it"
            )
        for tensor, values in (("In", share), ("Ker", self.weight)):
            asks = values.requires_grad and torch.is_grad_enabled()
            if asks and tensor not in self.made:
                raise ValueError(
                    f"{self.name}: {tensor} asks for a gradient, but the plan makes"
                    f" that of {self.made[0]} alone; plan gradients of both"
                    " (`input_gradient=True` of a network)"
                )
        self._look("In", share)
        if self.check_finite and share.requires_grad:
            share = share.view_as(share)
            self._watch(share, "dIn")
        out = self._computed(share)
        if self.bias is not None:
            out = AddBias.apply(  # type: ignore[no-untyped-call]
                out, self.bias, self.kernel_dims, self.bias_group
            )
        self._look("Out", out)
        if self.check_finite and out.requires_grad:
            self._watch(out, "dOut")
        return out

    def _computed(self, share: torch.Tensor) -> torch.Tensor:
        """Out without bias."""
        prefetched, self.prefetched = self.prefetched, None
        weight, prefetch = prefetched or (self.weight, Prefetch())
        if self.idle:  # nothing, of which the gradient is nothing
            nothing = share.new_zeros(shape(self.result.mine))
            return nothing + 0 * share.sum() + 0 * weight.sum()
        out: torch.Tensor = self.program.Layer.apply(
            share, weight, self.at, self.groups, self.traffic, prefetch
        )
        if not getattr(self.program, "TRANSPOSED", False):
            return out
        windows = tuple(self.program.WINDOWS.values())
        return spread(out, self.program.owned_in(self.at), self.result.mine, windows)

    def prefetch(self) -> None:
        """Start to bring Ker for the next `forward`, which else does so in its turn.

        The weight must not change in between; where a hook may change it, nothing is
        brought. On the way back sums of dKer then travel until autograd asks for them:
        after the layers that are called between this and that `forward`.
        """
        self.prefetched = None
        if self._forward_pre_hooks:
            return
        weight, pending = self.weight, None
        start = getattr(self.program, "prefetch_ker", None)
        if start is not None and not self.idle:
            pending = start(weight.detach(), self.at, self.groups, self.traffic)
        prefetch = Prefetch(pending)
        gathered: torch.Tensor = PrefetchedWeight.apply(weight, prefetch)  # type: ignore[no-untyped-call]
        self.prefetched = gathered, prefetch

    def _between_dtensors(self, whole: DTensor) -> torch.Tensor:
        refused(self.name, whole, self._owner("In"), self.program.GRID)
        device = whole.device.type
        mesh, places = self.placements("Out", device)
        out = self.forward(whole.to_local())
        extents = self.result.whole
        strides = torch.empty(extents, device="meta").stride()
        return DTensor.from_local(
            out,
            mesh,
            places,
            run_check=False,
            shape=torch.Size(extents),
            stride=strides,
        )

    def placements(self, tensor: str, device: str = "cpu") -> tuple[Any, list[Any]]:
        """(mesh, placements) of the shares of "In" or "Out" as a DTensor has them.

        Raises `ValueError` where no placements say who owns what. All ranks must ask.
        """
        whole = self.given.whole if tensor == "In" else self.result.whole
        grid = self.program.GRID
        return expressed(self.name, tensor, self._owner(tensor), whole, grid, device)

    def _owner(self, tensor: str) -> Callable[[At], Box]:
        """Who owns what of "In" or "Out"; DTensors know of no idle ranks."""
        if dist.get_world_size() > grid_size(self.program.GRID):
            raise ValueError(
                f"{self.name}: the plan leaves ranks idle, which no DTensor says;"
                " give and take local shares"
            )
        boxes = (self.given if tensor == "In" else self.result).boxes
        return lambda at: boxes[rank_of(at, self.program.GRID)]

    def share(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's share of a whole In, given as torch's own layers have it."""
        whole = whole.reshape(self.given.whole)
        windows = getattr(self.program, "WINDOWS", {})
        if getattr(self.program, "TRANSPOSED", False):
            windows = {}  # every row is read
        return share_of(whole, self.given.mine, tuple(windows.values()))

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """The whole Out from the shares of all ranks, as torch's own layers have it."""
        whole = gather_shares(share, self.result.box, self.result.whole, self._ranks)
        return whole.flatten(1, 2) if self.grouped else whole

    @property
    def _ranks(self) -> dict[str, int]:
        return {"rank": dist.get_world_size()}

    @property
    def grouped(self) -> bool:
        """Whether groups are a dimension of their own."""
        return len(self.program.KER_SHAPE) == self.kernel_dims + 3

    # -- NaN ------------------------------------------------------------------------

    def _place(self, rank: int) -> str:
        grid = self.program.GRID
        at = coordinates(rank, grid) if rank < grid_size(grid) else None
        return f" ({place_at(at)})"

    def _watch(self, tensor: torch.Tensor | None, role: str) -> None:
        watch(f"{self.name}: {role}", tensor, self._place)

    def _look(self, role: str, values: torch.Tensor) -> None:
        if self.check_finite:
            all_finite(f"{self.name}: {role}", values, self._place)

    # -- state ----------------------------------------------------------------------

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Weight and bias whole, on every rank, as torch's own layers save them."""
        return whole_parameters(self)

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the own shares of a whole weight and bias, saved from any grid.

        Raises `ValueError` with the names where the state is of another layer.
        """
        take_parameters(self, state)

    def get_extra_state(self) -> dict[str, Any]:
        """What a state of shares belongs to; part of `state_dict()`."""
        return {"layer": self.name, "plan": self.program.PLAN, "rank": dist.get_rank()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Refuse the shares of another plan or rank."""
        mine = self.get_extra_state()
        if state != mine:
            raise ValueError(
                f"the state holds shares of {state}, not of {mine};"
                " move it by full_state_dict and load_full_state_dict"
            )

    def extra_repr(self) -> str:
        """Name, plan and shares."""
        grid = " x ".join(f"{axis}={n}" for axis, n in self.program.GRID.items()) or "1"
        share = tuple(self.weight.shape)
        return f"{self.name}, plan={self.program.PLAN}, grid={grid}, weight={share}"


class DistributedConv1d(DistributedLayer):
    """`torch.nn.Conv1d` on the ranks of a plan."""

    kernel_dims = 1


class DistributedConv2d(DistributedLayer):
    """`torch.nn.Conv2d` on the ranks of a plan."""

    kernel_dims = 2


class DistributedConv3d(DistributedLayer):
    """`torch.nn.Conv3d` on the ranks of a plan."""

    kernel_dims = 3


class DistributedLinear(DistributedLayer):
    """`torch.nn.Linear` on the ranks of a plan."""

    kernel_dims = 0


class AddBias(torch.autograd.Function):
    """Add a number to each channel; its gradient is summed over those that share it.

    Without a group it is only this rank's part of the sum.
    """

    @staticmethod
    def forward(
        ctx: Any, out: torch.Tensor, bias: torch.Tensor, dims: int, group: Any
    ) -> torch.Tensor:
        """Out plus bias."""
        ctx.dims, ctx.group = dims, group
        return out + bias.reshape(*bias.shape, *[1] * dims)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, None, None]:
        """dOut passes; every number of the bias gets the sum of its channel."""
        if not ctx.needs_input_grad[1]:  # the bias is frozen
            return dout, None, None, None
        dims = [0, *range(dout.dim() - ctx.dims, dout.dim())]
        dbias = dout.sum(dims).contiguous()
        if ctx.group is not None:
            dist.all_reduce(dbias, group=ctx.group)
        return dout, dbias, None, None
