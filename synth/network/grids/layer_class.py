"""Classes of layers with the same choices: their candidates are computed once."""

from __future__ import annotations

from dataclasses import dataclass

from synth.layer.axes import Tensor
from synth.layer.nest import Nest
from synth.layer.passes import GRADIENTS, Passes, sequences
from synth.network.graph import Node


@dataclass(frozen=True)
class LayerClass:
    """What layers with the same choices have in common.

    rows: output extents of a transposed layer, per spatial dimension; () for every other layer.
    input_gradient: whether training computes the gradient of the layer's input.
    """

    nest: Nest
    weighted: bool
    rows: tuple[int, ...] = ()
    input_gradient: bool = True

    @classmethod
    def of(cls, node: Node, input_gradient: bool = True) -> LayerClass:
        """The class of a node that has a loop nest."""
        assert node.layer is not None
        rows = node.layer.output_shape[2:] if node.layer.transposed else ()
        return cls(node.layer.nest, node.weighted, rows, input_gradient)

    @property
    def transposed(self) -> bool:
        """Whether the forward pass is the backward-data pass of the nest."""
        return bool(self.rows)

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        """The gradients that training computes, named by the layer's own tensors."""
        wanted = {"In": self.input_gradient, "Ker": self.weighted}
        return tuple(tensor for tensor in GRADIENTS if wanted[tensor])

    def passes(self, training: bool) -> Passes:
        """The passes of the nest: the forward pass of the layer, in training also those of the gradients."""
        return sequences(self.transposed, self.gradients if training else ())[0]

    @property
    def input_tensor(self) -> Tensor:
        """The tensor of the nest that is the layer's input."""
        return "Out" if self.transposed else "In"

    @property
    def output_tensor(self) -> Tensor:
        """The tensor of the nest that is the layer's output."""
        return "In" if self.transposed else "Out"
