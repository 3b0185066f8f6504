"""Eq. 4 of SPAA'21 solved in closed form with all its bounds, and the tables of the paper.

Eq. 4 is Eq. 3 without halos, over the composite index x = b·d·h·w. For a stationary tile of t words the
best stationary slice has max(q, t) words. So the problem has one variable:

    minimise  max(q, t) + A·(a/Ta + b/Tb),  t = s·Ta·Tb <= min(M, A·s, s·Na·Nb),  1 <= Ta, Tb <= Na, Nb

    stationary         s   a over Ta   b over Tb   q = its shard, words per process
    Out (c innermost)  1   S  over Tk  RS over Tx  Nk·Nx/P
    Ker (x innermost)  RS  S  over Tk  1  over Tc  RS·Nk·Nc/P
    In  (k innermost)  S   RS over Tx  1  over Tc  S·Nc·Nx/P

with A = Nk·Nc·Nx/P. All words are accessed words in SPAA'21's global virtual memory, not received words.
Legend: N_ extents, T_ tiles, W_ blocks, S and RS products of strides and of kernel extents, M_L words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from synth.base.errors import InfeasibleError, UsageError
from synth.layer.axes import SPATIAL, TENSORS, Tensor
from synth.layer.nest import Nest

NEAR = 1e-9  # relative distance below which a bound is attained


class _Term(NamedTuple):
    """A row of the module's table. The stationary tile has s·Ta·Tb words, the others cost A·(a/Ta + b/Tb)."""

    s: float
    a: float
    b: float
    q: float
    names: tuple[str, str]  # the indices of Ta and Tb: two of k, x, c
    lacked: str  # the lacking index of the stationary tensor, whose loop is innermost


@dataclass(frozen=True)
class Eq4:
    """One instance of Eq. 4, over real numbers."""

    Nk: float
    Nc: float
    Nx: float
    RS: float
    S: float
    P: float
    M_L: float = math.inf  # words
    groups_per_process: float = 1.0  # a process works on these groups one after the other

    @classmethod
    def of(cls, nest: Nest, procs: int, limit_words: float | None = None) -> Eq4:
        """Eq. 4 of a layer. `limit_words` is M_L, the memory for tiles; None for unlimited.

        No tensor lacks the group index g, so splitting g costs nothing. P <= Ng processes have Ng/P groups
        each (a real number), and every group is a problem for one process. P > Ng processes form Ng teams
        of P/Ng. Processes beyond one per (k, c, x) iteration are idle. Raises `UsageError` if `procs` < 1.
        """
        if procs < 1:
            raise UsageError(f"Eq. 4 needs at least 1 process, not {procs}.")
        n = nest.extents
        team = min(max(1.0, procs / n.g), float(n.k * n.c * n.x))
        limit = math.inf if limit_words is None else float(limit_words)
        share = max(1.0, n.g / procs)
        return cls(n.k, n.c, n.x, nest.taps, nest.strides, team, limit, share)

    @property
    def A(self) -> float:  # noqa: N802 - the paper's letter
        """(k, c, x) iterations per process and group."""
        return self.Nk * self.Nc * self.Nx / self.P

    @property
    def K(self) -> float:  # noqa: N802
        """√(RS·S)."""
        return math.sqrt(self.RS * self.S)

    @property
    def t_star(self) -> float:
        """t* = (A·K)^(2/3): words of the stationary tile of the 3D algorithm."""
        return math.pow(self.A * self.K, 2 / 3)

    @property
    def shards(self) -> dict[Tensor, float]:
        """q: words of each tensor per process. `(A·K)² = P·q_O·q_K·q_I`."""
        return {
            "Out": self.Nk * self.Nx / self.P,
            "Ker": self.RS * self.Nk * self.Nc / self.P,
            "In": self.S * self.Nc * self.Nx / self.P,
        }

    def term(self, stationary: Tensor) -> _Term:
        """The row of the module's table for a stationary tensor."""
        q = self.shards[stationary]
        if stationary == "Out":
            return _Term(1, self.S, self.RS, q, ("k", "x"), "c")
        if stationary == "Ker":
            return _Term(self.RS, self.S, 1, q, ("k", "c"), "x")
        return _Term(self.S, self.RS, 1, q, ("x", "c"), "k")

    def extent(self, name: str) -> float:
        """N of the composite index k, x or c."""
        return {"k": self.Nk, "x": self.Nx, "c": self.Nc}[name]


