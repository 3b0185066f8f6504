"""Models that call functions of torch, with parameters of their parts, by mode, and in place."""

from __future__ import annotations

from collections.abc import Callable

import torch
from called import Called, Part, labels, padded, param, rows
from torch import nn
from torch.nn import functional


def asking(h: torch.Tensor) -> torch.Tensor:
    h.requires_grad = True
    return h


FUNCTIONS: dict[str, Callable[[], Called]] = {
    "layer_norm of a part, and a parameter of the same name": lambda: Called(
        lambda m, h, g: m.p(h) + m.gamma.mean(),
        p=Part(lambda p, h: functional.layer_norm(h, (8, 8), p.gamma), gamma=param(8, 8)),
        gamma=param(8, 8),
    ),
    "linear of a part on one row, and a parameter of the same name": lambda: Called(
        lambda m, h, g: m.p(h.mean((0, 2))) + m.w.mean(),
        p=Part(lambda p, h: functional.linear(h, p.w), w=param(5, 8)),
        w=param(5, 8),
    ),
    "layer_norm of a part": lambda: Called(
        lambda m, h, g: m.p(h),
        p=Part(lambda p, h: functional.layer_norm(h, (8, 8), p.gamma), gamma=param(8, 8)),
    ),
    "sorted and counted by names of NumPy": lambda: Called(
        lambda m, h, g: (
            torch.sort(h, axis=1)[0] * g.unbind(axis=1)[1][:, None] + h.count_nonzero(2, 1)[:, None, None]
        )
    ),
    "maxima of integers": lambda: Called(
        lambda m, h, g: g * functional.max_pool2d((h * 9).long(), 3, 1, 1), dims=2
    ),
    "layer_norm with names exchanged": lambda: Called(
        lambda m, h, g: functional.layer_norm(h, (8, 8), m.bias, m.weight),
        weight=param(8, 8),
        bias=param(8, 8),
    ),
    "bilinear of a part and of the model": lambda: Called(
        lambda m, h, g: functional.bilinear(rows(h), rows(g), m.p.weight, m.weight),
        p=nn.Bilinear(8, 8, 5),
        weight=param(5),
    ),
    "norms of five dimensions in space": lambda: Called(
        lambda m, h, g: (
            functional.instance_norm(h[..., None, None, None, None])
            + functional.batch_norm(g.view(4, 8, 2, 2, 2, 1, 1), None, None, training=True).flatten(2)[
                ..., None
            ]
        )
    ),
    "instance_norm by mode": lambda: Called(
        lambda m, h, g: functional.instance_norm(h, m.a, m.v, use_input_stats=m.training),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "batch_norm by mode, with a scale of the input": lambda: Called(
        lambda m, h, g: functional.batch_norm(h, m.a, m.v, g.mean((0, 2)), None, m.training),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "batch_norm by mode": lambda: Called(
        lambda m, h, g: functional.batch_norm(h, m.a, m.v, training=m.training),
        a=torch.zeros(8),
        v=torch.ones(8),
    ),
    "dropout by mode, of a parameter": lambda: Called(
        lambda m, h, g: h * functional.dropout(m.w, 0.0, m.training), w=param(8, 1)
    ),
    "alpha_dropout by mode": lambda: Called(lambda m, h, g: functional.alpha_dropout(h, 0.0, m.training)),
    "rrelu by mode": lambda: Called(lambda m, h, g: functional.rrelu(h, 0.2, 0.2, m.training)),
    "prelu with a number": lambda: Called(
        lambda m, h, g: functional.prelu(h, m.w), w=nn.Parameter(torch.tensor(0.3))
    ),
    "prelu of a number": lambda: Called(lambda m, h, g: h * functional.prelu(h.mean(), m.w), w=param(1)),
    "prelu with one word": lambda: Called(lambda m, h, g: functional.prelu(h, m.w), w=param(1)),
    "a device by its name": lambda: Called(lambda m, h, g: h.to("cpu") * g),
    "linear_cross_entropy in chunks": lambda: Called(
        lambda m, h, g: functional.linear_cross_entropy(
            h.mean(2), m.w, m.t, options=nn.LinearCrossEntropyOptions(batch_chunk_size=2)
        ),
        t=torch.arange(4) % 3,
        w=param(3, 8),
    ),
    "cross_entropy, argument by argument": lambda: Called(
        lambda m, h, g: functional.cross_entropy(target=m.t, input=h, weight=m.w), t=labels(), w=torch.rand(8)
    ),
    "where with constants": lambda: Called(lambda m, h, g: torch.where(m.k[:, None], 0.5, h), k=padded()),
    "addcmul of one thrice": lambda: Called(lambda m, h, g: torch.addcmul(h, h, h, value=0.5)),
    "einsum of one twice": lambda: Called(lambda m, h, g: torch.einsum("bct,bdt->bcd", h, h)),
    "bucketize": lambda: Called(lambda m, h, g: h * torch.bucketize(h, m.e), e=torch.linspace(-1, 1, 5)),
    "a gradient that is asked for in forward": lambda: Called(lambda m, h, g: h * asking(g.detach())),
    "lerp by name": lambda: Called(lambda m, h, g: torch.lerp(weight=m.w, end=g, input=h), w=param(8, 1)),
}
# what a change in place gives has the dtype of what it changes
IN_PLACE: dict[str, Callable[[], Called]] = {
    "a wider table added": lambda: Called(lambda m, h, g: h.bfloat16().add_(m.t), t=torch.rand(8, 1)),
    "a wider buffer multiplied": lambda: Called(
        lambda m, h, g: h.float().mul_(m.t), t=torch.rand(8, 1).double()
    ),
    "a wider map subtracted": lambda: Called(lambda m, h, g: h.half().sub_(g.double())),
    **{
        f"{word}_": lambda word=word: Called(lambda m, h, g: getattr(h * 1, f"{word}_")(0.1))  # type: ignore[misc]
        for word in ("lt", "le", "gt", "ge", "eq", "ne")
    },
    "logical_not_": lambda: Called(lambda m, h, g: (h * 1).logical_not_()),
    "masked_fill_": lambda: Called(lambda m, h, g: (h * 1).masked_fill_(g > 0, 2)),
    "cumsum_": lambda: Called(lambda m, h, g: (h * 1).cumsum_(1)),
    "div_ of integers": lambda: Called(lambda m, h, g: (h * 9).long().floor_divide_(2)),
    "elu_": lambda: Called(lambda m, h, g: functional.elu_(h * 1)),
    "zero_": lambda: Called(lambda m, h, g: h + (g * 1).zero_()),
    "copy_": lambda: Called(lambda m, h, g: (h * 1).copy_(g)),
    "+=": lambda: Called(lambda m, h, g: added(h.bfloat16(), m.t), t=torch.rand(8, 1)),
    "|=": lambda: Called(lambda m, h, g: h * either(h > 0.1, g > 0.1)),
}


def added(h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    h += other
    return h


def either(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one |= other
    return one
