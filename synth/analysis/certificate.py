"""The certificate of a plan's lower bound, and whether a certificate is about a plan."""

from __future__ import annotations

from typing import Any

from synth.base.doors import option
from synth.base.errors import CheckError, InfeasibleError
from synth.bounds.certificate import certificate
from synth.planning.plan import Plan


def plan_certificate(plan: Plan, *, simple: bool = False) -> dict[str, Any]:
    """The certificate of the universal bound of a plan's layer, processes, memory and work balance.

    JSON data, see `bounds.certificate`, also for `simple`. Raises `InfeasibleError` for a training step,
    which has no certificate, and for a plan with resident tensors.
    """
    if plan.pass_ == "training":
        raise InfeasibleError(
            f"a certificate is about one pass; plan with {option('pass_', 'forward')}, not training"
        )
    if plan.resident:
        raise InfeasibleError(
            "a certificate is about words with one owner each; this plan keeps Ker in several"
        )
    return certificate(
        plan.layer,
        plan.procs,
        limit_words=plan.limit_words,
        most_work=plan.distribution.most_real_work,
        simple=simple,
    )


def check_plan(data: dict[str, Any], plan: Plan) -> str:
    """A line that compares a plan with a certificate that `certificate_check` has checked.

    Raises `CheckError` unless layer, processes, memory and the most work of a process are those of the plan.
    """
    wanted = {
        "problem": plan.layer.to_json(),
        "procs": plan.procs,
        "memory_words": plan.limit_words,
        "most_work": min(plan.distribution.most_real_work, max(1, plan.layer.nest.real_work)),
    }
    for key, value in wanted.items():
        if data[key] != value:
            raise CheckError(
                f"the certificate is not about plan {plan.id}: {key} is {str(data[key])[:80]} in it and "
                f"{str(value)[:80]} in the plan"
            )
    total = plan.words["total"]
    return f"plan {plan.id} has this layer, P, memory and most work; its processes receive {total} at most"
