"""Draws docs/pictures/gains.svg from the measurements in benchmarks/results: `make pictures`.

What the busiest of 4 processes moves and holds in a training step, beside other kinds of parallelism.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/models-60mbit.md"
PICTURE = ROOT / "docs/pictures/gains.svg"
# rows of the table of results -> what they are called
NETWORKS = {
    "resnet50": "ResNet-50\n16 images",
    "cosmoflow": "CosmoFlow\n4 volumes",
    "unet3d": "3-D U-Net\n4 volumes",
}
KINDS = {"ours, local": "synth", "DDP": "DDP", "FSDP2": "FSDP2", "tensor": "tensor", "spatial": "spatial"}
COLOURS = ["#0072b2", "#d9d9d9", "#bdbdbd", "#969696", "#737373"]
PANELS = ("MB that move per step (log scale)", "MB of parameters, gradients and momenta (log scale)")
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "synth", "font.size": 9, "font.family": "sans-serif"}


def measured() -> dict[tuple[str, str], tuple[float, float]]:
    """(network, contender) -> MB moved and MB held of the busiest of 4 processes."""
    found, network = dict[tuple[str, str], tuple[float, float]](), ""
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")]
        if len(cells) == 12 and cells[9].replace(".", "").isdigit():
            network = cells[0] or network
            found[network, cells[2]] = float(cells[9]), float(cells[10])
    return found


def main() -> None:
    """Draw the picture."""
    rows = measured()
    with mpl.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(7.6, 2.9), layout="constrained")
        for panel, (place, title) in enumerate(zip(axes, PANELS, strict=True)):
            _draw(place, title, panel, rows)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def _draw(place: Any, title: str, panel: int, rows: dict[tuple[str, str], tuple[float, float]]) -> None:
    for number, (kind, name) in enumerate(KINDS.items()):
        known = [
            (spot, rows[network, kind][panel])
            for spot, network in enumerate(NETWORKS)
            if (network, kind) in rows
        ]
        at = [spot + 0.18 * (number - 2) for spot, _ in known]
        bars = place.bar(at, [value for _, value in known], 0.17, label=name, color=COLOURS[number])
        place.bar_label(bars, fmt="%.3g", fontsize=6, padding=1)
    place.set_title(title, fontsize=9)
    place.set_xticks(range(len(NETWORKS)), list(NETWORKS.values()))
    place.set_yscale("log")
    place.margins(y=0.12)
    place.set_yticks([])
    place.minorticks_off()
    for side in ("top", "right", "left"):
        place.spines[side].set_visible(False)


if __name__ == "__main__":
    main()
