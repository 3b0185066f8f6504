"""Whether the steps of a network do what the traced calls did.

What is looked at when steps are made, and in the first pass of each mode, costs nothing
in later passes: a step uses the tensors of its call and no others, it has the shape of
the call's result, and the part that each rank computes has its extents and its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from synth.runtime.comm.group_tree import combined
from synth.runtime.grid.boxes import shape
from synth.runtime.grid.ranks import Ranks
from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.layers.steps.step import Step
from synth.runtime.operators.call import Call

REMEDY = (
    "this is a fault of synth: report it with this line, and write the call in another"
    " way or move it out of the network"
)


class Expected(NamedTuple):
    """What a step makes.

    shape: of the own part. dtype: as traced. what: the call and its line, for messages.
    only: the mode in which the call is made; None for both.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    what: str
    only: bool | None = None

    @classmethod
    def of(cls, call: Call, step: Step) -> Expected:
        """Of the step of a call that gives a tensor.

        Raises `ValueError` for a step that makes another shape than the call, or of
        which some words are on no rank.
        """
        what = f"{call.name}{call.node.meta.get('place', '')}"
        if step.layout.whole != call.out:
            raise ValueError(
                f"{what} gives {call.out}, but its ranks would compute"
                f" {step.layout.whole}; {REMEDY}"
            )
        words, held = math.prod(call.out), step.layout.held_words
        if held < words:  # ranks that hold all of it, or margins, compute some twice
            raise ValueError(
                f"{what} gives {words:,} words, but its ranks would compute {held:,};"
                f" {REMEDY}"
            )
        meta = call.node.meta
        own = shape(step.layout.mine)
        return cls(own, meta["value"].dtype, what, meta.get("only"))

    def differs(self, made: torch.Tensor, dtypes: bool) -> str:
        """How a result differs; "" where it does not."""
        same = tuple(made.shape) == self.shape
        if same and (made.dtype == self.dtype or not dtypes):
            return ""
        return (
            f"{self.what} gives {self.shape} of {self.dtype}, but a rank computed"
            f" {tuple(made.shape)} of {made.dtype}; {REMEDY}"
        )


def require_handed(call: Call, step: Step, uses: Collection[str]) -> None:
    """Raise `ValueError` unless a step uses just the tensors that its call is given.

    uses: the names under which the step has parameters, buffers and expressions.
    """
    entries = call.entries()
    strange = [name for name in uses if name not in entries]
    held = {entries[name] for name in uses if name in entries}
    lost = {name for name, _ in call.parameters.values()} - held
    taken = getattr(step, "takes", len(call.inputs))
    lost |= {each.name for each in call.inputs[taken:]}
    for how, names in (("takes no", sorted(lost)), ("takes a strange", strange)):
        if names:
            raise ValueError(
                f"{call.name}{call.node.meta.get('place', '')}: the step {how}"
                f" {names[0]}; {REMEDY}"
            )


class FirstPass:
    """Compares what steps make with the traced calls, in the first pass of each mode.

    expected: call -> what its step makes. inputs: the traced dtypes of the inputs.
    """

    def __init__(
        self,
        expected: Mapping[str, Expected],
        inputs: Sequence[torch.dtype],
        ranks: Ranks,
    ) -> None:
        self.expected, self.inputs, self.ranks = dict(expected), [*inputs], ranks
        self.seen = set[tuple[bool, bool]]()

    @contextmanager
    def looking(
        self, shards: Sequence[torch.Tensor], mode: tuple[bool, bool]
    ) -> Iterator[Looking | None]:
        """What looks at the results of a pass; None after the first one of a mode.

        shards: of the inputs. mode: whether it trains, and records gradients. Results
        of another dtype are as they should be where inputs have another one, or under
        autocast: then shapes alone are compared.

        Raises `ValueError` on all ranks if a result of one of them differs.
        """
        if mode in self.seen:
            yield None
            return
        same = [each.dtype for each in shards] == self.inputs
        low = any(autocast_dtype(each.device) is not None for each in shards)
        look = Looking(self.expected, same and not low)
        try:
            yield look
        except Exception as error:
            if look.found:
                raise ValueError(look.found) from error
            raise
        told = combined(self.ranks, look.found, lambda own, child: own or child)
        if told:
            raise ValueError(told)
        self.seen.add(mode)


class Looking:
    """One pass that is looked at. found: the first result that differs."""

    def __init__(self, expected: Mapping[str, Expected], dtypes: bool) -> None:
        self.expected, self.dtypes, self.found = expected, dtypes, ""

    def see(self, name: str, step: Step, made: torch.Tensor) -> None:
        """Look at the result of a call.

        No dtype is known in a region of autocast that the model has, and after it.
        """
        self.dtypes = self.dtypes and not step.autocast
        expected = self.expected.get(name)
        if self.found or expected is None or expected.only not in (None, step.training):
            return
        self.found = expected.differs(made, self.dtypes)
