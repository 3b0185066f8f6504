"""Colours and empty axes of the pictures for papers."""

from __future__ import annotations

import textwrap
from typing import Any

from synth.base.extras import extra_needed

# Okabe and Ito (2008): eight colours that colour-blind readers tell apart
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7f7f7f",
)  # fmt: skip
OF_TENSOR = {"In": BLUE, "Ker": ORANGE, "Out": GREEN}


POINTS, PER_INCH = 9, 14  # the size of titles, and how many of their letters an inch holds


def titled(axes: Any, text: str, pad: float = 6, inches: float = 5.0) -> None:
    """A title at the left, in lines of some inches."""
    axes.set_title(lines_of(text, inches), fontsize=POINTS, loc="left", pad=pad)


def lines_of(text: str, inches: float) -> str:
    """A title, broken where its lines would be longer."""
    return textwrap.fill(text, int(PER_INCH * inches))


@extra_needed()
def framed(width: float = 6.4, height: float = 4.0) -> tuple[Any, Any]:
    """A figure of some inches with one plot: (figure, its axes)."""
    figure = _figure(width, height)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    return figure, axes


@extra_needed()
def side_by_side(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure of some inches with `count` plots in a row: (figure, their axes)."""
    figure = _figure(width, height)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _figure(width: float, height: float) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "synth"  # the same picture, the same bytes
    return Figure(figsize=(width, height), layout="constrained")
