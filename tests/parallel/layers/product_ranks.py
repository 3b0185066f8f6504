"""Products and attention behind a convolution, on ranks beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import synth
from synth.runtime.layers.steps.gathered_step import GatheredStep

Function = Callable[[Any, torch.Tensor], torch.Tensor]


def attends_with_mask(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x + 1, x * 2, attn_mask=self.square)


def attends_with_weights(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(1, 2)
    out, weights = self.attention(rows, rows, rows)
    return out + weights @ rows


def attends_across(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(1, 2)
    some = rows[:, :7]
    return self.attention(rows, some, some, attn_mask=self.hidden, need_weights=False)[0]


def attends_to_itself(self: Any, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(1, 2)
    return self.attention(rows, rows, rows, need_weights=False)[0]


def modulates(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Weights that are scaled for each sample (StyleGAN2, Karras et al. 2020), and once more transposed."""
    b, c = x.shape[:2]
    weight = self.kernels[0] * (1 + x.mean((2, 3))).view(b, 1, c, 1, 1)
    weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
    y = functional.conv2d(x.reshape(1, b * c, 6, 6), weight.reshape(-1, c, 3, 3), padding=1, groups=b)
    back = weight.transpose(1, 2).reshape(-1, c, 3, 3)
    return functional.conv_transpose2d(y, back, stride=2, groups=b).reshape(b, c, 13, 13)


def mixes_kernels(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Kernels and biases that are mixed for each sample (CondConv, Yang et al. 2019)."""
    b, c = x.shape[:2]
    mixed = torch.sigmoid(x.mean((2, 3)) @ self.square[:4, :2])
    kernel, bias = (
        (mixed @ self.kernels.flatten(1)).view(-1, c, 3, 3),
        (mixed @ self.square[:2, :4]).flatten(),
    )
    y = functional.conv2d(x.reshape(1, b * c, 6, 6), kernel, bias, stride=2, padding=1, groups=b)
    return y.reshape(b, -1, *y.shape[2:])


PRODUCTS = (  # how their calls are named
    *("matmul", "mm", "bmm", "scaled_dot_product_attention", "einsum", "conv2d", "conv_transpose2d"),
)
DIVIDED = {  # calls of these names, where it is not one
    "attention layer, and its weights": 3,
    "kernels of samples": 2,
    "mixed kernels of samples": 4,
    **dict.fromkeys(("linear with computed weights", "windows of the map", "windows of a dimension"), 0),
}
FUNCTIONS: dict[str, Function] = {
    "attention layer": attends_to_itself,
    "attention layer, and its weights": attends_with_weights,
    "attention layer across rows": attends_across,
    "mm": lambda self, x: torch.mm(x[0, 0], self.square),
    "attention": lambda self, x: functional.scaled_dot_product_attention(x, x + 1, x * 2),
    "causal attention": lambda self, x: functional.scaled_dot_product_attention(x, x, x, is_causal=True),
    "attention with a mask": attends_with_mask,
    "grouped attention": lambda self, x: functional.scaled_dot_product_attention(
        x, x[:, :2], x[:, :2], enable_gqa=True
    ),
    "matmul": lambda self, x: x @ (x + 1).transpose(2, 3),
    "matmul with itself": lambda self, x: torch.matmul(x, x),
    "matmul with a parameter": lambda self, x: x @ self.square,
    "parameter times x": lambda self, x: self.square @ x,
    "einsum": lambda self, x: torch.einsum("bchw,bdhw->bcd", x, x + 1),
    "einsum with one sample for all": lambda self, x: torch.einsum("bchw,bdhw->bcd", x, x[:1] + 1),
    "einsum of vectors": lambda self, x: torch.einsum("a,b,c->abc", x[0, 0, 0], x[0, :, 1, 1], x[0, 0, :, 1]),
    "kernels of samples": modulates,
    "mixed kernels of samples": mixes_kernels,
    "kernel of the batch": lambda self, x: functional.conv2d(
        x, x.mean(0, keepdim=True)[..., :3, :3], padding=1
    ),
    "parameter under a computed kernel": lambda self, x: functional.conv2d(self.kernels[0], x, padding=3),
    "linear with computed weights": lambda self, x: functional.linear(x, x[0, 0], x[0, 0, 0]),
    "windows of the map": lambda self, x: functional.fold(
        functional.unfold(x, 3, padding=1) ** 2, 6, 3, padding=1
    ),
    "windows of a dimension": lambda self, x: x.unfold(2, 3, 1).amax(-1),
    "einsum with a parameter": lambda self, x: torch.einsum("bchw,vw->bvch", x, self.square),
}


class Behind(nn.Module):
    """A function between two convolutions, where its result is a map."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[name]
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.square = nn.Parameter(torch.randn(6, 6))
        self.kernels = nn.Parameter(torch.randn(2, 4, 4, 3, 3))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.register_buffer("hidden", torch.ones(24, 7, dtype=torch.bool).triu(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any shape."""
        return self.function(self, self.conv(x))


def compared(name: str, samples: int, plan: Any) -> dict[str, Any]:
    """error: of output and gradients in one process. steps: how many calls are divided, and are gathered.

    words: that this rank received, counted and planned.
    """
    torch.manual_seed(0)
    whole, shape = Behind(name).double(), (samples, 2, 6, 6)
    net = synth.parallelize(copy.deepcopy(whole), shape, plan=plan)
    x = torch.randn(shape, dtype=torch.float64)
    outs = [net(x).full_tensor(), whole(x)]
    weights = torch.randn_like(outs[1])
    for out in outs:
        (out * weights).sum().backward()
    pairs = list(zip(net.parameters(), whole.parameters(), strict=True))
    grads = [(p.grad.full_tensor(), q.grad) for p, q in pairs if q.grad is not None]
    errors = [float((one - other).abs().max()) for one, other in [outs, *grads]]
    gathered = [node for node, step in net.program.steps.items() if isinstance(step, GatheredStep)]
    divided = [node for node in net.program.steps if node not in gathered and node.startswith(PRODUCTS)]
    words = net.received(), net.planned_words().step[net.ranks.me]
    return {"error": max(errors), "divided": len(divided), "gathered": len(gathered), "words": words}
