"""How far real layers are from their lower bounds: `python benchmarks/gap.py` (5 minutes).

Twelve convolutions of ResNet-50 and VGG-16 (batch 32), P = 4, 16, 64, 256, 1024, ample memory. Two ratios:
the integer optimum of Eq. 3 of SPAA'21 over the bound on accessed words, and the plan's received words over
the bound on received words. Both are computed for the layers as they are, and without padding (with an
input that is as large as the kernel needs), since Eq. 3 charges padding zeros and the bound does not.

A second table has image heads, decoders, dilated layers and signals on 4, 16 and 64 processes, and the twelve
layers on 16, 64 and 256 processes with 1.05, 1.5 and 2 times the least memory. Its last rows have all of them
together, with ample memory and with 1.5 times the least.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from synth.analysis.sweep import Sweep, SweepOptions
from synth.base.errors import InfeasibleError
from synth.bounds.paper_cost import accessed_optimum
from synth.layer.layer import Layer, load_layer
from synth.planning.derive import plan

EXAMPLES = Path(__file__).parent.parent / "examples"
PROCS = (4, 16, 64, 256, 1024)
LAYERS = (
    "resnet50/conv1_7x7",
    "resnet50/conv2_x_1x1_reduce",
    "resnet50/conv2_x_3x3",
    "resnet50/conv3_x_3x3_first",
    "resnet50/conv3_x_3x3",
    "resnet50/conv3_x_1x1_expand",
    "resnet50/conv4_x_3x3",
    "resnet50/conv4_x_1x1_reduce",
    "resnet50/conv5_x_3x3",
    "resnet50/conv5_x_1x1_expand",
    "vgg16/conv1_2",
    "vgg16/conv3_2",
)


def layers() -> list[Layer]:
    """The twelve layers."""
    return [load_layer(EXAMPLES / f"{name}.yaml") for name in LAYERS]


def without_padding(layer: Layer) -> Layer:
    """The same output from an input that needs no padding."""
    outs = layer.output_shape[2:]
    sizes = [s * (n - 1) + r for n, s, r in zip(outs, layer.stride, layer.kernel, strict=True)]
    return dataclasses.replace(layer, input=(*layer.input[:2], *sizes), padding=(0,) * len(sizes))


def ratios(layer: Layer, procs: int) -> tuple[float, float | None]:
    """(integer optimum of Eq. 3 / bound on accessed words, received words of the plan / their bound)."""
    point = Sweep(layer.nest, SweepOptions(relaxations=False)).point(procs, None)
    return float(accessed_optimum(layer.nest, procs).cost) / point.accessed.bound, point.received.ratio


def summary(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 90th percentile, largest."""
    return statistics.median(values), statistics.quantiles(values, n=10, method="inclusive")[8], max(values)


def study(padded: bool) -> dict[str, tuple[float, float, float]]:
    """Summaries of both ratios over layers and processes."""
    chosen = layers() if padded else [without_padding(layer) for layer in layers()]
    found = [ratios(layer, procs) for layer in chosen for procs in PROCS]
    received = [ratio for _, ratio in found if ratio is not None]
    return {"Eq. 3": summary([ratio for ratio, _ in found]), "received": summary(received)}


# --- representative layers -----------------------------------------------------------------------------


def heads() -> list[Layer]:
    """The last layers of image networks: many channels, few filters, large images."""
    return [
        Layer.conv2d((1, 64, 1024, 1024), 3, 9, padding=4, name="super-resolution 64-3, 9x9, 1024x1024"),
        Layer.conv2d((1, 64, 1024, 1024), 3, 3, padding=1, name="super-resolution 64-3, 3x3, 1024x1024"),
        Layer.conv2d((1, 64, 512, 512), 2, 3, padding=1, name="U-Net head 64-2, 3x3, 512x512"),
        Layer.conv2d((1, 128, 512, 512), 3, 3, padding=1, name="VAE head 128-3, 3x3, 512x512"),
        Layer.conv2d((8, 256, 64, 64), 19, 3, padding=1, name="segmentation 256-19, 3x3, 64x64, batch 8"),
    ]


def decoders() -> list[Layer]:
    """Layers of U-Net and VAE decoders, one image."""
    sizes = ((64, 512), (128, 256), (256, 128), (512, 64))
    unet = [
        Layer.conv2d((1, 2 * k, n, n), k, 3, padding=1, name=f"U-Net decoder {2 * k}-{k}, {n}x{n}")
        for k, n in sizes
    ]
    return [*unet, Layer.conv2d((1, 256, 256, 256), 256, 3, padding=1, name="VAE decoder 256-256, 256x256")]


