"""A plan as a short text, by which ranks tell whether they were given the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from synth.base.user_files import digest_of
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.plan.plan_json import is_network_plan, to_json
from synth.planning.plan import Plan
from synth.planning.plan_file import plan_text
from synth.planning.plan_json import exact_json


def _of_network(data: Mapping[str, Any]) -> str:
    """Without all words of the busiest process, which a plan from another process counts less exactly."""
    return digest_of({key: value for key, value in data.items() if key not in ("beside", "received")})


def digest_of_plan(plan: Any) -> str:
    """What `parallelize` was given as its plan, the same text for the same decisions.

    Raises `InputError` for a file that cannot be read.
    """
    if isinstance(plan, NetworkPlan):
        return f"a network plan, digest {_of_network(to_json(plan, counted=False))}"
    if isinstance(plan, NetworkPlanFile):
        return f"a network plan, digest {_of_network(plan.data)}"
    if isinstance(plan, Plan):
        return f"a layer plan, digest {_short(json.dumps(exact_json(plan), sort_keys=True))}"
    if isinstance(plan, os.PathLike) or str(plan).endswith(".json"):
        text = plan_text(plan)
        return f"a file, digest {_of_network(json.loads(text)) if is_network_plan(text) else _short(text)}"
    if isinstance(plan, Mapping):
        return ", ".join(f"{name}: {digest_of_plan(plan[name])}" for name in sorted(plan))
    return str(plan)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
