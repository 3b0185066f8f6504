"""torch's operations on partitioned tensors: by rules, or from the gathered wholes.

A rule is called as `rule(func, args, kwargs)` below autograd. Plain tensors among the
arguments are wholes, the same on all ranks. A rule may communicate: all ranks call the
same operations in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from synth.runtime.rules.pointwise import UNTAGGED
from synth.runtime.tensor.operations import (
    losses,
    norms,
    pointwise,
    reductions,
    sampling,
    views,
)
from synth.runtime.tensor.operations.gathered import gathered, is_view, tensors_of
from synth.runtime.tensor.operations.given import note_given
from synth.runtime.tensor.operations.operands import (
    NoParts,
    short_name,
    written,
)
from synth.runtime.tensor.partitioned import (
    MOVED,
    PartitionedIntegers,
    PartitionedTensor,
)

Rule = Callable[[Any, Any, Any], Any]


class Known(NamedTuple):
    """What is known of an operation before it is called.

    changes: places and names of the arguments that it changes. views: whether results
    share the memory of an operand. steps: whether it changes each word of its first
    argument by itself, as optimizers do.
    """

    changes: tuple[tuple[int, str], ...]
    views: bool
    rule: Rule
    steps: bool


KNOWN = frozenset(
    (
        *(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer),
        *(PartitionedTensor, PartitionedIntegers),
    )
)
SAME = pointwise.pointwise, pointwise.detach  # whose results have the memory itself
RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **reductions.RULES,
    **norms.RULES,
    **losses.RULES,
    **views.RULES,
    **sampling.RULES,
}


def dispatch(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation: by its rule, or from wholes where parts do not allow that."""
    if not KNOWN.issuperset(types):
        other = next(each for each in types if each not in KNOWN)
        raise TypeError(
            f"{short_name(func)} mixes a partitioned tensor and a {other.__name__};"
            " convert one of them: full_tensor() gives a plain tensor"
        )
    known = known_of(func)
    _renew(args)
    if known.steps and (here := _parts_alike(args)) is not None:
        note_given(func, args, kwargs)
        func(*here, **kwargs)
        args[0].changes[0] += 1
        return args[0]
    if known.views and torch.is_inference_mode_enabled():
        given = next(tensors_of(args[0]), None)
        if given is not None and not given.is_inference():
            # a view shares the count of changes, which what is made in here has not
            with torch.inference_mode(False):
                return dispatch(func, types, args, kwargs)
    changed = [
        args[place] if place < len(args) else kwargs.get(name)
        for place, name in known.changes
    ]
    for each in changed:
        _refuse_copies(func, each, args)
    note_given(func, args, kwargs)
    try:
        made = known.rule(func, args, kwargs)
    except NoParts:
        made = gathered(func, args, kwargs)
    for each in changed:
        _show(each)
    if known.views:
        _mark_views(func, args, kwargs, made)
    return made


def _parts_alike(args: Any) -> list[Any] | None:
    """The own parts of what an optimizer's operation is given; None for other calls.

    They are parts of one partition, and numbers. The first is no copy and no view, of
    which other ranks may have a copy.
    """
    first = args[0]
    if type(first) is not PartitionedTensor or first.is_copy or first.view_of:
        return None
    here, place = list[Any](), first._partition
    for each in args:
        kind = type(each)
        if kind is PartitionedTensor and each._partition.lies_as(place):
            here.append(each._local)
        elif kind is float or kind is int:
            here.append(each)
        else:
            return None
    return here


class Viewed(NamedTuple):
    """How a tensor was made of which torch shows the words of another one.

    changes: how often both had been changed. call: the operation with its arguments.
    place: among the results. whole: whether these are all words of the first argument.
    Some ranks may have copies, and others views or no words, so all do the same.
    """

    changes: int
    call: tuple[Any, Any, Any]
    place: int
    whole: bool

    @property
    def base(self) -> PartitionedTensor:
        """What the words are of."""
        given: PartitionedTensor = self.call[1][0]
        return given

    def renew(self, view: PartitionedTensor) -> None:
        """Take the words again if one of both was changed since."""
        if view.changes is not self.base.changes:  # one of them has other words by now
            view.view_of = None
        elif view.changes[0] != self.changes:
            func, args, kwargs = self.call
            made = [*tensors_of(dispatch(func, (), args, kwargs))][self.place]
            view._local, view._partition = made._local, made._partition
            view.shown, view.view_of = made.shown, made.view_of


