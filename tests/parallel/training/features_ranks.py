"""What the ranks of `test_features` do: a feature with every plan, on them and in one process."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from training_features import graphs, losses, optimizers, states, whole_tensors  # noqa: F401
from training_features.table import FAULTS, FEATURES, Run, Sizes

Found = dict[str, dict[str, Any]]
Alone = dict[Sizes, list[torch.Tensor]]  # what one process notes with some extents, whatever the plan


def feature(name: str, plans: list[str]) -> Found:
    """By plan: `error`, the largest difference from one process, or `said`, the sentence of a refusal."""
    if FEATURES[name].refused:
        return {word: refusal(name, word) for word in plans}
    alone: Alone = {}
    return {word: compared(name, word, alone) for word in plans}


def compared(name: str, word: str, alone: Alone) -> dict[str, Any]:
    """The largest difference relative to the largest word of each noted tensor."""
    function, found = FEATURES[name].run, []
    for on_ranks in (False, True):
        try:
            run = Run(word, on_ranks)
            if not on_ranks and run.sizes in alone:
                found.append(alone[run.sizes])
                continue
            function(run)
            found.append(run.finish())
            alone.setdefault(run.sizes, found[0])
        except Exception:
            return {"error": 1.0, "said": traceback.format_exc()}
    if [values.shape for values in found[0]] != [values.shape for values in found[1]]:
        return {"error": 1.0, "said": f"shapes {[[tuple(v.shape) for v in each] for each in found]}"}
    errors = [
        float((one - other).abs().max() / (1 + one.abs().max())) if one.numel() else 0.0
        for one, other in zip(*found, strict=True)
    ]
    worst = max(errors, default=0.0)
    worst = worst if worst == worst else 1.0
    return {"error": worst, "said": f"of {len(errors)} values, {errors.index(max(errors))} differs most"}


def refusal(name: str, word: str) -> dict[str, Any]:
    """The sentence with which a feature is refused."""
    try:
        FEATURES[name].run(Run(word, True))
    except FAULTS as fault:
        return {"error": 0.0, "said": str(fault)}
    return {"error": 1.0, "said": ""}
