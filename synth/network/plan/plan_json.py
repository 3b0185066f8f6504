"""Network plan files: what `synth plan NETWORK --json` writes, and how such a file is read.

A file does not contain the network, so its words cannot be counted again. All numbers that follow from other
numbers of the file are derived again; a file in which they differ is refused. A digest reveals
all other edits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from synth.base.arithmetic import same_number
from synth.base.errors import InputError, UsageError, said_of
from synth.base.file_kinds import refuse_other_file
from synth.base.user_files import digest_of, json_of
from synth.layer.axes import TENSORS
from synth.network.plan.plan_entry import (
    MAX_NUMBER,
    SCHEMA,
    EdgeRow,
    LayerRow,
    MarginsEntry,
    NetworkPlanEntry,
    WordsBeside,
)
from synth.planning.plan_entry import converted

if TYPE_CHECKING:  # reading a file must not import numpy
    from synth.network.plan.plan import NetworkPlan

REMEDY = "write the plan anew with `synth plan NETWORK.yaml --json -o plan.json`"


def to_json(
    plan: NetworkPlan, today: Sequence[Mapping[str, Any]] = (), counted: bool = True
) -> dict[str, Any]:
    """`synth.network-plan/1`: decisions and costs. Costs are words or seconds as `objective` says.

    `kept`: tensors that a training step saves for a later pass; ker in a forward pass with resident weights.
    `memory_limit` is in bytes; all other memory is in words of `word_bytes` bytes. `whole`: a layer of which
    every rank holds the slice of Ker that it uses; its gradient travels in buckets, not in the layer's words.
    `beside`: words that a process receives beyond `cost`, by cause, see `NetworkPlan.words_beside`.
    `margins`, of a plan that has some: the rows beyond its own block, along d, h and w, that a rank computes
    of every covered tensor, and the words that it fetches of a tensor. `today`: the plan beside the methods
    in use today, which the argument of this name gives: words and bytes of a process, all calls included.
    `received`: all words of the busiest process, of a plan of a model; counted: whether to count them.
    """
    request = plan.request
    best = plan.best_single
    data = {
        "schema": SCHEMA,
        "name": plan.network.name,
        "procs": request.procs,
        "objective": request.objective,
        "pass": "training" if request.training else "forward",
        "kept": [
            t.lower() for t in TENSORS if t in (request.saves if request.training else request.resident)
        ],
        "machine": request.machine.name if request.machine else None,
        "cost": plan.cost,
        "lower_bound": plan.lower_bound,
        "gap": plan.solution.gap,
        "method": plan.solution.method,
        "memory_limit": request.limit_bytes,
        "word_bytes": plan.word_bytes,
        "memory_words": plan.used_words,
        "resident_words": plan.resident_words,
        "layers": layer_rows(plan),
        "redistributions": _redistributions(plan),
        "singles": [{"name": s.name, "cost": s.cost, "why": s.why} for s in plan.single_strategies],
        "best_single": best.name if best else None,
        "ratio": plan.ratio,
    }
    if plan.words_beside:
        data["beside"] = plan.words_beside
    if counted and plan.counted:
        data["received"] = plan.received.words
    if plan.margins is not None:
        data["margins"] = plan.margins.to_json()
    if today:
        data["today"] = list(today)
    return {**data, "digest": digest_of(data)}


def margins_read(data: Mapping[str, Any]) -> dict[str, tuple[int, int, int]] | None:
    """Tensor -> the rows of its margin along d, h and w; None for a plan without margins."""
    if data.get("margins") is None:
        return None
    return {each["name"]: tuple(each["rows"]) for each in data["margins"]["tensors"] if each["covered"]}


def layer_rows(plan: NetworkPlan) -> list[dict[str, Any]]:
    from synth.network.plan.step_words import words_by_tensor

    covered = frozenset() if plan.margins is None else plan.margins.layers
    rows = zip(
        plan.network.planned,
        plan.layer_classes,
        plan.placed_grids,
        plan.layer_costs,
        plan.tilings,
        plan.whole,
        strict=True,
    )
    return [
        {
            "name": node.name,
            "grid": placed.grid._asdict(),
            "order": list(placed.order),
            "turned": list(placed.turned),
            "stationary": tiling.first.stationary.lower(),
            "panels": tiling.first.panels,
            "cost": cost,
            "words": words_by_tensor(layer_class, placed, tiling, plan, whole, node.name in covered),
            "memory_words": tiling.used_words,
            "gradients": [t.lower() for t in layer_class.gradients if plan.request.training],
            "whole": whole,
        }
        for node, layer_class, placed, cost, tiling, whole in rows
    ]


def _redistributions(plan: NetworkPlan) -> list[dict[str, Any]]:
    """A row for the edges of two layers; from a layer to itself: rows of padding, slices and shifts."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for edge, words in plan.edge_words.items():
        ends = edge.source, edge.target, edge.role
        row = rows.setdefault(ends, dict(zip(("from", "to", "onto"), ends, strict=True)))
        row["words"] = row.get("words", 0) + words
        row["cost"] = row.get("cost", 0) + plan.edge_costs[edge]
    return list(rows.values())


