"""Operations that users call on what a network gives, a map of (4, 6, 8, 8) in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Operation = Callable[[Tensor], Tensor]
source = torch.Generator().manual_seed(0)


def randn(*shape: int) -> Tensor:
    """Values that are the same on all ranks."""
    return torch.randn(shape, generator=source, dtype=torch.float64)


OTHER, KERNEL, TABLE = randn(4, 6, 8, 8), randn(5, 6, 3, 3), randn(7, 6)
LABELS = torch.randint(0, 6, (4, 8, 8), generator=source)
PICKS = torch.tensor([2, 0, 5, 1])
MASK, SQUARE = OTHER > 0.3, OTHER[0, 0] > 0


def contrastive(out: Tensor) -> Tensor:
    """Similarities of all pairs of samples, each of which belongs to itself."""
    rows = functional.normalize(out.flatten(1))
    return functional.cross_entropy(rows @ rows.T / 0.1, torch.arange(len(rows)))


def boxes(out: Tensor) -> Tensor:
    """The boxes of a detector whose score is positive."""
    rows = out.permute(0, 2, 3, 1).reshape(-1, 6)
    return rows[rows[:, 4] > 0][:, :4].sum()


def unpooled(out: Tensor) -> Tensor:
    """Indices of an operation, as operands of the next."""
    return functional.max_unpool2d(*functional.max_pool2d(out, 2, return_indices=True), 2)


PRODUCTS: dict[str, Operation] = {
    "contrastive": contrastive,
    "matmul": lambda o: o @ o.transpose(-1, -2),
    "gram": lambda o: o.flatten(2) @ o.flatten(2).mT,
    "einsum": lambda o: torch.einsum("bchw,bdhw->bcd", o, o),
    "linear": lambda o: functional.linear(o.movedim(1, -1), TABLE),
    "mv": lambda o: o[0, 0] @ o[0, 0, 0],
    "dot": lambda o: o[0, 0, 0] @ o[1, 1, 1],
    "addmm": lambda o: torch.addmm(OTHER[0, 0], o[0, 0], o[1, 1]),
    "attention": lambda o: functional.scaled_dot_product_attention(o, o, o),
    "cdist": lambda o: torch.cdist(o.flatten(2), o.flatten(2)),
    "conv2d": lambda o: functional.conv2d(o, KERNEL, padding=1),
    "chain": lambda o: functional.interpolate(functional.conv2d(o, KERNEL), size=8).flatten(2).max(2)[0],
}
INDEXED: dict[str, Operation] = {
    "gather": lambda o: o.gather(1, LABELS[:, None]),
    "labels": lambda o: o[torch.arange(4), PICKS],
    "channels": lambda o: o[:, PICKS],
    "rows": lambda o: o.index_select(2, PICKS),
    "mask": lambda o: o[MASK],
    "mask of positions": lambda o: o[:, :, SQUARE],
    "own mask": lambda o: o[o > 0],
    "masked_select": lambda o: o.masked_select(MASK),
    "boxes": boxes,
    "scatter_add": lambda o: torch.zeros_like(OTHER).scatter_add(1, LABELS[:, None], o[:, :1]),
    "index_add": lambda o: torch.zeros(6, 6, 8, 8, dtype=o.dtype).index_add(0, PICKS, o),
    "index_put": lambda o: o.index_put((PICKS % 4,), torch.tensor(1.0, dtype=o.dtype)),
    "take": lambda o: o.take(torch.tensor([0, 99])),
    "one_hot": lambda o: functional.one_hot(o.argmax(1), 6),
    "embedding": lambda o: functional.embedding(o.argmax(1), TABLE),
    "bincount": lambda o: o.argmax(1).flatten().bincount(minlength=6),
    "nonzero": lambda o: (o > 0).nonzero(),
}
SHAPED: dict[str, Operation] = {
    "reshape": lambda o: o.permute(0, 2, 3, 1).reshape(-1, 6),
    "cross_entropy of rows": lambda o: functional.cross_entropy(
        o.permute(0, 2, 3, 1).reshape(-1, 6), LABELS.reshape(-1)
    ),
    "ravel": lambda o: o.ravel(),
    "joined and cut": lambda o: o.reshape(8, -1).unflatten(1, (3, 64)),
    "select a cut row": lambda o: o[:, :, 5] + o[:, :, 2],
    "one word": lambda o: o[1, 2, 3, 4],
    "iterate": lambda o: torch.stack([each.sum() for each in o]),
    "diagonal": lambda o: o.diagonal(dim1=2, dim2=3),
    "diagonal of samples and rows": lambda o: o.diagonal(1, 0, 2),
    "every third row": lambda o: o[:, :, 1::3] * 2,
    "every second channel and column": lambda o: o[:, ::2, :, 3:7:2],
    "no rows": lambda o: o[:, :, 3:3],
    "joined along rows": lambda o: torch.cat([o[:, :, :3], OTHER[:, :, :2], o], 2),
    "joined along channels": lambda o: torch.cat([OTHER, o], 1),
    "both halves": lambda o: torch.mul(*o.chunk(2, 1)),
    "joined with itself": lambda o: torch.cat([o, o], 1),
    "joined along samples": lambda o: torch.cat([o, o.flip(0)], 0),
    "unfold": lambda o: o.unfold(2, 3, 1),
    "im2col": lambda o: functional.unfold(o, 3),
    "repeat": lambda o: o.repeat(1, 2, 1, 1),
    "bits": lambda o: o.detach().view(torch.int64),
    "squeezed": lambda o: o[:1].squeeze(0),
}
MOVED: dict[str, Operation] = {
    "bilinear": lambda o: functional.interpolate(o, scale_factor=2, mode="bilinear"),
    "nearest": lambda o: functional.interpolate(o, size=(5, 11)),
    "flip": lambda o: o.flip((1, 2)),
    "roll": lambda o: o.roll(2, 3),
    "rot90": lambda o: o.rot90(1, (2, 3)),
    "zeros around": lambda o: functional.pad(o, (1, 2, 0, 1)),
    "reflected": lambda o: functional.pad(o, (1, 1, 1, 1), mode="reflect"),
    "circular": lambda o: functional.pad(o, (1, 1, 1, 1), mode="circular"),
    "max_pool2d": lambda o: functional.max_pool2d(o, 2),
    "avg_pool2d": lambda o: functional.avg_pool2d(o, 3, 1, 1),
    "adaptive": lambda o: functional.adaptive_avg_pool2d(o, 3),
    "unpooled": unpooled,
    "pixel_shuffle": lambda o: functional.pixel_shuffle(o[:, :4], 2),
    "fft": lambda o: torch.fft.rfft2(o).abs(),
}
ALONG: dict[str, Operation] = {
    "max of a vector": lambda o: o[0, 0, 0].max(0).values,
    "place of the largest": lambda o: o[0, 0, 0].max(0).indices,
    "any of a vector": lambda o: (o[0, 0, 0] > 0).any(0),
    "any along no dimension": lambda o: (o > 0).any(()) * o,
    "all along no dimension": lambda o: torch.all(o > 0, ()) * o,
    "max of cut rows": lambda o: o.max(2)[0],
    "sort": lambda o: o.sort(2, descending=True)[0],
    "topk": lambda o: o.flatten(1).topk(5)[0],
    "argmax": lambda o: o.argmax(),
    "spread of all, dimensions kept": lambda o: torch.cat(torch.var_mean(o, (0, 1, 2, 3), keepdim=True)),
    "deviation of all, dimensions kept": lambda o: o.std(keepdim=True) * o,
    "sign": lambda o: torch.sgn(o) + o,
    "median": lambda o: o.median(1)[0],
    "quantile": lambda o: o.quantile(0.3, 1),
    "cumprod": lambda o: o.cumprod(3),
    "cummax": lambda o: o.cummax(2)[0],
    "prod": lambda o: o.prod(2),
    "logsumexp": lambda o: o.logsumexp((2, 3)),
    "std": lambda o: o.std((2, 3)),
    "group_norm": lambda o: functional.group_norm(o, 2),
    "layer_norm": lambda o: functional.layer_norm(o, list(o.shape[1:])),
    "batch_norm": lambda o: functional.batch_norm(o, None, None, training=True),
    "total variation": lambda o: (o[..., 1:, :] - o[..., :-1, :]).abs().mean(),
    "singular values": lambda o: torch.linalg.svdvals(o[0, 0]),
    "qr": lambda o: torch.linalg.qr(o.flatten(1).T)[0],
    "glu": lambda o: functional.glu(o, 1),
    "multi_margin_loss": lambda o: functional.multi_margin_loss(o.mean((2, 3)), PICKS),
    "triplet": lambda o: functional.triplet_margin_loss(
        o.flatten(1), OTHER.flatten(1), OTHER.flip(0).flatten(1)
    ),
    "hard examples": lambda o: (
        functional.cross_entropy(o, LABELS, reduction="none").flatten().topk(20)[0].mean()
    ),
}


def changed(change: Callable[[Tensor], Any]) -> Operation:
    """A copy of the output, changed in place."""

    def operation(out: Tensor) -> Tensor:
        out = out * 1
        change(out)
        return out

    return operation


def into(operation: Callable[[Tensor, Tensor], Any]) -> Operation:
    """A plain tensor without words, into which an operation writes."""

    def written(out: Tensor) -> Tensor:
        made = torch.empty(0, dtype=out.dtype)
        operation(out.detach(), made)
        return made + 0 * out.sum()

    return written


def set_to(key: Any, value: Any) -> Operation:
    """The output with some words set."""
    return changed(lambda out: out.__setitem__(key, value))


EVERY = slice(None)
CHANGED: dict[str, Operation] = {
    "a cut row": set_to((EVERY, EVERY, 0), 0.0),
    "a channel": set_to((EVERY, 2), OTHER[:, 2]),
    "a sample": set_to(1, 2.0),
    "rows": set_to((EVERY, EVERY, slice(2, 6)), 0.0),
    "masked words": set_to(MASK, 0.0),
    "picked channels": set_to((EVERY, PICKS), 0.0),
    "a row, added": changed(lambda o: o[:, :, 3].add_(1.0)),
    "transposed": changed(lambda o: o.transpose(2, 3)[:, :, 0].mul_(2)),
    "index_fill_": changed(lambda o: o.index_fill_(1, PICKS, 3.0)),
    "scatter_": changed(lambda o: o.scatter_(1, LABELS[:, None], 0.0)),
    "sorted into itself": changed(lambda o: o.copy_(o.sort(2)[0])),
    "a plain tensor": lambda o: torch.zeros_like(OTHER).index_copy_(1, PICKS, o[:, :4]),
    **{
        f"out=, {name}": into(operation)
        for name, operation in {
            "a sum": lambda o, out: torch.sum(o, 2, out=out),
            "joined": lambda o, out: torch.cat([o, o], 2, out=out),
            "a product": lambda o, out: torch.matmul(o, o, out=out),
            "the largest": lambda o, out: torch.max(o, 2, out=(out, torch.empty(0, dtype=torch.int64))),
            "single words": lambda o, out: torch.clamp(o, 0, 1, out=out),
        }.items()
    },
    "out=, parts": lambda o: torch.cumsum(o.detach(), 2, out=torch.zeros_like(o.detach())) + 0 * o,
}
OPERATIONS = {
    f"{kind}: {name}": each
    for kind, table in {
        "product": PRODUCTS,
        "index": INDEXED,
        "shape": SHAPED,
        "move": MOVED,
        "along": ALONG,
        "change": CHANGED,
    }.items()
    for name, each in table.items()
}
# what torch would show in the output, but the ranks hold elsewhere
REFUSED: dict[str, tuple[Operation, str]] = {
    "diagonal of cut rows": (
        changed(lambda o: o.diagonal(dim1=2, dim2=3).zero_()),
        "zero_ would change a copy",
    ),
    "joined words": (changed(lambda o: o.view(-1)[:7].zero_()), "zero_ would change a copy"),
    "another shape": (changed(lambda o: o.unsqueeze_(0)), "would change the shape of a partitioned tensor"),
    "resized": (changed(lambda o: o.detach().resize_(3)), "would change the shape"),
}
