"""Functions of torch that are recorded as the calls of which they consist."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.nn import functional
from torch.nn._reduction import legacy_get_string

from synth.runtime.rules.pointwise import LOSSES
from synth.runtime.tracing.attention import multi_head_attention
from synth.runtime.tracing.unsupported import in_user_code

ReducedBy = Callable[..., torch.Tensor]
OLD = "size_average", "reduce"  # arguments of losses


def _by_name(parts: Callable[..., Any]) -> Callable[..., Any]:
    """Parts of one of torch's own functions, whose tensor may be given by name."""

    def given_first(*args: Any, **kwargs: Any) -> Any:
        first = () if args else (kwargs.pop("x" if "x" in kwargs else "input"),)
        return parts(*first, *args, **kwargs)

    return given_first


def _of_all(reduce: ReducedBy) -> ReducedBy:
    """A reduction of all words: along all dimensions, of which ranks have parts."""

    def parts(given: Any, *args: Any, **kwargs: Any) -> Any:
        values = isinstance(given, torch.Tensor) and given.is_floating_point()
        if not values or not given.dim() or not given.numel():
            return NotImplemented
        every = tuple(range(given.dim()))
        named = dict(zip(("dim",), args, strict=False)) | kwargs
        named = {n: v for n, v in named.items() if v is not None}
        order, dims = named.pop("p", 2), named.pop("dim", every)
        kept = named.pop("keepdim", False)
        plain = order in ("fro", 2) and dims == every and not kept
        if len(args) > 1 or named or not plain:
            return NotImplemented
        return reduce(given, every, keepdim=True).reshape(())

    return _by_name(parts)


