"""The text report of a network plan."""

from __future__ import annotations

from synth.base.text_table import table
from synth.base.units import show_bytes, show_words
from synth.network.plan.idle import idle_processes
from synth.network.plan.plan import NetworkPlan, incoming
from synth.network.plan.recomputation import recomputing_assumptions, recomputing_words
from synth.network.plan.universal import assumptions, universal_words
from synth.network.request import NetworkRequest
from synth.network.solve import Solution
from synth.network.step_time.calls import call_lines

SHOWN_GAP = 5e-5  # smaller gaps are printed as 0.00%


def report(plan: NetworkPlan) -> str:
    """One row per layer, then totals, the proven gap and the single strategies."""
    sections = (heading(plan), layers(plan), margins(plan), totals(plan), single_strategies(plan))
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def margins(plan: NetworkPlan) -> list[str]:
    """One row per tensor of which rows are computed twice or fetched; no line without margins."""
    if plan.margins is None:
        return []
    rows = [["rows of others", "computed", "words fetched"]]
    for name, most in plan.margins.listed().items():
        words = plan.margins.words.get(name, 0)
        if any(most) or words:
            rows.append([name, str(max(most)), show_words(words)])
    return table(rows, right=[1, 2])


def margin_totals(plan: NetworkPlan) -> list[str]:
    """What margins cost and save; no line without margins."""
    found = plan.margins
    if found is None:
        return []
    what = plan.request.objective.replace("time", "seconds")
    best = f"the fewest {what} for these grids" if found.exact else f"not proven to be the fewest {what}"
    if found.above:
        best = f"{found.above:.1%} above {best}, for fewer rounds"
    allowed = "" if found.recompute is None else f", {found.recompute:.0%} allowed"
    return [
        f"margins: {found.extra_work:.1%} more multiply-adds of the busiest process{allowed}; "
        f"{show_words(found.cost)} words fetched in {found.rounds} rounds of messages, without "
        f"margins {show_words(found.words_before)} in {found.rounds_before}; {best}"
    ]


def explain_margins(plan: NetworkPlan) -> str:
    """Why a plan computes rows twice: what is fetched of every tensor, and would be without margins."""
    if plan.margins is None:
        what = "move fewer words" if plan.request.objective == "words" else "are faster"
        return f"{plan.network.name}: no margins of rows {what} than the plan without them\n"
    from synth.network.margins.explain import reasons

    told = reasons(plan.network, plan.placed_grids, plan.request.procs, plan.margins)
    return "\n".join([*margin_totals(plan), "", *told]) + "\n"


def heading(plan: NetworkPlan) -> list[str]:
    """Network, processes, objective, machine."""
    request = plan.request
    unit = "words received per process, at most" if request.objective == "words" else "seconds"
    passes = "forward, backward-data and backward-filter" if request.training else "the forward pass"
    passes += " with resident weights" if request.resident_weights else ""
    lines = [str(plan.network), f"{request.procs} processes, {passes}; objective: {unit}"]
    if request.training:
        lines.append(slices_text(request))
    if request.machine:
        lines.append(f"machine {request.machine}")
    return lines


def slices_text(request: NetworkRequest) -> str:
    """What a training step does with the slices that its forward pass gathers."""
    if request.saves:
        return f"gathered slices of {', '.join(sorted(request.saves))} stay in memory for the backward pass"
    return (
        "gathered slices are gathered again in the backward pass, as ZeRO-3 does; `parallelize` without a "
        "limit of memory keeps them and moves fewer words (`synth.plan_model`)"
    )


def layers(plan: NetworkPlan) -> list[str]:
    """One row per planned layer."""
    into = incoming(plan.edge_costs)
    rows = [["layer", "grid", "ranks by", "stationary", "panels", "cost", "moved in"]]
    decided = plan.placed_grids, plan.layer_costs, plan.tilings, plan.whole
    for node, placed, cost, tiling, whole in zip(plan.network.planned, *decided, strict=True):
        moved = into.get(node.name)
        order = [axis for axis in placed.order if getattr(placed.grid, axis) > 1]
        rows.append(
            [
                node.name,
                placed.grid.shown()
                + "".join(f", {axis} by input rows" for axis in placed.turned)
                + ", whole weights" * whole,
                "".join(order) or "-",
                tiling.first.stationary,
                str(tiling.first.panels),
                plan.show_cost(cost),
                "-" if moved is None else plan.show_cost(moved),
            ]
        )
    return table(rows, right=[4, 5, 6])


def totals(plan: NetworkPlan) -> list[str]:
    """Sums, free redistributions, memory, and what is proven."""
    resident_bytes = plan.resident_words * plan.word_bytes
    return [
        f"layers {plan.show_cost(sum(plan.layer_costs))}, redistribution "
        f"{plan.show_cost(sum(plan.edge_costs.values()))}, "
        + ("" if plan.margins is None else f"rows of others {plan.show_cost(plan.fetched_cost)}, ")
        + f"together {plan.show_cost(plan.cost)}",
        *margin_totals(plan),
        *recomputed_words(plan),
        *statistics(plan),
        *calls(plan),
        *all_words(plan),
        *free_redistributions(plan),
        *idle_processes(plan),
        f"memory of layers, one by one, at most: {show_bytes(plan.used_bytes)}, of which "
        f"{show_bytes(resident_bytes)} are always resident",
        *step_of_model(plan),
        choice(plan.solution),
        *family(plan),
        *(recomputing(plan) if plan.margins else universal(plan)),
    ]


