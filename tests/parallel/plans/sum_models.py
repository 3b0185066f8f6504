"""Models with a sum or product of two values, of which some lie in no layout that the planner has chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import nn

Operand = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

OPERANDS: dict[str, Operand] = {  # of the model's input, and of a convolution of a half of it
    "input": lambda x, y: x,
    "slice": lambda x, y: torch.cat([x[:, 3:], x[:, :3]], 1),
    "halves": lambda x, y: torch.cat([x.chunk(2, 1)[1], y[:, :3]], 1),
    "layer": lambda x, y: y,
    "layers": lambda x, y: torch.cat([y, y.relu()], 1)[:, 3:9],
}
WORDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "sub": torch.sub,
    "where": lambda a, b: torch.where(a > b, a, b),
}
SHAPE = (2, 6, 9, 12)


class Joined(nn.Module):
    """A convolution, a word of two operands, a second convolution, and the word with its result."""

    def __init__(self, word: str, first: str, second: str) -> None:
        super().__init__()
        self.word, self.operands = WORDS[word], (OPERANDS[first], OPERANDS[second])
        self.inner, self.outer = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 6, h, w)"""
        y = self.inner(x).tanh()
        z = self.word(*(each(x, y) for each in self.operands))
        first, second = z, self.outer(z)
        return self.word(second, first) if self.operands[0] is OPERANDS["layer"] else self.word(first, second)


class Couplings(nn.Module):
    """Halves of the channels in turn get a convolution of the other half. turned: the operands of sums."""

    def __init__(self, turned: bool, steps: int = 3) -> None:
        super().__init__()
        self.turned = turned
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
            for _ in range(2 * steps)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 6, h, w)"""
        a, b = x.chunk(2, 1)
        for net in self.nets:
            made = net(b)
            a, b = b, made + a if self.turned else a + made
        return torch.cat([a, b], 1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{word} of {first} and {second}": partial(Joined, word, first, second)
        for word, (first, second) in product(("add", "mul"), product(OPERANDS, OPERANDS))
        if first != second
    },
    "couplings": partial(Couplings, False),
    "couplings, turned": partial(Couplings, True),
}
