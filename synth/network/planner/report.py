"""A network plan for people, as JSON, and as CSV rows."""

from __future__ import annotations

from typing import Any

from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.layer.axes import TENSORS
from synth.network.graph import Edge
from synth.network.planner.candidates import Kind
from synth.network.planner.owned_boxes import Boxes, Placed
from synth.network.planner.plan import NetworkPlan


def shown(plan: NetworkPlan, cost: float) -> str:
    """A cost with its unit."""
    if plan.asked.objective == "words":
        return show_words(cost)
    return f"{cost * 1e3:.4g} ms"


def report(plan: NetworkPlan) -> str:
    """Layer by layer, then totals, the proven gap and the single strategies."""
    return (
        "\n\n".join("\n".join(part) for part in (heading(plan), layers(plan), totals(plan), rivals(plan)))
        + "\n"
    )


def heading(plan: NetworkPlan) -> list[str]:
    """Network, processes, objective, machine."""
    asked = plan.asked
    what = "words received per process, at most" if asked.objective == "words" else "seconds"
    passes = "forward, backward-data and backward-filter" if asked.training else "the forward pass"
    lines = [str(plan.network), f"{asked.procs} processes, {passes}; objective: {what}"]
    if asked.machine:
        lines.append(f"machine {asked.machine}")
    return lines


def layers(plan: NetworkPlan) -> list[str]:
    """One row per planned layer."""
    incoming: dict[str, float] = {}
    for edge, cost in plan.edge_costs.items():
        incoming[edge.target] = incoming.get(edge.target, 0.0) + cost
    rows = [["layer", "grid", "ranks by", "stays", "panels", "cost", "moved in"]]
    for node, placed, cost, fit in zip(
        plan.network.planned, plan.chosen, plan.layer_costs, plan.fits, strict=True
    ):
        moved = incoming.get(node.name)
        order = [axis for axis in placed.order if getattr(placed.grid, axis) > 1]
        rows.append(
            [
                node.name,
                placed.grid.shown(),
                "".join(order) or "-",
                fit.first.stationary,
                str(fit.first.panels),
                shown(plan, cost),
                "-" if moved is None else shown(plan, moved),
            ]
        )
    return table(rows, right=[4, 5, 6])


def totals(plan: NetworkPlan) -> list[str]:
    """Sums, free redistributions, memory, and what is proven."""
    solution, size = plan.solution, plan.network.planned[0].layer.nest.word_bytes  # type: ignore[union-attr]
    over = f", at most {plan.cost / plan.least - 1:.1%} above" if plan.least else ""
    held = plan.used_words * size
    return [
        f"layers {shown(plan, sum(plan.layer_costs))}, redistribution "
        f"{shown(plan, sum(plan.edge_costs.values()))}, together {shown(plan, plan.cost)}",
        f"{len(plan.free_edges)} of {len(plan.edge_words)} redistributions move nothing",
        *idle(plan),
        f"memory per process, at most: {show_bytes(held)}, of which {show_bytes(plan.resident * size)} stay",
        f"optimal among the options by {solution.method}: proven gap {solution.gap:.2%}",
        f"no plan of this family costs less than {shown(plan, plan.least)}{over}",
    ]


def idle(plan: NetworkPlan) -> list[str]:
    """How many processes stay idle, where some do."""
    left = {
        node.name: plan.asked.procs - p.grid.size
        for node, p in zip(plan.network.planned, plan.chosen, strict=True)
        if p.grid.size < plan.asked.procs
    }
    if not left:
        return []
    most = max(left, key=lambda name: left[name])
    return [
        f"processes idle: some in {len(left)} of {len(plan.chosen)} layers, at most {left[most]} of "
        f"{plan.asked.procs} ({most})"
    ]


def rivals(plan: NetworkPlan) -> list[str]:
    """The best single strategies."""
    rows = [["one strategy for all layers", "cost", "/ plan", ""]]
    for single in plan.singles:
        if single.cost is None:
            rows.append([single.name, "-", "-", single.why])
        else:
            over = f"{single.cost / plan.cost:.3f}" if plan.cost else "-"
            rows.append([single.name, shown(plan, single.cost), over, single.why])
    return table(rows, right=[1, 2])


def to_json(plan: NetworkPlan) -> dict[str, Any]:
    """`synth.network-plan/1`: decisions and costs; words or seconds as `objective` says, limits in bytes."""
    asked = plan.asked
    best = plan.best_single
    rows = zip(plan.network.planned, plan.kinds, plan.chosen, plan.layer_costs, plan.fits, strict=True)
    return {
        "schema": "synth.network-plan/1",
        "name": plan.network.name,
        "procs": asked.procs,
        "objective": asked.objective,
        "pass": "training" if asked.training else "forward",
        "kept": [tensor.lower() for tensor in TENSORS if asked.training and tensor in asked.kept],
        "machine": asked.machine.name if asked.machine else None,
        "cost": plan.cost,
        "lower_bound": plan.least,
        "gap": plan.solution.gap,
        "method": plan.solution.method,
        "memory_limit": asked.limit_bytes,
        "word_bytes": plan.kinds[0].nest.word_bytes,
        "memory_words": plan.used_words,
        "resident_words": plan.resident,
        "layers": [
            {
                "name": node.name,
                "grid": placed.grid._asdict(),
                "order": list(placed.order),
                "stationary": fit.first.stationary.lower(),
                "panels": fit.first.panels,
                "cost": cost,
                "words": _words(kind, placed, plan),
                "memory_words": fit.used_words,
                "gradients": [tensor.lower() for tensor in kind.gradients if asked.training],
            }
            for node, kind, placed, cost, fit in rows
        ],
        "redistributions": [_edge(edge, plan) for edge in plan.edge_words],
        "singles": [{"name": s.name, "cost": s.cost, "why": s.why} for s in plan.singles],
        "best_single": best.name if best else None,
        "ratio": plan.ratio,
    }


def _words(kind: Kind, placed: Placed, plan: NetworkPlan) -> dict[str, int]:
    """Tensor -> what the rank that receives most of it receives; their sum is no rank's, in general."""
    asked = plan.asked
    boxes = Boxes(kind.nest, [placed], asked.procs)
    _, by_tensor = boxes.words(kind.passes(asked.training), kind.weighted, asked.kept)
    return {tensor: int(by_tensor[tensor][0]) for tensor in ("in", "ker", "out")}


def _edge(edge: Edge, plan: NetworkPlan) -> dict[str, Any]:
    return {
        "from": edge.source,
        "to": edge.target,
        "onto": edge.role,
        "words": plan.edge_words[edge],
        "cost": plan.edge_costs[edge],
    }