def choice(solution: Solution) -> str:
    """What the solver proves of the options that it chose from."""
    optimal = "optimal " if solution.gap < SHOWN_GAP else ""
    among = f"{optimal}among the options that were looked at, by {solution.method}"
    return f"{among}: proven gap {solution.gap:.2%}"


def family(plan: NetworkPlan) -> list[str]:
    """What no plan of the family goes below; margins are no part of it."""
    least = f"no plan costs less than {plan.show_cost(plan.lower_bound)}"
    if plan.margins:
        return [f"over the whole family without margins: {least}"]
    above = ""
    if plan.lower_bound:
        more = plan.cost / plan.lower_bound - 1
        above = (
            ", which this one costs" if more <= 1e-9 else f"; this one is at most {more:.1%} above the best"
        )
    return [f"over the whole family: {least}{above}"]


def universal(plan: NetworkPlan) -> list[str]:
    """What any schedule of the layers receives; no line where this is nothing, or not known."""
    words = universal_words(plan) if plan.request.objective == "words" else 0
    if words < 1:
        return []
    ratio = f"the plan receives {plan.cost / float(words):.2f} times as many"
    return [
        f"any schedule of these layers receives at least {show_words(int(words))} words on average; {ratio}",
        f"  given: {'; '.join(assumptions(plan))}",
    ]


def recomputing(plan: NetworkPlan) -> list[str]:
    """What any schedule receives that may compute words again; in inference, and where it is something."""
    if plan.request.objective != "words" or plan.request.training:
        return []
    words = recomputing_words(plan)
    if not words:
        return []
    ratio = f"the plan receives {plan.cost / words:.2f} times as many"
    return [
        "any schedule of these layers, even one that computes words again, receives at least "
        f"{show_words(words)} words on average; {ratio}",
        f"  given: {'; '.join(recomputing_assumptions())}",
    ]


def free_redistributions(plan: NetworkPlan) -> list[str]:
    """How many redistributions move nothing; no line with margins, which take the place of many."""
    if plan.margins is not None:
        return []
    return [f"{len(plan.free_edges)} of {len(plan.edge_words)} redistributions move nothing"]


def recomputed_words(plan: NetworkPlan) -> list[str]:
    """Words that checkpoints of the model move again; no line without them."""
    if not plan.recomputed_words:
        return []
    count = sum(bool(node.region) for node in plan.network.planned)
    words = show_words(plan.recomputed_words)
    return [f"checkpoints compute {count} layers again: {words} words more per process"]


def statistics(plan: NetworkPlan) -> list[str]:
    """Words of the exchanges of normalizations; no line without them."""
    lines, how = list[str](), plan.request.batch_norm
    if plan.statistics_words:
        words = show_words(plan.statistics_words)
        lines += [f"batch normalizations with {how} statistics exchange {words} words more per process"]
    if plan.group_statistics_words:
        words = show_words(plan.group_statistics_words)
        lines += [f"group, instance and layer normalizations exchange {words} words more per process"]
    return lines


def calls(plan: NetworkPlan) -> list[str]:
    """Calls that the planner does not cut, by name, with their words and seconds; no line without them."""
    return call_lines(plan.calls, plan.request.training)


def all_words(plan: NetworkPlan) -> list[str]:
    """All words; no line for a network whose words are those of layers and between them, or for time."""
    alone = plan.request.objective == "time" or not plan.words_beside
    return [] if alone and not plan.counted else [f"all in all {plan.received}"]


def step_of_model(plan: NetworkPlan) -> list[str]:
    """What a process holds where `parallelize` runs the plan; sums that travel beside others included."""
    memory, word = plan.memory, plan.word_bytes
    least, most = (show_bytes(words * word) for words in (min(memory.peak), memory.most))
    held = most if least == most else f"{least} to {most}"
    at = memory.peak.index(memory.most)
    parts = {"weights": memory.weights, "gradients": memory.gradients, "buffers": memory.buffers}
    shown = [f"{name} {show_bytes(each[at] * word)}" for name, each in parts.items() if each[at]]
    states = f"; Adam adds {show_bytes(2 * memory.weights[at] * word)}" if plan.request.training else ""
    return [f"a process of `parallelize` holds at most {held}: {', '.join(shown)}, the rest values{states}"]


def single_strategies(plan: NetworkPlan) -> list[str]:
    """The cost of every single strategy beside that of the plan, and what strategies do with small layers."""
    rows = [["one strategy for all layers", "cost", "/ plan", ""]]
    for single in plan.single_strategies:
        if single.cost is None:
            rows.append([single.name, "-", "-", single.why])
        else:
            ratio = f"{single.cost / plan.cost:.3f}" if plan.cost else "-"
            rows.append([single.name, plan.show_cost(single.cost), ratio, single.why])
    small = "a layer that cannot use all processes within a strategy"
    said = f"{small} rules the strategy out; `parallelize` cuts such a layer along other axes, too"
    if not plan.request.strict_axes:
        said = f"{small} is cut along other axes, as in `parallelize`; `synth plan` rules the strategy out"
    return [*table(rows, right=[1, 2]), said]
