"""Strategies as Table 3 of Kahira et al., HPDC'21, prices them: by one formula each, without overlap."""

from __future__ import annotations

from synth.base.doors import option
from synth.base.errors import InfeasibleError
from synth.prediction.oracle_model import STRATEGIES, hybrid_split
from synth.prediction.oracle_setting import OracleSetting
from synth.prediction.prediction import Prediction, PredictionRequest


def check_limit(request: PredictionRequest, strategy: str) -> tuple[int, str]:
    """(ranks up to which a strategy of Table 3 scales, why). Raises `InfeasibleError` beyond them."""
    limit, why = STRATEGIES[strategy].limit(request.oracle_setting())
    if request.procs > limit:
        raise InfeasibleError(
            f"{strategy} scales to {limit} ranks on {request.network.name} ({why}), not to {request.procs}; "
            f"use at most {limit}"
        )
    return limit, why


def table3(request: PredictionRequest, strategy: str) -> Prediction:
    """A strategy of the table. Raises `InfeasibleError` beyond its scaling limit, which the message names."""
    limit, why = check_limit(request, strategy)
    setting, row = request.oracle_setting(), STRATEGIES[strategy]
    detail = f" ({request.segments} segments)" if strategy == "pipeline" else ""
    if row.hybrid:
        p1, p2 = hybrid_split(setting)
        _check_hybrid(setting, strategy, p1, p2)
        detail = f" ({p1} groups of {p2})"
    return Prediction(request, strategy, tuple(row.price(setting)), limit, why, detail)


def _check_hybrid(setting: OracleSetting, strategy: str, p1: int, p2: int) -> None:
    """Raises `InfeasibleError` if p1 groups have too few samples, or p2 ranks too little to split."""
    inner = STRATEGIES[strategy.removeprefix("data+")].limit(setting)[0]
    if p1 > setting.batch or p2 > inner:
        groups = option("groups")
        remedy = (
            f"choose other {groups}"
            if setting.groups
            else f"take fewer {option('procs')}, or choose {groups}"
        )
        raise InfeasibleError(
            f"{strategy} as {p1} groups of {p2} needs at least {p1} samples and a width of {p2}, but has "
            f"{setting.batch} and {inner}; {remedy}"
        )
