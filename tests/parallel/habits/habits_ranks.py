"""What the ranks of `test_habits` do: a habit on them and in one process."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import habits_of_classes  # noqa: F401
import habits_of_copies  # noqa: F401
import habits_of_layers  # noqa: F401
import habits_of_losses  # noqa: F401
import habits_of_models  # noqa: F401
import habits_of_weights  # noqa: F401
from habits_table import HABITS, Run

QUICK = {  # of each kind of change, call and model some, which run without --slow
    *(
        "sharpness-aware minimization",
        "lottery ticket: masks of weights and gradients",
        "parameters_to_vector and back",
    ),
    *("words of weights in a flat view", "views are read and changed after their weights"),
    *("words of weights are assigned by index", "memory format and dtype of the loop", "mixup and cutmix"),
    *("hard examples: topk, a threshold", "distributions: log_prob, entropy, kl_divergence", "triplets"),
    *("batches of other sizes, the last one of one sample", "hooks of the network take features"),
    *(
        "adversarial batches (FGSM, PGD)",
        "a critic and a generator, in turns",
        "outputs are changed in place",
    ),
    *(
        "a counter that decides what is computed",
        "a flag of the first call",
        "a hidden state in an attribute",
    ),
    *("counters, caches and features that nobody reads again", "outputs by a flag of the module"),
    *("a checkpoint where gradients are recorded", "other calls where gradients are recorded"),
    *("other calls where parameters are frozen",),
    *(
        "train() of the model's own keeps a normalization frozen",
        "parameters(), zero_grad() and requires_grad_() of the model's own",
        "an extra state of the model",
        "a function of all modules, methods that set modes",
        "whole outputs are changed in place",
    ),
    *("a state of the model's own keys", "states of older versions, and of this one", "hooks of states"),
    *("pruning: more and more weights, made permanent", "pruning before parallelize"),
    *("sparse gradients of embeddings", "layers of other dtypes, which forward reads"),
    *(
        "outputs that are no results of the input: a scale, anchors, a codebook",
        "several gradients at once",
        "named_parameters() of the model's own",
    ),
    *("tied weights of an encoder and a decoder", "lists and dicts of parameters and modules"),
    *(
        "weights that are computed, by functional_call",
        "functional_call of the network with plain weights",
        "another momentum and eps for a call",
    ),
    *("what torch refuses of words of one rank is caught, and training goes on",),
    "parameters in a flat tensor, which is changed",
    "data are a tensor, which is changed",
    "averages by lists of tensors, and statistics of batches of them",
    "averages by _foreach functions",
    "weights of a model in one process, and back",
    "an optimizer for each parameter, in hooks of gradients",
    *("layers of complex weights", "functions of torch.jit.script and torch.compile"),
}
FAULTS = ValueError, RuntimeError, TypeError, NotImplementedError


def run_habit(name: str, plan: str) -> tuple[float, str]:
    """The largest difference from one process, relative to the largest word; or the sentence of a refusal."""
    habit, found = HABITS[name], []
    warnings.simplefilter("ignore")
    for on_ranks in (False, True):
        run = Run(plan, on_ranks)
        try:
            habit.run(run)
        except FAULTS as fault:
            if on_ranks and habit.refused:
                return 0.0, str(fault)
            return 1.0, ("ranks: " if on_ranks else "one process: ") + traceback.format_exc()
        found.append(run.finish())
    if habit.refused:
        return 1.0, "accepted"
    return compared(*found)


def compared(right: list[Any], ours: list[Any]) -> tuple[float, str]:
    """The same, and which value differs most."""
    shapes = [[tuple(each.shape) for each in values] for values in (right, ours)]
    if shapes[0] != shapes[1]:
        return 1.0, f"shapes {shapes}"
    errors = [
        float((one - other).abs().max() / (1 + one.abs().max())) if one.numel() else 0.0
        for one, other in zip(right, ours, strict=True)
    ]
    worst = max(errors)
    return (worst if worst == worst else 1.0), f"value {errors.index(worst)} of {len(errors)}"
