"""How far twelve real layers are from their lower bounds: `python benchmarks/gap.py`.

Twelve convolutions of ResNet-50 and VGG-16 (batch 32), P = 4, 16, 64, 256, 1024, ample memory. Two ratios:
the integer optimum of Eq. 3 of SPAA'21 over the bound on accessed words, and the plan's received words over
the bound on received words. Both are computed for the layers as they are, and without padding (with an
input that is as large as the kernel needs), since Eq. 3 charges padding zeros and the bound does not.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path

from synth.analysis.sweep import Sweep, SweepOptions
from synth.bounds.paper_cost import accessed_optimum
from synth.layer.layer import Layer, load_layer

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


def main() -> None:
    """Prints a Markdown table."""
    print("| layers | ratio | median | p90 | max |\n|---|---|---|---|---|")
    for padded, name in ((True, "as they are"), (False, "without padding")):
        for ratio, (middle, high, most) in study(padded).items():
            print(f"| {name} | {ratio} | {middle:.3f} | {high:.3f} | {most:.3f} |")


if __name__ == "__main__":
    main()
