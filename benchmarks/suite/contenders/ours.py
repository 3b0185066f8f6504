"""Ours: the module of a training plan, or the emitted program of a forward plan; every word has one owner."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name

from benchmarks.suite.contenders.contender import Contender, NotApplicableError, Whole
from benchmarks.suite.contenders.kernels import Kernel
from synth.codegen.module import distributed_conv, imported
from synth.codegen.render import render
from synth.layer.layer import Layer
from synth.planning.plan import Plan
from synth.runtime.grid.boxes import Box
from synth.runtime.grid.process_grid import coordinates
from synth.runtime.kernels.context import Context
from synth.runtime.kernels.conv import forward_kernel, in_gradient_kernel, ker_gradient_kernel
from synth.runtime.kernels.frame import Frame
from synth.runtime.kernels.matrix_product import matrix_product

OURS, TUNED = "ours", "ours, tuned"  # as emitted; with --tune


class OurKernel(Kernel):
    """The same operation by the runtime's kernels, which choose among those of torch."""

    def forward(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Out of a block."""
        if self.product:
            return matrix_product(inputs, weight.mT)
        return forward_kernel(self.conv, inputs, weight, self.frame, Context())

    def gradients(
        self, dout: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, wanted: str = "In Ker"
    ) -> tuple[Any, Any]:
        """(dIn, dKer) of a block; None for a gradient that is not in `wanted`."""
        of_in, of_ker = "In" in wanted, "Ker" in wanted
        if self.product:
            return (
                matrix_product(dout, weight) if of_in else None,
                matrix_product(dout.mT, inputs) if of_ker else None,
            )
        given = dout, self.frame, Context()
        return (
            in_gradient_kernel(inputs.shape, weight, *given) if of_in else None,
            ker_gradient_kernel(inputs, weight.shape, *given) if of_ker else None,
        )

    @property
    def frame(self) -> Frame:
        """How torch is called."""
        return Frame([], *map(list, (self.padding, self.stride, self.dilation)))


class Block(NamedTuple):
    """The work of one rank alone: its kernel and its tensors."""

    kernel: Kernel
    inputs: torch.Tensor
    weight: torch.Tensor
    dout: torch.Tensor

    def step(self, training: bool) -> Any:
        """The local computation of a step, without communication."""
        with torch.no_grad():
            out = self.kernel.forward(self.inputs, self.weight)
            if training:
                return out, self.kernel.gradients(self.dout, self.inputs, self.weight)
        return out


class Forward:
    """The emitted program of a forward plan, with this rank's shard of the weight."""

    def __init__(self, program: Any, weight: torch.Tensor) -> None:
        self.program, self.weight, self.context = program, weight, Context()
        self.at = coordinates(dist.get_rank(), program.GRID)
        self.groups = self.context.make_groups(self.at, program.GRID, program.GROUP_AXES)

    def __call__(self, share: torch.Tensor) -> Any:
        """This rank's shard of Out."""
        return self.program.run(share, self.weight, self.at, self.groups, self.context)


def ours(layer: Layer, whole: Whole, plan: Plan, label: str) -> tuple[Contender, Block]:
    """The contender, and the local work of the same plan on this rank.

    Raises `NotApplicableError` for layers that it stores in another shape than torch.
    """
    training = plan.pass_ == "training"
    name = f"synth_bench_{plan.id}"
    module: Any = distributed_conv(plan, bias=False) if training else None
    program = imported(render(plan), name)
    stored = {"In": program.IN_SHAPE, "Ker": program.KER_SHAPE}
    if any(tuple(whole[tensor].shape) != sizes for tensor, sizes in stored.items()):
        raise NotApplicableError(f"{layer.name} has groups, or rows that its stride never reads")
    at = coordinates(dist.get_rank(), program.GRID)
    boxes = {"In": program.owned_in(at), "Ker": program.owned_ker(at), "Out": program.owned_out(at)}
    weight = pick(whole["Ker"], boxes["Ker"])
    if training:
        with torch.no_grad():
            module.weight.copy_(weight)
    module = module or Forward(program, weight)
    module.context.tuner.enabled = label == TUNED
    made = Contender(label, module, boxes, tuned=label == TUNED)
    return made, local_block(layer, whole, plan)


def pick(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """A copy of a box of a whole tensor."""
    return tensor[tuple(slice(*interval) for interval in box)].clone()


def local_block(layer: Layer, whole: Whole, plan: Plan) -> Block:
    """This rank's block. Zeros of the border are part of In if the two sides differ, else padding."""
    work = plan.distribution.work(plan.distribution.at(dist.get_rank()))
    rows, reads, zeros = [], [], []
    for dim, axis in enumerate(layer.spatial_axes):
        low, high = work[axis]
        first = layer.stride[dim] * low - layer.padding[dim]
        last = layer.stride[dim] * (high - 1) + layer.dilation[dim] * (layer.kernel[dim] - 1) + 1
        last -= layer.padding[dim]
        read = max(0, first), min(layer.input[dim + 2], last)
        rows.append((low, high))
        reads.append(read)
        zeros.append((read[0] - first, last - read[1]))
    inputs = pick(whole["In"], (work["b"], work["c"], *reads))
    around = [0 if low == high else n for low, high in reversed(zeros) for n in (low, high)]
    if any(around):
        inputs = F.pad(inputs, around)
    padding = tuple(low if low == high else 0 for low, high in zeros)
    weight = pick(whole["Ker"], (work["k"], work["c"]))
    return Block(
        OurKernel(layer, padding), inputs, weight, pick(whole["dOut"], (work["b"], work["k"], *rows))
    )
