"""Layers of training plans as `torch.nn.Module`s: weight, input and output are shards.

The passes are those of an emitted module, which creates its layer by `layer()`. The
input is the words of the box `input.mine`, the output those of `output.mine`. DTensors
are accepted and returned where their placements describe these boxes. The weight is the
own box of Ker. The bias is that of the own channels of Out; the ranks that own the same
channels hold copies of it. Ranks that the plan leaves idle take part with empty shards.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from synth.runtime.comm.exchanges import Exchange, Words
from synth.runtime.comm.prefetch import Prefetch, PrefetchedWeight
from synth.runtime.grid.boxes import Box, overlap, shape, volume
from synth.runtime.grid.process_grid import (
    At,
    coordinates,
    grid_size,
)
from synth.runtime.grid.scatter_gather import gather_shards, shard_of
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.kernels.autocast import (
    lowered,
    no_autocast,
    no_autocast_in_backward,
)
from synth.runtime.kernels.autotune import default_tuner
from synth.runtime.kernels.context import Context, Pending
from synth.runtime.kernels.frame import explicit_zeros
from synth.runtime.layers.class_rows import (
    divided_input,
    filler_masks,
    united_output,
)
from synth.runtime.layers.finite_check import (
    check_layer_inputs,
    check_layer_output,
    check_layer_parameters,
)
from synth.runtime.layers.layer_io import (
    boxes_by_rank,
    forward_dtensor,
    insert_unread_rows,
    layer_layouts,
    layer_placements,
    require_shard,
)
from synth.runtime.layers.layer_parameters import (
    AddBias,
    draw_parameters,
    load_parameters,
    make_parameters,
    ranks_of_bias,
    whole_parameters,
)
from synth.runtime.layers.layer_program import LayerProgram, require_program
from synth.runtime.layers.one_call import one_call


class DistributedLayer(nn.Module):
    """One layer on the ranks of its context; see its subclasses.

    program: what an emitted module declares for a training plan.
    bias: whether the layer adds a number to each output channel.
    device: of weight and bias.
    check_finite: check all inputs, outputs and gradients for NaN and infinity. A
        `FloatingPointError` on every rank then names layer, tensor and ranks.
    context: of the network that the layer is part of; None for one of its own. Layers
        with one context share buffers and process groups.
    parameters: whether the layer has weight and bias of its own. A network binds those
        of the user's model instead, and sums the gradient of the bias.
    lean: whether the passes hold less memory than one call of torch's operator would:
        they compute tile by tile, or fetch the halo of In anew.

    Raises `ValueError` if the program has another protocol or other dimensions, or if
    the number of ranks is not that of the plan.
    """

    kernel_dims: int

    def __init__(
        self,
        program: LayerProgram,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        check_finite: bool = False,
        context: Context | None = None,
        parameters: bool = True,
        lean: bool = True,
    ) -> None:
        super().__init__()
        require_program(program)
        self.program, self.name, self.check_finite = program, program.name, check_finite
        self.function = no_autocast_in_backward(program.function)
        if len(program.ker_shape) - self.kernel_dims not in (2, 3):
            raise ValueError(f"{self.name} is no layer for a {type(self).__name__}")
        self.traffic = TrafficCounter()  # since the layer was created
        self.traffic.layer = program.name
        self.traffic.network = context.traffic if context else None
        self.context = (context or Context(tuner=default_tuner())).counting(
            self.traffic
        )
        used, ranks = grid_size(program.grid), self.context.ranks
        if ranks.size not in (used, program.procs):
            raise ValueError(
                f"{self.name} is planned for {used} ranks, but {ranks.size} run; plan"
                " it for as many, with exact_procs"
            )
        # Peers may still send to what was prefetched when the layer is deleted.
        weakref.finalize(self, _wait, self.context.pending).atexit = False
        self.idle = ranks.me >= used  # the grid has no place for this rank
        self.at: At = {}
        self.groups: dict[str, Any] = {}
        if self.idle:
            self.context.process_groups.meet()
        else:
            self.at = coordinates(ranks.me, program.grid)
            self.groups = self.context.make_groups(
                self.at, program.grid, program.group_axes
            )
        self.input, self.output = layer_layouts(program, ranks)
        self.filler = filler_masks(program, self.input.mine, self.output.mine)
        several = lean or self.idle
        self.one_call = None if several else one_call(program, self.input, self.output)
        self.ker_boxes = boxes_by_rank(program.owned_ker, program.grid, ranks.size)
        # what ranks receive in the forward pass and in all others, as it is planned
        self.planned_words: Callable[[], tuple[Words, Words]] | None = None
        # whether other ranks have parts of this rank's slice of Ker
        self.shares_ker = any(program.grid.get(axis, 1) > 1 for axis in "bdhw")
        # the weight for the next call, with the gather of its slice
        self.prefetched: tuple[torch.Tensor, Prefetch] | None = None
        self.has_bias, self.bias_ranks = bias, ranks_of_bias(self)
        self.bias_group: Any = None
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)
        if parameters:
            make_parameters(self, bias, device)

    def check_parameters(self) -> None:
        """Check the next gradients of weight and bias, if asked to check values."""
        if self.check_finite:
            check_layer_parameters(self)

    def channels_of(self, box: Box) -> Box:
        """The (group, channel) intervals of a box of Out."""
        return box[1 : len(box) - self.kernel_dims]

    def weight_ranks(self) -> tuple[int, ...]:
        """The indices of the ranks that hold the same box of Ker, if several do."""
        mine = self.ker_boxes[self.context.ranks.me]
        alike = [rank for rank, box in enumerate(self.ker_boxes) if box == mine]
        return tuple(alike) if volume(mine) and len(alike) > 1 else ()

    def reset_parameters(self) -> None:
        """Initial values as in torch's layers: uniform, from the first rank."""
        draw_parameters(self)

    # -- one step -------------------------------------------------------------------

    def in_room(self, shard: torch.Tensor) -> torch.Tensor:
        """The same shard in a buffer with room for its halo and the zeros around it.

        `forward` then receives the halo there, and nothing is copied again.
        `context.rooms.leave` lets go of the buffer.
        """
        program = self.program
        if self.idle or program.carried_in is None or not shard.numel():
            return shard
        owned, carried = program.owned_in(self.at), program.carried_in(self.at)
        if overlap(owned, carried) != owned:  # nothing reads some of its rows
            return shard
        zeros: list[int] = []
        if program.work is not None:
            zeros = explicit_zeros(program.work(self.at), program.windows)
        if carried == owned and not zeros:
            return shard
        return self.context.rooms.keep(shard, owned, carried, zeros)

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's shard of the output, from its shard of the input.

        Under `torch.autocast` input, weight and bias are cast as in one process, before
        they move. Both passes then compute, and move, words of the lower precision.

        Raises `ValueError` for a shard of another shape or dtype, and for a gradient
        that the plan does not make.
        """
        if isinstance(shard, DTensor):
            return forward_dtensor(self, shard)
        shard, (weight, prefetch) = lowered(shard), self._weight()
        with no_autocast(shard.device):
            return self._computed(shard, weight, prefetch)

    def _computed(
        self, shard: torch.Tensor, weight: torch.Tensor, prefetch: Prefetch
    ) -> torch.Tensor:
        require_shard(self, shard, weight)
        given_filler, made_filler = self.filler
        if given_filler is not None:
            shard = shard.masked_fill(given_filler.to(shard.device), 0)
        if self.check_finite:
            shard = check_layer_inputs(self, shard)
        out = self._with_bias(shard, weight, prefetch)
        if made_filler is not None:
            out = out.masked_fill(made_filler.to(out.device), 0)
        if self.check_finite:
            check_layer_output(self, out)
        return out

    def _weight(self) -> tuple[torch.Tensor, Prefetch]:
        """The shard of Ker, as autocast casts it, and its gather."""
        prefetched, self.prefetched = self.prefetched, None
        return prefetched or (lowered(self.weight), Prefetch(self.context.pending))

    def _with_bias(
        self, shard: torch.Tensor, weight: torch.Tensor, prefetch: Prefetch
    ) -> torch.Tensor:
        one, bias = self.one_call, self.bias
        tuned = self.context.tuner.enabled
        if one is None or tuned or not one.suits(shard, weight):
            out = self._without_bias(shard, weight, prefetch)
        elif one.makes_all_rows and self.bias_group is None:
            return one(shard, weight, bias, self.context)
        else:
            made = one(shard, weight, None, self.context)
            out = self._with_unread_rows(made)
        if bias is None:
            return out
        added: torch.Tensor = AddBias.apply(  # type: ignore[no-untyped-call]
            out, bias, self.kernel_dims, self.bias_group
        )
        return added

    def _with_unread_rows(self, out: torch.Tensor) -> torch.Tensor:
        """The output of a transposed layer with the rows that windows do not make."""
        program = self.program
        if program.transposed_rows is None:
            return out
        windows = tuple(program.windows.values())
        return insert_unread_rows(
            out, program.owned_in(self.at), self.output.mine, windows
        )

    def _without_bias(
        self, shard: torch.Tensor, weight: torch.Tensor, prefetch: Prefetch
    ) -> torch.Tensor:
        if self.idle:  # an empty output, with an empty gradient
            nothing = shard.new_zeros(shape(self.output.mine))
            return nothing + 0 * shard.sum() + 0 * weight.sum()
        out: torch.Tensor = self.function.apply(  # type: ignore[no-untyped-call]
            shard, weight, self.at, self.groups, self.context, prefetch
        )
        return self._with_unread_rows(out)

    def prefetch(self, own: torch.Tensor | None = None) -> None:
        """Start to gather Ker for the next `forward`, before the layer's turn.

        own: the own shard of Ker; None for the layer's own weight.

        The weight must not change in between, so a layer with forward pre-hooks, which
        may change it, prefetches nothing. In the backward pass the sums of dKer are
        deferred: they travel until the backward passes of the layers that are called
        between this and the next `forward` have run.
        """
        self.prefetched = None
        no_moves = self.one_call is not None or not self.shares_ker
        if self._forward_pre_hooks or no_moves:
            return
        weight, gather = lowered(self.weight if own is None else own), None
        start = self.program.prefetch_ker
        if start is not None and not self.idle:
            gather = start(weight.detach(), self.at, self.groups, self.context)
        prefetch = Prefetch(self.context.pending, gather)
        shard: torch.Tensor = PrefetchedWeight.apply(weight, prefetch)  # type: ignore[no-untyped-call]
        self.prefetched = shard, prefetch

    def exchanges(self) -> list[Exchange]:
        """What the plan says. Raises `ValueError` for a layer without its plan."""
        if self.planned_words is None:
            raise ValueError(f"{self.name} was made without a plan that has its words")
        # one call moves no word of Ker, and returns rows of In that get gradients
        needs = (0,) if self.one_call is not None else (0, "weight")
        return [Exchange(*self.planned_words(), needs)]

    # -- whole tensors and DTensors ---------------------------------------------------

    def scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a whole input, which has the shape of torch's layer."""
        whole = divided_input(self.program, whole).reshape(self.input.whole)
        transposed = self.program.transposed_rows is not None  # it reads every row
        windows = () if transposed else tuple(self.program.windows.values())
        return shard_of(whole, self.input.mine, windows)

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """The whole output, with the shape of torch's layer, from all ranks' shards."""
        out = self.output
        whole = gather_shards(shard, out.boxes, out.whole, out.ranks)
        whole = united_output(self.program, whole)
        return whole.flatten(1, 2) if self.grouped else whole

    @property
    def grouped(self) -> bool:
        """Whether groups are a dimension of their own."""
        return len(self.program.ker_shape) == self.kernel_dims + 3

    def placements(self, tensor: str, device: str = "cpu") -> tuple[Any, list[Any]]:
        """(mesh, placements) of the DTensor whose shards are those of "In" or "Out".

        Raises `ValueError` if no placements describe the ownership. All ranks must
        call this.
        """
        return layer_placements(self, tensor, device)

    # -- state ----------------------------------------------------------------------

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """Weight and bias whole, on every rank, as torch's own layers save them."""
        return whole_parameters(self)

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Copy the own shards of a whole weight and bias, saved from any grid.

        Raises `ValueError` with the names if the state is of another layer.
        """
        load_parameters(self, state)

    def get_extra_state(self) -> dict[str, Any]:
        """What a state of shards belongs to; part of `state_dict()`."""
        rank = self.context.ranks.me
        return {"layer": self.name, "plan": self.program.plan, "rank": rank}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Raise `ValueError` for the shards of another plan or rank."""
        mine = self.get_extra_state()
        if state != mine:
            raise ValueError(
                f"the state holds shards of {state}, not of {mine};"
                " move it by full_state_dict and load_full_state_dict"
            )

    def extra_repr(self) -> str:
        """Name, plan, grid and the shape of the own weight; a network may hold it."""
        grid = " x ".join(f"{axis}={n}" for axis, n in self.program.grid.items()) or "1"
        shard = shape(self.ker_boxes[self.context.ranks.me])
        return f"{self.name}, plan={self.program.plan}, grid={grid}, weight={shard}"


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


def _wait(pending: list[Pending]) -> None:
    """Wait for what a deleted layer's network has started."""
    if dist.is_initialized():
        for each in tuple(pending):
            each.wait()
