"""Network files from a seed: stages of convolutions with sums, concatenations and poolings between them.

Sizes come from all residues, so blocks and shards are uneven, and hardly two layers are alike.
"""

from __future__ import annotations

import random

Row = str


def random_network(seed: int, layers: int, dims: int | None = None) -> str:
    """The text of a network file with so many planned layers at least, of 1 to 3 spatial dimensions."""
    draw = random.Random(seed)
    dims = dims or draw.choice((1, 2, 2, 2, 2, 3))
    rows = draw.choice({1: (512, 1000, 4096), 2: (56, 64, 97, 224), 3: (24, 32, 41)}[dims])
    made = _Builder(draw, dims, rows)
    while made.planned < layers:
        draw.choice((made.plain, made.plain, made.residual, made.joined, made.smaller))()
    shape = [draw.choice((16, 64, 100, 256)), draw.choice((3, 16, 60)), *[rows] * dims]
    return "\n".join([f"network: random{seed}", f"input: {shape}", "layers:", *made.lines, ""])


def distinct_layers(count: int, seed: int = 0) -> str:
    """The text of a two-dimensional network file of so many convolutions, no two alike."""
    draw = random.Random(seed)
    widths = draw.sample(range(48, 48 + 2 * count), count)
    rows = [
        f"  - {{conv2d: {{out_channels: {width}, kernel: {kernel}, padding: {kernel // 2}}}}}"
        for width, kernel in zip(widths, draw.choices((1, 3, 3), k=count), strict=True)
    ]
    return "\n".join(["network: distinct", "input: [256, 64, 56, 56]", "layers:", *rows, ""])


class _Builder:
    """Lines of a network file. planned: layers that are planned."""

    def __init__(self, draw: random.Random, dims: int, rows: int) -> None:
        self.draw, self.dims, self.rows = draw, dims, rows
        self.lines: list[Row] = []
        self.planned = 0
        self.last = "input"

    def plain(self) -> None:
        """A convolution, with a norm and an activation or without."""
        self._conv(self._width(), self.draw.choice((1, 3, 3, 5)))
        if self.draw.random() < 0.5:
            self.lines += ["  - batchnorm: {}", "  - relu: {}"]

    def residual(self) -> None:
        """A convolution, and two more whose result is added to its own."""
        width = self._width()
        first = self._conv(width, 1)
        self._conv(self._width(), 3)
        self.lines.append("  - relu: {}")
        self._sum("add", [self._conv(width, 3), first])

    def joined(self) -> None:
        """Two convolutions of one value, side by side along the channels."""
        value = self._conv(self._width(), 1)
        parts = [self._conv(self._width(), kernel, value) for kernel in (1, 3)]
        self._sum("cat", parts)

    def smaller(self) -> None:
        """Half of the rows, by a pooling or by a stride; every other row group by group."""
        if self.rows < 12:
            self.plain()
            return
        self.rows = (self.rows + 1) // 2
        if self.draw.random() < 0.5:
            self.planned += 1
            self.lines.append("  - pool: {kernel: 3, stride: 2, padding: 1}")
        else:
            self._conv(self._width(), 3, stride=2)

    def _width(self) -> int:
        return self.draw.choice((self.draw.randint(2, 40), self.draw.randint(40, 600), 64, 256))

    def _conv(self, width: int, kernel: int, source: str = "", stride: int = 1) -> str:
        self.planned += 1
        name = f"c{self.planned}"
        inside = f"out_channels: {width}, kernel: {kernel}, padding: {kernel // 2}, stride: {stride}"
        origin = f", from: {source}" if source else ""
        self.lines.append(f"  - {{name: {name}, conv{self.dims}d: {{{inside}}}{origin}}}")
        return name

    def _sum(self, kind: str, parts: list[str]) -> None:
        name = f"{kind}{self.planned}"
        self.lines.append(f"  - {{name: {name}, {kind}: {{}}, from: [{', '.join(parts)}]}}")
