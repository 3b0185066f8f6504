"""`synth.check`: a model and its network side by side in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from synth.base.errors import UsageError
from synth.parallel.front_end.trace_model import model_device, trace_model
from synth.parallel.mode import check_mode, require_evaluation
from synth.parallel.self_check.comparison import Comparison
from synth.parallel.self_check.report import Checked

if TYPE_CHECKING:
    from torch import nn

    from synth.runtime.tracing.inputs import Inputs


def check(
    model: nn.Module,
    input: Sequence[int] | Sequence[Any] | Mapping[str, Any] | Inputs,
    *,
    batch_norm: Literal["global", "local"] = "global",
    mode: str = "training",
    method: str = "",
) -> Checked:
    """Compare a model with the network that `parallelize` makes of it, in this process alone.

    Both compute the same batches in training and in evaluation, in float64 where the model can: the outputs,
    the gradients of parameters and inputs, and the running statistics after a step must be the same but for
    rounding. The model and the state of the process stay as they are. It needs no process group.

    input: as for `parallelize`, in elements. Where every input is a tensor, the model runs on these values.
        Else those that are shapes have random ones, and there are fewer samples and smaller extents where the
        model takes them and makes the same calls.
    batch_norm, mode: as for `parallelize`. In inference only outputs in evaluation are compared.
    method: of the model, such as "encode", which is compared in place of its `forward`.

    Returns what was compared, or in `reason` why it could not be. Raises `CheckError` where the network
    gives something else, with the first call that does and its line; `ValueError` for a model that the ranks
    cannot run.
    """
    from synth.runtime.model.methods import planned_method, with_method
    from synth.runtime.model.self_check.untouched import untouched
    from synth.runtime.tracing.inputs import Arguments, Inputs
    from synth.runtime.tracing.plain_model import uncompiled

    model = uncompiled(model)
    if method:
        if planned_method(model, method) is None:
            raise UsageError(
                f"{type(model).__name__} has no method {method}; name one that its class defines"
            )
        model = with_method(model, method)
    check_mode(mode)
    if mode == "inference":
        require_evaluation(model)
    inputs = Inputs.of(input)
    with untouched(model_device(model)):
        full = trace_model(model, inputs)
    whole = all(each is not None for each in Arguments(model, inputs).examples())
    return Comparison(model, inputs, full, whole, mode == "inference", batch_norm).result()
