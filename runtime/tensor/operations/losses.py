"""The usual losses of a partitioned output and targets: a mean over all words.

Targets are whole, the same on all ranks, or partitioned. The local losses are those of
torch without a reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from synth.runtime.tensor.operations.operands import (
    NoParts,
    argument,
    common_partition,
    short_name,
    to_partition,
    to_whole,
    with_argument,
    wrap,
)
from synth.runtime.tensor.operations.reductions import summed
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor

NONE, MEAN = 0, 1  # torch's numbers of reductions; 2 is a sum


def loss(func: Any, args: Any, kwargs: Any) -> Any:
    """A loss that compares words one by one."""
    base = common_partition([each for each in args if isinstance(each, torch.Tensor)])
    reduction = argument(func, args, kwargs, "reduction")
    here = [to_partition(each, base) for each in args]
    args, kwargs = with_argument(func, here, kwargs, "reduction", NONE)
    values = base.ranks.on_own_words(short_name(func), func, *args, **kwargs)
    if reduction == NONE:
        return wrap(values, base)
    total = summed(values, base)
    return (total / base.shape.numel() if reduction == MEAN else total).to(values.dtype)


def loss_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """The gradient of such a loss."""
    given = [each for each in args[1:] if isinstance(each, torch.Tensor)]
    base = common_partition(given)
    reduction = argument(func, args, kwargs, "reduction")
    gradient = args[0]
    if reduction == MEAN:
        gradient = gradient / base.shape.numel()
    own = to_partition(gradient, base)
    if reduction != NONE:
        own = own.expand(base.local_shape)
    here = [own, *(to_partition(each, base) for each in args[1:])]
    args, kwargs = with_argument(func, here, kwargs, "reduction", NONE)
    return wrap(func(*args, **kwargs), base)


# -- classes ---------------------------------------------------------------------------


def nll_loss(func: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The negative log-likelihood of classes, and the sum of its weights."""
    given, target, weight, reduction, ignored = args
    base, words = _of_classes(given)
    own, classes = to_partition(given, base), to_partition(target, words)
    weight = to_whole(weight)
    values = own.new_zeros(words.local_shape)
    if own.numel():
        flat = _flat(own, base), _flat(classes, base), weight, NONE, ignored
        found, _ = base.ranks.on_own_words(short_name(func), func, *flat)
        values = found.reshape(words.local_shape)
    if reduction == NONE:
        return wrap(values, words), values.new_zeros(())
    each = torch.ones_like(values)
    if weight is not None:
        each = weight[classes.clamp(0, len(weight) - 1)].to(values.dtype)
    each = each.masked_fill(classes == ignored, 0)
    total, weights = summed(values, words), summed(each, words)
    result = total / weights if reduction == MEAN else total
    return result.to(values.dtype), weights.to(values.dtype)


def nll_loss_backward(func: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """The gradient of `nll_loss`."""
    gradient, given, target, weight, reduction, ignored, weights = args
    base, words = _of_classes(given)
    own, classes = to_partition(given, base), to_partition(target, words)
    if reduction == NONE:
        gradient = _flat(to_partition(gradient, words), base)
    rest = to_whole(weight), reduction, ignored, to_whole(weights)
    made = torch.zeros_like(own)
    if own.numel():
        flat = _flat(own, base), _flat(classes, base)
        made = func(gradient, *flat, *rest).reshape(own.shape)
    result: torch.Tensor = wrap(made, base)
    return result


def _of_classes(given: torch.Tensor) -> tuple[Partition, Partition]:
    """The partition with all classes of a word on one rank, and that of the words.

    Raises `NoParts` for log-probabilities that are whole on all ranks.
    """
    if not isinstance(given, PartitionedTensor):
        raise NoParts
    base, layout = given._partition, given._partition.layout
    if _is_volume(base) and 1 not in base.cut_dims:
        boxes = [(box[0], *box[2:]) for box in layout.boxes]
        words = layout.with_boxes((layout.whole[0], *layout.whole[2:]), boxes)
        shape = base.shape[0], *base.shape[2:]
        return base, Partition(words, shape, base.of)
    classes = 1 if given.dim() > 1 else 0
    base = base.uncut_along([classes])
    return base, base.without([classes], keepdim=False)


def _is_volume(base: Partition) -> bool:
    """Whether words lie as (b, c, *spatial), but have the shape (b, c, 1, positions).

    torch reshapes what has not two spatial dimensions.
    """
    return base.refined and tuple(base.layout.whole[:2]) == tuple(base.shape[:2])


def _flat(part: torch.Tensor, base: Partition) -> torch.Tensor:
    """A local part of a volume, or of its targets, as torch's kernel takes it."""
    if not _is_volume(base):
        return part
    spatial = len(base.layout.whole) - 2
    return part.flatten(part.dim() - spatial).unsqueeze(-2)


POINTWISE = (
    *("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
RULES: dict[str, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(POINTWISE, loss),
    **dict.fromkeys((f"{name}_backward" for name in POINTWISE), loss_backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
}
