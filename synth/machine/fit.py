"""Robust fits of sums of amounts, none of which costs less than nothing, to measured seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HUBER = (
    1.345  # deviations, beyond which a point counts less (Huber, 1964): 95 % as efficient as least squares
)
TO_DEVIATION = 1.4826  # of a normal distribution, by its median deviation
ROUNDS = 20  # of reweighting
EXACT = 1e-9  # relative deviation, below which all points count alike
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


def unseen(points: Points, kinds: Sequence[str]) -> float:
    """The mean relative error of points by fits to the points of other kinds (leave one out).

    kinds: of the points. It is nan where there is one kind.
    """
    every, errors = sorted(set(kinds)), list[float]()
    if len(every) < 2:
        return float("nan")
    for kind in every:
        rest = fitted([p for p, each in zip(points, kinds, strict=True) if each != kind])
        errors += [
            abs(rest.of(p[:-1]) / p[-1] - 1) for p, each in zip(points, kinds, strict=True) if each == kind
        ]
    return float(np.mean(errors))
