"""A model on ranks as one operator of a full graph of `torch.compile`, beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import synth
from benchmarks.models_survey.entry import Entry
from benchmarks.models_survey.look import sentence
from benchmarks.models_survey.ranks import (
    RATE,
    SEEDS,
    _batch,
    _changed_otherwise,
    _loss,
    _model,
    _outputs,
    error,
    makes_float32,
)
from benchmarks.models_survey.table import FORWARD, ROUNDING, SINGLE, STEPS
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.tracing.unsupported import plain_copies

Found = dict[str, Any]
Batch = tuple[Any, dict[str, Any]]


def compare_full_graph(entry: Entry, backend: str) -> Found:
    """What every rank finds; all ranks run this.

    forward: the error of the outputs in evaluation, relative to the largest word. step: that of the state
    after a step of SGD; None for a model that is not trained. refused, or "refused in training": why.
    """
    model, found = _model(entry), Found()
    try:
        net = synth.parallelize(_copy(model.eval()), entry.input, outputs="whole")
        found["float32"] = makes_float32(trace_model(model, entry.input))
        found["forward"] = _forward(_in_full_graph(net, backend), model, entry.input)
    except ValueError as reason:
        return {"refused": sentence(reason)}
    trained = [each for each in model.parameters() if each.requires_grad]
    if not entry.trains or not trained:
        return {**found, "step": None}
    model.train()
    before = [values.clone() for values in model.state_dict().values()]
    batch = _batch(model, entry.input, SEEDS[0])
    try:
        net = synth.parallelize(_copy(model), entry.input, outputs="whole")
        _step(_in_full_graph(net, backend), net.parameters(), batch)
    except ValueError as reason:
        return {**found, "refused in training": sentence(reason)}
    ours = net.full_state_dict()
    if dist.get_rank():
        return found
    other, noise = _copy(model), torch.finfo(torch.get_default_dtype()).eps / 2
    _step(model, model.parameters(), batch)
    found["step"] = _changed_otherwise(ours, model.state_dict(), before)
    if found["step"] > STEPS:
        _step(other, other.parameters(), _batch(model, entry.input, SEEDS[0], noise))
        found["rounding"] = _changed_otherwise(other.state_dict(), model.state_dict(), before)
    return found


def _copy(model: torch.nn.Module) -> torch.nn.Module:
    return copy.deepcopy(model, plain_copies(model))


def _short(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments without those at the end that are left out."""
    return _short(args[:-1]) if args and args[-1] is None else args


def _in_full_graph(net: torch.nn.Module, backend: str) -> Callable[..., Any]:
    """What a network gives, from a function that is compiled as one graph."""

    def of(*args: Any, **kwargs: Any) -> Any:
        return net(*args, **kwargs)

    return torch.compile(of, fullgraph=True, backend=backend)


def _forward(compiled: Callable[..., Any], model: torch.nn.Module, input: Any) -> float | None:
    args, kwargs = _batch(model, input, 1)
    with torch.no_grad():
        ours = _outputs(compiled(*_short(tuple(args)), **kwargs))
        return None if dist.get_rank() else error(ours, _outputs(model(*args, **kwargs)))


def _step(of: Callable[..., Any], parameters: Any, batch: Batch) -> None:
    optimizer = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=RATE, momentum=0.9)
    args, kwargs = batch
    torch.autograd.backward(_loss(_outputs(of(*_short(tuple(args)), **kwargs))))
    optimizer.step()


# -- the page -------------------------------------------------------------------------------------------


def verdict_of(found: Mapping[str, Any]) -> str:
    """One model in a word or a sentence."""
    for key in ("failed", "refused", "refused in training"):
        if key in found:
            return f"{key}: {found[key]}"
    single = SINGLE if found.get("float32") else 0.0
    allowed = max(STEPS, single, min(ROUNDING * found.get("rounding", 0.0), 1e-3))
    right = found["forward"] <= max(FORWARD, single) and (found["step"] or 0.0) <= allowed
    return "equal" if right else f"not equal: {found['forward']:.0e}, {found['step']:.0e}"


def page(found: Sequence[Mapping[str, Any]], ranks: int, commit: str) -> str:
    """The page of results."""
    verdicts = [verdict_of(each) for each in found]
    equal = verdicts.count("equal")
    lines = [
        "# Models in full graphs of torch.compile",
        "",
        f"Each model was made a network with `outputs='whole'` on {ranks} gloo ranks, and called from a",
        "function that `torch.compile(fullgraph=True)` compiles, so that it is one operator of one graph. It",
        "is compared with one process in float64: outputs in evaluation, the state after one step of SGD.",
        f"Measured at commit `{commit}`.",
        "",
        f"{equal} of {len(found)} models equal one process.",
        "",
        "| library | model | backend | equal, or why not |",
        "|---|---|---|---|",
    ]
    for each, verdict in zip(found, verdicts, strict=True):
        text = verdict.replace("|", "/")
        lines.append(f"| {each['library']} | {each['name']} | {each['backend']} | {text} |")
    return "\n".join(lines) + "\n"