@dataclass(frozen=True)
class ClosedForm:
    """The optimum of Eq. 4: the accessed words per process, and tiles that attain them."""

    case: str  # 1a, 1b (2D); 2a (3D); 2b (2.5D)
    cost: float  # words
    t_k: float
    t_x: float
    t_c: float
    stationary: Tensor
    binding: tuple[str, ...]  # the inequalities that hold with equality, as "T_k <= N_k"

    @property
    def algorithm(self) -> str:
        """The matrix-product algorithm that the case generalizes (SPAA'21, section 2.2)."""
        return {"1": "2D", "2a": "3D", "2b": "2.5D"}[self.case if self.case[0] == "2" else "1"]

    def __str__(self) -> str:
        bounds = ", ".join(self.binding) or "none"
        return (
            f"case {self.case} ({self.algorithm}), {self.stationary} stationary: {self.cost:.1f} words, "
            f"T_k={self.t_k:.4g} T_x={self.t_x:.4g} T_c={self.t_c:.4g}; binding: {bounds}"
        )


def _tile(term: _Term, t: float, Na: float, Nb: float) -> tuple[float, float]:
    """The best (Ta, Tb) for a stationary tile of t words."""
    u = t / term.s
    Ta = min(max(math.sqrt(u * term.a / term.b), 1.0, u / Nb), Na, u)
    return Ta, u / Ta


def solve(problem: Eq4, stationary: Tensor) -> ClosedForm:
    """The optimum of Eq. 4 for one stationary tensor within all bounds (SPAA'21 Eq. 5-9, corrected).

    The cost is convex in log t and piecewise smooth. Its minimum is at t = q, at a stationary point of a
    piece, or where a tile reaches a bound. The function evaluates all these points and takes the best.
    `kkt.Lagrangian.solve` derives them in symbols, one per set of active constraints.
    Raises `InfeasibleError` if M_L does not hold the smallest tile, which has `s` words.
    """
    term = problem.term(stationary)
    A = problem.A
    Na, Nb = (problem.extent(name) for name in term.names)
    s, a, b, q = term.s, term.a, term.b, term.q
    cap = min(problem.M_L, A * s, s * Na * Nb)
    if cap < s * (1 - NEAR):
        raise InfeasibleError(
            f"A {stationary} tile has at least {s:g} words, which {problem.M_L:g} words of tile memory "
            f"do not hold; allow at least {s:g}."
        )
    candidates = [cap, q, s, problem.t_star]
    candidates += [math.sqrt(v) for v in (A * b * s * Na, A * a * s * Nb, A * b * s, A * a * s)]
    candidates += [s * Na**2 * b / a, s * Nb**2 * a / b, s * b / a, s * a / b, s * Na, s * Nb, s * Na * Nb]

    def cost(t: float) -> float:
        Ta, Tb = _tile(term, t, Na, Nb)
        return max(q, t) + A * (a / Ta + b / Tb)

    feasible = [t for t in candidates if s <= t <= cap] or [cap]
    best = min(feasible, key=lambda t: (cost(t), t))
    return _described(problem, stationary, best, cost(best))


def _described(problem: Eq4, stationary: Tensor, t: float, cost: float) -> ClosedForm:
    """The `ClosedForm` of an optimal t: its case and the inequalities that hold with equality."""
    term = problem.term(stationary)
    Na, Nb = (problem.extent(name) for name in term.names)
    tiles = {term.lacked: 1.0, **dict(zip(term.names, _tile(term, t, Na, Nb), strict=True))}

    def near(left: float, right: float) -> bool:
        return abs(left - right) <= NEAR * max(abs(left), abs(right))

    full = math.isfinite(problem.M_L) and near(t, problem.M_L)
    first = t <= term.q or near(t, term.q)
    binding = ["T <= M_L"] * full
    for name in term.names:
        if near(tiles[name], problem.extent(name)):
            binding.append(f"T_{name} <= N_{name}")
        elif near(tiles[name], 1.0):
            binding.append(f"T_{name} >= 1")
    if first:
        binding.append(f"W_{term.lacked} <= N_{term.lacked}")
    elif near(t, problem.A * term.s):
        binding.append(f"W_{term.lacked} >= 1")
    case = ("1a" if full else "1b") if first else ("2b" if full else "2a")
    words = problem.groups_per_process * cost
    return ClosedForm(case, words, tiles["k"], tiles["x"], tiles["c"], stationary, tuple(binding))


def best(problem: Eq4) -> ClosedForm:
    """The cheapest solution over the three stationary tensors. Ties go to Out, then Ker, then In.

    Raises `InfeasibleError` if no tile fits M_L.
    """
    forms = []
    for stationary in reversed(TENSORS):
        try:
            forms.append(solve(problem, stationary))
        except InfeasibleError:
            continue
    if not forms:
        raise InfeasibleError(
            f"No tile fits {problem.M_L:g} words of tile memory; allow at least "
            f"{min(problem.term(t).s for t in TENSORS):g}."
        )
    least = min(form.cost for form in forms)
    return next(form for form in forms if form.cost <= least * (1 + 1e-12))


