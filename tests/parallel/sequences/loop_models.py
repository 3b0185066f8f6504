"""Loops over positions as users write them: recurrences of many forms, some of which are no scan."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Loop = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of two tensors (b, positions, c)


def number(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A moving average."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        h = 0.9 * h + b[:, i]
        made.append(h)
    return torch.stack(made, 1)


def fused(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """By `addcmul`, from the first row on, and the states times rows."""
    h, made = b[:, 0], [a[:, 0] * b[:, 0]]
    for i in range(1, b.shape[1]):
        h = torch.addcmul(b[:, i], a[:, i], h)
        made.append(a[:, i] * h.square())
    return torch.stack(made, dim=1)


def swapped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The term first, a factor of one word per row, and only the last state."""
    h = b.mean(1)
    for one, other in zip(a.unbind(1), b.unbind(1), strict=True):
        h = other + h * one.mean(-1, keepdim=True)
    return h.unsqueeze(1) + b


def backwards(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """From the last row to the first."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in reversed(range(b.shape[1])):
        h = a[:, i] * h + b[:, i]
        made.append(h)
    return torch.stack(made[::-1], 1)


def nonlinear(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A term that depends on the state: no scan."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        h = a[:, i] * h + torch.tanh(b[:, i] + h)
        made.append(h)
    return torch.stack(made, 1)


def late(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A factor that depends on a state some turns before: no scan."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        factor = torch.sigmoid(made[i - 3]) if i > 4 else a[:, i]
        h = factor * h + b[:, i]
        made.append(h)
    return torch.cat([each.unsqueeze(1) for each in made], 1)


def kept(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The states before each row, and some states in another sum."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        made.append(h)
        h = a[:, i] * h + b[:, i]
    return torch.stack(made, 1) + (made[2] * h).unsqueeze(1)


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A recurrence of the states of another, in the same loop."""
    h, g, made = torch.zeros_like(b[:, 0]), torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        h = a[:, i] * h + b[:, i]
        g = 0.5 * g + h
        made.append(g)
    return torch.stack(made, 1)


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """States that are changed in place."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(b.shape[1]):
        h = h.clone()
        h *= a[:, i]
        h += b[:, i]
        made.append(h)
    return torch.stack(made, 1)


def other_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Each turn reads a row of one tensor, and the row before of another."""
    h, made = torch.zeros_like(b[:, 0]), []
    for i in range(1, b.shape[1]):
        h = a[:, i - 1] * h + b[:, i]
        made.append(h * a[:, i])
    return nn.functional.pad(torch.stack(made, 1), (0, 0, 1, 0))


def blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Blocks of three rows, each by itself, and what is left."""
    made, end = [], b.shape[1] // 3 * 3
    for i in range(0, end, 3):
        block = b[:, i : i + 3].softmax(1) * a[:, i : i + 3]
        made.append(block - block.mean(1, keepdim=True))
    return torch.cat([*made, b[:, end:]], 1) + torch.cat([torch.cat(made, 1), b[:, end:]], 1)


def shuffled_rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Rows that are read in another order than they are stacked."""
    rows = b.shape[1]
    return torch.stack([b[:, (5 * i + 2) % rows] * a[:, i] for i in range(rows)], 1)


def unlike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Parts that are not all made alike."""
    parts = [torch.relu(b[:, i]) if i % 3 else torch.tanh(b[:, i]) for i in range(b.shape[1])]
    return torch.stack(parts, 1) + torch.stack([(i + 1) * a[:, i] for i in range(a.shape[1])], 1)


def weighted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Means with weights that decay, as RWKV has them: both states begin with words that have a gradient."""
    made, decay = [], torch.sigmoid(a.mean((0, 1)))
    top, below = torch.zeros_like(b[:, 0]), torch.zeros_like(b[:, 0])
    for i in range(b.shape[1]):
        made.append((top + a[:, i] * b[:, i]) / (below + a[:, i]))
        top, below = decay * top + a[:, i].exp() * b[:, i], decay * below + a[:, i].exp()
    return torch.stack(made, 1)


LOOPS: tuple[Loop, ...] = (
    *(number, fused, swapped, backwards, nonlinear, late, kept, twice, weighted),
    *(in_place, other_rows, blocks, shuffled_rows, unlike),
)
SHORT: tuple[Loop, ...] = number, fused, swapped, nonlinear, kept, other_rows, blocks, weighted


class Looped(nn.Module):
    """Some loops between two convolutions, added."""

    def __init__(self, loops: tuple[Loop, ...] = LOOPS) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(4, 2, 3, padding=1)
        self.loops = loops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.first(x).transpose(1, 2).chunk(2, -1)
        a = torch.sigmoid(a)
        made = torch.stack([loop(a, b) for loop in self.loops]).sum(0)
        return self.last(made.transpose(1, 2))
