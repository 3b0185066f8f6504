"""Whether a network and its model compute the same in a mode, in a sentence."""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.runtime.grid.log import first_line
from synth.runtime.model.self_check.compare import (
    Difference,
    coarsest,
    differences,
    first_call,
    tolerance,
)
from synth.runtime.model.self_check.passes import Pair, Pass
from synth.runtime.model.self_check.twins import place_of_node
from synth.runtime.tracing.left_before import LeftBeforeError

SHAKES, SHARE = 4.0, 0.1  # roundings by which words are changed; what that may explain


class Verdict(NamedTuple):
    """What a comparison in one mode found; nothing where the two are the same.

    fault: which call gives something else. left_out: why the mode is not compared.
    fails: whether the network raised an error.
    """

    fault: str = ""
    left_out: str = ""
    fails: bool = False


def verdict(pair: Pair, mode: str) -> Verdict:
    """Run both in the mode in which they are. mode: its name, for sentences."""
    try:
        drawn, theirs = pair.of_network()
    except LeftBeforeError as error:  # as a user who calls both is told
        return Verdict(left_out=f"{mode} is left out, as {error}")
    except Exception as error:  # whatever a step raises
        return Verdict(_failure(pair, error, mode), fails=True)
    try:
        witness, ours = pair.of_model(drawn)
    except Exception as error:  # as a change in place of what a gradient needs
        why = f"the model fails in it by itself: {first_line(error)}"
        return Verdict(left_out=f"{mode} is left out, as {why}")
    rounding = coarsest(pair.graph)
    limit = tolerance(rounding)
    found = list(differences(theirs, ours, limit))
    if not found:
        return Verdict()
    if witness.unmet:
        why = (
            f"{witness.unmet[0]} draws random numbers that the network draws elsewhere"
        )
        return Verdict(left_out=f"{mode} is left out, as {why}")
    _, shaken = pair.of_model(drawn, noise=SHAKES * rounding)
    sure = [each for each in found if not _explained(each, ours, shaken)]
    if not sure:
        what = f"rounding alone changes the {found[0].kind} {found[0].name} as much"
        return Verdict(left_out=f"{mode} is left out, as {what}")
    drawn, theirs = pair.of_network(looked=True)
    _, ours = pair.of_model(drawn, looked=True)
    call = first_call(sure[0], theirs, ours, limit, pair.graph, pair.network.program)
    kind = {"gradient": "the gradient of ", "output": "", "buffer": ""}[sure[0].kind]
    what = f"{kind}{sure[0].name} {sure[0].how}"
    return Verdict(
        f"{call or 'a call'} gives something else on ranks than in one process, in"
        f" {mode}: {what}"
    )


def _explained(found: Difference, ours: Pass, shaken: Pass) -> bool:
    """Whether words that change by rounding change a tensor as much."""
    again = differences(shaken, ours, SHARE * found.error)
    return any((each.kind, each.name) == (found.kind, found.name) for each in again)


def _failure(pair: Pair, error: Exception, mode: str) -> str:
    """The call at which a network fails, and how."""
    latest: list[str] = []
    hooks: list[Any] = [
        step.register_forward_pre_hook(lambda *_, name=name: latest.append(name))
        for name, step in pair.network.program.steps.items()
    ]
    hooks.append(pair.network.register_forward_hook(lambda *_: latest.clear()))
    try:
        pair.of_network()
    except Exception as same:
        error = same
    finally:
        for each in hooks:
            each.remove()
    nodes = {node.name: node for node in pair.graph.nodes}
    call = f"{place_of_node(nodes[latest[-1]])}" if latest else "the backward pass"
    what = first_line(error)
    return f"{call} fails on ranks, though not in one process, in {mode}: {what}"
