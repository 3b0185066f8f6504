"""The certificate of a plan's lower bound."""

from __future__ import annotations

from typing import Any

from synth.base.errors import InfeasibleError
from synth.bounds.certificate import certificate
from synth.planning.plan import Plan


def plan_certificate(plan: Plan) -> dict[str, Any]:
    """The certificate of the universal bound of a plan's layer, processes, memory and work balance.

    JSON data, see `bounds.certificate`. Raises `InfeasibleError` for a training step, which has no
    certificate.
    """
    if plan.pass_ == "training":
        raise InfeasibleError("a certificate is about one pass; plan with --pass forward, not training")
    return certificate(
        plan.layer,
        plan.procs,
        limit_words=plan.limit_words,
        most_work=plan.distribution.most_real_work,
        plan_id=plan.id,
    )
