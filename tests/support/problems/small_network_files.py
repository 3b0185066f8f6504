"""Network files of a few small layers from a seed, of every kind that may have margins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

Shape = tuple[int, tuple[int, ...]]  # channels, rows
LAYERS = (
    # kernel, stride, padding, further arguments
    *[(3, 1, 1, "")] * 4,
    (5, 1, 2, ""),
    (2, 1, 1, ""),
    (1, 1, 0, ""),
    (3, 1, 0, ""),
    (3, 2, 1, ""),
    (2, 2, 0, ""),
    (4, 2, 1, ""),
    (3, 1, 2, ", dilation: 2"),
    (2, 2, 0, ", transposed: true"),
    (4, 2, 1, ", transposed: true"),
)


def small_network(seed: int) -> str:
    """The text of a network file of up to 8 layers."""
    draw = random.Random(seed)
    dims = draw.choice((1, 2, 2, 3))
    rows = tuple(
        draw.choice({1: (24, 37, 64), 2: (8, 12, 17, 32), 3: (4, 6, 8, 12)}[dims]) for _ in range(dims)
    )
    made = _Builder(draw, draw.choice((1, 2, 3, 8)), rows)
    made.add(f"conv{dims}d: {{out_channels: 4, kernel: 1}}", (4, rows))
    for _ in range(draw.randrange(1, 8)):
        draw.choice((made.conv, made.conv, made.conv, made.pool, made.plain, made.upsample, made.joined))()
    shape = [draw.choice((1, 1, 1, 2, 3)), made.channels, *rows]
    return "\n".join([f"network: small{seed}", f"input: {shape}", "layers:", *made.lines, ""])


@dataclass
class _Builder:
    draw: random.Random
    channels: int
    rows: tuple[int, ...]
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    @property
    def last(self) -> tuple[str, Shape]:
        return next(reversed(self.shapes.items()), ("input", (self.channels, self.rows)))

    def add(self, text: str, shape: Shape, others: tuple[str, ...] = ()) -> None:
        """A layer behind the last one, unless it has no rows or many."""
        if 1 <= min(shape[1]) <= max(shape[1]) <= 80:
            name, read = f"n{len(self.lines)}", ", ".join((self.last[0], *others))
            self.lines.append(f"  - {{name: {name}, {text}, from: [{read}]}}")
            self.shapes[name] = shape

    def conv(self) -> None:
        """A convolution, now and then of single channels."""
        (channels, rows), out = self.last[1], self.draw.choice((1, 2, 4, 16))
        kernel, stride, padding, rest = self.draw.choice(LAYERS)
        reach = (2 if "dilation" in rest else 1) * (kernel - 1) - 2 * padding
        if "transposed" in rest:
            after = tuple((n - 1) * stride + reach + 1 for n in rows)
        else:
            after = tuple((n - 1 - reach) // stride + 1 for n in rows)
        if not rest and self.draw.random() < 0.2:
            out, rest = channels, f", groups: {channels}"
        numbers = f"out_channels: {out}, kernel: {kernel}, stride: {stride}, padding: {padding}{rest}"
        self.add(f"conv{len(rows)}d: {{{numbers}}}", (out, after))

    def pool(self) -> None:
        """A pooling with or without overlap."""
        channels, rows = self.last[1]
        kernel, stride, padding = self.draw.choice(((2, 2, 0), (3, 2, 1), (3, 1, 1)))
        after = tuple((n + 2 * padding - kernel) // stride + 1 for n in rows)
        self.add(f"pool: {{kernel: {kernel}, stride: {stride}, padding: {padding}}}", (channels, after))

    def plain(self) -> None:
        """A function of single words."""
        self.add(self.draw.choice(("relu: {}", "batchnorm: {}")), self.last[1])

    def upsample(self) -> None:
        """Twice as many rows."""
        channels, rows = self.last[1]
        self.add("upsample: {scale: 2}", (channels, tuple(2 * n for n in rows)))

    def joined(self) -> None:
        """A sum or a concatenation with a layer before."""
        name, (channels, rows) = self.last
        kind = self.draw.choice(("add", "cat"))
        others = [
            other
            for other, shape in self.shapes.items()
            if other != name and shape[1] == rows and (kind == "cat" or shape[0] == channels)
        ]
        if others:
            other = self.draw.choice(others)
            more = self.shapes[other][0] if kind == "cat" else 0
            self.add(f"{kind}: {{}}", (channels + more, rows), (other,))
