"""Orders of dimensions: a model may permute those of a tensor, the network has (N, C, *spatial)."""

from __future__ import annotations

Shape = tuple[int, ...]
Order = tuple[int, ...]  # the network's dimension for each of the model's


def straight(shape: Shape) -> Order:
    """The order of dimensions of the network itself."""
    return tuple(range(len(shape)))


def channels_last(shape: Shape) -> Order:
    """The order with the channels last: (N, *spatial, C)."""
    return (0, *range(2, len(shape)), 1) if len(shape) > 1 else straight(shape)


def permuted(shape: Shape, order: Order) -> Shape:
    """The shape of the network's node for a shape of the model."""
    return tuple(shape[order.index(dim)] for dim in range(len(shape)))
