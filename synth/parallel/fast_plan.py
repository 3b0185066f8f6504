"""What a plan made by `parallelize` is for: the fewest seconds on the machine at hand, or the fewest words.

The planner for time decides about weights, too. A weight may be cut over the ranks that use one slice of it:
they gather it and sum its gradient layer by layer. Or each of them holds the slice, as with DDP: then
gradients travel in large messages during the backward pass, but the optimizer updates every copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from synth.base.errors import UsageError
from synth.machine.file import parse_machine
from synth.machine.measured import machine_text
from synth.network.request import OBJECTIVES, NetworkRequest

MARGIN = 0.05, 0.15  # of a step, at least and at most: smaller gains by measured numbers are noise


def objective_of(given: str | None, mode: str) -> str:
    """What a plan made here is for. Raises `UsageError` for what it cannot be."""
    default = "words" if mode == "inference" else "time"
    objective = given or os.environ.get("SYNTH_OBJECTIVE") or default
    if objective not in OBJECTIVES:
        where = "objective" if given else "the environment variable SYNTH_OBJECTIVE"
        raise UsageError(f"{where} is {objective!r}; it must be time or words")
    return objective


def for_time(request: NetworkRequest, found: dict[str, Any]) -> NetworkRequest:
    """The request for the fewest seconds on a machine where `found` was measured, with whole weights.

    Plain data parallelism, as of DDP, is kept unless another plan promises more than measuring errs by.
    """
    machine = parse_machine(machine_text(found, "here"), "here")
    timed = replace(request, objective="time", machine=machine, whole_weights=request.training)
    return replace(timed, margin=margin_of(machine.errors)) if request.training else timed


def for_words(request: NetworkRequest) -> NetworkRequest:
    """The same request for the fewest words."""
    return replace(request, objective="words", machine=None, whole_weights=False, margin=0.0)


def margin_of(errors: Mapping[str, float]) -> float:
    """What the seconds of a step may err by, as a fraction, from the errors of a machine's numbers.

    It is the largest relative error of kernels and collectives that the fits have not seen, within bounds: a
    step has many of them, so a fit that is far off would otherwise forbid every gain.
    """
    unseen = [each for name, each in errors.items() if name.startswith(("kernels", "collectives"))]
    least, most = MARGIN
    return min(most, max([least, *unseen]))
