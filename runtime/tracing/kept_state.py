"""State that a model keeps in plain attributes from one call to the next.

A graph repeats the call that was traced. A counter that `forward` computes with, a flag
of its first call or a hidden state would stay what it was, so such models are refused.
What is stored and never read, or read and always the same, changes nothing.
"""

from __future__ import annotations

import copy
import itertools
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.counted import Comparisons
from synth.runtime.tracing.facts import (
    NOWHERE,
    OUTSIDE,
    Description,
    Place,
    Places,
)
from synth.runtime.tracing.modes import difference
from synth.runtime.tracing.recorded import leaf_tensors
from synth.runtime.tracing.recorder import KeptTensor
from synth.runtime.tracing.surroundings import Kept
from synth.runtime.tracing.unsupported import plain_copies

FAR = 9973  # a prime, so that no cycle of a counter hides it
REMEDY = (
    "from one call to the next, but the ranks would repeat the first one; keep it in a"
    " buffer that forward changes in place, give it as an argument, or set it on the"
    " network before each call"
)


def require_no_tensors(
    seen: Attributes,
    computed: Callable[[Any], bool],
    reads: Callable[[torch.Tensor, torch.Tensor], bool],
) -> None:
    """Raise `ValueError` for tensors that the run that was seen keeps for the next.

    computed: whether a tensor depends on the input. reads: whether the run reads words
    of a tensor, in the place of which there is another one then.
    """
    for place, (old, new) in seen.changes.items():
        first = place in seen.first and old is not new
        state = any(computed(each) for each in leaf_tensors(new))
        pairs = itertools.product(leaf_tensors(old), leaf_tensors(new))
        counted = any(reads(*pair) for pair in pairs)
        if first and (state or counted):
            raise ValueError(f"forward keeps {_name(place)} {REMEDY}")


def require_not_read(
    model: nn.Module,
    first: fx.Graph,
    again: Callable[[], fx.Graph],
    changed: Sequence[str],
) -> None:
    """Raise `ValueError` for a model whose next call reads what the last has computed.

    It may be anywhere in what attributes of modules refer to: in lists, in dicts, and
    in objects. first: of the last call. again: calls the model once more. changed: what
    the last has changed outside of modules.
    """
    try:
        with torch.enable_grad():
            call = difference(first, again()) if changed else again() and ""
    except KeptTensor as kept:
        name = name_of(model, kept.values)
        raise ValueError(f"forward keeps {name} {REMEDY}") from None
    except Exception:  # a cache may be one of tensors that only a whole call makes
        return
    if call:
        raise ValueError(f"forward keeps {', '.join(changed)} {REMEDY} (see {call})")


def name_of(model: nn.Module, values: torch.Tensor, places: Places = NOWHERE) -> str:
    """The attribute that has a tensor."""
    facts = Description(model, places=places).facts.items()
    found = (str(fact) for fact, value in facts if value is values)
    return next(found, "a tensor that it computes")


def require_no_numbers(
    model: nn.Module, run: Callable[[nn.Module], fx.Graph], seen: Attributes
) -> None:
    """Raise `ValueError` for a model of which a later call makes other calls.

    The next call finds what the first has left. Later ones find numbers far from these,
    or the other answer of one comparison, as at a threshold. run: traces a model. seen:
    of the runs of the model as it is given.
    """
    places = {
        place: value
        for place, value in seen.left.items()
        if place in seen.first and place[0] not in seen.caches
    }
    if not places:
        return
    names = ", ".join(map(_name, places))
    first, around = run(model), Kept(model, seen.outside)
    for state, at in _later(places):
        try:
            call = difference(first, run(_after(model, state, around)))
        except Exception as error:
            # the first call may have left a part of a whole, and a number may be none
            # that comes; but what is behind a threshold is not known then
            call = "" if _is_raised(error) else at
        finally:
            around.put_back()
        if call:
            raise ValueError(f"forward keeps {names} {REMEDY} (see {at or call})")


def _later(places: Mapping[Place, Any]) -> Iterator[tuple[Mapping[Place, Any], str]]:
    """What calls after the first may find in attributes, and the line that is another.

    The next one; with one comparison turned, by line; and with far numbers.
    """

    def state(seen: Comparisons, further: int = 0) -> Mapping[Place, Any]:
        return {place: seen.watched(each, further) for place, each in places.items()}

    compared = Comparisons()
    yield state(compared), ""
    for line in compared.lines:
        yield state(Comparisons(line)), f"{Path(line[0]).name}:{line[1]}"
    for further in (FAR, -FAR):
        yield state(Comparisons(), further), ""


def _is_raised(error: BaseException) -> bool:
    """Whether the model's code raises an error, as for a number that is not valid."""
    last = traceback.extract_tb((error.__cause__ or error).__traceback__)[-1]
    return re.search(r"\b(raise|assert)\b", last.line or "") is not None


def _after(model: nn.Module, places: Mapping[Place, Any], around: Kept) -> nn.Module:
    """A copy of a model with other values in its attributes and outside of it."""
    made = copy.deepcopy(model, plain_copies(model))
    for (module, name), value in places.items():
        if module == OUTSIDE:
            around.put(name, copy.deepcopy(value))
        else:
            setattr(made.get_submodule(module), name, copy.deepcopy(value))
    return made


def _name(place: Place) -> str:
    return ".".join(each for each in place if each and each != OUTSIDE)