def is_network_plan(text: str) -> bool:
    """Whether a text declares the schema of a network plan, of any version."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and str(data.get("schema")).startswith("synth.network-plan/")


def parse_network_plan(text: str, name: str) -> dict[str, Any]:
    """The data of a network plan. Raises `InputError` if the text is not one, or was edited."""
    refuse_other_file(text, name, "network-plan")
    data = json_of(text, name, SCHEMA, REMEDY)
    digest, training, layers = digest_of(data), data.get("pass") == "training", data.get("layers")
    # the first files did not contain these
    data.setdefault("kept", ["out"] if training else [])
    data.setdefault("memory_limit", MAX_NUMBER)
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, dict):
            for key, value in ("gradients", ["in", "ker"] * training), ("turned", []), ("whole", False):
                layer.setdefault(key, value)
    with said_of(name, InputError, f"; {REMEDY}"):
        _check(converted(data, NetworkPlanEntry))
        if data["digest"] != digest:
            raise UsageError("digest is not that of the file, which was edited")
    return data


def _check(plan: NetworkPlanEntry) -> None:
    """Raise `UsageError` for what several objects of a plan contradict."""
    training, in_words = plan.pass_ == "training", plan.objective == "words"
    if not training and set(plan.kept) - {"ker"}:
        raise UsageError("kept is not a list of tensors that a training step gathers, or a forward pass has")
    for i, layer in enumerate(plan.layers):
        _check_layer(layer, f"layers[{i}]", plan)
    names = {layer.name for layer in plan.layers}
    if len(names) < len(plan.layers):
        raise UsageError("two layers have one name")
    for i, edge in enumerate(plan.redistributions):
        _check_edge(edge, f"redistributions[{i}]", names, in_words)
    if len({(edge.from_, edge.to, edge.onto) for edge in plan.redistributions}) < len(plan.redistributions):
        raise UsageError("redistributions names one edge twice")
    if plan.margins is not None:
        _check_margins(plan.margins, training or "ker" in plan.kept)
    _check_totals(plan)


def _check_layer(layer: LayerRow, key: str, plan: NetworkPlanEntry) -> None:
    if layer.processes > plan.procs:
        raise UsageError(f"{key}.grid has {layer.processes} processes, more than procs {plan.procs}")
    parts = layer.words.in_, layer.words.ker, layer.words.out
    if plan.objective == "words" and not max(parts) <= layer.cost <= sum(parts):
        raise UsageError(f"{key}.cost is {layer.cost:g}, which its words per tensor do not allow")
    if layer.whole and (plan.pass_ != "training" or plan.objective == "words"):
        raise UsageError(f"{key}.whole is true, but the plan is not of training for time")
    if layer.gradients and plan.pass_ != "training":
        raise UsageError(f"{key}.gradients is not a list of those that a training step makes")


def _check_edge(edge: EdgeRow, key: str, names: set[str], in_words: bool) -> None:
    itself = edge.from_ == edge.to and edge.onto != "out"
    if not {edge.from_, edge.to} <= names or itself:
        raise UsageError(f"{key} does not join two layers of the plan")
    if (in_words and edge.cost != edge.words) or (edge.words == 0 and edge.cost != 0):
        raise UsageError(f"{key}.cost is {edge.cost:g}, which its {edge.words} words do not cost")


def _check_margins(margins: MarginsEntry, allowed: bool) -> None:
    if not allowed:
        raise UsageError("margins is there, but the plan is neither of inference nor of training")
    if any(each.back > each.words for each in margins.tensors):
        raise UsageError("margins.tensors has a gradient of more words than move")
    if len({each.name for each in margins.tensors}) < len(margins.tensors):
        raise UsageError("margins.tensors names one tensor twice")


def _check_totals(plan: NetworkPlanEntry) -> None:
    """The numbers that follow from the rows."""
    largest = max(layer.memory_words for layer in plan.layers)
    _check_same(plan.memory_words, plan.resident_words + largest, "memory_words")
    total = sum(layer.cost for layer in plan.layers) + sum(edge.cost for edge in plan.redistributions)
    for each in plan.margins.tensors if plan.margins else ():
        total += each.words if plan.objective == "words" else each.seconds
    _check_same(plan.cost, total, "cost")
    if plan.margins is None and plan.lower_bound > plan.cost * (1 + 1e-9):
        raise UsageError("lower_bound is above cost")
    possible = [(each.cost, each.name) for each in plan.singles if each.cost is not None]
    cost, name = min(possible, key=itemgetter(0), default=(None, None))
    if plan.best_single != name:
        raise UsageError(f"best_single is {str(plan.best_single)[:60]!r}, which singles do not say")
    _check_same(plan.ratio, plan.cost / cost if cost else None, "ratio")
    if plan.today and (plan.received is not None or plan.objective == "words"):
        beside = plan.beside or WordsBeside()
        every = plan.cost + beside.calls + beside.normalizations + beside.checkpoints
        found = every if plan.received is None else plan.received
        _check_same(plan.today[0].words, found, "today.0.words")


def _check_same(stated: Any, derived: float | None, key: str) -> None:
    if stated is None if derived is None else same_number(stated, derived):
        return
    raise UsageError(f"{key} is {str(stated)[:60]}, but the rest of the plan makes it {derived}")
