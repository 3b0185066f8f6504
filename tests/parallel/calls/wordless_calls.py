"""Calls of operands without words, of which some results have words, and layers that read no word."""

from __future__ import annotations

from collections.abc import Callable

import torch
from called import Called
from torch import nn
from torch.nn import functional


def attended(m: Called, h: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Attention to no key is zero."""
    rows, none = h.mT, g.mT[:, :0]
    return functional.scaled_dot_product_attention(rows, none, none)


WORDLESS: dict[str, Callable[[], Called]] = {
    "attention to no key": lambda: Called(attended),
    "softmax of no score": lambda: Called(lambda m, h, g: (h.mT @ g[..., :0]).softmax(-1) @ g.mT[:, :0]),
    "a product of no words": lambda: Called(lambda m, h, g: h[..., :0] @ g[..., :0].mT),
    "a sum of products of no words": lambda: Called(
        lambda m, h, g: torch.einsum("bcn,bdn->cd", h[:0], g[:0]) + h.mean()
    ),
    "no distances": lambda: Called(lambda m, h, g: torch.cdist(h[..., :0], g[..., :0])),
    "added to a product of no words": lambda: Called(lambda m, h, g: torch.baddbmm(h, g[..., :0], h[:, :0])),
    "sums of no words": lambda: Called(lambda m, h, g: h[:, :0].sum(1) + h[:, :0].prod(1) + g.mean(1)),
    "behind no running sums": lambda: Called(lambda m, h, g: torch.cat([h[:, :0].cumsum(1), g], 1)),
    "padding around nothing": lambda: Called(lambda m, h, g: functional.pad(h[..., :0], (2, 6)) + g),
    "a parameter that no result needs": lambda: Called(
        lambda m, h, g: h + torch.einsum("bcn,cd->bdn", g[..., :0], m.w).sum(),
        w=nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8)),
    ),
    "one parameter, of a result that one rank has": lambda: Called(
        lambda m, h, g: h + m.w * g.prod() + g.mean((0, 2))[:1] * m.w, w=nn.Parameter(torch.full((1,), 0.5))
    ),
    "windows in the padding": lambda: Called(
        lambda m, h, g: m.conv1(h[..., :2])[..., None] * m.conv2(g.unflatten(2, (2, 4))[..., :2]) + h.mean(),
        conv1=nn.Conv1d(8, 4, 1, padding=2, stride=4),
        conv2=nn.Conv2d(8, 4, 1, padding=3, stride=9, bias=False),
    ),
}
