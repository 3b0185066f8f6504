"""The parts of a derivation, and how they are written as text or as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Style = Literal["text", "latex"]


@dataclass(frozen=True)
class Equation:
    """`name = symbolic = numeric`; either right side may be missing. `tex`: a name that is not one symbol."""

    name: str
    symbolic: Any = None
    numeric: Any = None
    tex: str | None = None


@dataclass(frozen=True)
class Section:
    """A heading, sentences, equations."""

    title: str
    sentences: Sequence[str]
    equations: Sequence[Equation] = ()


def text(title: str, parts: Sequence[Section]) -> str:
    """The title and the numbered sections as text."""
    import textwrap

    import sympy

    lines = [title, ""]
    for number, part in enumerate(parts, 1):
        lines.append(f"{number}. {part.title}")
        for sentence in part.sentences:
            lines += textwrap.wrap(
                sentence, 100, initial_indent="   ", subsequent_indent="   ", break_on_hyphens=False
            )
        for each in part.equations:
            sides = [each.name, *(sympy.sstr(v) for v in (each.symbolic, each.numeric) if v is not None)]
            lines += textwrap.wrap(
                " = ".join(sides), 100, initial_indent="     ", subsequent_indent="       "
            )
        lines.append("")
    return "\n".join(lines)


SPECIAL = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}"}
SPECIAL |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "$": r"\$", "<": r"$<$", ">": r"$>$"}


def _escaped(text: str) -> str:
    return "".join(SPECIAL.get(each, each) for each in text)


def latex(title: str, parts: Sequence[Section]) -> str:
    """The same as a LaTeX fragment (amsmath)."""
    import sympy

    lines = [f"% {title!r}; needs amsmath", rf"\section*{{{_escaped(title)}}}"]
    for part in parts:
        lines.append(rf"\subsection*{{{_escaped(part.title)}}}")
        lines += [_escaped(sentence) for sentence in part.sentences]
        for each in part.equations:
            name = each.tex or sympy.latex(sympy.Symbol(each.name))
            sides = [name, *(sympy.latex(v) for v in (each.symbolic, each.numeric) if v is not None)]
            lines += [r"\begin{multline*}", " = \\\\\n".join([sides[0] + " = " + sides[1], *sides[2:]])]
            lines.append(r"\end{multline*}")
    return "\n".join(lines) + "\n"
