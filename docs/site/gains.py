"""Draws docs/pictures/gains.svg from plans of a 3-D U-Net: `make pictures`.

What a process holds and receives in a training step with the plan, and with DDP, FSDP2, tensor and spatial
parallelism: the rows that `synth plan NET.yaml` prints for networks. The text is grey, and the ground
transparent, so that the picture is readable on light and dark pages.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/pictures/gains.svg"
VOLUMES, EXTENT, PROCS = 4, 256, 64
WIDE, LEFT, GAP, TOP, ROW = 760, 64, 28, 66, 27  # pixels
GREY, BLUE, BAR = "#76808c", "#1f7fd1", "#9aa3ad"
Row = tuple[str, float, float, str]  # method, GiB that a process holds, million words that it receives, cut


def planned() -> list[Row]:
    """The plan and the methods in use today, of the U-Net of examples/unet3d.py."""
    sys.path.insert(0, str(ROOT))
    import torch

    import synth
    from examples.unet3d import UNet3d
    from synth.analysis.today_network import today

    with torch.device("meta"):  # weights without values
        model = UNet3d()
    shape = (VOLUMES, 1, EXTENT, EXTENT, EXTENT)
    plan = synth.plan_model(model, shape, PROCS, batch_norm="local")
    return [
        (
            "synth" if each.name == "this plan" else each.name,
            (each.memory_bytes or 0) / 2**30,
            (each.words or 0) / 1e6,
            each.how,
        )
        for each in today(plan)
    ]


def svg(rows: list[Row]) -> str:
    """The picture: two panels of bars on log scales, with the number at the end of each."""
    wide = (WIDE - LEFT - 2 * GAP) // 2 - 60
    high = TOP + ROW * len(rows) + 24
    title = f"3-D U-Net, {VOLUMES} volumes of {EXTENT}³: one training step on {PROCS} processes"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" width="{WIDE}" height="{high}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13" fill="{GREY}">',
        f"<title>{title}</title>",
        f'<text x="0" y="16" font-size="15" font-weight="600">{title}</text>',
    ]
    for panel, (name, unit) in enumerate(
        (("a process holds", "GiB"), ("a process receives", "million words"))
    ):
        x = LEFT + panel * (wide + 60 + 2 * GAP)
        values = [row[1 + panel] for row in rows]
        low = math.log(min(values) / 3)
        lines.append(f'<text x="{x}" y="46">{name}, {unit}</text>')
        for i, (row, value) in enumerate(zip(rows, values, strict=True)):
            y = TOP + ROW * i
            long = wide * (math.log(value) - low) / (math.log(max(values)) - low)
            mine = i == 0
            bold = f' font-weight="700" fill="{BLUE}"' if mine else ""
            if not panel:
                lines.append(f'<text x="0" y="{y + 13}"{bold}>{row[0]}</text>')
            fill = BLUE if mine else BAR
            lines.append(f'<rect x="{x}" y="{y}" width="{long:.1f}" height="17" rx="3" fill="{fill}"/>')
            lines.append(f'<text x="{x + long + 6:.1f}" y="{y + 13}"{bold}>{shown(value)}</text>')
    idle = next((row[3].split(", ")[-1].split()[0] for row in rows if "idle" in row[3]), "0")
    foot = (
        "log scales; planned, without optimizer state; "
        f"with DDP and FSDP2 {idle} of {PROCS} processes have no volume"
    )
    return "\n".join([*lines, f'<text x="0" y="{high - 6}" font-size="12">{foot}</text>', "</svg>"]) + "\n"


def shown(value: float) -> str:
    """Three digits; thousands are separated."""
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}".replace(",", " ")


if __name__ == "__main__":
    PICTURE.write_text(svg(planned()), encoding="utf-8")
