"""Network files of networks with dilated layers, and the residue classes that are tried in them.

Where a network continues before or after these layers without dilation, the layers next to them are there:
the redistributions to and from them count. Spatial extents are multiples of the numbers of classes. So no
class has filler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.class_views import View


@dataclass(frozen=True)
class Dilated:
    """A network file and views: numbers of classes along d, h and w."""

    text: str
    views: tuple[View, ...]


class _File:
    """Lines of a network file."""

    def __init__(self, name: str, *shape: int) -> None:
        self.lines = [f"network: {name}", f"input: {list(shape)}", "layers:"]
        self.kind, self.count = f"conv{len(shape) - 2}d", 0

    def add(self, kind: str, *sources: str, **numbers: object) -> str:
        """A layer that reads some layers; its name."""
        self.count += 1
        name = f"{kind}{self.count}"
        body = ", ".join(f"{key}: {value}" for key, value in numbers.items())
        read = f", from: [{', '.join(sources)}]"
        self.lines.append(f"  - {{name: {name}, {kind}: {{{body}}}{read}}}")
        return name

    def conv(self, source: str, out: int, kernel: int = 1, dilation: int = 1, causal: bool = False) -> str:
        """A convolution that keeps the number of rows."""
        zeros = dilation * (kernel - 1)
        padding = f"[[{zeros}, 0]]" if causal else zeros // 2
        return self.add(
            self.kind, source, out_channels=out, kernel=kernel, dilation=dilation, padding=padding
        )

    def block(self, source: str, out: int, kernel: int = 1, dilation: int = 1) -> str:
        """Convolution and batch norm."""
        return self.add("batchnorm", self.conv(source, out, kernel, dilation))

    def relu(self, source: str) -> str:
        """A pointwise layer."""
        return self.add("relu", source)

    @property
    def text(self) -> str:
        """The file."""
        return "\n".join(self.lines) + "\n"


def wavenet(samples: int, stacks: int, skip: int = 256, width: int = 64) -> str:
    """WaveNet (van den Oord et al. 2016): stacks of dilations 1 to 512, kernel 2, gates, skip connections."""
    file = _File("wavenet", 1, width, samples)
    value, total = file.conv("input", width), ""
    for dilation in [2**i for _ in range(stacks) for i in range(10)]:
        gates = [file.relu(file.conv(value, width, 2, dilation, causal=True)) for _ in range(2)]
        product = file.add("mul", *gates)
        value = file.add("add", value, file.conv(product, width))
        part = file.conv(product, skip)
        total = file.add("add", total, part) if total else part
    file.conv(file.relu(file.conv(file.relu(total), 256)), 256)
    return file.text


def tcn(samples: int, width: int = 25, kernel: int = 7, levels: int = 8) -> str:
    """A temporal convolutional network (Bai et al. 2018): two convolutions per dilation 1 to 2^(levels-1)."""
    file = _File("tcn", 1, width, samples)
    value = file.conv("input", width)
    for dilation in [2**i for i in range(levels)]:
        first = file.relu(file.conv(value, width, kernel, dilation, causal=True))
        second = file.relu(file.conv(first, width, kernel, dilation, causal=True))
        value = file.relu(file.add("add", value, second))
    file.conv(value, 10)
    return file.text


def chain(samples: int, width: int = 64) -> str:
    """Dilations 1 to 512, kernel 3, each followed by a pointwise convolution; nothing is read twice."""
    file, value = _File("chain", 1, width, samples), "input"
    for dilation in [2**i for i in range(10)]:
        value = file.conv(file.relu(file.conv(value, width, 3, dilation)), width)
    return file.text


def ms_tcn(samples: int, stages: int = 1) -> str:
    """MS-TCN (Farha and Gall 2019): dilations 1 to 512, kernel 3, 64 channels, residual."""
    file, value = _File("ms_tcn", 1, 64, samples), "input"
    for _ in range(stages):
        value = file.conv(value, 64)
        for dilation in [2**i for i in range(10)]:
            inner = file.relu(file.conv(value, 64, 3, dilation))
            value = file.add("add", value, file.conv(inner, 64))
        value = file.conv(value, 48)
    return file.text


def _residual(file: _File, source: str, before: int, widths: Iterable[tuple[int, int]], dilation: int) -> str:
    """A residual block: convolutions of (channels, kernel), and a projection where the channels change."""
    value, out = source, before
    for place, (out, kernel) in enumerate(widths):
        value = file.relu(value) if place else value
        value = file.block(value, out, kernel, dilation if kernel > 1 else 1)
    short = source if out == before else file.block(source, out)
    return file.relu(file.add("add", value, short))


def drn(batch: int, size: int) -> str:
    """DRN-C-42 (Yu et al. 2017) from stride 8 on: dilations 2 and 4, then 2 and 1 without residuals."""
    file = _File("drn", batch, 128, size, size)
    value = _residual(file, "input", 128, [(128, 3), (128, 3)], 1)
    for out, blocks, dilation in ((256, 6, 2), (512, 3, 4)):
        for block in range(blocks):
            before = out // 2 if block == 0 else out
            value = _residual(file, value, before, [(out, 3), (out, 3)], dilation)
    for dilation in (2, 1):
        value = file.relu(file.block(value, 512, 3, dilation))
    file.conv(value, 19)
    return file.text


def deeplab(batch: int, size: int, blocks: int, rates: tuple[int, ...] = (12, 24, 36)) -> str:
    """DeepLabv3 (Chen et al. 2017) from layer 3 on, stride 8, and ASPP. blocks: of layer 3."""
    file = _File("deeplab", batch, 512, size, size)
    value = "input"
    for width, number, first, later in ((256, blocks, 1, 2), (512, 3, 2, 4)):
        for block in range(number):
            before = 2 * width if block == 0 else 4 * width
            layers = [(width, 1), (width, 3), (4 * width, 1)]
            value = _residual(file, value, before, layers, later if block else first)
    _aspp(file, value, rates)
    return file.text


def aspp(batch: int, size: int, rates: tuple[int, ...] = (12, 24, 36)) -> str:
    """The head of DeepLabv3 alone."""
    file = _File("aspp", batch, 2048, size, size)
    _aspp(file, file.relu(file.block("input", 2048)), rates)
    return file.text


def _aspp(file: _File, value: str, rates: tuple[int, ...]) -> None:
    parts = [file.relu(file.block(value, 256, 1 if rate == 1 else 3, rate)) for rate in (1, *rates)]
    value = file.relu(file.block(file.add("cat", *parts), 256))
    file.conv(file.relu(file.block(value, 256, 3)), 21)


def context(size: int, width: int = 21) -> str:
    """The context module (Yu and Koltun 2016): 3x3 with dilations 1, 1, 2, 4, 8, 16, 1."""
    file = _File("context", 1, width, size, size)
    value = "input"
    for dilation in (1, 1, 2, 4, 8, 16, 1):
        value = file.relu(file.conv(value, width, 3, dilation))
    file.conv(value, width)
    return file.text


def _along(*counts: int, dims: int) -> tuple[View, ...]:
    """Views with the same number of classes along the last 1 or 2 dimensions."""
    return tuple((1, 1, each) if dims == 1 else (1, each, each) for each in counts)


NETWORKS = {
    "wavenet 16384": Dilated(wavenet(16384, 1), _along(16, 64, dims=1)),
    "wavenet 16384, 2 stacks": Dilated(wavenet(16384, 2), _along(16, 64, dims=1)),
    "chain 16384": Dilated(chain(16384), _along(16, 64, dims=1)),
    "tcn 65536": Dilated(tcn(65536), _along(16, 64, dims=1)),
    "tcn 8192": Dilated(tcn(8192), _along(16, 64, dims=1)),
    "ms-tcn 8192": Dilated(ms_tcn(8192), _along(16, 64, dims=1)),
    "drn 128x128": Dilated(drn(1, 128), _along(2, 4, dims=2)),
    "drn 64x64, batch 8": Dilated(drn(8, 64), _along(2, 4, dims=2)),
    "deeplab-50 72x72": Dilated(deeplab(1, 72, 6), _along(2, 4, 12, dims=2)),
    "deeplab-101 72x72": Dilated(deeplab(1, 72, 23), _along(2, 4, 12, dims=2)),
    "aspp 72x72": Dilated(aspp(1, 72), _along(2, 4, 12, dims=2)),
    "aspp 72x72, batch 8": Dilated(aspp(8, 72), _along(2, 4, 12, dims=2)),
    "context 64x64": Dilated(context(64), _along(2, 4, 8, dims=2)),
}
