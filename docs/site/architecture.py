"""Draws docs/pictures/architecture.svg from the import contract in pyproject.toml: `make pictures`.

A row is a layer of the contract. Each folder imports only from the rows below it.
"""

from __future__ import annotations

import ast
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/pictures/architecture.svg"
WIDTH, HEIGHT, GAP, TOP = 760, 46, 8, 52
ORANGE, BLUE = ("#fdf1dc", "#b87700"), ("#e3eff8", "#0072b2")  # fill, line
GREEN, PURPLE = ("#e2f3ec", "#00795a"), ("#f3e6ef", "#a4507f")


def contracts() -> list[tuple[str, list[list[str]]]]:
    """(container, rows of folders from top to bottom) of each contract of layers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = project["tool"]["importlinter"]["contracts"]
    return [
        (each["containers"][0], [[part.strip() for part in row.split("|")] for row in each["layers"]])
        for each in found
        if each["type"] == "layers"
    ]


def summary(package: str, folder: str) -> str:
    """The first line of the docstring of a folder."""
    path = ROOT.joinpath(*package.split("."), folder, "__init__.py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0].rstrip(".")


def box(x: float, y: float, width: float, name: str, text: str, colours: tuple[str, str]) -> list[str]:
    """A folder with its summary, or the first clause or words of it, whatever fits."""
    fill, line = colours
    most = int(width / 5.9) - 2
    clause = text if len(text) <= most else text.partition(":")[0]
    shown = clause if len(clause) <= most else clause[: most - 1].rsplit(" ", 1)[0] + " …"
    middle = x + width / 2
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT}"'
    return [
        f'<rect {size} rx="5" fill="{fill}" stroke="{line}"/>',
        f'<text x="{middle:.1f}" y="{y + 19:.1f}" class="name">{escape(name)}</text>',
        f'<text x="{middle:.1f}" y="{y + 36:.1f}" class="text">{escape(shown)}</text>',
    ]


def rows_of(
    package: str, rows: list[list[str]], y: float, colours: tuple[str, str]
) -> tuple[list[str], float]:
    """The boxes of a contract from `y` on, and where they end."""
    lines = []
    for row in rows:
        width = (WIDTH - GAP * (len(row) - 1)) / len(row)
        for i, folder in enumerate(row):
            lines += box(20 + i * (width + GAP), y, width, folder, summary(package, folder), colours)
        y += HEIGHT + GAP
    return lines, y


def svg() -> str:
    """The picture."""
    lines: list[str] = []
    y = float(TOP)
    for (package, rows), colours in zip(contracts(), (BLUE, ORANGE, PURPLE, GREEN), strict=True):
        said = f"{package}: each folder imports from the rows below it"
        lines.append(f'<text x="20" y="{y - 12:.1f}" class="head">{said}</text>')
        found, y = rows_of(package, rows, y, colours)
        lines += found
        y += 44
    height = y - 44 + 10
    style = (
        "text{font-family:Helvetica,Arial,sans-serif;fill:#222}"
        ".name{font-size:14px;font-weight:bold;text-anchor:middle}"
        ".text{font-size:11px;text-anchor:middle}.head{font-size:14px}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 40} {height:.0f}" role="img">'
    title = "<title>Folders of synth by layers of the import contract</title>"
    ground = f'<rect width="{WIDTH + 40}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, title, f"<style>{style}</style>", ground, *lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg(), encoding="utf-8")
