"""Robust fits of sums of amounts, none of which costs less than nothing, to measured seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HUBER = (
    1.345  # deviations, beyond which a point counts less (Huber, 1964): 95 % as efficient as least squares
)
TO_DEVIATION = 1.4826  # of a normal distribution, by its median deviation
ROUNDS = 20  # of reweighting
EXACT = 1e-9  # relative deviation, below which all points count alike
LEAST = 1e-6  # of the time of a point, which a factor that is not 0 explains
Points = Sequence[tuple[float, ...]]


@dataclass(frozen=True)
class Fitted:
    """What each amount takes (seconds per unit of it), its relative standard error, and what is left.

    error: the mean relative error of the points. The error of a factor that is 0, or of as many points as
    factors, is infinite.
    """

    factors: tuple[float, ...]
    error: float
    errors: tuple[float, ...]

    def of(self, amounts: Sequence[float]) -> float:
        """Seconds of some amounts."""
        return float(np.dot(amounts, self.factors))


def fitted(points: Points) -> Fitted:
    """The factors, none negative, of `seconds = amounts · factors` from points (*amounts, seconds).

    Relative errors are weighed alike, so small messages count as much as large ones. Points that are far off
    count less: least squares, reweighted (Holland and Welsch, 1977).
    """
    from scipy.optimize import nnls  # slow to import

    table = np.array(points)
    shares = table[:, :-1] / table[:, -1:]
    scale = np.linalg.norm(shares, axis=0)
    scale[scale == 0] = 1.0
    shares = shares / scale
    weights = np.ones(len(table))
    for _ in range(ROUNDS):
        root = np.sqrt(weights)
        factors = nnls(shares * root[:, None], root)[0]
        left = shares @ factors - 1
        deviation = TO_DEVIATION * float(np.median(np.abs(left)))
        far = np.abs(left) > HUBER * max(deviation, EXACT)
        new = np.where(far, HUBER * max(deviation, EXACT) / np.maximum(np.abs(left), EXACT), 1.0)
        if np.allclose(new, weights, atol=1e-6):
            break
        weights = new
    errors = _errors(shares, factors, left, weights)
    found = tuple(map(float, factors / scale))
    return Fitted(found, float(np.abs(left).mean()), tuple(map(float, errors)))


def _errors(
    shares: NDArray[np.float64],
    factors: NDArray[np.float64],
    left: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Relative standard errors of the factors that are not 0, from what the fit leaves."""
    errors, used = np.full(len(factors), np.inf), factors > 0
    more = len(shares) - int(used.sum())
    if more > 0 and used.any():
        some = shares[:, used] * np.sqrt(weights)[:, None]
        variance = float((weights * left**2).sum()) / more
        spread = np.sqrt(np.maximum(0.0, np.diag(np.linalg.pinv(some.T @ some))) * variance)
        errors[used] = spread / factors[used]
    return errors


def fitted_by_ratio(points: Points) -> Fitted:
    """The same with the least squares of `log(predicted / measured)`, in which all points count.

    This is for a model that is too simple for some points, which are not wrong. A third of the time is as bad
    as three times it; relative errors would count 0.67 and 2.
    """
    from scipy.optimize import least_squares

    table = np.array(points)
    amounts, seconds = table[:, :-1], table[:, -1]
    used: NDArray[np.bool_] = np.asarray(amounts.any(axis=0))
    begin = np.array(fitted(points).factors)[used]
    share = (amounts[:, used] / seconds[:, None]).max(axis=0)  # a factor of 1 / share explains a point alone
    begin = np.maximum(begin, LEAST / share)

    def left(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.log(amounts[:, used] @ np.exp(logs) / seconds)
        return found

    low, high = np.log(LEAST * LEAST / share), np.log(2 * table.shape[1] / share + begin)
    made = least_squares(left, np.log(begin), bounds=(low, np.maximum(high, low + 1)))
    factors, errors = np.zeros(len(used)), np.full(len(used), np.inf)
    found = np.exp(made.x)
    found[found * share < LEAST] = 0.0
    factors[used] = found
    more = len(table) - int(used.sum())
    if more > 0:
        spread = np.linalg.pinv(made.jac.T @ made.jac) * (made.fun**2).sum() / more
        errors[used] = np.where(found > 0, np.sqrt(np.maximum(0.0, np.diag(spread))), np.inf)
    off = float(np.abs(np.exp(left(made.x)) - 1).mean())
    return Fitted(tuple(map(float, factors)), off, tuple(map(float, errors)))


def unseen(
    points: Points, kinds: Sequence[str], fit: Callable[[Points], Fitted] = fitted, typical: bool = False
) -> float:
    """The mean relative error of points by fits to the points of other kinds (leave one out).

    kinds: of the points. typical: the median over the kinds of the error of their sum, instead. It is nan
    where there is one kind.
    """
    every, errors, sums = sorted(set(kinds)), list[float](), list[float]()
    if len(every) < 2:
        return float("nan")
    for kind in every:
        rest = fit([p for p, each in zip(points, kinds, strict=True) if each != kind])
        errors += [
            abs(rest.of(p[:-1]) / p[-1] - 1) for p, each in zip(points, kinds, strict=True) if each == kind
        ]
        if typical:
            mine = [p for p, each in zip(points, kinds, strict=True) if each == kind]
            sums.append(abs(sum(rest.of(p[:-1]) for p in mine) / sum(p[-1] for p in mine) - 1))
    return float(np.median(sums) if typical else np.mean(errors))
