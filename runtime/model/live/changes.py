"""What was changed on a model, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.computed_weights import computes_weight
from synth.runtime.tracing.facts import (
    DTYPE,
    HOOKS,
    IN_PLACE,
    MISSING,
    ORDER,
    OUTSIDE,
    STORED,
    Difference,
    Fact,
    Facts,
)
from synth.runtime.tracing.unsupported import has_no_effect

Settings = Mapping[str, Collection[str]]
CALLS = (".__call__", ".__getattr__", ".__getattribute__")
FEW = 3  # changes that a message names


class Changes(NamedTuple):
    """The changes that a pass has to follow.

    modes: of modules. settings: that steps read at each call. anew: for which the
    network has to be planned anew. hooks: that ranks do not call.
    """

    modes: list[Difference]
    settings: list[Difference]
    anew: list[Difference]
    hooks: list[Difference]

    def __str__(self) -> str:
        """The first of them, in words."""
        kinds = self.hooks, self.anew, self.settings, self.modes
        return in_words([each for kind in kinds for each in kind])


def sorted_out(
    found: Sequence[Difference],
    now: Facts,
    before: Facts,
    attributes: Attributes,
    settings: Settings,
) -> Changes:
    """The differences that count, by what follows from them.

    now, before: all facts. attributes: what forward reads. settings: module -> the
    attributes that its steps read at each call.
    """
    changes = Changes([], [], [], [])
    tied = _ties(before) != _ties(now)
    for each in found:
        fact = each.fact
        if fact.kind == "mode":
            if MISSING not in (each.before, each.now):
                changes.modes.append(each)
        elif fact.kind in HOOKS.values():
            if computes_weight(each.now) or each.now is MISSING:
                changes.anew.append(each)
            elif not has_no_effect(each.now):
                changes.hooks.append(each)
        elif fact.path == DTYPE and fact.kind in STORED.values():
            if attributes.dtypes and MISSING not in (each.before, each.now):
                changes.anew.append(each)
        elif fact.kind in STORED.values():
            if tied or not _is_another_value(each):
                changes.anew.append(each)
        elif fact.outside and (OUTSIDE, fact.outside) in attributes.written:
            continue  # which nothing that it computes depends on
        elif fact.kind == "global":
            changes.anew.append(each)
        elif fact.kind == "class":
            known = fact._replace(path=".__module__")  # else it is of a new module
            special = fact.path.startswith(".__") and fact.path not in CALLS
            if not fact.path or (known in before and known in now and not special):
                changes.anew.append(each)
        elif attributes.is_called(fact.module):
            its = settings.get(fact.module, ())
            live = fact.name in its and not attributes.is_read(fact.module, fact.name)
            (changes.settings if live else changes.anew).append(each)
        elif fact.name == "forward" or attributes.is_read(fact.module, fact.name):
            changes.anew.append(each)
    return changes


def _ties(facts: Facts) -> dict[Fact, Fact]:
    """The place of each tensor -> the first place of the same tensor."""
    first: dict[int, Fact] = {}
    kinds = ("parameter", "buffer")
    return {
        fact: first.setdefault(id(value), fact)
        for fact, value in facts.items()
        if fact.kind in kinds and value is not None
    }


def _is_another_value(each: Difference) -> bool:
    """Whether a tensor has only other words, which steps get at each call."""
    before, now = each.before, each.now
    for values in (before, now):
        if not isinstance(values, torch.Tensor):
            return False
    if before.shape != now.shape:
        return False
    kinds = {type(before), type(now)}
    given = torch.Tensor in kinds and kinds <= {torch.Tensor, PartitionedTensor}
    if given and each.fact.kind == "parameter":  # by functional_call, for one call
        return bool(before.dtype == now.dtype)
    if type(before) is not type(now):
        return False
    if isinstance(now, PartitionedTensor):
        return bool(before._partition == now._partition)
    return not now.is_floating_point() and before.dtype == now.dtype


# -- what the ranks refuse -------------------------------------------------------------


def require_followed(changes: Changes) -> None:
    """Raise `ValueError` for changes that ranks cannot follow."""
    for each in changes.hooks:
        raise ValueError(
            f"{each.fact.module or 'the model'} has hooks ({each.fact.kind}), which the"
            " ranks do not call, because they compute parts of its output; remove them,"
            " or hook the network itself"
        )


# -- in words --------------------------------------------------------------------------


def in_words(found: Sequence[Difference]) -> str:
    """What was changed: `head was replaced, conv.stride is (2, 2), it was (1, 1)`.

    The parts of what was changed as a whole are left out.
    """
    facts = {each.fact for each in found}
    modules = {str(fact) for fact in facts if fact.kind == "module" and fact.name}
    heads = [
        each
        for each in found
        if each.fact.kind != "mode"
        and each.fact.path != ORDER
        and not (each.fact.path and each.fact._replace(path="") in facts)
        and not any(_is_in(each.fact.module, name) for name in modules)
    ]
    modes = [each for each in found if each.fact.kind == "mode"]
    texts = list(dict.fromkeys(map(_in_words, heads)))
    if len(modes) > FEW:
        words = {_mode(each) for each in modes}
        texts.append(f"{len(modes)} modules were put into {' and '.join(words)}")
    else:
        texts += map(_in_words, modes)
    texts = texts or ["modules are in another order"]
    more = f" and {len(texts) - FEW} more" if len(texts) > FEW else ""
    return ", ".join(texts[:FEW]) + more


def _is_in(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")


def _mode(each: Difference) -> str:
    return "training" if each.now else "evaluation"


def _in_words(each: Difference) -> str:
    fact, before, now = each
    name = str(fact)
    if fact.kind in HOOKS.values():
        return f"{fact.module or 'the model'} has a {fact.kind}"
    if fact.kind == "mode":
        return f"{fact.module or 'the model'} was put into {_mode(each)}"
    if fact.kind == "class" and not fact.name:
        return f"{fact.module or 'the model'} has another class"
    if now is MISSING:
        return f"{name} was removed"
    if before is MISSING:
        return f"{name} was added"
    if fact.kind in STORED.values() and fact.path != DTYPE:
        return f"{name} was replaced"
    if fact.path.endswith(IN_PLACE):
        return f"{name.removesuffix(IN_PLACE)} was changed in place"
    return f"{name} is {_short(now)}, it was {_short(before)}"


def _short(value: Any) -> str:
    plain = bool, int, float, complex, str, tuple, list, torch.dtype, type(None)
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}({value.extra_repr()})"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {tuple(value.shape)}"
    text = repr(value)
    if isinstance(value, plain) and " at 0x" not in text:
        return text if len(text) < 60 else text[:57] + "..."
    return f"a {type(value).__name__}"
