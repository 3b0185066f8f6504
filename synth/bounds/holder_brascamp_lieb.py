"""Certified constants C(N, R) of a one-dimensional convolution, and the weighted work of a layer.

C(N, R) is the least constant such that, for all u on N outputs, v on N+R-1 inputs and h on R taps,

    Σ_{x<N, r<R} u(x)·v(x+r)·h(r)  <=  C(N, R)·‖u‖·‖v‖·‖h‖        (Euclidean norms)

C(N, R)² is the largest eigenvalue, over unit h, of the N x N Toeplitz matrix of the autocorrelation of h.
With indicator functions, |F| <= C·√(|O|·|I|·|K|) for every set F of multiply-adds that touches |O| outputs,
|I| inputs and |K| taps: a Hölder-Brascamp-Lieb (HBL) inequality. The constants of several dimensions
multiply, and the matrix-product indices have the constant 1 (Loomis-Whitney).

For min(N, R) = 1 and 2 the constant has a closed form. For 3 and 4 it is computed, and used only if
`_certified` proves it. Everything else uses the bound √min(N, R) (Cauchy-Schwarz).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

from synth.layer.axes import SPATIAL
from synth.layer.nest import Nest
from synth.layer.window import Window

SLACK = 2e-8  # relative margin of the certified C² above the largest value found


@lru_cache(maxsize=1024)
def hbl_constant(outputs: int, taps: int) -> float:
    """An upper bound of C(N, R): exact to 1e-8 if min(N, R) <= 4 and both are <= 4096, else √min(N, R).

    C is symmetric in N and R, because u and h have symmetric roles. Raises `ValueError` if N or R is < 1.
    """
    few, many = sorted((outputs, taps))
    if few < 1:
        raise ValueError(f"C({outputs}, {taps}) needs at least one output and one tap.")
    if few == 1:
        return 1.0
    if few == 2:
        return math.sqrt(1 + math.cos(math.pi / (many + 1)))
    if few > 4 or many > 4096:
        return math.sqrt(few)
    ceiling = _largest_found(many, few) * (1 + SLACK)
    return (
        math.sqrt(min(ceiling, few)) if ceiling < few and _certified(many, few, ceiling) else math.sqrt(few)
    )


def pivots(n: int, diagonal: float, lags: Sequence[float]) -> list[tuple[float, float, float, float]] | None:
    """LDLᵀ factors of the symmetric Toeplitz matrix with this diagonal and off-diagonals `-lags`.

    A row is (pivot, the three entries of L left of the diagonal). None unless positive definite.
    """
    a1, a2, a3 = (-lag for lag in (*lags, 0.0, 0.0, 0.0)[:3])
    rows = []
    d1 = d2 = d3 = 1.0  # pivots of the 3 previous rows
    p1 = p2 = q1 = 0.0  # entries of L: p of the previous row, q of the one before
    for row in range(n):
        c3 = a3 if row > 2 else 0.0
        l3 = c3 / d3
        c2 = a2 - c3 * q1 if row > 1 else 0.0
        l2 = c2 / d2
        c1 = a1 - c3 * p2 - c2 * p1 if row > 0 else 0.0
        l1 = c1 / d1
        pivot = diagonal - c3 * l3 - c2 * l2 - c1 * l1
        if pivot <= 0.0:
            return None
        rows.append((pivot, l1, l2, l3))
        d3, d2, d1 = d2, d1, pivot
        q1, p1, p2 = p1, l1, l2
    return rows


def solve(rows: list[tuple[float, float, float, float]], right: list[float]) -> list[float]:
    """Solve the linear system with the factors of `pivots`."""
    y = [0.0, 0.0, 0.0]
    for (_, l1, l2, l3), value in zip(rows, right, strict=True):
        y.append(value - l1 * y[-1] - l2 * y[-2] - l3 * y[-3])
    x = [value / row[0] for value, row in zip(y[3:], rows, strict=True)]
    for i in range(len(x) - 1, 0, -1):
        _, l1, l2, l3 = rows[i]
        x[i - 1] -= l1 * x[i]
        if i > 1:
            x[i - 2] -= l2 * x[i]
        if i > 2:
            x[i - 3] -= l3 * x[i]
    return x


def _autocorrelation(values: Sequence[float], lags: int) -> list[float]:
    """Lags 1..lags of the autocorrelation of a vector, divided by its squared norm."""
    norm = math.fsum(v * v for v in values)
    return [sum(map(lambda a, b: a * b, values, values[k:])) / norm for k in range(1, lags + 1)]


def _largest_found(n: int, taps: int) -> float:
    """A close lower bound of C(N, R)², by alternating between h and the top eigenvector of its matrix."""
    u = [math.sin(math.pi * (x + 1) / (n + 1)) for x in range(n)]
    best = 0.0
    for _ in range(30):
        lags = _autocorrelation(u, taps - 1)
        h = [1.0] * taps  # top eigenvector of the small Toeplitz matrix, by power iteration
        for _ in range(40):
            h = [
                sum(h[j] * (lags[abs(i - j) - 1] if i != j else 1.0) for j in range(taps))
                for i in range(taps)
            ]
            norm = math.sqrt(sum(v * v for v in h))
            h = [v / norm for v in h]
        of_h = _autocorrelation(h, taps - 1)
        value = 1 + 2 * sum(a * b for a, b in zip(of_h, lags, strict=True))
        if value <= best * (1 + 1e-10):
            break
        best = value
        shift = 0.3 * taps / (n * n)  # inverse iteration converges fast just above the top eigenvalue
        while (rows := pivots(n, value + shift - 1, of_h)) is None:
            shift *= 2
        for _ in range(3):
            u = solve(rows, u)
            norm = math.sqrt(sum(v * v for v in u))
            u = [v / norm for v in u]
    return best


def _lags_of(s: float, e: float, taps: int) -> list[float] | None:
    """The autocorrelation whose symbol is proportional to (y-s)(y-e), times 1+y for 4 taps; y = cos θ."""
    p0, p1, p2, p3 = s * e, -(s + e), 1.0, 0.0
    if taps == 4:
        p0, p1, p2, p3 = p0, p0 + p1, p1 + 1.0, 1.0
    constant = p0 + p2 / 2
    if constant <= 0:
        return None
    return [v / (2 * constant) for v in (p1 + 0.75 * p3, p2 / 2, p3 / 4)[: taps - 1]]


def _certified(n: int, taps: int, ceiling: float) -> bool:
    """Whether this function proves C(N, R)² <= ceiling, R = 3 or 4.

    The autocorrelations of unit h are the non-negative cosine polynomials with mean 1 (Fejér-Riesz). They
    form a convex set, and the largest eigenvalue is convex on it, so its maximum is at an extreme point. In
    y = cos θ the extreme points are (y-t)² for R = 3 with t in [-1, 0] (and 1-y², which has the spectrum of
    y²), and (1+y)(y-t)² for R = 4 with t in [-1, 1]; the sign change y -> -y keeps the spectrum. Between
    t = s and t = e they are a rational Bézier curve with positive weights. So the curve is in the convex
    hull of its control points (y-s)², (y-s)(y-e), (y-e)². It suffices that the matrix at every control
    point has no eigenvalue above the ceiling, which a Cholesky factorization decides.
    """

    def below(s: float, e: float) -> bool:
        lags = _lags_of(s, e, taps)
        return lags is not None and pivots(n, ceiling - 1 - 1e-11, lags) is not None

    ends = [-1.0, -0.5, 0.0] if taps == 3 else [-1.0, -0.5, 0.0, 0.5, 1.0]
    if not all(below(t, t) for t in ends):
        return False
    stack = list(itertools.pairwise(ends))
    while stack:
        s, e = stack.pop()
        if below(s, e):
            continue
        middle = (s + e) / 2
        if e - s < 1e-6 or not below(middle, middle):
            return False
        stack += [(s, middle), (middle, e)]
    return True


def residues(window: Window) -> list[tuple[float, list[int]]]:
    """The residue classes of the taps: (the constant C of the class, its taps) for each class.

    Taps r and r' can read the same row iff δ(r-r') is a multiple of σ. Within a class, successive taps are
    δ/gcd(σ, δ) output positions apart. So the outputs split into classes too, of ⌈N·gcd(σ, δ)/δ⌉ each.
    """
    common = math.gcd(window.stride, window.dilation)
    outputs = -(-window.out * common // window.dilation)
    step = window.stride // common
    classes = [list(range(first, window.kernel, step)) for first in range(step)]
    return [(hbl_constant(outputs, len(taps)), taps) for taps in classes if taps]


def kappa2(nest: Nest) -> float:
    """κ₂: the product over spatial dimensions of Σ over residue classes of (taps of the class)/C.

    It ignores the padding. A set of F multiply-adds that uses all taps equally often touches
    |O|·|I|·|K| >= (F·κ₂/RS)².
    """
    product = 1.0
    for axis in SPATIAL:
        product *= math.fsum(len(taps) / constant for constant, taps in residues(nest.windows[axis]))
    return product


def weighted_work(nest: Nest, power: float) -> float:
    """Σ of C^-power over the multiply-adds that do not read padding, C of their residue class.

    Power 1 gives F·κ₂/RS if there is no padding. `universal.universal_bound` needs power 2/3.
    """
    n = nest.extents
    product = float(n.b * n.g * n.c * n.k)
    for axis in SPATIAL:
        window, out = nest.windows[axis], getattr(n, axis)
        product *= math.fsum(
            _tap_count(window, tap, out) / constant**power
            for constant, taps in residues(window)
            for tap in taps
        )
    return product


def _tap_count(window: Window, tap: int, out: int) -> int:
    """Number of output positions at which a tap reads an input row, not padding."""
    first, last = tap_range(window, tap, out)
    return last - first


def tap_range(window: Window, tap: int, out: int) -> tuple[int, int]:
    """The output positions `[first, last)` at which a tap reads an input row, not padding."""
    shift = window.dilation * tap - window.padding
    first = max(0, -(shift // window.stride))
    last = min(out, (window.size - 1 - shift) // window.stride + 1)
    return (first, last) if first < last else (0, 0)