def paper_bound(nest: Nest, procs: int, limit_words: float | None = None) -> float:
    """The lower bound of the paper, in accessed words: Eq. 4 at M_L = M, best over stationary tensors.

    It bounds the tiled schedules of Eq. 3 only, and only if no halo is negative (kernel >= stride).
    """
    return best(Eq4.of(nest, procs, limit_words)).cost


# --- the tables as printed, and corrected ------------------------------------------------------------------


def _three(problem: Eq4) -> tuple[float, float]:
    """The costs of cases 2a and 2b, 3t* and M + 2AK/√M, without their conditions."""
    work = problem.A * problem.K
    return 3 * problem.t_star, problem.M_L + 2 * work / math.sqrt(problem.M_L)


def table1_printed(problem: Eq4) -> tuple[str, float]:
    """Table 1 of SPAA'21 as printed, for Out stationary: (case, words).

    Row 2 also applies where case 1b holds. It is then below the optimum, down to 0.024 of it.
    """
    q, M = problem.shards["Out"], problem.M_L
    if q >= M:
        return "1a", q + 2 * problem.A * problem.K / math.sqrt(M)
    return ("2a", _three(problem)[0]) if problem.t_star <= M else ("2b", _three(problem)[1])


def table1_corrected(problem: Eq4) -> tuple[str, float]:
    """Table 1 with case 1b (Eq. 7) added: (case, words). Valid if every T is within its bounds."""
    q, M = problem.shards["Out"], problem.M_L
    if problem.t_star < q < M:
        return "1b", q + 2 * problem.A * problem.K / math.sqrt(q)
    return table1_printed(problem)


def _table2(problem: Eq4, shards: Mapping[Tensor, float]) -> float:
    M = problem.M_L
    if min(problem.shards.values()) >= M:
        return min(shards.values()) + 2 * problem.A * problem.K / math.sqrt(M)
    return _three(problem)[0 if problem.t_star <= M else 1]


def table2_printed(problem: Eq4) -> float:
    """Table 2 of SPAA'21 as printed, in words. Its row 1 omits RS and S in the shards."""
    ones = replace(problem, RS=1.0, S=1.0)
    return _table2(problem, ones.shards)


def table2_corrected(problem: Eq4) -> float:
    """Table 2 with min(q_O, q_K, q_I) in row 1, in words. Row 2 is attained only if t* >= max(q)."""
    return _table2(problem, problem.shards)


# --- M_L as a function of the memory M ----------------------------------------------------------------------


def tile_memory(limit_words: float, K: float) -> float:
    """SPAA'21's M_L(M) in words: solves `M_L + 3K·√M_L = M`, for halos that at most double a tile."""
    return limit_words - 0.5 * (3 * K * (math.sqrt(9 * K * K + 4 * limit_words) - 3 * K))


def tile_memory_with_halo(limit_words: float, K: float, phi: float) -> float:
    """M_L(M) in words if the In tile has φ times its words without halo: `M_L + (1+φ)K·√M_L = M`."""
    reach = (1 + phi) * K
    return ((math.sqrt(reach * reach + 4 * limit_words) - reach) / 2) ** 2


def iterated_tile_memory(nest: Nest, procs: int, limit_words: float, max_iterations: int = 50) -> ClosedForm:
    """The closed form, Out stationary, at the M_L whose tiles with halo just fit `limit_words`.

    φ = ∏ (1 + (δ(N-1)+1-σ)/(σT)) over spatial dimensions. Each T comes from T_x, which fills w, then h,
    then d. The iteration stops when φ is stable to 1e-9. Raises `InfeasibleError` if no output fits.
    """
    phi, K = 1.0, Eq4.of(nest, procs).K
    for _ in range(max_iterations):
        words = tile_memory_with_halo(limit_words, K, phi)
        form = solve(Eq4.of(nest, procs, words), "Out")
        remaining, update = form.t_x, 1.0
        for axis in reversed(SPATIAL):
            window = nest.windows[axis]
            T = min(remaining, getattr(nest.extents, axis))
            remaining /= T
            halo = window.span - window.stride
            update *= 1 + max(0, halo) / (window.stride * T)
        if abs(update - phi) <= 1e-9 * phi:
            break
        phi = (phi + update) / 2  # damped, because a larger φ gives a smaller tile and so a larger φ
    return form