def _renew(given: Any) -> None:
    """Let views among arguments have the words of now."""
    for each in given:
        if isinstance(each, PartitionedTensor):
            each._refresh()
        elif type(each) is list or type(each) is tuple:
            _renew(each)


def _show(changed: Any) -> None:
    """Let the owners of words have the values of the changed copies."""
    for each in tensors_of(changed):
        _count(each)
        for own in each.shown or ():
            own.copy_(each._local)
        found = each.view_of
        if found is not None and found.whole:
            found.base.copy_(each.reshape(found.base.shape))
            each.view_of = found._replace(changes=each.changes[0])


def _count(changed: PartitionedTensor) -> None:
    """Count a change that a view has, too."""
    changed.changes[0] += 1
    if changed.view_of is not None:
        changed.view_of = changed.view_of._replace(changes=changed.changes[0])


def _is_shown(copied: PartitionedTensor, args: Any) -> bool:
    """Whether owners can have what a change by an operation makes of a copy."""
    given = (each for each in args if isinstance(each, torch.Tensor))
    alone = not torch.is_grad_enabled() or not any(e.requires_grad for e in given)
    found = copied.view_of
    if found is not None and found.whole and not found.base.is_copy:
        return alone or not found.base.requires_grad
    return alone and copied.shown is not None


def _mark_views(func: Any, args: Any, kwargs: Any, made: Any) -> None:
    """Note what results of a view are of, and which do not share its memory."""
    given = args[0]
    if not isinstance(given, PartitionedTensor):
        return
    memory = given._local.untyped_storage()._cdata
    rule = known_of(func).rule
    same = rule in SAME and given.view_of is None
    for place, each in enumerate(tensors_of(made)):
        own, each.changes = each._local, given.changes
        other = own.numel() > 0 and own.untyped_storage()._cdata != memory
        if given.is_copy or other:
            each.copied(given.is_copy or MOVED)
        if not same:
            call = func, args, kwargs
            each.view_of = Viewed(given.changes[0], call, place, rule is views.view)


def _refuse_copies(func: Any, changed: Any, args: Any) -> None:
    """Raise `RuntimeError` for a change of a copy that would not be seen."""
    alone = isinstance(changed, PartitionedTensor)
    for each in (changed,) if alone else tensors_of(changed):
        if each.is_copy and not _is_shown(each, args):
            raise RuntimeError(
                f"{short_name(func)} would change a copy of {tuple(each.shape)}:"
                f" {each.is_copy}; compute a new tensor, for example with torch.where,"
                " or change full_tensor() and give it to copy_"
            )


@cache
def known_of(func: Any) -> Known:
    """What is known of an operation; looked up once for each call."""
    changes, views, rule = written(func), is_view(func), rule_of(func)
    alone = [place for place, _ in changes] == [0] and not views
    kinds = {str(each.type) for each in func._schema.arguments if each.kwarg_only}
    steps = alone and rule is pointwise.pointwise and kinds <= {"number"}
    return Known(changes, views, rule, steps)


def rule_of(func: Any) -> Rule:
    """The rule of an operation. Only that of single words writes into `out`."""
    name = short_name(func)
    pointed = torch.Tag.pointwise in func.tags or name.rstrip("_") in UNTAGGED
    if not pointed and any(each.is_out for each in func._schema.arguments):
        return gathered
    if name in RULES:
        return RULES[name]
    if name.startswith(("_foreach_", "_fused_")):
        return pointwise.foreach
    if torch.Tag.nondeterministic_seeded in func.tags:
        return gathered
    return pointwise.pointwise if pointed else gathered


PartitionedTensor._operations = staticmethod(dispatch)
