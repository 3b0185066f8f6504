"""Models that reduce maps to numbers, select words along a dimension, and compute losses within forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from called import Called, labels, param
from torch import nn
from torch.nn import functional

Map = Callable[[torch.Tensor], torch.Tensor]


def of_map(call: Map, dims: int = 2) -> Callable[[], Called]:
    """What a call makes of a map, and the map beside it where that is a number."""
    return lambda: Called(lambda m, h, g: g * call(h) if not call(h).dim() else call(h) * 1.0, dims)


def of_classes(call: Callable[..., torch.Tensor], **parts: torch.Tensor) -> Callable[[], Called]:
    """A loss of (samples, classes, positions) and of labels."""
    return lambda: Called(lambda m, h, g: call(m, h, m.t), t=labels(), **parts)


NUMBERS: dict[str, Map] = {
    "mean": lambda h: h.mean(),
    "sum of all dimensions": lambda h: h.sum((0, 1, 2, 3)),
    "mean of all by name": lambda h: torch.mean(h, dim=(0, 1, 2, 3)),
    "mean that is kept": lambda h: h.mean((0, 1, 2, 3), True),
    "mean as another dtype": lambda h: h.mean(dtype=torch.float64),
    "max": lambda h: h.max(),
    "min": lambda h: h.min(),
    "amax": lambda h: torch.amax(h, (0, 1, 2, 3)),
    "var": lambda h: h.var(),
    "std without a correction": lambda h: h.std(correction=0),
    "std that is biased": lambda h: h.std(unbiased=False),
    "var that is biased, by place": lambda h: torch.var(h, False),
    "Frobenius norm": lambda h: h.norm("fro"),
    "norm": lambda h: h.norm(),
    "norm of order 1": lambda h: h.norm(1),
    "vector_norm": lambda h: torch.linalg.vector_norm(h),
    "sum of a row": lambda h: h[0, 0, 0].sum(),
    "equal words": lambda h: (h * 0 + 1).max(),
}
ALONG: dict[str, Map] = {
    "mean of one channel, which one rank owns": lambda h: h[:, :1].mean((0, 2, 3)),
    "argmax": lambda h: h.argmax(1),
    "argmin that is kept": lambda h: h.argmin(-1, True),
    "max": lambda h: torch.max(h, 1).values,
    "min and where": lambda h: (lambda found: found.values + found.indices)(h.min(3)),
    "median": lambda h: h.median(1)[0],
    "mode": lambda h: h.round().mode(1).values,
    "sort": lambda h: h.sort(dim=2, descending=True)[0],
    "argsort": lambda h: h.argsort(1),
    "topk": lambda h: (lambda found: found[0] + found[1])(h.topk(3, dim=1)),
    "kthvalue": lambda h: h.kthvalue(2, 1)[0],
    "prod": lambda h: h.prod(1),
    "any": lambda h: (h > 0.3).any(1),
    "all along two": lambda h: (h > -1).all((1, 2)),
    "count_nonzero": lambda h: torch.count_nonzero(h > 0, 1),
    "nansum": lambda h: torch.nansum(h, 1),
    "var_mean": lambda h: sum(torch.var_mean(h, 1)),  # type: ignore[arg-type,return-value]
    "vector_norm": lambda h: torch.linalg.vector_norm(h, dim=1),
    "gather of one word": lambda h: (lambda v: v.gather(0, v.argsort(0)))(h[:1, :1, :1, :1]),
    "gather": lambda h: h.gather(1, h.argsort(1)[:, :3]),
    "gather of fewer rows": lambda h: h.gather(1, h.argsort(1)[:, :3, :2]),
    "gather along rows": lambda h: torch.gather(h, 2, h.argmax(2, True)),
    "gather by name": lambda h: torch.gather(index=h.argsort(1), input=h, dim=1),
    "take_along_dim": lambda h: torch.take_along_dim(h, h.argsort(1), 1),
    "take_along_dim, flat": lambda h: torch.take_along_dim(h, h.flatten().argsort()),
    "take_along_dim, broadcast": lambda h: torch.take_along_dim(h, h[:, :, :1].argsort(1), 1),
    "cosines": lambda h: functional.cosine_similarity(h, h.flip(2), dim=1),
    "cosines of rows": lambda h: functional.cosine_similarity(h, h.flip(2), -1),
    "distances": lambda h: torch.cdist(h.flatten(2), h.flatten(2).roll(1, 1)),
    "distances by name": lambda h: torch.cdist(x2=h.flatten(2)[:, :3], x1=h.flatten(2), p=1.0),
    "distances of many": lambda h: torch.cdist(h.flatten(1, 2), h.flatten(1, 2) + 1),
}
LOSSES: dict[str, Callable[[], Called]] = {
    "mse_loss": lambda: Called(lambda m, h, g: functional.mse_loss(h, g.detach())),
    "mse_loss, broadcast": lambda: Called(lambda m, h, g: functional.l1_loss(h, g.mean(2, True))),
    "huber_loss, a sum": lambda: Called(
        lambda m, h, g: functional.huber_loss(h, g, reduction="sum", delta=0.3)
    ),
    "smooth_l1_loss of words": lambda: Called(
        lambda m, h, g: functional.smooth_l1_loss(h, g, reduction="none", beta=0.4)
    ),
    "kl_div, batchmean": lambda: Called(
        lambda m, h, g: functional.kl_div(h.log_softmax(1), g.softmax(1), reduction="batchmean")
    ),
    "binary_cross_entropy": lambda: Called(
        lambda m, h, g: functional.binary_cross_entropy(h.sigmoid(), g.detach().sigmoid())
    ),
    "logits, with weights": lambda: Called(
        lambda m, h, g: functional.binary_cross_entropy_with_logits(h, m.t, m.w, pos_weight=m.p),
        t=torch.rand(4, 8, 8),
        w=torch.rand(8, 1),
        p=torch.rand(8),
    ),
    "mse_loss by its old name": lambda: Called(lambda m, h, g: functional.mse_loss(h, g, reduce=False)),
    "cross_entropy": of_classes(lambda m, h, t: functional.cross_entropy(h, t)),
    "cross_entropy of positions": of_classes(
        lambda m, h, t: functional.cross_entropy(h, t, reduction="none")
    ),
    "cross_entropy, a sum": of_classes(lambda m, h, t: functional.cross_entropy(h, t, reduction="sum")),
    "cross_entropy, some ignored": of_classes(lambda m, h, t: functional.cross_entropy(h, t, ignore_index=3)),
    "cross_entropy, all ignored": of_classes(lambda m, h, t: functional.cross_entropy(h, t * 0 - 100)),
    "cross_entropy, class 0 ignored": of_classes(
        lambda m, h, t: functional.cross_entropy(h, t, m.w, ignore_index=0), w=torch.rand(8)
    ),
    "cross_entropy, smooth": of_classes(
        lambda m, h, t: functional.cross_entropy(h, t, m.w, ignore_index=2, label_smoothing=0.2),
        w=torch.rand(8),
    ),
    "cross_entropy, a trained weight": lambda: Called(
        lambda m, h, g: functional.cross_entropy(h, g.argmax(1), m.w.detach()), w=param(8)
    ),
    "cross_entropy by name": lambda: Called(
        lambda m, h, g: functional.cross_entropy(weight=m.w, target=g.argmax(1), input=h, reduction="none"),
        w=torch.rand(8),
    ),
    "cross_entropy of probabilities": lambda: Called(
        lambda m, h, g: functional.cross_entropy(h, g.softmax(1), label_smoothing=0.1)
    ),
    "cross_entropy of samples": lambda: Called(
        lambda m, h, g: functional.cross_entropy(h.mean(2), g.mean(2).argmax(1))
    ),
    "cross_entropy of a sample": lambda: Called(
        lambda m, h, g: functional.cross_entropy(h.mean((0, 2)), g.mean((0, 2)).argmax())
    ),
    "nll_loss": of_classes(lambda m, h, t: functional.nll_loss(h.log_softmax(1), t, m.w), w=torch.rand(8)),
    "quantized": lambda: Called(
        lambda m, h, g: (
            lambda rows: m.codes[torch.cdist(rows, m.codes).argmin(-1)].transpose(1, 2) + (h - h.detach())
        )(h.transpose(1, 2)),
        codes=torch.rand(5, 8),
    ),
    "a loss as a module": lambda: Called(lambda m, h, g: h * m.l(h, g), l=nn.MSELoss()),
    "cosines as a module": lambda: Called(lambda m, h, g: m.l(h, g), l=nn.CosineSimilarity()),
}
REDUCED: dict[str, Callable[[], Called]] = {
    **{f"a number: {name}": of_map(call) for name, call in NUMBERS.items()},
    **{f"along: {name}": of_map(call) for name, call in ALONG.items()},
    **{f"a loss: {name}": make for name, make in LOSSES.items()},
}
