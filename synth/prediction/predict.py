"""`synth predict`: one strategy layer by layer, or all of them side by side, in one model.

Every strategy is a choice of grids and of places of weights for all layers, as a plan is, and `StepSeconds`
prices it. So rows are comparable, and the plan is never slower than one of them.
Beside them stand strategies as Table 3 of Kahira et al., HPDC'21, prices them: by one formula each, without
overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from synth.base.doors import option
from synth.base.errors import InfeasibleError, SynthError, UsageError
from synth.base.yaml_positions import did_you_mean
from synth.machine.hierarchy import Machine
from synth.network.grids.owned_boxes import MAX_EXACT_RANKS
from synth.network.plan.idle import idle_processes
from synth.network.plan.plan import NetworkPlan, incoming
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.network.step_time.choice import TimedStep
from synth.prediction.oracle_model import STRATEGIES, hybrid_split
from synth.prediction.oracle_setting import LayerCost, OracleSetting
from synth.prediction.prediction import Comparison, Prediction, PredictionRequest
from synth.prediction.profile import NominalRate

PLANNED = ("stationary-x", "stationary-y", "stationary-w", "2D", "3D", "plan")
NAMES = (*STRATEGIES, *PLANNED)
FREE = "none"


def predict(request: PredictionRequest, strategy: str) -> Prediction:
    """One strategy. Raises `InfeasibleError` beyond its scaling limit, which the message names.

    Raises `UsageError` for an unknown strategy or a number out of range.
    """
    known = {name.lower(): name for name in NAMES}
    if strategy.lower() not in known:
        raise UsageError(f"strategy {strategy!r} is unknown{did_you_mean(strategy, NAMES)}")
    strategy = known[strategy.lower()]
    _check(request)
    if request.table3:
        if strategy in PLANNED:
            raise UsageError(f"strategy {strategy} is not in Table 3; leave out {option('table3')}")
        return table3(request, strategy)
    _check_in_family(request, strategy)
    return _of_plan(request, _plan(request), strategy)


def compare(request: PredictionRequest) -> Comparison:
    """Every strategy that can be used, and why the others cannot."""
    _check(request)
    plan = None if request.table3 else _plan(request)
    predictions, refused = [], []
    for name in STRATEGIES if plan is None else NAMES:
        try:
            if plan is None:
                predictions.append(table3(request, name))
                continue
            _check_in_family(request, name)
            predictions.append(_of_plan(request, plan, name))
        except SynthError as fault:
            refused.append((name, str(fault)))
    return Comparison(request, tuple(predictions), tuple(refused))


def _check(request: PredictionRequest) -> None:
    if request.procs < 1 or request.batch < 1 or request.segments < 1:
        raise UsageError("procs, batch and segments must be at least 1")
    if not 0 <= request.reuse <= 1:
        raise UsageError(f"reuse is {request.reuse:g}; it must be from 0 to 1")
    if request.table3 and not request.training:
        raise UsageError(
            f"{option('table3')} prices training steps alone; leave it out, or {option('pass_', 'forward')}"
        )
    if request.batch_norm != "local" and not request.training:
        raise UsageError(
            f"{option('batch_norm', request.batch_norm)} is of training, since inference takes running "
            f"statistics; leave it out with {option('pass_', 'forward')}"
        )
    samples = request.network.input[0]
    if request.batch != samples and not request.table3:
        raise UsageError(
            f"predictions are for the {samples} samples of the network's file, not for "
            f"{option('batch', request.batch)}; change the file's input, or ask for {option('table3')}"
        )
    asked = (request.groups, request.segments, request.flows, request.reuse)
    if asked != (None, 8, None, 1.0) and not request.table3:
        raise UsageError(
            f"{option('groups')}, {option('segments')}, {option('flows')} and {option('reuse')} are of "
            f"{option('table3')}; leave them out, or add it"
        )


def _check_in_family(request: PredictionRequest, strategy: str) -> None:
    """Raises `InfeasibleError` for a strategy that is no plan, or that does not scale to the ranks."""
    if strategy == "pipeline":
        raise InfeasibleError(
            f"a pipeline puts layers on different ranks, as no plan does; see {option('table3')}"
        )
    if strategy in STRATEGIES:
        check_limit(request, strategy)


def _plan(request: PredictionRequest) -> NetworkPlan:
    """The plan for time of a training step or forward pass, with all strategies beside it.

    Weights of a forward pass are resident. A step of the plan fits the machine's memory; if that takes a
    limit of layers, all strategies stay within it.
    """
    asked = NetworkRequest(
        request.procs,
        "time",
        training=request.training,
        machine=_machine_at_profile_rate(request),
        batch_norm=request.batch_norm,
        whole_weights=request.training,
        resident_weights=not request.training,
        limit_bytes=None if request.training else request.machine.limit_bytes,
    )
    return plan_network(request.network, asked)


def _of_plan(request: PredictionRequest, plan: NetworkPlan, strategy: str) -> Prediction:
    """A strategy of a plan, or the plan itself. On one rank all are the plan."""
    limit, why = (None, FREE) if strategy in PLANNED else check_limit(request, strategy)
    if strategy in ("plan", "serial"):
        assert plan.timed is not None
        rows = _rows(plan, plan.timed, plan.incoming_costs, [each.used_words for each in plan.tilings])
        idle, whole = " ".join(idle_processes(plan)), _whole(plan, plan.timed)
        held = None if request.training else plan.held_bytes
        return Prediction(request, strategy, rows, limit, why, "", plan.used_bytes, whole, idle, held)
    single = next((each for each in plan.single_strategies if each.name == strategy), None)
    if single is None:
        raise InfeasibleError(
            f"{strategy} is planned on at most {MAX_EXACT_RANKS} processes, not on {request.procs}; ask for"
            " the plan, or for fewer processes"
        )
    if single.timed is None:
        raise InfeasibleError(f"{strategy} {single.why}")
    rows = _rows(plan, single.timed, incoming(single.edge_costs), single.layer_words)
    used_bytes = single.used_words * plan.word_bytes
    return Prediction(request, strategy, rows, limit, why, "", used_bytes, _whole(plan, single.timed))


def _whole(plan: NetworkPlan, step: TimedStep) -> int:
    """Layers whose ranks hold the whole slices of Ker that they use."""
    if plan.request.resident_weights:
        return sum(node.weighted for node in plan.network.planned)
    return sum(step.whole)


def _rows(
    plan: NetworkPlan, step: TimedStep, into: dict[str, float], words: Sequence[int]
) -> tuple[LayerCost, ...]:
    """The seconds of every layer. into: layer -> those of what moves to it beside its own exchanges.

    In training half of it counts forward, and half backward.
    """
    back = 0.5 if plan.request.training else 0.0
    return tuple(
        LayerCost(
            node.name,
            forward=each.forward,
            backward=each.backward,
            update=each.update,
            comm_forward=each.comm_forward + into.get(node.name, 0.0) * (1 - back),
            comm_backward=each.comm_backward + into.get(node.name, 0.0) * back,
            exchange=each.exchange,
            used_bytes=used * plan.word_bytes,
        )
        for node, each, used in zip(plan.network.planned, step.layers, words, strict=True)
    )


def _machine_at_profile_rate(request: PredictionRequest) -> Machine:
    """The machine with the compute rate that the profile reaches over the whole network, in its passes."""
    if isinstance(request.compute_times, NominalRate):
        return request.machine
    samples = request.network.input[0]
    nodes = [n for n in request.network.planned if n.weighted]
    times = [request.compute_times.times(n, samples) for n in nodes]
    seconds = sum(t.forward + (t.backward if request.training else 0.0) for t in times)
    operations = (6 if request.training else 2) * sum(n.operations for n in nodes) / samples
    if seconds <= 0:
        return request.machine
    compute = replace(request.machine.compute, rate=operations / seconds, rates=())
    return replace(request.machine, compute=compute)


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