def _of_no_dims(reduce: ReducedBy) -> ReducedBy:
    """A reduction of all words where no dimension is named, as processors have it.

    On "meta", torch 2.13 keeps the shape.
    """

    def parts(given: Any, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dim not in ((), []):
            return NotImplemented
        return reduce(given, None, *args, **kwargs)

    return _by_name(parts)


def _taken_reduction(kwargs: dict[str, Any]) -> str:
    """The reduction, which leaves `kwargs`; "" for an old name and "batchmean"."""
    size_average, reduce = (kwargs.pop(name, None) for name in OLD)
    reduction: str = kwargs.pop("reduction", "mean")
    if size_average is None and reduce is None:
        return reduction
    if reduction == "batchmean":  # `kl_div` follows both
        return ""
    return str(legacy_get_string(size_average, reduce, emit_warning=False))


def _word_by_word(loss: ReducedBy) -> ReducedBy:
    """A loss that compares words: each by itself, and then their sum or mean."""

    def parts(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        reduction = _taken_reduction(kwargs)
        if loss is functional.l1_loss:
            kwargs["weight"] = _lost_weight()
        weight = kwargs.pop("weight", None) if loss in BY_WEIGHT else None
        if weight is not None:
            return _weighted(loss, input, target, weight, reduction)
        if args or reduction not in SUMS:
            return NotImplemented
        each = loss(input, target, reduction="none", **kwargs)
        return SUMS[reduction](each, input)

    return parts


def _weighted(
    loss: ReducedBy, input: Any, target: Any, weight: torch.Tensor, reduction: str
) -> torch.Tensor:
    """A loss of words with a weight each; its mean is that of the weights."""
    if weight.shape != input.shape or reduction not in ("none", "mean", "sum"):
        raise ValueError(
            f"a loss in forward has weights of {tuple(weight.shape)} and an input of"
            f" {tuple(input.shape)}; give weights of this shape, and the reduction as"
            " 'none', 'mean' or 'sum'"
        )
    each = loss(input, target, reduction="none") * weight
    if reduction == "none":
        return each
    return each.sum() / weight.sum() if reduction == "mean" else each.sum()


def _lost_weight() -> torch.Tensor | None:
    """The weight of the `l1_loss` that runs, which torch 2.13 does not hand on."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not functional.l1_loss.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("weight")


def _of_classes(loss: ReducedBy) -> ReducedBy:
    """A loss of classes: of each position by itself, and then their sum or mean."""

    def parts(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        reduction = _taken_reduction(kwargs)
        known = reduction in ("none", "mean", "sum")
        if args or not known or input.dim() < 2 or not target.dim():
            return NotImplemented
        if not target.is_floating_point():
            return _of_labels(loss, input, target, reduction, **kwargs)
        if reduction == "none":
            return NotImplemented  # which ranks divide as it is
        return SUMS[reduction](loss(input, target, reduction="none", **kwargs), input)

    return parts


@torch.overrides.wrap_torch_function(lambda input, labels, weight, **_: (input, labels))
def label_losses(
    input: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None, **more: Any
) -> torch.Tensor:
    """The loss of each label; 0 for those that are ignored."""
    loss = (
        functional.cross_entropy if "label_smoothing" in more else functional.nll_loss
    )
    return loss(input, labels, weight, reduction="none", **more)


def _of_labels(
    loss: ReducedBy,
    input: torch.Tensor,
    target: torch.Tensor,
    reduction: str,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    **more: Any,
) -> torch.Tensor:
    """A loss of labels; one that is no class is refused, on all ranks.

    Without that, the rank that has it would be refused by torch, and others wait.
    """
    classes, counted = input.shape[1], target != ignore_index
    wrong = counted & ((target < 0) | (target >= classes))
    found = wrong.to(torch.float32).amax()
    labels = target.masked_fill(wrong, 0)
    if loss is functional.cross_entropy:
        more = {"label_smoothing": 0.0, **more}
    each = label_losses(input, labels, weight, ignore_index=ignore_index, **more)
    zero = refused_labels(found, classes, ignore_index).to(each.dtype)
    if reduction == "none":
        return each + zero
    if reduction == "sum":
        return each.sum() + zero
    weights = counted
    if weight is not None:
        ones = torch.full_like(input, -1.0).detach()
        weights = label_losses(ones, labels, weight, ignore_index=ignore_index)
    wide = torch.promote_types(each.dtype, torch.float32)
    return (each.mean() / weights.to(wide).mean()).to(each.dtype) + zero


@torch.overrides.wrap_torch_function(lambda found, *_: (found,))
def refused_labels(found: torch.Tensor, classes: int, ignored: int) -> torch.Tensor:
    """0; raises `IndexError` where a label is no class. found: 1 if one is none."""
    try:
        torch._assert_async(found == 0, "a label is no class")
    except RuntimeError:
        raise IndexError(
            "a label of a loss in forward is no class; labels must be from 0 to"
            f" {classes - 1}, or {ignored}, which is ignored"
        ) from None
    return found * 0


@torch.overrides.wrap_torch_function(lambda condition, *_: (condition,))
def asserted(condition: torch.Tensor, *message: str) -> torch.Tensor:
    """The condition; raises `RuntimeError` where it does not hold."""
    torch._assert_async(condition, *message)
    return condition.clone()


def _assertion(condition: torch.Tensor, *message: str) -> None:
    """A call that gives nothing, as one that gives something, so that it is made."""
    asserted(condition, *message)


def _in_memory(function: Any, place: int) -> Callable[..., Any]:
    """A function of words as they lie in memory: of a tensor with them in this order.

    place: of the storage offset among the arguments behind the tensor. On ranks a
    tensor is contiguous, in the order of its dimensions.
    """

    def parts(given: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            strides, offset = given.stride(), given.storage_offset()
            order = sorted(range(given.dim()), key=lambda d: -strides[d])
            whole = given.permute(order).is_contiguous()
            straight = given.is_contiguous()
        begins = args[place] if len(args) > place else kwargs.get("storage_offset")
        turns = whole and (straight or function is not torch.as_strided_scatter)
        if not turns or (offset and begins is not None):
            raise ValueError(
                f"forward calls {function.__name__} on a part of a tensor"
                f"{in_user_code()}, and ranks do not have its memory; call"
                " contiguous() before it, or index instead"
            )
        if straight:
            return NotImplemented
        return function(given.permute(order), *args, **kwargs)

    return _by_name(parts)


IN_MEMORY = {"as_strided": 2, "as_strided_copy": 2, "as_strided_scatter": 3}
# their mean is that of the weights, too; others divide by the number of words
BY_WEIGHT = functional.mse_loss, functional.l1_loss
SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda each, _: each.mean(),
    "sum": lambda each, _: each.sum(),
    "batchmean": lambda each, given: each.sum() / given.shape[0],
}
REDUCED: dict[str, ReducedBy] = {
    **{"sum": torch.sum, "mean": torch.mean, "var": torch.var, "std": torch.std},
    **{"amax": torch.amax, "amin": torch.amin, "max": torch.amax, "min": torch.amin},
    "norm": lambda given, dims, keepdim: torch.norm(given, 2, dims, keepdim),
}
PARTS: dict[Any, Callable[..., Any]] = {
    functional.multi_head_attention_forward: multi_head_attention,
    # of the second tensor only shape or dtype counts, so its words need not move
    torch.Tensor.type_as: lambda given, other: given.to(other.dtype),
    torch.Tensor.expand_as: lambda given, other: given.expand(other.shape),
    torch.Tensor.view_as: lambda given, other: given.view(other.shape),
    torch.Tensor.reshape_as: lambda given, other: given.reshape(other.shape),
    **{
        getattr(home, name): _of_all(reduce)
        for name, reduce in REDUCED.items()
        for home in (torch, torch.Tensor)
    },
    torch._assert_async: _assertion,
    **{
        getattr(home, name): _in_memory(getattr(torch, name), place)
        for name, place in IN_MEMORY.items()
        for home in (torch, torch.Tensor)
        if hasattr(home, name)
    },
    **{
        getattr(home, reduce.__name__): _of_no_dims(reduce)
        for reduce in (torch.nansum, torch.nanmean)
        for home in (torch, torch.Tensor)
    },
    torch.linalg.vector_norm: _of_all(REDUCED["norm"]),
    **{loss: _word_by_word(loss) for loss in (getattr(functional, n) for n in LOSSES)},
    functional.cross_entropy: _of_classes(functional.cross_entropy),
    functional.nll_loss: _of_classes(functional.nll_loss),
}


def composed(function: Any) -> Callable[..., Any] | None:
    """What makes the calls of which a function consists; None for any other function.

    It takes the same arguments. It returns `NotImplemented` for those that it does not
    know.
    """
    try:
        return PARTS.get(function)
    except TypeError:  # a function that has no hash
        return None
