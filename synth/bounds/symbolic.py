"""The universal bound of one layer as an expression in P, M and n: `synth bounds LAYER --symbolic`.

    q = min(⌈⌈F/P⌉/n⌉, F/G)     V = H³/q      bound = max(0, X(V)/P - (n-1)·M - (Out+In+Ker)/P)

for every integer n >= 1, at fair load. X is the water-filling of docs/bounds.md, in four pieces. F are the
multiply-adds, H their weighted sum, G groups, L1 >= L2 >= L3 the words of the three tensors. Without a memory
limit n = 1, and the pieces are intervals of P. `closed` eliminates n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from synth.bounds.assumptions import SCHEDULES
from synth.bounds.holder_brascamp_lieb import weighted_work
from synth.bounds.regimes import BY_COUNT
from synth.bounds.universal import segment_counts
from synth.layer.layer import Layer
from synth.layer.nest import Nest

SCHEMA = "synth.symbolic_bound/1"
FAIR = "at most ceiling(F/P) multiply-adds in each of P processes, and at most M words of memory"
MEANINGS = {
    "P": "processes",
    "M": "words of memory of a process",
    "n": "segments: any integer from 1 is valid, without a memory limit n = 1",
    "F": "multiply-adds on real input",
    "H": "sum of C^(-2/3) over them (docs/bounds.md)",
    "G": "groups",
    "Out": "words",
    "In": "words",
    "Ker": "words",
}


@dataclass(frozen=True)
class Piece:
    """An interval of P in which the bound without a memory limit is one formula."""

    first: int
    last: int | None  # None: without end
    regime: str  # how many tensors must travel
    bound: Any


@dataclass(frozen=True)
class SymbolicBound:
    """The bound on received words of one nest, at fair load. Words are those of an average process."""

    nest: Nest

    @cached_property
    def values(self) -> dict[str, float]:
        """The numbers of the layer for F, H, G, Out, In and Ker."""
        nest = self.nest
        numbers = {"F": nest.real_work, "H": weighted_work(nest, 2 / 3), "G": nest.extents.g}
        return {**numbers, **{tensor: nest.read_words[tensor] for tensor in ("Out", "In", "Ker")}}

    def symbol(self, name: str) -> Any:
        """A positive symbol."""
        import sympy

        return sympy.Symbol(name, positive=True, integer=name != "H" or None)

    @property
    def sizes(self) -> list[Any]:
        """The symbols of the three tensors, most words first."""
        order = sorted(("Out", "In", "Ker"), key=lambda tensor: -self.values[tensor])
        return [self.symbol(tensor) for tensor in order]

    @cached_property
    def largest(self) -> Any:
        """q: the most multiply-adds of a segment."""
        import sympy

        F, P, n, G = (self.symbol(name) for name in "FPnG")
        q = sympy.ceiling(sympy.ceiling(F / P) / n)
        return sympy.Min(q, sympy.floor(F / G)) if self.nest.extents.g > 1 else q

    @property
    def volume(self) -> Any:
        """V: the least product of the accessed words of the three tensors."""
        return self.symbol("H") ** 3 / self.largest

    def accessed(self, volume: Any) -> list[tuple[Any, Any]]:
        """The pieces of X as (words of all processes, the largest V at which they hold or True)."""
        import sympy

        one, two, three = self.sizes
        return [
            (one + two + three, one * two * three),
            (one + two + volume / (one * two), one * two**2),
            (one + 2 * sympy.sqrt(volume / one), one**3),
            (3 * sympy.cbrt(volume), sympy.true),
        ]

    def _received(self, accessed: Any) -> Any:
        P, n, M = (self.symbol(name) for name in "PnM")
        return accessed / P - (n - 1) * M - sum(self.sizes) / P

    @cached_property
    def bound(self) -> Any:
        """The bound for any n, a sympy expression in P, M, n and the symbols of the layer."""
        import sympy

        V = self.volume
        pieces = [(x, most if most is sympy.true else sympy.Le(V, most)) for x, most in self.accessed(V)]
        return sympy.Max(0, self._received(sympy.Piecewise(*pieces)))

    @cached_property
    def closed(self) -> Any:
        """A weaker bound without n: 2·H^(3/2)/(P·√(P·⌈F/P⌉·M)) - (Out+In+Ker)/P."""
        import sympy

        F, P, M, H = (self.symbol(name) for name in "FPMH")
        return 2 * sympy.sqrt(H) ** 3 / (P * sympy.sqrt(P * sympy.ceiling(F / P) * M)) - sum(self.sizes) / P

    @cached_property
    def pieces(self) -> list[Piece]:
        """The bound without a memory limit, interval by interval of P."""
        import sympy

        V, found, first = sympy.Symbol("V", positive=True), [], 1
        cube = Fraction(self.values["H"]) ** 3
        for regime, (x, most) in zip(BY_COUNT, self.accessed(V), strict=True):
            last = None
            if most is not sympy.true:
                limit = Fraction(int(most.subs({s: int(self.values[s.name]) for s in self.sizes})))
                last = self._last(cube / limit)
            if last is not None and last < first:
                continue
            n = self.symbol("n")
            bound = self._received(x).subs(n, 1).subs(V, self.volume.subs(n, 1))
            found.append(Piece(first, last, regime, bound))
            if last is None:
                break
            first = last + 1
        return found

    def _last(self, least: Fraction) -> int | None:
        """The largest P with min(⌈F/P⌉, F/G) >= `least`: 0 if there is none, None if it has no end."""
        work, q = int(self.values["F"]), math.ceil(least)
        if q > max(1, work // self.nest.extents.g):
            return 0
        return None if q <= 1 else -(-work // (q - 1)) - 1

    @cached_property
    def _function(self) -> Any:
        import sympy

        names = [*"PMn", *self.values]
        return sympy.lambdify([self.symbol(name) for name in names], self.bound, modules="math")

    def value(self, procs: int, limit_words: int | None = None) -> float:
        """The expression at numbers: words per process, the largest over n."""
        nest, values = self.nest, self.values
        sizes = (values["Out"], values["In"], values["Ker"])
        cap = min(max(1, -(-nest.real_work // procs)), max(1, nest.real_work))
        piece = max(1, nest.real_work // nest.extents.g)
        counts = segment_counts(sizes, values["H"], cap, procs, limit_words, piece)
        memory = 0 if limit_words is None else limit_words
        return float(max(self._function(procs, memory, n, *values.values()) for n in counts))

    def to_json(self, layer: Layer) -> dict[str, Any]:
        """All expressions as text for sympy and for LaTeX, with the numbers of the layer."""
        import sympy

        expressions = {"q": self.largest, "V": self.volume, "bound": self.bound, "without_n": self.closed}
        return {
            "schema": SCHEMA,
            "name": layer.name,
            "problem": layer.to_json(),
            "meanings": MEANINGS,
            "values": self.values,
            "sympy": {name: sympy.sstr(each) for name, each in expressions.items()},
            "latex": {name: sympy.latex(each) for name, each in expressions.items()},
            "without_memory_limit": [
                {
                    "first_procs": piece.first,
                    "last_procs": piece.last,
                    "regime": piece.regime,
                    "sympy": sympy.sstr(piece.bound),
                    "latex": sympy.latex(piece.bound),
                }
                for piece in self.pieces
            ],
            "assumptions": [*SCHEDULES, FAIR],
        }


def text(layer: Layer, bound: SymbolicBound) -> str:
    """The bound as text, formulas in sympy's notation."""
    import sympy

    lines = [
        f"{layer.name}: {layer}",
        "",
        "received words per process, at least, on average over the processes",
    ]
    lines += [f"  q = {sympy.sstr(bound.largest)}", "  V = H**3/q"]
    V = sympy.Symbol("V", positive=True)
    for x, most in bound.accessed(V):
        where = "otherwise" if most is sympy.true else f"if V <= {sympy.sstr(most)}"
        lines.append(f"  X = {sympy.sstr(x)}  {where}")
    lines += ["  bound = max(0, X/P - M*(n - 1) - (Out + In + Ker)/P), for every integer n >= 1"]
    lines += ["", "without a memory limit n = 1, or 0 where the formula is negative"]
    for piece in bound.pieces:
        end = "on" if piece.last is None else f"to {piece.last}"
        lines += [f"  P from {piece.first} {end}, {piece.regime}: {sympy.sstr(piece.bound)}"]
    lines += [
        "",
        "with memory M, the best n replaced",
        f"  bound >= {sympy.sstr(bound.closed)}",
        "",
        "symbols",
    ]
    for name, meaning in MEANINGS.items():
        value = f" = {bound.values[name]:.12g}" if name in bound.values else ""
        lines.append(f"  {name}{value}: {meaning}")
    lines += ["", "for every schedule with", *(f"- {each}" for each in (*SCHEDULES, FAIR))]
    return "\n".join(lines) + "\n"


def latex(layer: Layer, bound: SymbolicBound) -> str:
    """The bound as a LaTeX fragment (amsmath)."""
    import sympy

    lines = [f"% {layer.name!r}: lower bound on received words per process; needs amsmath"]
    lines += [rf"% {name} = {value!r}: {MEANINGS[name]}" for name, value in bound.values.items()]
    lines += [f"% for every schedule with {each}" for each in (*SCHEDULES, FAIR)]
    for name, each in (("q", bound.largest), ("Q(P, M, n)", bound.bound), (r"Q(P, M)", bound.closed)):
        relation = r"\geq" if name != "q" else "="
        lines.append(rf"\[ {name} {relation} {sympy.latex(each)} \]")
    lines.append(r"\[ Q(P, \infty) \geq \begin{cases}")
    for piece in bound.pieces:
        where = rf"P \geq {piece.first}" if piece.last is None else rf"{piece.first} \leq P \leq {piece.last}"
        lines.append(rf"  {sympy.latex(piece.bound)} & {where} \\")
    lines.append(r"\end{cases} \]")
    return "\n".join(lines) + "\n"