def dilated() -> list[Layer]:
    """Dilated layers of images and signals."""
    return [
        Layer.conv1d((1, 64, 16384), 64, 2, dilation=512, name="WaveNet 64-64, k 2, dilation 512"),
        Layer.conv1d((1, 25, 65536), 25, 7, dilation=64, name="TCN 25-25, k 7, dilation 64"),
        Layer.conv2d((1, 512, 128, 128), 512, 3, padding=4, dilation=4, name="DRN 512-512, dilation 4"),
        Layer.conv2d((8, 2048, 33, 33), 256, 3, padding=12, dilation=12, name="ASPP 2048-256, dilation 12"),
        Layer.conv2d((8, 256, 65, 65), 256, 3, padding=2, dilation=2, name="ResNet 256-256, dilation 2"),
    ]


def signals() -> list[Layer]:
    """Layers of networks for signals."""
    return [
        Layer.conv1d((8, 512, 3000), 512, 3, stride=2, name="wav2vec 512-512, k 3, stride 2"),
        Layer.conv1d((8, 80, 3000), 512, 3, padding=1, name="speech 80-512, k 3"),
        Layer.conv1d((1, 32, 1048576), 1, 7, padding=3, name="audio head 32-1, k 7"),
    ]


def kinds() -> dict[str, list[Layer]]:
    """Name of a kind -> its layers."""
    return {"heads": heads(), "decoders": decoders(), "dilated": dilated(), "signals": signals()}


def gap_of(layer: Layer, procs: int, memory: int | None = None) -> tuple[float, float]:
    """(plan / universal bound, plan / bound with the surface of regions), in received words."""
    made = plan(layer, procs, memory)
    total = made.words["total"]
    return total / made.bound.words, total / made.surface_bound


def gaps(
    chosen: Sequence[Layer], counts: Sequence[int], factor: float | None = None
) -> list[tuple[float, float]]:
    """`gap_of` for each layer and number of processes with `factor` times the least memory, None for any.

    The least memory of a process is its part of the three tensors. Where no plan fits, there is no number.
    """
    found = []
    for layer in chosen:
        for procs in counts:
            nest = layer.nest
            words = None if factor is None else int(factor * nest.total_words / procs)
            try:
                found.append(gap_of(layer, procs, None if words is None else words * nest.word_bytes))
            except InfeasibleError:
                continue
    return found


def rows(name: str, pairs: Sequence[tuple[float, float]]) -> list[str]:
    """Rows of a Markdown table: kind, bound, median, 90th percentile and maximum."""
    made = []
    for bound, values in zip(("universal", "with surface"), zip(*pairs, strict=True), strict=True):
        made.append(f"| {name} | {bound} | {' | '.join(f'{v:.2f}' for v in summary(values))} |")
    return made


def representative() -> list[str]:
    """The table of all kinds on 4, 16 and 64 processes with ample memory, of tight memory, of all layers."""
    few, many = (4, 16, 64), (16, 64, 256)
    ample = {name: gaps(each, few) for name, each in kinds().items()}
    made = [row for name, pairs in ample.items() for row in rows(name, pairs)]
    tight = {factor: gaps(layers(), many, factor) for factor in (1.05, 1.5, 2.0)}
    for factor, pairs in tight.items():
        cells = " | ".join(f"{v:.2f}" for v in summary([universal for universal, _ in pairs]))
        made.append(f"| twelve layers, {factor:g} times the least memory | universal | {cells} |")
    others = [layer for each in kinds().values() for layer in each]
    made += rows("all 30 layers", [*chain(*ample.values()), *gaps(layers(), many)])
    return made + rows("all 30 layers, 1.5 times the least memory", [*gaps(others, few, 1.5), *tight[1.5]])


def main() -> None:
    """Prints two Markdown tables."""
    print("| layers | ratio | median | p90 | max |\n|---|---|---|---|---|")
    for padded, name in ((True, "as they are"), (False, "without padding")):
        for ratio, (middle, high, most) in study(padded).items():
            print(f"| {name} | {ratio} | {middle:.3f} | {high:.3f} | {most:.3f} |")
    print("\n| layers | bound | median | p90 | max |\n|---|---|---|---|---|")
    print("\n".join(representative()))


if __name__ == "__main__":
    main()
