"""Certificates of networks and their files: of a family of plans, and of words that are computed again."""

from __future__ import annotations

import json
from typing import Any

from synth.base.errors import InputError, UsageError
from synth.base.user_files import MOST_JSON, read_text
from synth.network.graph import Network
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.planner import family_certificate, recomputation_certificate
from synth.network.request import NetworkRequest

KINDS = {each.SCHEMA: each for each in (family_certificate, recomputation_certificate)}


def certificate(network: Network, request: NetworkRequest) -> dict[str, Any]:
    """The certificate of what bounds the plans of a request; with margins, which compute words again.

    Raises `InfeasibleError` for what certificates do not cover, by name.
    """
    if request.recompute:
        return recomputation_certificate.recomputation_certificate(network, request)
    return family_certificate.family_certificate(network, request)


def check_file(path: str, plan: NetworkPlanFile | None = None) -> list[str]:
    """`check` of a file, and whether it is about a plan.

    Raises `InputError` if it is not a certificate, `CheckError` at a false step.
    """
    try:
        data = json.loads(read_text(path, MOST_JSON, "certificate"))
        kind = KINDS.get(data.get("schema")) if isinstance(data, dict) else None
        if kind is None:
            raise InputError(
                f"{path}: is not a certificate ({' or '.join(KINDS)}); write one with `synth plan --certify`"
            )
        lines = kind.check(data)
        return lines if plan is None else [*lines, kind.about(data, plan)]
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        RecursionError,
        UsageError,
    ) as fault:
        raise InputError(f"{path}: is not a complete certificate ({fault!r}); write it again") from fault
