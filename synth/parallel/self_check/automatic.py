"""The comparison that `parallelize` makes by itself, on the first rank, before any tensor is sent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from synth.base.errors import CheckError, UsageError
from synth.parallel.first_rank import from_first
from synth.parallel.self_check.comparison import Comparison
from synth.parallel.self_check.report import Checked
from synth.runtime.grid.log import LOG, first_line

if TYPE_CHECKING:
    from torch import nn

    from synth.parallel.front_end.trace_model import TracedModel
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.tracing.inputs import Inputs

VARIABLE = "SYNTH_CHECK"
WORDS: dict[str, bool | Literal["auto"]] = {"never": False, "auto": "auto", "always": True}
SECONDS = 2.0  # that a comparison may take where a step of the model takes less
PATIENCE = 0.25  # share of the timeout of the ranks, which wait meanwhile


def when_to_check(given: bool | Literal["auto"]) -> bool | Literal["auto"]:
    """Whether to compare: what the environment variable SYNTH_CHECK says, else what is given.

    Raises `UsageError` for another word.
    """
    said = os.environ.get(VARIABLE)
    if said is not None:
        if said not in WORDS:
            raise UsageError(f"{VARIABLE} is {said!r}; it must be {', '.join(WORDS)}")
        return WORDS[said]
    if given not in (True, False, "auto") or (isinstance(given, int) and not isinstance(given, bool)):
        raise UsageError(f'check is {given!r}; it must be True, False or "auto"')
    return given


def automatic_limit(step: float) -> float:
    """Seconds that a comparison may take by itself. step: those of a step of the model in one process."""
    return max(SECONDS, step)


def require_as_model(
    when: bool | Literal["auto"],
    model: nn.Module,
    inputs: Inputs,
    full: TracedModel,
    ranks: Ranks,
    inference: bool,
    batch_norm: str,
) -> None:
    """Compare on the first of the ranks; all must call this. It says in a line what was done.

    when: True: without a limit but that of the ranks' patience; "auto": within the seconds of a step of the
    model in one process, or `SECONDS`. full: the model, traced for its inputs.

    Raises `CheckError` on all ranks where the network computes something else.
    """
    if when is False:
        return

    def limit(step: float) -> float:
        least = automatic_limit(step) if when == "auto" else float("inf")
        return min(least, PATIENCE * ranks.timeout())

    def make() -> Checked:
        try:
            return Comparison(model, inputs, full, False, inference, batch_norm, limit).result()
        except CheckError:
            raise
        except Exception as error:  # a comparison that fails says nothing about the network
            return Checked(type(model).__name__, reason=f"the comparison fails: {first_line(error)}")

    found = from_first(make, ranks)
    if ranks.me == 0:
        LOG.info("synth: %s", found)
